"""HandedOver: what p.grad is while the gradient is in the store."""

from __future__ import annotations

from typing import Any, NoReturn, SupportsIndex

import torch

from ..errors import MisuseError


class HandedOver(torch.Tensor):
    """A tensor of the gradient's shape, without memory. Whatever reads or writes its values raises, so that clipping,
    unscaling and the like never work on nothing. `reason` says why torch has the values no more, and `advice` what
    does instead."""

    label: str
    reason: str
    advice: str
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls: type[HandedOver], parameter: torch.Tensor, name: str, reason: str, advice: str) -> HandedOver:
        made = torch.Tensor._make_wrapper_subclass(cls, parameter.shape, dtype=parameter.dtype, device=parameter.device)
        made.label, made.reason, made.advice = name, reason, advice
        return made

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"HandedOver({self.label!r}, shape={tuple(self.shape)})"

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, arguments: Any = (), named: Any = None) -> NoReturn:  # type: ignore[override]
        flat = torch.utils._pytree.tree_leaves((arguments, named))
        one = next(each for each in flat if isinstance(each, HandedOver))
        raise MisuseError(f"cannot use a gradient in {function}", one.label, one.reason, one.advice)

    def __dlpack__(self, **_: object) -> NoReturn:
        raise MisuseError("cannot share a gradient by DLPack", self.label, self.reason, self.advice)

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise MisuseError(
            "cannot copy or save a gradient", self.label, self.reason, "set the gradients to None (zero_grad) before"
        )
