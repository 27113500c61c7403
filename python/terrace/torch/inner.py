"""Tensors that are made of others, as torchao's quantised weights are: what they are made of, and how they are made
again over other memory. A tensor that says nothing of this is made of itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass


def is_wrapper(tensor: torch.Tensor) -> bool:
    """Whether it has __tensor_flatten__ and __tensor_unflatten__, torch's protocol for such tensors."""
    return is_traceable_wrapper_subclass(tensor)


def inner_tensors(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The plain tensors that it is made of, in an order that depends on its class alone."""
    if not is_wrapper(tensor):
        return [tensor]
    parts = (getattr(tensor, name) for name in cast(Any, tensor).__tensor_flatten__()[0])
    return [one for part in parts if isinstance(part, torch.Tensor) for one in inner_tensors(part)]


def made_over(tensor: torch.Tensor, values: Sequence[torch.Tensor]) -> torch.Tensor:
    """One as `tensor` is, made of `values` in place of its inner tensors."""
    return _made_over(tensor, iter(values))


def _made_over(tensor: torch.Tensor, values: Iterator[torch.Tensor]) -> torch.Tensor:
    if not is_wrapper(tensor):
        return next(values)
    wrapper = cast(Any, tensor)
    names, context = wrapper.__tensor_flatten__()
    parts = {name: getattr(tensor, name) for name in names}  # of a DTensor its mesh, too
    inner = {name: _made_over(part, values) if isinstance(part, torch.Tensor) else part for name, part in parts.items()}
    made: torch.Tensor = type(wrapper).__tensor_unflatten__(inner, context, tensor.shape, tensor.stride())
    return made


def with_each(tensor: torch.Tensor, change: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """One as `tensor` is, with each of its inner tensors changed."""
    return made_over(tensor, [change(one) for one in inner_tensors(tensor)])


def version_of(tensor: torch.Tensor) -> int:
    """As torch counts writes in place: those to inner tensors too."""
    inner = sum(one._version for one in inner_tensors(tensor)) if is_wrapper(tensor) else 0
    return tensor._version + inner


def byte_count(tensor: torch.Tensor) -> int:
    return sum(one.numel() * one.element_size() for one in inner_tensors(tensor))
