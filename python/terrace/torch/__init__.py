"""Terrace for PyTorch: terrace.initialize trains a model whose parameters and optimizer states do not fit in memory."""

from .dealt import RankSampler
from .engine import Engine
from .engine.initialize import SMALL_ELEMENTS, initialize
from .engine.model_plan import ModelPlan, plan_model
from .large_models import init, load
from .optimizer import OffloadAdagrad, OffloadAdam, OffloadAdamW, OffloadLion, OffloadOptions, OffloadSGD
from .quantized import QuantizedLinear, quantize_base

__all__ = [
    "Engine",
    "ModelPlan",
    "OffloadAdagrad",
    "OffloadAdam",
    "OffloadAdamW",
    "OffloadLion",
    "OffloadOptions",
    "OffloadSGD",
    "QuantizedLinear",
    "RankSampler",
    "SMALL_ELEMENTS",
    "init",
    "initialize",
    "load",
    "plan_model",
    "quantize_base",
]
