"""What a store is: tensors, devices and optimizers as plain values, what is asked for in the structs of C, the memory
that C and Python both see, and Store over them."""

from .spec import CudaDevice, Optimizer, Plan, SimulatedDevice, Tensor, UpdateResult, Use
from .store import KINDS, Store, plan

__all__ = [
    "KINDS",
    "CudaDevice",
    "Optimizer",
    "Plan",
    "SimulatedDevice",
    "Store",
    "Tensor",
    "UpdateResult",
    "Use",
    "plan",
]
