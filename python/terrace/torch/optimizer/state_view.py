"""Optimizer states in torch's layout, {"exp_avg": ..., "step": ...}, out of a StateStore and back."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from ...errors import ConfigError, MisuseError
from ..local import as_spread
from .slots import MOMENTS

if TYPE_CHECKING:
    from ..._types import Named
    from .gradients import AtStep, InBackward
    from .slots import Slot
    from .state_store import Parsed, StateStore

MASTER = "master"  # The fp32 value of a 16-bit parameter, which torch does not have.


class StateView(Mapping[torch.Tensor, dict[str, Any]]):
    """What optimizer.state is: {parameter: states}. Values are read from the store when they are asked for, and
    nothing may be written to them; load_state_dict() is the way back."""

    def __init__(
        self, states: StateStore, gradients: AtStep | InBackward, moment_names: Sequence[str], has_step: bool
    ) -> None:
        self._states, self._gradients = states, gradients
        self._names, self._has_step = moment_names, has_step
        self._is_free = False
        # Where ranks share the states: those of all of them, once they are consolidated, by id(parameter).
        self._whole: dict[int, Named] | None = None
        self._is_collective = False

    @contextlib.contextmanager
    def collective(self) -> Iterator[None]:
        """Within the block all ranks read, and consolidate where that is needed."""
        self._is_collective = True
        try:
            yield
        finally:
            self._is_collective = False

    @contextlib.contextmanager
    def free(self) -> Iterator[None]:
        """Within the block what is read is the caller's, to be written to."""
        self._is_free = True
        try:
            yield
        finally:
            self._is_free = False

    def _refuse_change(self, *_: object) -> Any:
        raise MisuseError(
            "cannot change the states of an optimizer",
            "optimizer.state",
            "they are in a store, and these are copies",
            "change what state_dict() gives, and load it with load_state_dict()",
        )

    clear = pop = popitem = update = setdefault = __setitem__ = __delitem__ = _refuse_change

    def _slots(self) -> list[tuple[Slot, int]]:
        """Slots with states, which are those that have had an update, with their numbers of updates."""
        states = self._states
        if not any(slot.has_moments for slot in states.slots.values()):
            return []
        self._gradients.require_none()
        steps = states.steps()
        return [(slot, steps[key]) for key, slot in states.slots.items() if slot.has_moments and steps[key]]

    def consolidate(self, to: int | None) -> None:
        """Where ranks share the states: brings those of all ranks to rank `to`, or to all of them. Each calls it."""
        self.forget()
        states = self._states
        if states.group is None:
            return
        whole = {}
        for slot, steps in self._slots():
            state: Named = self._counted(steps)
            for name, what in self._kept(slot):
                state[name] = states.read_whole(slot, what, to)
            whole[id(slot.parameter)] = state
        if to is None or to == states.group.rank:
            self._whole = whole

    def forget(self) -> None:
        """What was consolidated is not true any more."""
        self._whole = None

    def __getitem__(self, parameter: torch.Tensor) -> Named:
        for slot, steps in self._slots():
            if slot.parameter is parameter:
                return self._state_of(slot, steps)
        raise KeyError(parameter)

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter([slot.parameter for slot, _ in self._slots()])

    def __len__(self) -> int:
        return len(self._slots())

    def __contains__(self, parameter: object) -> bool:
        return any(slot.parameter is parameter for slot, _ in self._slots())

    def items(self) -> Any:
        return [(slot.parameter, self._state_of(slot, steps)) for slot, steps in self._slots()]

    def __repr__(self) -> str:
        return f"<states of {len(self)} parameters, read when they are asked for>"

    def _state_of(self, slot: Slot, steps: int) -> Named:
        # torch refuses to write to tensors that were made in inference mode.
        with contextlib.nullcontext() if self._is_free else torch.inference_mode():
            return self._read_state(slot, steps)

    def _read_state(self, slot: Slot, steps: int) -> Named:
        if self._states.group is not None:
            return self._whole_state(slot)
        state = self._counted(steps)
        for name, what in self._kept(slot):
            state[name] = as_spread(slot.parameter, self._states.read(slot, what))
        return state

    def _counted(self, steps: int) -> Named:
        return {"step": torch.tensor(float(steps))} if self._has_step else {}

    def _kept(self, slot: Slot) -> list[tuple[str, str]]:
        """What there is of a parameter: (what torch calls it, what the store does)."""
        masters = [] if slot.type == "fp32" else [(MASTER, "master")]
        return [*zip(self._names, MOMENTS), *masters]

    def _whole_state(self, slot: Slot) -> Named:
        if self._whole is None and self._is_collective:
            self.consolidate(None)
        if self._whole is None:
            raise MisuseError(
                "cannot read optimizer states",
                slot.name,
                "each rank has those of its share, and they have not been brought together since the last step",
                "call consolidate_state_dict() on all ranks before state_dict() on the rank that saves; or read them "
                "on all ranks within collective_state_dict()",
            )
        return dict(self._whole[id(slot.parameter)])

    def parsed(self, parameter: torch.Tensor, state: Mapping[str, Any], name: str) -> Parsed | None:
        return parsed_state(self._names, self._has_step, parameter, state, name)


def parsed_state(
    moment_names: Sequence[str], has_step: bool, parameter: torch.Tensor, state: Mapping[str, Any], name: str
) -> Parsed | None:
    """(steps, moments, master or None) of one parameter's states in torch's layout; None where it has none."""
    state = {key: value for key, value in state.items() if value is not None}
    if not any(key in state for key in moment_names):
        _refuse_others(state, name, ("step", MASTER))
        return None
    _refuse_others(state, name, ("step", MASTER, *moment_names))
    missing = [key for key in (*moment_names, *(("step",) if has_step else ())) if key not in state]
    if missing:
        raise ConfigError(
            "cannot load the states of a parameter",
            name,
            f"there is no {missing[0]}",
            "load what state_dict() of the same kind of optimizer gave",
        )
    for key in (*moment_names, MASTER):
        if key in state and (not torch.is_tensor(state[key]) or state[key].shape != parameter.shape):
            shape = tuple(state[key].shape) if torch.is_tensor(state[key]) else type(state[key]).__name__
            raise ConfigError(
                "cannot load the states of a parameter",
                name,
                f"{key} is of shape {shape}, and the parameter of {tuple(parameter.shape)}",
                "load what was saved with a model of these shapes, parameters in the same order",
            )
    # Without a count of its own, a state that is there says that there was an update.
    steps = float(state["step"]) if has_step else 1
    if not (steps >= 0 and steps % 1 == 0):
        raise ConfigError(
            "cannot load the states of a parameter",
            name,
            f"its step is {steps}",
            "load what state_dict() gave, as it was",
        )
    return int(steps), [state[key] for key in moment_names], state.get(MASTER)


def _refuse_others(state: Mapping[str, Any], name: str, known: Iterable[str]) -> None:
    for key in state:
        if key not in known:
            raise ConfigError(
                "cannot load the states of a parameter",
                name,
                f"this optimizer keeps no {key}",
                "load what state_dict() of the same kind of optimizer gave",
            )
