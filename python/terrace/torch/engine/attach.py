"""A frozen parameter that a store keeps as words gets its tensors over the store's memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from ..inner import is_wrapper
from .device import tensor_at, torch_device_of
from .words import beside_of, owners_of, settle_beside

if TYPE_CHECKING:
    from ...store import Store
    from .placeholders import Placeholders, Tracked


def attach_words(
    model: nn.Module, one: Tracked, store: Store, device: object, placeholders: Placeholders | None
) -> None:
    """Without `placeholders`, on a strict device, it always is what is in the store's memory."""
    parameter, words = one.parameter, one.words
    assert words is not None
    memory = tensor_at(store, one.number, (words.bytes,), torch.uint8, device)
    real = words.over(memory, parameter)
    away = real if placeholders is None else placeholders.of(one, memory.device)
    if is_wrapper(parameter):
        # A class's own device and inner tensors are set when it is made. The parameter stays the object that it is.
        made = nn.Parameter(words.over(memory, parameter), requires_grad=False)
        torch.utils.swap_tensors(parameter, made)
    else:
        old = parameter.detach()
        owners = owners_of(parameter, model)
        one.alias = settle_beside(beside_of(parameter, owners), old, torch_device_of(device))
        for owner in owners:  # bitsandbytes would put codes in another order into the parameter in the first evaluation
            if hasattr(owner, "support_avx512bf16_for_cpu"):
                owner.__dict__["support_avx512bf16_for_cpu"] = False
    one.attach(real, away, memory)
