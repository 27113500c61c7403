"""What happens while a model goes forward and backward: leases, and gradients that are handed over.

A unit that is entered opens a lease and closes it when it is left, so leases nest as modules do, in the forward
pass, in what checkpointing computes again, and in generate(). In the backward pass a unit's lease opens when the
first gradient of its outputs arrives; leases.py says when it ends. Gradients of parameters are handed over when torch
has completed them.

A pass over several units may be cut short by any exception. Whatever is still open is closed by the next pass
over the whole model, or by the optimizer; a backward pass that fails spoils its step, and says so until the step
is given up."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from threading import get_ident
from typing import TYPE_CHECKING, Any, NoReturn, SupportsIndex

import torch
from torch.autograd import Variable

from ...._lib import error_of, undeclared
from ....errors import Error, MisuseError
from ....store import KINDS
from ...handed_over import HandedOver
from ..placeholders import is_strange, why_strange
from .gradients import misuse, why_refused
from .hooks import Use, has_nan, hook_outputs, refuse_to_pickle
from .landing import landing_for
from .leases import Leases
from .marks import Marks
from .one_thread import Turn

if TYPE_CHECKING:
    from torch import nn

    from ....store import Store
    from ..placeholders import Tracked
    from ..units import Unit
    from .needs import Shortage

IDLE, STEP, EVALUATION = "idle", "step", "evaluation"
_FORWARD, _INFERENCE = KINDS["forward"], KINDS["inference"]
_task = torch._C._current_graph_task_id
_is_traced = torch.compiler.is_dynamo_compiling


class Passes:
    """The state of the passes over one model. `before_pass` runs before every forward and backward pass that begins,
    `before_step` between steps, `announce` before a step's last backward, and `evaluated` after an evaluation, with
    whether a NaN came out of it. `shortage` makes what finds out how much device memory would do."""

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
        self.store = store
        self.tracked = tracked
        self.accumulation_steps = accumulation_steps
        self.needs_scale = self.is_scaled = False  # the loss of an fp16 model; it was scaled
        self.phase = IDLE
        self.micro_batch = self.updates = 0
        self.failure: Error | None = None
        self.is_closed = False
        self._before_pass = before_pass
        self._before_step = before_step
        self._announce = announce
        self._evaluated = evaluated
        self.has_read_nothing = False  # this step, at a place that is not learned yet
        self.extensions = 0  # of units, by parameters that they had not been expected to read
        self._stamp = self._clock = 0
        self._turn = Turn()
        self.leases = Leases(store, shortage, any(one.is_managed and one.away is one.real for one in tracked))
        self._task: int | None = None  # of autograd, while a backward pass runs
        self._parts: set[int] = set()  # tasks of autograd that run within it
        self._held: dict[Tracked, None] = {}  # whose gradients may still grow in this backward pass
        self._has_gradients = self._step_has_gradients = False  # in this micro-batch
        self._is_over = False  # the last micro-batch, which stays open for reading until the update
        self._is_beginning = False  # a step; where Ctrl-C ends that, nobody knows whether the store has one
        self.trainable = [one for one in tracked if one.is_trainable]
        self.marks = Marks(self.trainable)
        # Such a call is made for every parameter and step: Store.hand_over takes arguments of any kind.
        self._c_hand_over, self._handle = undeclared("terrace_hand_over"), store._handle
        self._address = ctypes.c_void_p()
        self._landing = landing_for(store, self.trainable, self._hand_over_at)
        # A compiled module has a break in its graph where its hooks are, as with FSDP2.
        self._enter_untraced = torch.compiler.disable(self._enter)
        self._leave_untraced = torch.compiler.disable(self._leave)

    def tick(self) -> int:
        self._clock += 1
        return self._clock

    @property
    def has_gradients(self) -> bool:
        """True where giving the step up would lose gradients."""
        return self.phase is STEP and self._step_has_gradients

    def are_running(self) -> bool:
        """Where what is read is leased."""
        return bool(self.leases.forward) or self._task is not None

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        refuse_to_pickle()

    # --- Forward ---

    def enter(self, unit: Unit, module: nn.Module, arguments: Any) -> None:
        """A hook before a module's forward."""
        if _is_traced():
            self._enter_untraced(unit)
        else:
            self._enter(unit)

    def leave(self, unit: Unit, module: nn.Module, arguments: Any, output: Any) -> None:
        """A hook after a module's forward, which may have failed."""
        if _is_traced():
            self._leave_untraced(unit, output)
        else:
            self._leave(unit, output)

    def _enter(self, unit: Unit) -> None:
        if _task() == -1:  # else autograd computes again what was checkpointed
            if self._turn.thread != get_ident():
                self._turn.take("go forward")
            if unit.is_root:
                self._begin_anew()
            if not self.leases.forward:
                if self._is_beginning:
                    self.close_leftovers()
                self._before_pass()
        elif self._task is None and self.phase is STEP:
            self._begin_backward()  # before the first of a unit's outputs is reached
        if self.phase is IDLE:
            self._begin_pass()
        if unit.use_stamp != self._stamp:
            unit.begin(self._stamp)
        keys = unit.keys(unit.uses)
        unit.uses += 1
        self._clock += 1
        use = Use(self, unit, keys, self._clock)
        self.leases.forward.append(use)
        if unit.count:
            self.leases.open(use, keys[0], self.reading_kind)

    def _leave(self, unit: Unit, output: Any) -> None:
        is_recomputed = _task() != -1
        if self._turn.thread != get_ident() and not is_recomputed:
            return  # it was refused
        open_uses = self.leases.forward
        use = open_uses.pop() if open_uses else None
        while use is not None and use.unit is not unit:  # a unit that an interrupt kept from being left
            self.leases.close(use)
            use = open_uses.pop() if open_uses else None
        if not open_uses and not is_recomputed:
            self._turn.thread = None
        if use is None:
            return  # it could not be entered
        self.leases.leave(use, is_failing=output is None)
        self._clock += 1
        use.left = self._clock
        unit.intervals.append((use.entered, use.left))
        if is_recomputed and not open_uses:
            self.leases.resume(self.reading_kind, self._stamp)
        if self.phase is STEP:
            if output is not None and (unit.count or unit.is_root) and torch.is_grad_enabled():
                hook_outputs(output, use)
        elif not open_uses:
            self._end_evaluation()
            if output is not None:
                self._evaluated(has_nan(output))

    def _begin_pass(self) -> None:
        if torch.is_grad_enabled():
            self._begin_step()
        else:
            self.phase = EVALUATION
            self._stamp += 1
            self.store.begin_evaluation()

    def _begin_step(self) -> None:
        self.marks.remove()
        self._before_step()
        self.micro_batch = 0
        self._stamp += 1
        self._step_has_gradients = self._has_gradients = self._is_over = self.has_read_nothing = False
        self.phase = STEP
        self._is_beginning = True
        try:
            self.store.begin_step()
        except Error:  # of the last commit: no step is open
            self.phase = IDLE
            self._is_beginning = False
            raise
        self._is_beginning = False

    def _end_evaluation(self) -> None:
        self.store.end_evaluation()
        self.phase = IDLE

    # --- ReadWatch ---

    def note_read(self, one: Tracked) -> None:
        """An operation is about to read a parameter."""
        one.comes_in_parts = one.comes_in_parts or one.read_stamp == self._stamp
        one.read_stamp = self._stamp
        if one.is_managed and not one.leases and not self.leases.is_wanted(one):
            if not self.leases.forward:
                raise misuse(
                    "a module reads it that no pass has begun in",
                    "call the model itself, or the module that has the parameter",
                    "read",
                    one.name,
                )
            self._extend(one)

    def _extend(self, one: Tracked) -> None:
        """A parameter is read outside of the units that have it: the innermost unit that is open gets it, now
        and later."""
        use = self.leases.forward[-1]
        self.leases.extend(use, one, self.reading_kind)
        use.unit.extend(one)
        self.extensions += 1

    @property
    def reading_kind(self) -> int:
        return _INFERENCE if self.phase is EVALUATION else _FORWARD

    def require_turn(self, what: str) -> None:
        self._turn.require(what)

    # --- Backward ---

    def go_backward(self, use: Use) -> None:
        if torch.is_grad_enabled():
            self._spoil(
                misuse(
                    "create_graph=True asks for a second derivative, which would read parameters at a time that "
                    "Terrace does not know",
                    "use backward() without create_graph",
                    "go backward",
                )
            )
        if use.updates != self.updates:
            self._spoil(
                misuse(
                    "this graph was made before the last update, and the weights are others now",
                    "go forward again",
                    "go backward",
                )
            )
        if self._task is None:
            self._begin_backward()
        elif _task() != self._task and _task() not in self._parts:
            self._begin_part()
        self.leases.close_before(use)
        use.is_backward = True
        self.leases.backward.append(use)
        if use.unit.count:
            self.leases.open(use, use.keys[1], self.reading_kind)

    def _begin_part(self) -> None:
        """Autograd goes backward within an operation of the backward pass."""
        part = _task()
        self._parts.add(part)
        Variable._execution_engine.queue_callback(functools.partial(self.leases.close_task, part))

    def _begin_backward(self) -> None:
        if self.is_closed:
            raise misuse("it is closed", "go backward before engine.close()", "go backward", "engine")
        self._turn.take("go backward")
        try:
            self._prepare_backward()
        except BaseException:
            self._turn.thread = None
            raise

    def _prepare_backward(self) -> None:
        if self.failure is not None:
            raise self.failure
        if self.needs_scale and not self.is_scaled:
            raise misuse(
                "its parameters are fp16, and the loss was not multiplied by the loss scale",
                "call engine.backward(loss), or engine.scale(loss).backward()",
                "go backward",
            )
        self.is_scaled = False
        if self.phase is EVALUATION:
            self._end_evaluation()
        if self.phase is IDLE:
            self._begin_step()
        if self.micro_batch >= self.accumulation_steps:
            raise misuse(
                f"all {self.accumulation_steps} micro-batches of the step have gone backward already; a second "
                f"backward pass "
                "through one graph counts as one more",
                "call optimizer.step() first, or set gradient_accumulation_steps to the backward passes of an update",
                "go backward",
            )
        self._before_pass()
        self._task = _task()
        Variable._execution_engine.queue_callback(self._end_backward)
        if self.micro_batch + 1 == self.accumulation_steps:
            self._announce()

    def take_gradient(self, one: Tracked, parameter: torch.Tensor, is_last: bool = False) -> None:
        """A hook of a parameter: its gradient is complete in this backward pass, or as far as a reentrant part
        of it goes."""
        if self._task is None:
            self._begin_backward()
        if one.comes_in_parts and not is_last:
            self._held[one] = None
            return
        gradient = parameter.grad
        if gradient is None:
            return  # the parameter was frozen after the forward pass
        parameter.grad = None
        is_unnoticed = one.is_managed and not one.leases and not is_last
        if is_unnoticed and gradient.isnan().any():
            self.has_read_nothing = True  # a placeholder was read, and the update is skipped for its NaN
            is_unnoticed = False
        if one.stamp == self._stamp or is_unnoticed or is_strange(gradient, one):
            self._refuse_gradient(one, gradient, is_unnoticed)
        self.hand_over(one, gradient)

    def _refuse_gradient(self, one: Tracked, gradient: torch.Tensor, is_unnoticed: bool) -> None:
        reason = why_refused(one, gradient, is_again=one.stamp == self._stamp, is_unnoticed=is_unnoticed)
        self._spoil(misuse(*reason, "take the gradient of", one.name))

    def hand_over(self, one: Tracked, gradient: torch.Tensor) -> None:
        if not gradient.is_contiguous():
            gradient = gradient.contiguous()
        self._has_gradients = self._step_has_gradients = True
        one.stamp = self._stamp
        self._landing.take(one, gradient)

    def _hand_over_at(self, one: Tracked, place: int) -> None:
        self._address.value = place
        failure = self._c_hand_over(self._handle, one.number, self._address, one.type_number, 0)
        if failure is not None:
            raise error_of(failure)

    def _end_backward(self) -> None:
        for one in self._held:
            self.take_gradient(one, one.parameter, is_last=True)
        self._held.clear()
        self.leases.close_task(None)
        self._parts.clear()
        self._landing.finish()
        if self._has_gradients:
            if self.micro_batch + 1 < self.accumulation_steps:
                self._end_micro_batch()
            else:
                self._is_over = True
                self.marks.set()
            self.micro_batch += 1
            self._has_gradients = False
        self._task = self._turn.thread = None

    def _end_micro_batch(self) -> None:
        self.store.end_micro_batch()
        self._stamp += 1

    def _spoil(self, error: Error) -> NoReturn:
        self.failure = error
        raise error

    # --- Between passes ---

    def close_leftovers(self) -> None:
        """Ends what a pass left open that was cut short by an exception or Ctrl-C, at whatever line that came."""
        self._turn.require("go on")
        self._landing.drop()
        if self.leases or self._task is not None or self.store._open:
            if self._task is not None and self._has_gradients:
                self.failure = misuse(
                    "a backward pass ended early, after it had made some of its gradients",
                    "give the step up with zero_grad(), and begin it again",
                    "go on with the step",
                )
            self._task = None
            for one in self._held:
                one.parameter.grad = None
            self._held.clear()
            self._parts.clear()
            self.leases.forget()
            self._turn.thread = None
            for one in self.tracked:
                one.forget_leases()
            self.store.release_all()
        if self.phase is EVALUATION:
            self._tolerate(self._end_evaluation)
        if self._is_beginning:
            self._is_beginning = False
            self._tolerate(self.store.abandon_step)

    def _tolerate(self, end: Callable[[], None]) -> None:
        """Ctrl-C may have come before a step or an evaluation began, or after it ended."""
        try:
            end()
        except MisuseError:
            pass
        self.phase = IDLE

    def _begin_anew(self) -> None:
        """Before a pass over the whole model. Of a step that failed in its first micro-batch nothing is lost."""
        self.close_leftovers()
        self._turn.thread = get_ident()
        if self.failure is not None and torch.is_grad_enabled():
            if self.micro_batch:
                raise self.failure
            self.abandon()

    def abandon(self) -> None:
        """Gives the step up; its gradients are dropped."""
        self.close_leftovers()
        self.failure = None
        if self.phase is STEP:
            self._tolerate(self.store.abandon_step)
            self._step_has_gradients = self._has_gradients = False
            self.micro_batch = 0
            self._stamp += 1

    def come_to_rest(self, what: str) -> None:
        """Leaves the step or evaluation that is open, so that the store's state can be read. Raises where
        gradients would be lost, and within a pass."""
        if _task() != -1:
            raise misuse("a backward pass is running", "do it after the pass", what)
        self.require_sound()
        if self.phase is STEP:
            if self._step_has_gradients:
                raise misuse(
                    f"a step is open, with the gradients of {self.micro_batch} micro-batches",
                    "do it after optimizer.step(), or give the step up with zero_grad()",
                    what,
                )
            self.abandon()

    def require_sound(self) -> None:
        """Closes what a failure left open, and raises what has spoilt the step."""
        if self.is_closed:
            raise misuse("it is closed", "make another one with terrace.initialize", "go on", "engine")
        self.close_leftovers()
        if self.failure is not None:
            raise self.failure

    def complete(self) -> bool:
        """Before an update: micro-batches that did not come have no gradients. False: there is nothing to update
        with."""
        self.require_sound()
        for one in self.trainable:
            gradient = one.parameter.grad
            if gradient is not None and type(gradient) is not HandedOver:
                self._take_set_gradient(one, gradient)
        self._landing.finish()
        if self.phase is not STEP or not self._step_has_gradients:
            return False
        missing = self.accumulation_steps - self.micro_batch
        for _ in range(missing + self._is_over):
            self._end_micro_batch()
        return True

    def _take_set_gradient(self, one: Tracked, gradient: torch.Tensor) -> None:
        """A gradient that the program has set itself."""
        if self.phase is IDLE:
            self._begin_step()
        reason = why_strange(gradient, one) if is_strange(gradient, one) else None
        if reason is None and self.micro_batch >= self.accumulation_steps:
            reason = ("all micro-batches of the step are complete", "set gradients before the last backward pass")
        if reason is not None:
            raise misuse(*reason, "take the gradient of", one.name)
        one.parameter.grad = None
        self.hand_over(one, gradient)

    def had_ended(self) -> bool:
        """After Ctrl-C in an update: whether it had run. Else the step is given up."""
        try:
            self.store.abandon_step()
        except MisuseError:
            return True
        self.abandon()
        return False

    def updated(self) -> None:
        self.phase = IDLE
        self.micro_batch = 0
        self.updates += 1
        self._stamp += 1
        self._step_has_gradients = False
