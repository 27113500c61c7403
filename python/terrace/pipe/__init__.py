"""DeepSpeed's pipe: a model of layers one behind the other, divided into stages over processes (docs/python_pipeline.md)."""

from .layers import LayerSpec, TiedLayerSpec
from .module import PipelineModule
from .stages import PipelineEngine
from .topology import (
    PipeDataParallelTopology,
    PipelineParallelGrid,
    PipeModelDataParallelTopology,
    ProcessTopology,
)

__all__ = [
    "LayerSpec",
    "PipeDataParallelTopology",
    "PipeModelDataParallelTopology",
    "PipelineEngine",
    "PipelineModule",
    "PipelineParallelGrid",
    "ProcessTopology",
    "TiedLayerSpec",
]
