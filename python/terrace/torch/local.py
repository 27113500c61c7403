"""What of a tensor lies in this process: all of it, or the local shard of a DTensor, as FSDP2 (fully_shard) makes them."""

from __future__ import annotations

import sys
from typing import Any

import torch


def is_dtensor(tensor: torch.Tensor) -> bool:
    # A DTensor is there only where its module is; to import that takes longer than a step.
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def local_of(tensor: torch.Tensor) -> torch.Tensor:
    """The memory of this process, without a copy."""
    if not is_dtensor(tensor):
        return tensor
    given: Any = tensor
    with torch.no_grad():
        local: Any = given.to_local()
    # A collective that may be on its way, of which this waits.
    return local.wait() if hasattr(local, "wait") else local


def gradient_of(parameter: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """What lies in this process of a parameter's gradient, which may be spread otherwise."""
    if not is_dtensor(parameter):
        return gradient
    own: Any = parameter
    given: Any = gradient
    if is_dtensor(gradient) and given.placements != own.placements:
        gradient = given.redistribute(placements=own.placements)
    return local_of(gradient)


def as_spread(parameter: torch.Tensor, local: torch.Tensor) -> torch.Tensor:
    """Values of this process, of the parameter's local shape, as a tensor that is spread as the parameter is."""
    if not is_dtensor(parameter):
        return local
    from torch.distributed.tensor import DTensor

    own: Any = parameter
    stride = own.stride() if own.is_contiguous() else torch.empty(own.shape, device="meta").stride()
    return DTensor.from_local(local, own.device_mesh, own.placements, run_check=False, shape=own.shape, stride=stride)


def local_values(parameter: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """The local shard of values in the parameter's whole shape, which may be spread in some way, or not at all."""
    if not is_dtensor(parameter):
        return values
    from torch.distributed.tensor import distribute_tensor

    own: Any = parameter
    given: Any = values
    if not is_dtensor(values):
        # Every rank has all values, so none sends them.
        return local_of(distribute_tensor(given, own.device_mesh, own.placements, src_data_rank=None))
    if given.placements != own.placements or given.device_mesh != own.device_mesh:
        given = given.redistribute(own.device_mesh, own.placements)
    return local_of(given)
