"""HandedOver: what p.grad is while the gradient is in the store."""

import torch

from ..errors import MisuseError


class HandedOver(torch.Tensor):
    """A tensor of the gradient's shape, without memory. Whatever reads or writes its values raises, so that clipping,
    unscaling and the like never work on nothing. `reason` says why torch has the values no more, and `advice` what
    does instead."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, parameter, name, reason, advice):
        made = torch.Tensor._make_wrapper_subclass(
            cls, parameter.shape, dtype=parameter.dtype, device=parameter.device
        )
        made.label, made.reason, made.advice = name, reason, advice
        return made

    def __repr__(self, **_):
        return f"HandedOver({self.label!r}, shape={tuple(self.shape)})"

    @classmethod
    def __torch_dispatch__(cls, function, types, arguments=(), named=None):
        flat = torch.utils._pytree.tree_leaves((arguments, named))
        one = next(each for each in flat if isinstance(each, HandedOver))
        raise MisuseError(f"cannot use a gradient in {function}", one.label, one.reason, one.advice)

    def __dlpack__(self, **_):
        raise MisuseError("cannot share a gradient by DLPack", self.label, self.reason, self.advice)

    def __reduce_ex__(self, protocol):
        raise MisuseError("cannot copy or save a gradient", self.label, self.reason,
                          "set the gradients to None (zero_grad) before")
