"""The drop-in optimizers: states in host memory or on nvme, of parameters that stay torch's."""

from .optimizers import OffloadAdagrad, OffloadAdam, OffloadAdamW, OffloadLion, OffloadOptions, OffloadSGD

__all__ = ["OffloadAdagrad", "OffloadAdam", "OffloadAdamW", "OffloadLion", "OffloadOptions", "OffloadSGD"]
