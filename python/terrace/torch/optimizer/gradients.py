"""How gradients get from torch to a StateStore: at the step, or as soon as the backward pass has made them.

Both are used alike: collect() at the step says whether there is anything to update with, and the store is ready for
its update then; spent() follows an update, and drop() whatever else ended the step.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, cast

import torch

from ...errors import MisuseError
from ..handed_over import HandedOver

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle

    from .slots import Slot
    from .state_store import StateStore

_REASON = 'its gradient was handed over to the optimizer in the backward pass (hand_over="backward")'
_ADVICE = (
    "clip by max_grad_norm of the optimizer and drop gradients by its zero_grad(); or use "
    """hand_over="step" for torch's clip_grad_norm_, GradScaler and all else that works on p.grad"""
)


def _weakly(optimizer: torch.optim.Optimizer) -> Callable[[], Any]:
    """A weak reference to what lives longer than who asks."""
    return weakref.ref(optimizer)


class AtStep:
    """Takes p.grad at the step, as torch's own optimizers do."""

    def __init__(self, states: StateStore, optimizer: torch.optim.Optimizer) -> None:
        self._states = states
        self._optimizer: Callable[[], torch.optim.Optimizer] = _weakly(optimizer)

    def watch(self, parameters: Iterable[torch.Tensor]) -> None:
        pass

    def collect(self) -> bool:
        groups = self._optimizer().param_groups
        if all(parameter.grad is None for group in groups for parameter in group["params"]):
            return False
        states = self._states
        states.fit(groups)
        states.begin()
        for slot in states.slots.values():
            if slot.parameter.grad is not None:
                states.hand_over(slot, slot.parameter.grad)
        states.end_micro_batch()
        return True

    def require_none(self) -> None:
        """Between steps: nothing is open but what an interrupt of drop() has left."""
        self._states.abandon()

    def spent(self) -> None:
        pass

    def drop(self) -> None:
        self._states.abandon()


class InBackward:
    """Takes each gradient when it is complete, and leaves a HandedOver in its place.

    A parameter whose gradient comes again begins the next micro-batch. An exception in here drops all gradients of
    the step, as zero_grad() does.
    """

    def __init__(self, states: StateStore, optimizer: torch.optim.Optimizer, accumulation_steps: int) -> None:
        self._states = states
        self._optimizer: Callable[[], torch.optim.Optimizer] = _weakly(optimizer)
        self._accumulation_steps = accumulation_steps
        self._lock = threading.RLock()  # Backward passes of several devices have a thread each.
        self._watched: dict[int, weakref.ref[torch.Tensor]] = {}
        self._handles: list[RemovableHandle] = []
        weakref.finalize(self, _remove_all, self._handles)
        self._reset()

    def _reset(self) -> None:
        self._micro_batch = 0
        self._handed: dict[
            int, tuple[torch.Tensor, HandedOver, int]
        ] = {}  # id(parameter) -> (parameter, placeholder, the micro-batch after that of its gradient)
        self._task: int | None = None
        self._is_dropping = False

    def watch(self, parameters: Iterable[torch.Tensor]) -> None:
        """Hooks hold neither this nor the parameter, so that both end with their owners."""
        me = weakref.ref(self)
        for parameter in parameters:
            it = self._watched.get(id(parameter))
            if not parameter.requires_grad or (it is not None and it() is parameter):
                continue
            it = self._watched[id(parameter)] = weakref.ref(parameter)
            self._handles += (
                parameter.register_hook(lambda _, it=it: _call(me, InBackward._make_way, it())),
                parameter.register_post_accumulate_grad_hook(lambda given: _call(me, InBackward._take, given)),
            )

    def _make_way(self, parameter: torch.Tensor) -> None:
        """Before torch adds to p.grad."""
        task = torch._C._current_graph_task_id()
        if task != self._task:
            self._task = task
            self._heed_dropped()
        if isinstance(parameter.grad, HandedOver) and id(parameter) in self._handed:
            parameter.grad = None

    def _take(self, parameter: torch.Tensor) -> None:
        """When p.grad is complete."""
        gradient = cast(torch.Tensor, parameter.grad)
        self._require_plain(gradient)
        self._begin()
        key = id(parameter)
        slot = self._states.slots.get(key)
        if slot is None:
            return  # It has left the optimizer, or was frozen when the step began, which collect() finds.
        if key in self._handed and self._handed[key][2] > self._micro_batch:
            self._next_micro_batch(slot)
        self._states.hand_over(slot, gradient)
        placeholder = HandedOver(parameter, slot.name, _REASON, _ADVICE)
        self._handed[key] = (parameter, placeholder, self._micro_batch + 1)
        parameter.grad = placeholder

    def _require_plain(self, gradient: torch.Tensor) -> None:
        if isinstance(gradient, HandedOver):
            raise MisuseError(
                "cannot take a gradient",
                gradient.label,
                "another optimizer has taken it in this backward pass",
                'use hand_over="step" for optimizers that share parameters',
            )
        if gradient.requires_grad:
            raise MisuseError(
                "cannot take a gradient",
                f"of shape {tuple(gradient.shape)}",
                "it has a graph of its own (create_graph=True)",
                'use hand_over="step" for derivatives of derivatives',
            )

    def _begin(self) -> None:
        if self._states.is_open:
            return
        groups = self._optimizer().param_groups
        self.watch(parameter for group in groups for parameter in group["params"])
        self._states.fit(groups)
        self._states.begin()

    def _next_micro_batch(self, slot: Slot) -> None:
        if self._micro_batch + 1 == self._accumulation_steps:
            raise MisuseError(
                "cannot take a gradient",
                slot.name,
                f"backward passes since the last step: {self._accumulation_steps + 1}, accumulation_steps: "
                f"{self._accumulation_steps}",
                "call step() or zero_grad() before, or set accumulation_steps",
            )
        self._states.end_micro_batch()
        self._micro_batch += 1

    def _heed_dropped(self) -> None:
        """Gradients whose placeholders are gone were dropped by the program, for instance by model.zero_grad()."""
        if self._is_dropping:
            self.drop()  # What an interrupt of drop() has left.
        handed = self._handed.values()
        lost = [parameter for parameter, placeholder, _ in handed if parameter.grad is not placeholder]
        if not lost:
            return
        if len(lost) == len(handed) and all(parameter.grad is None for parameter in lost):
            self.drop()
            return
        name = self._states.slots[id(lost[0])].name
        raise MisuseError(
            "cannot go on with the step",
            name,
            "its p.grad was dropped or replaced after its gradient had been handed over",
            'drop the gradients of all parameters by zero_grad(), or use hand_over="step"',
        )

    def collect(self) -> bool:
        with self._lock:
            self._heed_dropped()
            given = [
                parameter
                for group in self._optimizer().param_groups
                for parameter in group["params"]
                if parameter.grad is not None and id(parameter) not in self._handed
            ]
            for parameter in given:
                self._take(parameter)
                if id(parameter) not in self._states.slots and parameter.numel() != 0:
                    raise MisuseError(
                        "cannot take a gradient",
                        f"of shape {tuple(parameter.shape)}",
                        "its parameter was frozen, or not in the optimizer, when the step began",
                        "change parameters between steps",
                    )
            if not self._states.is_open:
                return False
            self._states.require_in_place()
            for _ in range(self._micro_batch, self._accumulation_steps):
                self._states.end_micro_batch()
            return True

    def require_none(self) -> None:
        """States can be read between steps only."""
        self._heed_dropped()
        if self._handed:
            raise MisuseError(
                "cannot read optimizer states",
                f"{len(self._handed)} parameters",
                "their gradients were handed over for a step that has not been made",
                "call step(), or zero_grad() to drop them",
            )
        self.drop()

    def spent(self) -> None:
        for parameter, placeholder, _ in self._handed.values():
            if parameter.grad is placeholder:
                parameter.grad = None
        self._reset()

    def drop(self) -> None:
        self._is_dropping = True
        self._states.abandon()
        self.spent()


def _call(me: weakref.ref[InBackward], method: Callable[[InBackward, torch.Tensor], None], parameter: Any) -> None:
    """A hook of an InBackward, if it is still there. What it raises goes out of backward()."""
    self = me()
    if self is None:
        return
    with self._lock:
        try:
            method(self, parameter)
        except BaseException:
            self.drop()
            parameter.grad = None
            raise


def _remove_all(handles: list[RemovableHandle]) -> None:
    for handle in handles:
        handle.remove()
