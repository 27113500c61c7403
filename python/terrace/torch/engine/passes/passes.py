"""What happens while a model goes forward and backward: leases, and gradients that are handed over.

A unit that is entered opens a lease and closes it when it is left, so leases nest as modules do, in the forward
pass, in what checkpointing computes again, and in generate(). backward.py has the backward pass. Gradients of
parameters are handed over when torch has completed them (gradients.py).

A pass over several units may be cut short by any exception. Whatever is still open is closed by the next pass
over the whole model, or by the optimizer; a backward pass that fails spoils its step (open_step.py), and says so until
the step is given up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from threading import get_ident
from typing import TYPE_CHECKING, Any, NoReturn, SupportsIndex, cast

import torch

from ....errors import MisuseError
from ..together import StepVote
from .backward import Backward
from .gradients import Gradients
from .hooks import Use, has_nan, hook_outputs, refuse_to_pickle
from .leases import Leases
from .marks import Marks
from .one_thread import Turn
from .open_step import IDLE, STEP, OpenStep, misuse
from .saved_inputs import SavedInputs

if TYPE_CHECKING:
    from torch import nn

    from ....ranks import Ranks
    from ....store import Store
    from ..placeholders import Tracked
    from ..units import Unit
    from .needs import Shortage

_task = torch._C._current_graph_task_id
_is_traced = torch.compiler.is_dynamo_compiling


class Passes:
    """The passes over one model. `before_pass` runs before every forward and backward pass that begins, `before_step`
    between steps, `announce` before a step's last backward, and `evaluated` after an evaluation, with whether a NaN came
    out of it. `shortage` makes what finds out how much device memory would do."""

    def __init__(
        self,
        store: Store,
        tracked: Sequence[Tracked],
        accumulation_steps: int,
        before_pass: Callable[[], None],
        before_step: Callable[[], None],
        announce: Callable[[], None],
        evaluated: Callable[[bool], None],
        shortage: Callable[..., Shortage],
    ) -> None:
        self.trainable = [one for one in tracked if one.is_trainable]
        self.has_other_parts = False  # which update in every step, and wait for this one
        self.extensions = 0  # of units, by parameters that they had not been expected to read
        self.marks = Marks(self.trainable)
        self.step = OpenStep(store, accumulation_steps, self.marks, before_step)
        self.leases = Leases(store, shortage, any(one.is_managed and one.away is one.real for one in tracked))
        self.turn = Turn()
        self._gradients = Gradients(store, self.trainable, self.step)
        self.backward = Backward(self.step, self.leases, self._gradients, self.turn, before_pass, announce)
        self._store = store
        self._tracked = tracked
        self._before_pass = before_pass
        self._evaluated = evaluated
        self._clock = 0
        self._saved: SavedInputs | None = None
        self.rested: Callable[[], None] = lambda: None  # what is done where the store is at rest, before anything else
        # A compiled module has a break in its graph where its hooks are, as with FSDP2.
        self._enter_untraced = torch.compiler.disable(self._enter)
        self._leave_untraced = torch.compiler.disable(self._leave)

    def tick(self) -> int:
        self._clock += 1
        return self._clock

    @property
    def is_closed(self) -> bool:
        return self.backward.is_closed

    def are_running(self) -> bool:
        """Where what is read is leased."""
        return bool(self.leases.forward) or self.backward.is_running

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        refuse_to_pickle()

    def save_inputs(self) -> None:
        """The inputs of checkpoints are in the store from forward to backward."""
        self._saved = SavedInputs(self._store, self)

    def tidy(self) -> None:
        """The store forgets what no graph has any more."""
        if self._saved is not None:
            self._saved.tidy()

    # --- Hooks ---

    def enter(self, unit: Unit, module: nn.Module, arguments: Any) -> None:
        """Of a module, before its forward."""
        if _is_traced():
            self._enter_untraced(unit)
        else:
            self._enter(unit)

    def leave(self, unit: Unit, module: nn.Module, arguments: Any, output: Any) -> None:
        """Of a module, after its forward, which may have failed."""
        if _is_traced():
            self._leave_untraced(unit, output)
        else:
            self._leave(unit, output)

    def take_gradient(self, one: Tracked, parameter: torch.Tensor) -> None:
        """Of a parameter, when torch has completed its gradient."""
        if not self.backward.is_running:
            self.backward.begin()
        self._gradients.take(one, parameter)

    def note_read(self, one: Tracked) -> None:
        """An operation is about to read a parameter. Outside of the units that have it the innermost unit that is open
        gets it, now and later."""
        one.comes_in_parts = one.comes_in_parts or one.read_stamp == self.step.forward_stamp
        one.read_stamp = self.step.forward_stamp
        if one.is_managed and not one.leases and not self.leases.is_wanted(one):
            if not self.leases.forward:
                raise misuse(
                    "a module reads it that no pass has begun in",
                    "call the model itself, or the module that has the parameter",
                    "read",
                    one.name,
                )
            use = self.leases.forward[-1]
            self.leases.extend(use, one, self.step.reading_kind)
            use.unit.extend(one)
            self.extensions += 1

    # --- Forward ---

    def _enter(self, unit: Unit) -> None:
        if _task() == -1:  # else autograd computes again what was checkpointed
            if self.turn.thread != get_ident():
                self.turn.take("go forward")
            if unit.is_root:
                self._begin_anew()
            if not self.leases.forward:
                if self.step.is_beginning:
                    self.close_leftovers()
                self._before_pass()
        elif not self.backward.is_running and self.step.phase is STEP:
            self.backward.begin()  # before the first of a unit's outputs is reached
        if self.step.phase is IDLE:
            self.step.begin_pass()
        if unit.use_stamp != self.step.stamp:
            unit.begin(self.step.stamp, self._clock, self.step.updates)
        keys = unit.keys(unit.uses)
        unit.uses += 1
        self._clock += 1
        use = Use(self.backward, unit, keys, self.step.updates, self._clock)
        self.leases.forward.append(use)
        if unit.count:
            self.leases.open(use, keys[0], self.step.reading_kind)

    def _leave(self, unit: Unit, output: Any) -> None:
        is_recomputed = _task() != -1
        if self.turn.thread != get_ident() and not is_recomputed:
            return  # it was refused
        open_uses = self.leases.forward
        use = open_uses.pop() if open_uses else None
        while use is not None and use.unit is not unit:  # a unit that an interrupt kept from being left
            self.leases.close(use)
            use = open_uses.pop() if open_uses else None
        if not open_uses and not is_recomputed:
            self.turn.thread = None
        if use is None:
            return  # it could not be entered
        self.leases.leave(use, is_failing=output is None)
        self._clock += 1
        use.left = self._clock
        unit.intervals.append((use.entered, use.left))
        if is_recomputed and not open_uses:
            self.leases.resume(self.step.reading_kind, self.step.stamp)
        if self.step.phase is STEP:
            if output is not None and (unit.count or unit.is_root) and torch.is_grad_enabled():
                hook_outputs(output, use)
        elif not open_uses:
            self.step.end_evaluation()
            if output is not None:
                self._evaluated(has_nan(output))

    def _begin_anew(self) -> None:
        """Before a pass over the whole model. Of a step that failed in its first micro-batch nothing is lost."""
        self.close_leftovers()
        self.turn.thread = get_ident()
        if self.step.failure is not None and torch.is_grad_enabled():
            if self.step.micro_batch:
                raise self.step.failure
            self.abandon()

    # --- Between passes ---

    def close_leftovers(self) -> None:
        """Ends what a pass left open that was cut short by an exception or Ctrl-C, at whatever line that came."""
        self.turn.require("go on")
        self._gradients.drop()
        if self.leases or self.backward.is_running or self._store._open:
            self.backward.forget()
            self.leases.forget()
            self.turn.thread = None
            for one in self._tracked:
                one.forget_leases()
            self._store.release_all()
        self.step.close_leftovers()
        self.tidy()

    def abandon(self) -> None:
        """Gives the step up; its gradients are dropped."""
        self.close_leftovers()
        self.step.abandon()

    def come_to_rest(self, what: str) -> None:
        """Leaves the step or evaluation that is open, so that the store's state can be read. Raises where
        gradients would be lost, and within a pass."""
        if _task() != -1:
            raise misuse("a backward pass is running", "do it after the pass", what)
        self.require_sound()
        if self.step.phase is STEP:
            if self.step.has_gradients:
                raise misuse(
                    f"a step is open, with the gradients of {self.step.micro_batch} micro-batches",
                    "do it after optimizer.step(), or give the step up with zero_grad()",
                    what,
                )
            self.abandon()
        self.rested()

    def require_sound(self) -> None:
        """Closes what a failure left open, and raises what has spoilt the step."""
        if self.is_closed:
            raise misuse("it is closed", "make another one with terrace.initialize", "go on", "engine")
        self.close_leftovers()
        self.step.require_unspoilt()

    def complete(self) -> bool:
        """Before an update. False: there is nothing to update with."""
        self.require_sound()
        self._gradients.take_set()
        self._gradients.land()
        if not self._store.pulls:
            return self.step.complete(self.has_other_parts)
        return self._complete_together(cast("Ranks", self._store.ranks))

    def end_gradients(self, what: str) -> None:
        """No more gradients come, and the store has the sums of all: what the update will be made with."""
        self.require_sound()
        step = self.step
        if not step.has_gradients or step.micro_batch < step.accumulation_steps:
            reason = (
                f"{step.micro_batch if step.has_gradients else 0} of {step.accumulation_steps} micro-batches have any"
            )
            raise misuse(reason, "do it between the last backward pass of a step and optimizer.step()", what)
        self._gradients.take_set()
        self._gradients.land()
        step.end_all()

    def _complete_together(self, ranks: Ranks) -> bool:
        vote = self._end_together(ranks, gives_up=False)
        self.backward.ways = vote.ways
        updates = vote.has_gradients or self.has_other_parts
        if not updates:
            self.step.abandon()
        return updates

    def _end_together(self, ranks: Ranks, gives_up: bool) -> StepVote:
        """A rank may have nothing to go backward from where another one has. It says so before it waits for that one,
        whose gradients may wait for its micro-batches."""
        step = self.step
        mine = StepVote(step.has_gradients, self.backward.ways if step.has_gradients else frozenset(), gives_up)
        step.end_all()
        return mine.of_all(ranks)

    def give_up(self) -> None:
        """Of the program: its gradients are dropped, on all ranks or none."""
        if self._store.pulls and self.step.has_gradients:
            self.close_leftovers()
            self._end_together(cast("Ranks", self._store.ranks), gives_up=True)
        self.abandon()

    def had_ended(self) -> bool:
        """After Ctrl-C in an update: whether it had run. Else the step is given up."""
        try:
            self._store.abandon_step()
        except MisuseError:
            return True
        self.abandon()
        return False

    def close(self) -> None:
        """Nothing begins any more."""
        self.backward.is_closed = True
        if self._saved is not None:
            self._saved.close()
