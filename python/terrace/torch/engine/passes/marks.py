"""What p.grad is from the last backward pass of a step to the next step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from ...handed_over import HandedOver

if TYPE_CHECKING:
    from ..placeholders import Tracked

# Why p.grad has no values, and what has.
_HANDED_OVER = "it was handed over to Terrace when the backward pass made it, and torch has it no more"
_CLIP_HERE = (
    "let Terrace clip: set gradient_clipping in the configuration or call engine.clip_grad_norm_(max_norm), and ask "
    "engine.get_global_grad_norm() for the norm"
)


class Marks:
    """From the last backward pass to the next step gradients are in the store of an engine, and p.grad says so."""

    def __init__(self, trainable: Sequence[Tracked]) -> None:
        self._trainable = trainable
        self._are_set = False

    def set(self) -> None:
        with torch._C.DisableTorchFunctionSubclass():  # of parameters that are away (../away.py)
            self._set()

    def _set(self) -> None:
        for one in self._trainable:
            if one.parameter.grad is None:
                if one.refusal is None:
                    one.refusal = HandedOver(one.parameter, one.name, _HANDED_OVER, _CLIP_HERE)
                one.parameter.grad = one.refusal
        self._are_set = True

    def remove(self) -> None:
        if self._are_set:
            self._are_set = False
            with torch._C.DisableTorchFunctionSubclass():
                for one in self._trainable:
                    if type(one.parameter.grad) is HandedOver:
                        one.parameter.grad = None
