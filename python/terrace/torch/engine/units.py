"""Units: the modules whose parameters are leased together, and what a step is expected to do with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import nn

from ..._types import not_yet
from ...errors import ConfigError
from ...store.spec import Use
from ...suggestions import suggestion_among
from .reads import parameters_read_elsewhere, runs

if TYPE_CHECKING:
    import ctypes

    from ...store import Store
    from .placeholders import Tracked

    # Of the tree of units: one, what it leases, and what is below.
    Node = tuple["Unit", list[Tracked], list["Node"]]

# So many uses of a unit are known, or a few more.
_MOST_INTERVALS = 256


class Unit:
    """A module and the tracked parameters that its forward pass reads."""

    __slots__ = ("name", "module", "tracked", "ids", "count", "use_stamp", "uses", "intervals", "known_from", "updates",
                 "_keys", "is_root")  # fmt: skip

    def __init__(self, name: str, module: nn.Module, is_root: bool = False) -> None:
        self.name = name
        self.module = module
        self.is_root = is_root
        self.tracked: tuple[Tracked, ...] = ()  # replaced where it changes, for a use has what it began with
        self.ids: ctypes.Array[ctypes.c_uint32] | None = None
        self.count = 0
        self.use_stamp = -1  # of the micro-batch that `uses` counts in
        self.uses = 0
        # The clock when it was entered and left, of all uses since `known_from`: forward passes may be ahead of backward passes.
        self.intervals: list[tuple[int, int]] = []
        self.known_from = self.updates = 0  # how many updates had run then
        self._keys: list[tuple[bytes, bytes]] = []

    def begin(self, stamp: int, clock: int, updates: int) -> None:
        """A micro-batch in which it has not been used. Nobody goes backward from before an update."""
        self.use_stamp = stamp
        self.uses = 0
        if updates != self.updates or len(self.intervals) >= _MOST_INTERVALS:
            self.intervals, self.known_from, self.updates = [], clock, updates

    def keys(self, use: int) -> tuple[bytes, bytes]:
        """The keys of a use's leases, forward and backward; the same in every micro-batch."""
        while len(self._keys) <= use:
            suffix = f"#{len(self._keys) + 1}" if self._keys else ""
            base = self.name or "model"
            self._keys.append((f"{base}/forward{suffix}".encode(), f"{base}/backward{suffix}".encode()))
        return self._keys[use]

    def extend(self, one: Tracked) -> None:
        """Its leases have one parameter more, from the next one on."""
        self.tracked += (one,)
        self.count += 1
        self.ids = None  # until settle(), since many may come one after the other

    def settle(self, store: Store) -> ctypes.Array[ctypes.c_uint32]:
        """Makes what a lease needs, after `tracked` has changed."""
        self.ids = ids = store.ids([one.number for one in self.tracked])
        self.count = len(self.tracked)
        return ids


def choose_units(model: nn.Module, tracked_of: Mapping[int, Tracked], units: Any) -> list[Unit]:
    """The units in the order of model.modules(), the root first. `tracked_of` gives the managed parameter for an
    id. The parameters of a module that has no forward, such as a ParameterList, belong to the one around it."""
    blocks = _blocks(model, units)
    chosen: list[Unit] = []

    def visit(name: str, module: nn.Module, inside: bool, seen: set[nn.Module], around: Unit) -> None:
        if module in seen:
            return
        seen.add(module)
        is_root = module is model
        is_entered = is_root or runs(module)
        is_block = not inside and module in blocks and is_entered
        unit = Unit(name, module, is_root) if is_entered else around
        source = module.parameters() if is_block else module.parameters(recurse=False) if not inside else ()
        for parameter in source:
            one = tracked_of.get(id(parameter))
            if one is not None and one not in unit.tracked:
                unit.tracked += (one,)
        if is_entered:
            chosen.append(unit)
        for child, below in module.named_children():
            visit(f"{name}.{child}" if name else child, below, inside or is_block, seen, unit)

    visit("", model, False, set(), not_yet())
    return [unit for unit in chosen if unit.tracked or unit.is_root]


def _blocks(model: nn.Module, units: Any) -> set[nn.Module]:
    if units == "leaf":
        return set()
    if units == "auto":
        return _repeated(model)
    wanted = [units] if isinstance(units, (str, type)) else list(units)
    if not wanted:
        raise ConfigError("cannot find the units of a model", "units", "the list is empty", 'give "leaf"')
    named = dict(model.named_modules())
    found = set()
    for one in wanted:
        if isinstance(one, nn.Module):
            matches = {one} if one in set(model.modules()) else set()
        elif isinstance(one, type):
            matches = {module for module in model.modules() if isinstance(module, one)}
        else:
            matches = {module for name, module in named.items() if one in (name, type(module).__name__)}
        if not matches:
            words = sorted(set(named) | {type(module).__name__ for module in named.values()} | {"auto", "leaf"})
            near = suggestion_among(str(one), words)
            raise ConfigError(
                "cannot find the units of a model",
                str(one),
                "no module has this name or class",
                near or 'give "auto", "leaf", classes or names of modules',
            )
        found |= matches
    return found


def _repeated(model: nn.Module) -> set[nn.Module]:
    """The elements of the outermost lists of modules of one class: the layers of most models."""
    found = set()

    def visit(module: nn.Module) -> None:
        elements = list(module.children())
        if isinstance(module, nn.ModuleList) and len(elements) > 1 and len({type(one) for one in elements}) == 1:
            found.update(elements)
            return
        for child in elements:
            visit(child)

    visit(model)
    return found


def expected_uses(
    model: nn.Module, units: Sequence[Unit], micro_batches: int, tracked_of: Mapping[int, Tracked]
) -> list[Use]:
    """The uses of a step in which every module runs once, forward and then backward in reverse order.

    A module with parameters of its own around other units holds its lease around theirs, and so it does with those
    of other modules that its code reads. Recomputation needs no more at once (leases.py).
    """
    by_module = {unit.module: unit for unit in units if unit.tracked}

    def visit(name: str, module: nn.Module, seen: set[nn.Module], held: frozenset[int]) -> list[Node]:
        if module in seen:
            return []
        seen.add(module)
        unit = by_module.get(module)
        own: list[Tracked] = list(unit.tracked) if unit else []
        known = {id(one) for one in own} | held
        read = [tracked_of.get(id(parameter)) for parameter in parameters_read_elsewhere(module)]
        own += [one for one in read if one is not None and id(one) not in known]
        held = held | {id(one) for one in own}
        below = [
            node
            for child, inside in module.named_children()
            for node in visit(f"{name}.{child}" if name else child, inside, seen, held)
        ]
        return [(unit or Unit(name, module), own, below)] if own else below

    tree = visit("", model, set(), frozenset())
    uses: list[Use] = []

    def announce(nodes: Sequence[Node], micro_batch: int, direction: int) -> None:
        for unit, own, below in nodes if direction == 0 else reversed(nodes):
            place = len(uses)
            uses.append(not_yet())
            announce(below, micro_batch, direction)
            uses[place] = Use(
                unit.keys(0)[direction].decode(),
                [one.number for one in own],
                "forward",
                micro_batch,
                len(uses) - place - 1,
            )

    for micro_batch in range(micro_batches):
        announce(tree, micro_batch, 0)
        announce(tree, micro_batch, 1)
    return uses
