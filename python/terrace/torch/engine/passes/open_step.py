"""The step or the evaluation that a store has open: which micro-batch, whether it has gradients, what has spoilt it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

import torch

from ....errors import Error, MisuseError
from ....store import KINDS

if TYPE_CHECKING:
    from ....store import Store
    from .marks import Marks

IDLE, STEP, EVALUATION = "idle", "step", "evaluation"
_FORWARD, _INFERENCE = KINDS["forward"], KINDS["inference"]


class OpenStep:
    """`before_step` runs before a step begins. `marks` say on p.grad that a complete step has the gradients."""

    def __init__(self, store: Store, accumulation_steps: int, marks: Marks, before_step: Callable[[], None]) -> None:
        self.accumulation_steps = accumulation_steps
        self.phase = IDLE
        self.micro_batch = self.updates = 0
        self.calls = 0  # of engine.step() since the last update, where ranks pull
        self.stamp = 0  # of the micro-batch, or of the evaluation: no other one has it
        self._ahead = 0  # forward passes of one backward pass each, that have begun by themselves
        self.failure: Error | None = None
        self.has_read_nothing = False  # this step, at a place that is not learned yet
        self.is_beginning = False  # where Ctrl-C ends that, nobody knows whether the store has a step
        self._store = store
        self._marks = marks
        self._before_step = before_step
        self._has_gradients = self._micro_batch_has_gradients = False
        self._is_over = False  # the last micro-batch, which stays open for reading until the update

    @property
    def has_gradients(self) -> bool:
        """True where giving the step up would lose gradients."""
        return self.phase is STEP and self._has_gradients

    @property
    def reading_kind(self) -> int:
        return _INFERENCE if self.phase is EVALUATION else _FORWARD

    @property
    def forward_stamp(self) -> tuple[int, int]:
        """Of the forward passes that one backward pass goes through."""
        return self.stamp, self._ahead

    # --- Beginnings and ends ---

    def begin_forward(self) -> None:
        """Of a program that goes forward in several micro-batches before it goes backward in the first: what it reads now it has
        not read before in the same micro-batch."""
        self._ahead += 1

    def begin_pass(self) -> None:
        if torch.is_grad_enabled():
            self.begin()
        else:
            self.phase = EVALUATION
            self.stamp += 1
            self._store.begin_evaluation()

    def begin(self) -> None:
        self._marks.remove()
        self._before_step()
        self.micro_batch = 0
        self.stamp += 1
        self._has_gradients = self._micro_batch_has_gradients = self._is_over = self.has_read_nothing = False
        self.phase = STEP
        self.is_beginning = True
        try:
            self._store.begin_step()
        except Error:  # of the last commit: no step is open
            self.phase = IDLE
            self.is_beginning = False
            raise
        self.is_beginning = False

    def end_evaluation(self) -> None:
        self._store.end_evaluation()
        self.phase = IDLE

    def note_gradient(self) -> None:
        self._has_gradients = self._micro_batch_has_gradients = True

    def end_backward(self) -> None:
        """A backward pass that has made gradients is a micro-batch."""
        if self._micro_batch_has_gradients:
            if self.micro_batch + 1 < self.accumulation_steps:
                self._end_micro_batch()
            else:
                self._is_over = True
                self._marks.set()
            self.micro_batch += 1
            self._micro_batch_has_gradients = False

    def note_call(self) -> None:
        """Of engine.step(), which ends a micro-batch that may have had no gradient: ranks number theirs alike."""
        self.calls = min(max(self.calls + 1, self.micro_batch), self.accumulation_steps - 1)

    def end_empty(self) -> None:
        """Before a backward pass: the micro-batches before this one that had no gradients."""
        while self.micro_batch < self.calls:
            self._store.end_micro_batch()
            self.micro_batch += 1

    def complete(self, without_gradients: bool = False) -> bool:
        """Before an update, which there may be without any. False: there is nothing to update with."""
        if not self.has_gradients and not without_gradients:
            return False
        self.end_all()
        return True

    def end_all(self) -> None:
        """Micro-batches that did not come have no gradients."""
        if self.phase is IDLE:
            self.begin()
        missing = self.accumulation_steps - self.micro_batch
        for _ in range(missing + self._is_over):
            self._end_micro_batch()
        self.micro_batch, self.calls, self._is_over = self.accumulation_steps, 0, False

    def updated(self) -> None:
        self.phase = IDLE
        self.micro_batch = 0
        self.updates += 1
        self.stamp += 1
        self._has_gradients = False

    def _end_micro_batch(self) -> None:
        self._store.end_micro_batch()
        self.stamp += 1

    # --- Failures ---

    def spoil(self, error: Error) -> NoReturn:
        self.failure = error
        raise error

    def note_early_end(self) -> None:
        """A backward pass was cut short. Where it had made gradients, the step cannot go on."""
        if self._micro_batch_has_gradients:
            self.failure = misuse(
                "a backward pass ended early, after it had made some of its gradients",
                "give the step up with zero_grad(), and begin it again",
                "go on with the step",
            )

    def require_unspoilt(self) -> None:
        if self.failure is not None:
            raise self.failure

    def close_leftovers(self) -> None:
        """Ends an evaluation that was cut short, and a step that was while it began."""
        if self.phase is EVALUATION:
            self._tolerate(self.end_evaluation)
        if self.is_beginning:
            self.is_beginning = False
            self._tolerate(self._store.abandon_step)

    def abandon(self) -> None:
        """Gives the step up; its gradients are dropped."""
        self.failure = None
        if self.phase is STEP:
            self._tolerate(self._store.abandon_step)
            self._has_gradients = self._micro_batch_has_gradients = False
            self.micro_batch = 0
            self.stamp += 1

    def _tolerate(self, end: Callable[[], None]) -> None:
        """Ctrl-C may have come before a step or an evaluation began, or after it ended."""
        try:
            end()
        except MisuseError:
            pass
        self.phase = IDLE


def misuse(reason: str, advice: str, what: str, subject: str = "the model") -> MisuseError:
    return MisuseError(f"cannot {what}", subject, reason, advice)
