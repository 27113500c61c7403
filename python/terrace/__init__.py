"""Terrace: trains models that do not fit in memory.

Parameters, gradients and optimizer states of a training are kept in device memory, host memory and on nvme, within
budgets that you give. terrace.Store needs nothing but Python; terrace.initialize takes a model of PyTorch.
"""

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
)
from .spec import CudaDevice, Optimizer, Plan, SimulatedDevice, Tensor, UpdateResult, Use
from .store import Store, plan

__version__ = "0.1.0"


def initialize(*arguments, **named):
    """DeepSpeed's call over a model of PyTorch: see terrace.torch.initialize."""
    from .torch import initialize as of_torch

    return of_torch(*arguments, **named)
