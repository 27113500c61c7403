"""What of a model is in no store: its buffers, and parameters that are neither trained nor large, or of a class that does
not say what it is made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..inner import is_wrapper
from .placeholders import TORCH_TYPES, TYPES
from .words import beside_of, keeps_state, owners_of, settle_beside

if TYPE_CHECKING:
    from ...config import Config


def kept_in_fp32(model: nn.Module, config: Config) -> set[int]:
    """The ids of parameters that keep fp32 under bf16.enabled and fp16.enabled: those of a BatchNorm whose running
    statistics are fp32. In 16 bits most steps of a running mean would be rounded away, and torch wants all of a
    BatchNorm in one type; its inputs and outputs may be of 16 bits."""
    found: set[int] = set()
    for module in model.modules():
        if isinstance(module, _BatchNorm) and module.running_mean is not None:
            if (config.buffer_type or TYPES.get(module.running_mean.dtype)) == "fp32":
                found.update(id(one) for one in module.parameters(recurse=False) if one.dtype == torch.float32)
    return found


def settle_others(
    model: nn.Module, type_of: Callable[[nn.Parameter], str], known: set[int], config: Config, device: torch.device
) -> None:
    """Brings to the device what is in no store. Buffers keep their types, as with DeepSpeed, unless
    data_types.buffer_dtype says another: a table of angles or a routing bias has values that 16 bits do not hold.
    `type_of` gives the type of a parameter, and `known` are the ids of those in the store."""
    buffers = TORCH_TYPES.get(config.buffer_type)
    for buffer in model.buffers():
        buffer.data = buffer.data.to(device, buffers if buffer.dtype in TYPES else None)
    for parameter in model.parameters():
        if id(parameter) not in known:
            is_number = parameter.dtype in TYPES or parameter.dtype == torch.float64
            type_ = type_of(parameter) if is_number and config.precision != "fp32" else ""
            if is_wrapper(parameter):
                torch.utils.swap_tensors(parameter, nn.Parameter(parameter.detach().to(device), requires_grad=False))
                continue
            old = parameter.data
            parameter.data = parameter.data.to(device, TORCH_TYPES.get(type_))
            if keeps_state(parameter):
                alias = settle_beside(beside_of(parameter, owners_of(parameter, model)), old, device)
                if alias is not None:
                    alias.data = parameter.data


def line_of_outside(outside: Sequence[tuple[nn.Parameter, str]], device: torch.device) -> str:
    """What to say of large frozen parameters whose class is not known: [(parameter, name)]."""
    size = sum(one.numel() * one.element_size() for one, _ in outside) / 2**20
    types = ", ".join(sorted({_type_name(one) for one, _ in outside}))
    names = outside[0][1] + (f" to {outside[-1][1]}" if len(outside) > 1 else "")
    return (
        f"frozen parameters of {size:.1f} MiB stay in memory of torch's on {device.type}, which no budget counts, and "
        f"offload_param has no effect on them: {len(outside)} of type {types} ({names}); a store takes tensors of torch's "
        "own class, and of classes with __tensor_flatten__ and __tensor_unflatten__"
    )


def _type_name(parameter: nn.Parameter) -> str:
    kind = type(parameter.data)
    return str(parameter.dtype).rpartition(".")[2] if kind is torch.Tensor else kind.__name__
