"""Where a stage begins in autograd's graph: what has arrived goes on as if it had been computed here, and the gradients that come
back to it are caught."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


class Caught:
    """.gradients: of the tensors that carry one, in their order; None of one that nothing has come back to."""

    def __init__(self, tensors: Sequence[torch.Tensor], carry: Sequence[bool]) -> None:
        """.tensors: those that have arrived, as the layers of this stage take them."""
        self.own = [one for one, does in zip(tensors, carry) if does]
        self.gradients: list[torch.Tensor | None] = [None] * len(self.own)
        self.tensors = list(tensors)
        if self.own and torch.is_grad_enabled():
            made = iter(_Arrival.apply(torch.empty(0, requires_grad=True), self))
            self.tensors = [next(made) if does else one for one, does in zip(tensors, carry)]
        self.own = []


class _Arrival(torch.autograd.Function):
    """Its outputs are neither leaves nor views, so that a layer may write to them, as it may to what another layer of its stage has
    returned."""

    @staticmethod
    def forward(context: Any, anchor: torch.Tensor, caught: Caught) -> tuple[torch.Tensor, ...]:
        context.set_materialize_grads(False)
        context.caught = caught
        return tuple(caught.own)

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor | None) -> tuple[None, None]:
        context.caught.gradients = list(gradients)
        return None, None
