"""Whether tensors lie in the same memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def overlapping(
    tensors: Iterable[tuple[torch.Tensor, str]], others: Iterable[tuple[torch.Tensor, str]] = ()
) -> tuple[str, str] | None:
    """The names of two that share bytes, one of them at least of `tensors`; None where there are none. Both are
    lists of (tensor, name)."""
    spans = sorted(
        _span(tensor) + (is_other, name)
        for is_other, each in ((False, tensors), (True, others))
        for tensor, name in each
        if tensor.numel()
    )
    # What reaches furthest so far, of `tensors` and of `others`.
    reach: dict[bool, tuple[str, int, str] | None] = {False: None, True: None}
    for device, begin, end, is_other, name in spans:
        for before_is_other, furthest in reach.items():
            if furthest is not None and not (is_other and before_is_other):
                if furthest[0] == device and begin < furthest[1]:
                    return furthest[2], name
        so_far = reach[is_other]
        if so_far is None or so_far[:2] < (device, end):
            reach[is_other] = (device, end, name)
    return None


def _span(tensor: torch.Tensor) -> tuple[str, int, int]:
    """(device, first byte, the byte after its last)"""
    elements = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
    begin = tensor.data_ptr()
    return str(tensor.device), begin, begin + elements * tensor.element_size()
