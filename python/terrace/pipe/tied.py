"""Layers that several stages have. The first of these stages trains them; the others, which follow it, compute with a copy.

In each micro-batch the gradient goes from the last copy to the first layer, and each stage adds its own to it: so autograd adds
in one process, and the sums have the same bits. After an update the first stage sends the values, in the type in which they are
computed with. So the copies have neither gradients in a store nor optimizer states, and the norm counts each layer once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from ..errors import MisuseError
from ..torch.engine.replicas import sum_of

if TYPE_CHECKING:
    from .module import PipelineModule
    from .stages import PipelineEngine
    from .transfer import Line

_FIRST_WAY = 2  # of messages; those before are of activations and gradients
_PART_ELEMENTS = 4 << 20


class _Tied:
    """One layer that this stage and others have."""

    def __init__(
        self, number: int, key: str, stages: list[int], stage: int, parameters: list[torch.nn.Parameter]
    ) -> None:
        self.key = key
        self.gradient_way, self.value_way = _FIRST_WAY + 2 * number, _FIRST_WAY + 2 * number + 1
        place = stages.index(stage)
        self.first = stages[0] if place > 0 else None  # who trains it, if another one does
        self.before = stages[place - 1] if place > 0 else None
        self.behind = stages[place + 1] if place + 1 < len(stages) else None
        self.followers = stages[1:] if place == 0 else []
        self.parameters = parameters
        self.came: list[torch.Tensor | None] = []


class TiedLayers:
    def __init__(self, engine: PipelineEngine, module: PipelineModule, line: Line) -> None:
        self._engine, self._line = engine, line
        shared = module.stages_of_tied()
        self._own = [
            _Tied(number, key, stages, module.stage_id, list(module.tied_modules[key].parameters()))
            for number, (key, stages) in enumerate(shared.items())
            if module.stage_id in stages
        ]

    def expect(self, micro_batches: int) -> None:
        for one in self._own:
            if one.behind is not None:
                self._line.expect(one.behind, one.gradient_way, micro_batches)

    # --- Gradients, in each micro-batch ---

    def before_backward(self) -> None:
        """What has come from the stages behind is what autograd adds to."""
        for one in self._own:
            if one.behind is None:
                continue
            one.came = self._line.receive(one.behind, one.gradient_way).value
            with torch._C.DisableTorchFunctionSubclass():  # of parameters that are away
                for parameter, gradient in zip(one.parameters, one.came):
                    if parameter.requires_grad:
                        parameter.grad = gradient

    def after_backward(self) -> None:
        for one in self._own:
            with torch._C.DisableTorchFunctionSubclass():
                if one.before is not None:
                    gradients = [parameter.grad for parameter in one.parameters]
                    for parameter in one.parameters:
                        parameter.grad = None
                    self._line.send(one.before, one.gradient_way, gradients)
                elif one.behind is not None:
                    self._require_taken(one)
            one.came = []

    def _require_taken(self, one: _Tied) -> None:
        for parameter, gradient in zip(one.parameters, one.came):
            if gradient is not None and parameter.requires_grad and parameter.grad is gradient:
                raise MisuseError(
                    "cannot take the gradient of a tied layer",
                    one.key,
                    "it has one in a later stage, and none in the first stage that has it",
                    "let each micro-batch go through the layer wherever it is, or put its layers into one stage",
                )

    # --- Values, after each update ---

    def share(self) -> None:
        """All copies get the values of the first layer. Every stage calls it, between two steps."""
        for one in self._own:
            if one.first is None:
                for values in self._values(one):
                    for stage in one.followers:
                        self._line.send(stage, one.value_way, values)
            else:
                self._take(one)
        if self._engine.config.strict:
            self._require_alike()

    def _values(self, one: _Tied) -> Iterator[torch.Tensor]:
        """A part at a time, in the parameter's own type."""
        for parameter in one.parameters:
            yield from self._engine.parts_of_values(parameter, _PART_ELEMENTS)

    def _take(self, one: _Tied) -> None:
        assert one.first is not None
        for parameter in one.parameters:
            count = parameter.numel()
            self._line.expect(one.first, one.value_way, -(-count // _PART_ELEMENTS))
            for begin in range(0, count, _PART_ELEMENTS):
                values = self._line.receive(one.first, one.value_way).tensors[0]
                self._engine.write_part_of_values(parameter, begin, values)

    def _require_alike(self) -> None:
        for one in self._own:
            own = sum_of([values for parameter in one.parameters for values in
                          self._engine.parts_of_values(parameter, _PART_ELEMENTS)])  # fmt: skip
            for stage in one.followers:
                self._line.send(stage, one.value_way, own)
            if one.first is None:
                continue
            self._line.expect(one.first, one.value_way, 1)
            theirs = self._line.receive(one.first, one.value_way).value
            if theirs != own:
                raise MisuseError(
                    "cannot go on, since terrace.strict compares the copies of a tied layer",
                    one.key,
                    f"it has the checksum {own} in stage {self._line.stage}, and {theirs} in stage {one.first}",
                    "write to the layer in the first stage that has it alone",
                )
