"""StateStore: optimizer states of parameters that stay torch's, in a terrace.Store.

Every parameter has a slot: a tensor of the store whose values lie in the parameter's own memory, or in a mirror of
it where that is not contiguous memory of the host. Where ranks share the states, a slot is this rank's part of a
parameter. The store is made when the first gradient comes. It is made anew, with the states of what stays, where the
parameters are others than before. What the program writes to a parameter between steps counts.
"""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Optional

import torch
import torch.distributed as dist

from ..._types import not_yet
from ...errors import CapacityError, IoError, MisuseError
from ...optimizer_kinds import optimizer_kinds
from ...store import Store, plan
from ...store.spec import Tensor, UpdateResult
from ...store.squares import SQUARES_LIMBS, gradient_squares
from ..local import local_of, local_values
from ..mapped import mapped_empty
from .division import Division
from .slots import (
    MOMENTS,
    NOT_STORED,
    PIECE,
    Found,
    Slot,
    check_overlap,
    check_parameter,
    host_gradient,
    load_slot,
    settle_masters,
)

if TYPE_CHECKING:
    from ..._types import Named
    from ...store.spec import Optimizer
    from .group import Group

# What a store depends on, of each of them.
Layout = list[tuple[Any, ...]]
# What is loaded of one: steps, moments, and the master of a 16-bit one.
Parsed = tuple[int, list[torch.Tensor], Optional[torch.Tensor]]
# Values of a parameter from an element on, so many.
Values = Callable[[int, int], torch.Tensor]
_AMPLE_BYTES = 1 << 50
# Host memory where states are on nvme and no budget is given: enough to keep a drive busy.
_NVME_HOST_BYTES = 256 << 20


class StateStore:
    """`gradients` are "borrowed" where they stay as they are until update() has returned, else "handed_over"."""

    def __init__(
        self,
        kind: str,
        moment_count: int,
        states: str,
        path: Any,
        host_bytes: int | None,
        gradients: str,
        accumulation_steps: int,
        threads: int,
        moment_type: str,
    ) -> None:
        self._host_bytes = host_bytes
        self._nvme = states == "nvme"
        self._options: Named = {
            "optimizer": kind,
            "parameters": "cpu",
            "states": states,
            "nvme_paths": path or (),
            "gradients": gradients,
            "unused_gradients": "skip",
            "accumulation_steps": accumulation_steps,
            "threads": threads,
            "moment_type": moment_type,
        }
        self._moment_count = moment_count
        self.store: Store = not_yet()  # until there is a gradient, and where this rank has no part of any parameter
        self.slots: dict[int, Slot] = {}
        # Where ranks share the states: which part is whose, and the others.
        self.division = Division()
        self.group: Group | None = None
        self._layout: Layout | None = None
        self._are_masters = False
        self.is_open = False
        self._touched: list[Slot] = []
        self._borrowed: list[torch.Tensor] = []

    # --- The store itself ---

    def fit(self, groups: Sequence[Named]) -> None:
        """Sees to it that the store has these parameters, and knows where and what they are now."""
        self.abandon()  # What an interrupt of an earlier abandon() has left.
        found, layout = self._found(groups, ())
        if layout != self._layout:
            self._replace(found, layout, self._take_over)
        for slot in self.slots.values():
            self._follow(slot)

    def load(self, groups: Sequence[Named], states: Mapping[int, Parsed]) -> None:
        """A new store with `states`, {id(parameter): (steps, moments, master or None)}; else the old one stays."""
        if not states:
            self.close()
            return
        found, layout = self._found(groups, states.keys())

        def fill(store: Store, slots: dict[int, Slot]) -> None:
            for slot in slots.values():
                if id(slot.parameter) not in states:
                    continue
                slot.steps, moments, master = states[id(slot.parameter)]
                moments = [local_values(slot.parameter, one) for one in moments]
                master = None if master is None else local_values(slot.parameter, master)
                if not slot.is_vacant:
                    load_slot(store, slot, moments, master)

        self._replace(found, layout, fill)

    def plan(self, groups: Sequence[Named]) -> None:
        """Refuses what could not be updated, and a budget that is too small. Nothing is allocated."""
        found, layout = self._found(groups, ())
        check_overlap(found)
        if self._host_bytes is not None:
            slots = [slot for slot in self._slots_of(found).values() if not slot.is_vacant]
            if slots:
                plan([slot.tensor() for slot in slots], host_bytes=self._host_bytes, **self._options_for(layout))

    def close(self) -> None:
        if self.store is not None:
            self.store.close()
        self.store, self.slots, self._layout, self.is_open = not_yet(), {}, None, False

    def _found(self, groups: Sequence[Named], also: Collection[int]) -> tuple[list[Found], Layout]:
        """The parameters with states, as (parameter, group, name, has_moments), and what their store depends on."""
        found, layout, names_taken = [], [], set()
        for number, group in enumerate(groups):
            has_moments = not self._needs_momentum() or group["momentum"] != 0
            names = group.get("param_names")
            names = names or [f"group {number}, parameter {place}" for place in range(len(group["params"]))]
            for name, parameter in zip(names, group["params"]):
                if not (
                    parameter.requires_grad
                    or parameter.grad is not None
                    or id(parameter) in self.slots
                    or id(parameter) in also
                ):
                    continue
                name = name if name not in names_taken else f"{name} of group {number}"
                names_taken.add(name)
                check_parameter(parameter, name)
                if parameter.numel() != 0:
                    local = local_of(parameter)
                    found.append((parameter, number, name, has_moments))
                    kept = (local.dtype, local.device, local.shape, local.is_contiguous())
                    layout.append((id(parameter), number, has_moments, *kept))
        return found, layout

    def _slots_of(self, found: list[Found]) -> dict[int, Slot]:
        """By id(parameter). Those of the store have its numbers."""
        parts = self.division.parts([local_of(entry[0]) for entry in found])
        slots, numbers = {}, itertools.count()
        for place, (entry, part) in enumerate(zip(found, parts)):
            slots[id(entry[0])] = Slot(place, next(numbers) if part.elements else NOT_STORED, part, *entry)
        return slots

    def _needs_momentum(self) -> bool:
        """Whether a moment is kept only for a momentum that is not 0."""
        return optimizer_kinds()[self._options["optimizer"]].has_momentum

    def _options_for(self, layout: Layout) -> Named:
        has_moments = any(entry[2] for entry in layout)
        # A copy of fp32 masters would be read and written for nothing.
        are_masters = has_moments and all(entry[3] == torch.float32 for entry in layout)
        return {
            **self._options,
            "masters": "parameter" if are_masters else "whole",
            "sgd_momentum": int(has_moments and self._needs_momentum()),
        }

    def _replace(self, found: list[Found], layout: Layout, fill: Callable[[Store, dict[int, Slot]], None]) -> None:
        if not found:
            self.close()
            return
        check_overlap(found)
        slots = self._slots_of(found)
        stored = [slot for slot in slots.values() if not slot.is_vacant]
        options = self._options_for(layout)
        store: Store = not_yet()
        if stored:
            tensors = [slot.tensor() for slot in stored]
            options["host_bytes"] = self._host_bytes or _planned_host_bytes(tensors, options)
            store = _new_store(tensors, options)
        try:
            for slot in stored:
                slot.fetch()
            if stored:
                store.fill_arrays({slot.number: (slot.memory.data_ptr(), slot.type) for slot in stored})
            fill(store, slots)
            if stored:
                store.set_tensor_steps([slot.steps for slot in stored])
            for slot in slots.values():
                slot.note()
        except BaseException:
            if stored:
                store.close()
            raise
        old = self.store
        self.store, self.slots, self._layout = store, slots, layout
        self._are_masters = options["masters"] == "parameter"
        if old is not None:
            old.close()

    def _take_over(self, store: Store, slots: dict[int, Slot]) -> None:
        """Copies the states of this store to the one that follows it. All ranks that share them do so together."""
        old_steps = self.steps()
        for key, slot in slots.items():
            old = self.slots.get(key)
            if old is None or (self.group is None and old.part != slot.part):
                continue
            if old.parameter.numel() != slot.parameter.numel():
                continue
            if slot.type != "fp32":
                masters = self._values(old, "master")
                if not slot.is_vacant:
                    settle_masters(store, slot, _behind(slot.part.first, masters))
            if not (old.has_moments and slot.has_moments):
                continue
            slot.steps = old_steps[key]
            for what in MOMENTS[: self.moment_count]:
                moments = _behind(slot.part.first, self._values(old, what))
                for first, count in slot.pieces():
                    values = moments(first, count)
                    store.write_values(slot.number, values.data_ptr(), what, first, count)

    def _follow(self, slot: Slot) -> None:
        """Takes over what the program has written to a parameter, or where it has put it."""
        if slot.is_vacant or not (slot.has_moved or slot.is_written):
            return
        slot.fetch()
        if slot.mirror is None and slot.has_moved:
            self.store.move_tensor(slot.number, slot.memory.data_ptr())
        if not self._are_masters:
            settle_masters(self.store, slot, functools.partial(self._piece, slot, "master"))
        slot.note()

    # --- Steps ---

    def require_in_place(self) -> None:
        """What was begun on a parameter can only end on it."""
        for slot in self.slots.values():
            written_counts = self._are_masters and slot.mirror is None
            if slot.has_moved or (slot.is_written and not written_counts):
                raise MisuseError(
                    "cannot update a parameter",
                    slot.name,
                    "it was written or moved between its gradient and the step",
                    'write parameters after step(), or use hand_over="step"',
                )

    def begin(self) -> None:
        self.is_open = True
        if self.store is not None:
            self.store.begin_step()

    def hand_over(self, slot: Slot, gradient: torch.Tensor) -> None:
        if not slot.is_vacant:
            gradient = host_gradient(slot, gradient)
            self.store.hand_over(slot.number, gradient.data_ptr(), slot.type)
            if self._options["gradients"] == "borrowed":
                self._borrowed.append(gradient)
        self._touched.append(slot)

    def end_micro_batch(self) -> None:
        if self.store is not None:
            self.store.end_micro_batch()

    @property
    def touched(self) -> list[torch.Tensor]:
        """The parameters whose gradients the open step has."""
        return [slot.parameter for slot in self._touched]

    def squares(self) -> tuple[list[int], float]:
        """gradient_squares() of what this rank has."""
        return ([0] * SQUARES_LIMBS, 0.0) if self.store is None else gradient_squares(self.store)

    def update(self, settings: Sequence[Optimizer], clip_norm: float, loss_scale: float) -> UpdateResult:
        try:
            result = UpdateResult(True, 0.0, False)
            if self.store is not None:
                result = self.store.update(settings, 0, clip_norm, loss_scale)
            self.is_open = False
            for slot in self._touched:
                slot.steps += slot.is_vacant and result.applied
            return result
        finally:
            # Also where a KeyboardInterrupt comes after the update: torch is to see what it has written.
            touched, self._touched, self._borrowed = self._touched, [], []
            for slot in touched:
                slot.give_back()
            torch.autograd.graph.increment_version([slot.parameter for slot in touched])
            for slot in touched:
                slot.note()

    def note(self, parameters: Sequence[torch.Tensor]) -> None:
        """What parameters are now is what the store knows: other ranks' parts have come."""
        torch.autograd.graph.increment_version(parameters)
        for parameter in parameters:
            self.slots[id(parameter)].note()

    def abandon(self) -> None:
        if self.is_open and self.store is not None:
            try:
                self.store.abandon_step()
            except MisuseError:
                pass  # No step is open: an interrupt came before it began, or after its update.
        self.is_open, self._touched, self._borrowed = False, [], []

    # --- Values ---

    @property
    def moment_count(self) -> int:
        """How many moments the store keeps of every tensor."""
        if self._layout is not None and not any(entry[2] for entry in self._layout):
            return 0
        return self._moment_count

    def steps(self) -> dict[int, int]:
        """The updates that parameters have had, by id(parameter)."""
        counts = [] if self.store is None else self.store.tensor_steps
        return {key: slot.steps if slot.is_vacant else counts[slot.number] for key, slot in self.slots.items()}

    def read(self, slot: Slot, what: str) -> torch.Tensor:
        """Values of what lies here of the parameter, in its local shape and fp32. With states on nvme they are pages of
        a file without a name."""
        values = self.empty(local_of(slot.parameter).shape)
        if not slot.is_vacant:
            self.store.read_values(slot.number, what, 0, values.numel(), values.data_ptr())
        return values

    def read_whole(self, slot: Slot, what: str, to: int | None) -> torch.Tensor | None:
        """Where ranks share the states: values of all ranks, on rank `to` or on all of them. Each calls it."""
        assert self.group is not None
        shape = slot.parameter.shape
        values = self.empty(shape) if to is None or to == self.group.rank else None
        for first in range(0, shape.numel(), PIECE):
            piece = torch.zeros(min(PIECE, shape.numel() - first))
            begin, end = (min(max(place - first, 0), piece.numel()) for place in (slot.part.first, slot.part.end))
            if begin < end:
                own = piece[begin:end]
                place = first + begin - slot.part.first
                self.store.read_values(slot.number, what, place, own.numel(), own.data_ptr())
            self.group.put_together(piece, to)
            if values is not None:
                values.view(-1)[first : first + piece.numel()] = piece
        return values

    def empty(self, shape: torch.Size) -> torch.Tensor:
        paths = self._options["nvme_paths"]
        folder = paths if isinstance(paths, (str, os.PathLike)) else next(iter(paths), None)
        return mapped_empty(shape, torch.float32, folder) if self._nvme else torch.empty(shape)

    def _values(self, slot: Slot, what: str) -> Values:
        """Those of a parameter as it lies in this process, whoever has the states."""
        if self.group is None:
            return functools.partial(self._piece, slot, what)
        whole = self.read_whole(slot, what, None)
        assert whole is not None
        flat = whole.view(-1)
        return lambda first, count: flat[first : first + count]

    def _piece(self, slot: Slot, what: str, first: int, count: int) -> torch.Tensor:
        values = torch.empty(count)
        self.store.read_values(slot.number, what, first, count, values.data_ptr())
        return values


def _behind(place: int, values: Values) -> Values:
    return lambda first, count: values(place + first, count)


def _planned_host_bytes(tensors: list[Tensor], options: Named) -> int:
    """All of the states on cpu; on nvme what keeps the drive busy, and no more than there is."""
    whole = plan(tensors, host_bytes=_AMPLE_BYTES, **options).host_bytes
    if options["states"] == "cpu" or whole <= _NVME_HOST_BYTES:
        return whole
    try:
        return plan(tensors, host_bytes=_NVME_HOST_BYTES, **options).host_bytes
    except CapacityError as error:
        return error.least_host_bytes


def _new_store(tensors: list[Tensor], options: Named) -> Store:
    """A store in the first sub-folder of its paths that nobody uses, which replaces what a killed process left."""
    for number in itertools.count():
        try:
            name = f"optimizer-{number}{_rank_name()}" if options["nvme_paths"] else None
            return Store(tensors, **options, tier_name=name)
        except IoError as error:
            if error.cause != "folder_in_use":
                raise
    raise AssertionError  # there is always a next number


def _rank_name() -> str:
    """So that those of one host each have a folder of their own, which a later start finds again."""
    if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
        return ""
    return f"-rank-{dist.get_rank()}-of-{dist.get_world_size()}"
