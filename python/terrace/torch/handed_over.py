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
        made = torch.Tensor._make_wrapper_subclass(cls, parameter.shape, dtype=parameter.dtype, device=parameter.device)
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
        raise MisuseError(
            "cannot copy or save a gradient", self.label, self.reason, "set the gradients to None (zero_grad) before"
        )


# Why p.grad has no values, and what has.
_HANDED_OVER = "it was handed over to Terrace when the backward pass made it, and torch has it no more"
_CLIP_HERE = (
    "let Terrace clip: set gradient_clipping in the configuration or call engine.clip_grad_norm_(max_norm), and ask "
    "engine.get_global_grad_norm() for the norm"
)


class Marks:
    """From the last backward pass to the next step gradients are in the store of an engine, and p.grad says so."""

    def __init__(self, trainable):
        self._trainable = trainable
        self._are_set = False

    def set(self):
        with torch._C.DisableTorchFunctionSubclass():  # of parameters that are away (engine/away.py)
            self._set()

    def _set(self):
        for one in self._trainable:
            if one.parameter.grad is None:
                if one.refusal is None:
                    one.refusal = HandedOver(one.parameter, one.name, _HANDED_OVER, _CLIP_HERE)
                one.parameter.grad = one.refusal
        self._are_set = True

    def remove(self):
        if self._are_set:
            self._are_set = False
            with torch._C.DisableTorchFunctionSubclass():
                for one in self._trainable:
                    if type(one.parameter.grad) is HandedOver:
                        one.parameter.grad = None
