"""Terrace: trains models that do not fit in memory.

Parameters, gradients and optimizer states of a training are kept in device memory, host memory and on nvme, within
budgets that you give. terrace.Store needs nothing but Python; terrace.initialize takes a model of PyTorch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .errors import (
    CancelledError,
    CapacityError,
    ConfigError,
    CorruptError,
    DeviceError,
    Error,
    InternalError,
    IoError,
    MisuseError,
    PeerError,
)
from .store import Store, plan
from .store.spec import CudaDevice, Optimizer, Plan, SimulatedDevice, Tensor, UpdateResult, Use

if TYPE_CHECKING:
    import argparse

    from .torch.engine.engine import Engine
    from .torch.engine.optimizer import EngineOptimizer

__all__ = [
    "CancelledError",
    "CapacityError",
    "ConfigError",
    "CorruptError",
    "CudaDevice",
    "DeviceError",
    "Error",
    "InternalError",
    "IoError",
    "MisuseError",
    "Optimizer",
    "PeerError",
    "Plan",
    "SimulatedDevice",
    "Store",
    "Tensor",
    "UpdateResult",
    "Use",
    "add_config_arguments",
    "initialize",
    "plan",
]
__version__ = "0.1.0"


def initialize(*arguments: Any, **named: Any) -> tuple[Engine, EngineOptimizer, Any, Any]:
    """DeepSpeed's call over a model of PyTorch: see terrace.torch.initialize."""
    from .torch import initialize as of_torch

    return of_torch(*arguments, **named)


def add_config_arguments(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Adds --deepspeed and --deepspeed_config to a parser of argparse, for initialize(args=...). Returns the parser."""
    group = parser.add_argument_group("Terrace", "where a training has its configuration")
    group.add_argument("--deepspeed", action="store_true", help="for the script itself; Terrace does not ask for it")
    group.add_argument("--deepspeed_config", metavar="FILE", help="the configuration, a JSON file (docs/config.md)")
    return parser


# Modules that are loaded when they are first asked for, because most need torch, and what DeepSpeed has under its own name.
_MODULES = ("accelerator", "checkpointing", "comm", "compat", "hf", "ops", "pipe", "ranks", "torch", "zero")
_OF_MODULES = {"init_distributed": "comm", "PipelineModule": "pipe", "DeepSpeedEngine": "torch"}
_WAYS = {
    "init_inference": "call the model, or engine.generate(...), under torch.no_grad()",
    "DeepSpeedConfig": "use terrace.config.read_config",
    "log_dist": "use logging",
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in _MODULES:
        return import_module(f".{name}", __name__)
    if name in _OF_MODULES:
        module = import_module(f".{_OF_MODULES[name]}", __name__)
        return module.Engine if name == "DeepSpeedEngine" else getattr(module, name)
    if name.startswith("__"):
        raise AttributeError(name)
    from .suggestions import suggestion_among

    way = _WAYS.get(name) or suggestion_among(name, (*__all__, *_MODULES, *_OF_MODULES))
    pages = "docs/python.md leads to what is here, and docs/from_deepspeed.md lists names of DeepSpeed"
    raise AttributeError(f"terrace has no {name!r}: {way or pages}")
