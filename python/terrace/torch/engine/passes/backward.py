"""A backward pass of autograd: where it begins, which units it has come to, and where it ends.

In the backward pass a unit's lease opens when the first gradient of its outputs arrives; leases.py says when it ends."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch.autograd import Variable

from .open_step import EVALUATION, IDLE, misuse

if TYPE_CHECKING:
    from .gradients import Gradients
    from .hooks import Use
    from .leases import Leases
    from .one_thread import Turn
    from .open_step import OpenStep

_task = torch._C._current_graph_task_id


class Backward:
    """`before_pass` runs before it begins, and `announce` before a step's last one."""

    def __init__(
        self,
        step: OpenStep,
        leases: Leases,
        gradients: Gradients,
        turn: Turn,
        before_pass: Callable[[], None],
        announce: Callable[[], None],
    ) -> None:
        self.needs_scale = self.is_scaled = False  # the loss of an fp16 model; it was scaled
        self.is_closed = False  # the engine: nothing begins any more
        self._step = step
        self._leases = leases
        self._gradients = gradients
        self._turn = turn
        self._before_pass = before_pass
        self._announce = announce
        self._task: int | None = None  # of autograd, while a backward pass runs
        self._parts: set[int] = set()  # tasks of autograd that run within it
        self.ways: frozenset[bool] = frozenset()  # of the passes of this step: whether the engine was given the loss

    @property
    def is_running(self) -> bool:
        return self._task is not None

    def begin(self) -> None:
        if self.is_closed:
            raise misuse("it is closed", "go backward before engine.close()", "go backward", "engine")
        self._turn.take("go backward")
        try:
            self._prepare()
        except BaseException:
            self._turn.thread = None
            raise

    def _prepare(self) -> None:
        step = self._step
        step.require_unspoilt()
        if self.needs_scale and not self.is_scaled:
            raise misuse(
                "its parameters are fp16, and the loss was not multiplied by the loss scale",
                "call engine.backward(loss), or engine.scale(loss).backward()",
                "go backward",
            )
        was_scaled, self.is_scaled = self.is_scaled, False
        if step.phase is EVALUATION:
            step.end_evaluation()
        if step.phase is IDLE:
            step.begin()
        self.ways = (self.ways if step.micro_batch else frozenset()) | {was_scaled}
        step.end_empty()
        if step.micro_batch >= step.accumulation_steps:
            raise misuse(
                f"all {step.accumulation_steps} micro-batches of the step have gone backward already; a second "
                "backward pass through one graph counts as one more",
                "call optimizer.step() first, or set gradient_accumulation_steps to the backward passes of an update",
                "go backward",
            )
        self._before_pass()
        self._task = _task()
        Variable._execution_engine.queue_callback(self._end)
        if step.micro_batch + 1 == step.accumulation_steps:
            self._announce()

    def sums_of_losses(self, ranks: int) -> int:
        """How many times the mean over the ranks this step's gradients are: where the program itself went backward, each
        of them has the gradients of its own loss."""
        if ranks == 1 or self.ways <= {True}:
            return 1
        if len(self.ways) == 2:
            raise misuse(
                "some of its micro-batches went backward by engine.backward or engine.scale, and some did not",
                "go backward in one way in all micro-batches of a step",
                "go on with the step",
            )
        return ranks

    def come_to(self, use: Use) -> None:
        """A gradient of what a unit has returned has arrived."""
        if torch.is_grad_enabled():
            self._step.spoil(
                misuse(
                    "create_graph=True asks for a second derivative, which would read parameters at a time that "
                    "Terrace does not know",
                    "use backward() without create_graph",
                    "go backward",
                )
            )
        if use.updates != self._step.updates:
            self._step.spoil(
                misuse(
                    "this graph was made before the last update, and the weights are others now",
                    "go forward again",
                    "go backward",
                )
            )
        if self._task is None:
            self.begin()
        elif _task() != self._task and _task() not in self._parts:
            self._begin_part()
        self._leases.close_before(use)
        use.is_backward = True
        self._leases.backward.append(use)
        if use.unit.count:
            self._leases.open(use, use.keys[1], self._step.reading_kind)

    def _begin_part(self) -> None:
        """Autograd goes backward within an operation of the backward pass."""
        part = _task()
        self._parts.add(part)
        Variable._execution_engine.queue_callback(functools.partial(self._leases.close_task, part))

    def _end(self) -> None:
        self._gradients.take_held()
        self._leases.close_task(None)
        self._parts.clear()
        self._gradients.land()
        self._step.end_backward()
        self._task = self._turn.thread = None

    def forget(self) -> None:
        """It was cut short."""
        if self._task is not None:
            self._step.note_early_end()
        self._task = None
        self._gradients.forget_held()
        self._parts.clear()
