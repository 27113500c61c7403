"""How much device memory would do, where the first pass over a model holds more at once than was planned.

A pass that is watched goes on without leases when they have no room any more, to see what else it would hold: it
computes with NaN, which nobody gets to see, and buffers get their values back. So the error at its end names a budget
that is enough."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

from ....errors import CapacityError
from ....store import plan
from ....store.spec import Use
from ..units import choose_units, expected_uses

if TYPE_CHECKING:
    from ....store.spec import Device
    from ..placeholders import Tracked
    from ..planned import Planned
    from ..units import Unit
    from .hooks import Use as PassUse

_MOST_ATTEMPTS = 64


# Uses that are planned, and those with what was found.
Mode = tuple[list[Use], list[Use]]


class Shortage:
    """What was found to be held at once. `use` could not have its lease, or `one` more parameter, for `failure`, the
    store's. Where the pass goes on, `keeps_buffers`."""

    def __init__(
        self, planned: Planned, failure: CapacityError, use: PassUse, one: Tracked | None, keeps_buffers: bool
    ) -> None:
        self._planned = planned
        self._device = cast("Device", planned.used_device)  # which was too small
        self._failure = failure
        self._subject = use.keys[0].decode()
        self._reason = "" if one is None else f"; {one.name} is read outside of its module"
        self._nests: set[tuple[frozenset[str], frozenset[int]]] = set()  # of (names of units, parameters)
        self._is_whole = False  # the pass has ended
        self._buffers = []
        if keeps_buffers:
            self._buffers = [
                (module, name, buffer, buffer.clone())
                for module in planned.parameters.model.modules()
                for name, buffer in module._buffers.items()
                if buffer is not None
            ]

    def add(self, uses: Iterable[PassUse]) -> None:
        """Uses that are open together."""
        held = frozenset(one.number for use in uses for one in (*use.tracked, *use.wanted))
        names = frozenset(use.unit.name for use in uses if use.tracked or use.wanted)
        self._nests.add((names, held))

    def end_pass(self, is_whole: bool) -> None:
        self._is_whole = is_whole
        for module, name, buffer, values in self._buffers:
            buffer.data.copy_(values)
            module._buffers[name] = buffer
        self._buffers = []

    def error(self) -> CapacityError:
        least = max(self._failure.least_device_bytes, self._least())
        error = CapacityError(
            "cannot go on with a pass",
            self._subject,
            f"it holds more on the device at once than could be known before the first pass, {least} bytes, and the "
            f"budget is {self._device.budget_bytes}{self._reason}",
            f"make an engine with terrace.device_memory of at least {least}; this one has its whole state, and can be "
            "saved or closed after zero_grad()",
        )
        error.least_bytes = error.least_device_bytes = least
        return error

    def _least(self) -> int:
        """The least with which terrace.initialize takes units and chunks that are enough."""
        given = self._planned.units
        modes = [self._mode(units) for units in (("auto", "leaf") if given == "auto" else (given,))]
        budget = 1
        for _ in range(_MOST_ATTEMPTS):
            more = self._missing(modes, budget)
            if more is None:
                break
            budget = more
        return budget

    def _mode(self, units: Any) -> Mode:
        """(uses that are planned where `units` says what is leased together, those and what was found)"""
        model, managed_of = self._planned.parameters.model, self._planned.parameters.managed_of
        chosen = choose_units(model, managed_of, units)
        steps = self._planned.parameters.config.gradient_accumulation_steps
        planned = expected_uses(model, chosen, steps, managed_of)
        # Where the pass has not ended, the largest unit may be used as the one was that failed.
        largest = [max(chosen, key=_size)] if not self._is_whole else []
        found: list[Use] = []
        for names, held in self._nests:
            units = [*largest, *(_unit_at(chosen, name) for name in names)]
            numbers = held | {one.number for unit in units for one in unit.tracked}
            found.append(Use(f"at once {len(found)}", sorted(numbers), "forward", 0, 0))
        return planned, planned + found

    def _missing(self, modes: Sequence[Mode], budget: int) -> int | None:
        """None where a budget is enough; else a larger one to try."""
        specs = self._planned.specs
        device = self._device._replace(budget_bytes=budget)
        options = dict(self._planned.options, log=None)
        for planned, found in modes:
            try:
                accepted = plan(specs, device, planned, **options)
            except CapacityError as error:  # then units are smaller
                least = error.least_device_bytes
                continue
            try:
                plan(specs, device, found, **dict(options, chunk_elements=accepted.chunk_elements))
                return None
            except CapacityError as error:
                least = error.least_device_bytes
                break
        return max(budget + 1, least)


def _size(unit: Unit) -> int:
    return sum(one.bytes for one in unit.tracked)


def _unit_at(units: Sequence[Unit], name: str) -> Unit:
    """The unit with a module of this name, or around it."""
    found = [unit for unit in units if unit.is_root or name == unit.name or name.startswith(unit.name + ".")]
    return max(found, key=lambda unit: -1 if unit.is_root else len(unit.name))
