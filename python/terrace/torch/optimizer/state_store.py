"""StateStore: optimizer states of parameters that stay torch's, in a terrace.Store.

Every parameter has a slot: a tensor of the store whose values lie in the parameter's own memory, or in a mirror of
it where that is not contiguous memory of the host. The store is made when the first gradient comes. It is made
anew, with the states of what stays, where the parameters are others than before. What the program writes to a
parameter between steps counts.
"""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Optional, cast

import torch

from ..._types import not_yet
from ...errors import CapacityError, ConfigError, IoError, MisuseError
from ...optimizer_kinds import optimizer_kinds
from ...store import Store, plan
from ...store.spec import Tensor
from ..emptied import require_values
from ..mapped import mapped_empty
from ..overlap import overlapping

if TYPE_CHECKING:
    from ..._types import Named
    from ...store.spec import Optimizer, UpdateResult

TYPES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
# A parameter with states: with its group, its name, and whether it has moments.
Found = tuple[torch.Tensor, int, str, bool]
# What a store depends on, of each of them.
Layout = list[tuple[Any, ...]]
# What is loaded of one: steps, moments, and the master of a 16-bit one.
Parsed = tuple[int, list[torch.Tensor], Optional[torch.Tensor]]
MOMENTS = ("first_moment", "second_moment")
_PIECE = 1 << 20  # elements that are copied at a time
_AMPLE_BYTES = 1 << 50
# Host memory where states are on nvme and no budget is given: enough to keep a drive busy.
_NVME_HOST_BYTES = 256 << 20


class Slot:
    """A parameter, and the tensor of the store that it is."""

    __slots__ = (
        "parameter",
        "number",
        "group",
        "name",
        "type",
        "has_moments",
        "mirror",
        "landing",
        "address",
        "version",
    )

    def __init__(self, number: int, parameter: torch.Tensor, group: int, name: str, has_moments: bool) -> None:
        self.parameter = parameter
        self.number, self.group, self.name = number, group, name
        self.type = TYPES[parameter.dtype]
        self.has_moments = has_moments
        on_device = parameter.device.type != "cpu"
        # Page-locked where a device copies to it.
        self.mirror: torch.Tensor | None = None
        self.landing: torch.Tensor | None = None
        if on_device or not parameter.is_contiguous():
            self.mirror = torch.empty(parameter.numel(), dtype=parameter.dtype, pin_memory=on_device)
        if on_device:
            self.landing = torch.empty_like(cast(torch.Tensor, self.mirror), pin_memory=True)
        self.note()

    def note(self) -> None:
        """What is there now is what the store knows."""
        self.address, self.version = self.parameter.data_ptr(), self.parameter._version

    @property
    def memory(self) -> torch.Tensor:
        """The values that the store updates, flat."""
        return self.parameter.detach().view(-1) if self.mirror is None else self.mirror

    def tensor(self) -> Tensor:
        return _tensor(self.parameter, self.group, self.name, self.memory)


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
        }
        self._moment_count = moment_count
        self.store: Store = not_yet()  # until there is a gradient
        self.slots: dict[int, Slot] = {}
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
            steps = [0] * len(slots)
            for key, slot in slots.items():
                if key in states:
                    steps[slot.number], moments, master = states[key]
                    _load_slot(store, slot, moments, master)
            store.set_tensor_steps(steps)

        self._replace(found, layout, fill)

    def plan(self, groups: Sequence[Named]) -> None:
        """Refuses what could not be updated, and a budget that is too small. Nothing is allocated."""
        found, layout = self._found(groups, ())
        _check_overlap(found)
        if self._host_bytes is not None and found:
            tensors = [_tensor(parameter, group, name, parameter) for parameter, group, name, _ in found]
            plan(tensors, host_bytes=self._host_bytes, **self._options_for(layout))

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
                    found.append((parameter, number, name, has_moments))
                    layout.append(
                        (
                            id(parameter),
                            number,
                            has_moments,
                            parameter.dtype,
                            parameter.device,
                            parameter.shape,
                            parameter.is_contiguous(),
                        )
                    )
        return found, layout

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
        _check_overlap(found)
        slots = {id(entry[0]): Slot(number, *entry) for number, entry in enumerate(found)}
        tensors = [slot.tensor() for slot in slots.values()]
        options = self._options_for(layout)
        options["host_bytes"] = self._host_bytes or _planned_host_bytes(tensors, options)
        store = _new_store(tensors, options)
        try:
            for slot in slots.values():
                if slot.mirror is not None:
                    slot.mirror.copy_(slot.parameter.detach().reshape(-1))
            store.fill_arrays({slot.number: (slot.memory.data_ptr(), slot.type) for slot in slots.values()})
            fill(store, slots)
            for slot in slots.values():
                slot.note()
        except BaseException:
            store.close()
            raise
        old = self.store
        self.store, self.slots, self._layout = store, slots, layout
        self._are_masters = options["masters"] == "parameter"
        if old is not None:
            old.close()

    def _take_over(self, store: Store, slots: dict[int, Slot]) -> None:
        """Copies the states of this store to the one that follows it."""
        steps, old_steps = [0] * len(slots), self.store.tensor_steps if self.store is not None else ()
        for key, slot in slots.items():
            old = self.slots.get(key)
            if old is None or old.parameter.numel() != slot.parameter.numel():
                continue
            if slot.type != "fp32":
                _settle_masters(store, slot, functools.partial(self._piece, old, "master"))
            if not (old.has_moments and slot.has_moments):
                continue
            steps[slot.number] = old_steps[old.number]
            for what in MOMENTS[: self.moment_count]:
                for first, count in _pieces(slot):
                    values = self._piece(old, what, first, count)
                    store.write_values(slot.number, values.data_ptr(), what, first, count)
        store.set_tensor_steps(steps)

    def _follow(self, slot: Slot) -> None:
        """Takes over what the program has written to a parameter, or where it has put it."""
        parameter = slot.parameter
        address = parameter.data_ptr()
        if address == slot.address and parameter._version == slot.version:
            return
        if slot.mirror is not None:
            slot.mirror.copy_(parameter.detach().reshape(-1))
        elif address != slot.address:
            self.store.move_tensor(slot.number, address)
        if not self._are_masters:
            _settle_masters(self.store, slot, lambda first, count: self._piece(slot, "master", first, count))
        slot.note()

    # --- Steps ---

    def require_in_place(self) -> None:
        """What was begun on a parameter can only end on it."""
        for slot in self.slots.values():
            written_counts = self._are_masters and slot.mirror is None
            is_written = slot.parameter._version != slot.version and not written_counts
            if slot.parameter.data_ptr() != slot.address or is_written:
                raise MisuseError(
                    "cannot update a parameter",
                    slot.name,
                    "it was written or moved between its gradient and the step",
                    'write parameters after step(), or use hand_over="step"',
                )

    def begin(self) -> None:
        self.is_open = True
        self.store.begin_step()

    def hand_over(self, slot: Slot, gradient: torch.Tensor) -> None:
        gradient = _host_gradient(slot, gradient)
        self.store.hand_over(slot.number, gradient.data_ptr(), slot.type)
        self._touched.append(slot)
        if self._options["gradients"] == "borrowed":
            self._borrowed.append(gradient)

    def update(self, settings: Sequence[Optimizer], clip_norm: float, loss_scale: float) -> UpdateResult:
        try:
            result = self.store.update(settings, 0, clip_norm, loss_scale)
            self.is_open = False
            return result
        finally:
            # Also where a KeyboardInterrupt comes after the update: torch is to see what it has written.
            touched, self._touched, self._borrowed = self._touched, [], []
            for slot in touched:
                if slot.mirror is not None:
                    slot.parameter.detach().copy_(slot.mirror.view(slot.parameter.shape))
            torch.autograd.graph.increment_version([slot.parameter for slot in touched])
            for slot in touched:
                slot.note()

    def abandon(self) -> None:
        if self.is_open:
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

    def read(self, slot: Slot, what: str) -> torch.Tensor:
        """Values in the parameter's shape, in fp32. With states on nvme they are pages of a file without a name."""
        shape, paths = slot.parameter.shape, self._options["nvme_paths"]
        folder = paths if isinstance(paths, (str, os.PathLike)) else next(iter(paths), None)
        values = mapped_empty(shape, torch.float32, folder) if self._nvme else torch.empty(shape)
        self.store.read_values(slot.number, what, 0, values.numel(), values.data_ptr())
        return values

    def _piece(self, slot: Slot, what: str, first: int, count: int) -> torch.Tensor:
        values = torch.empty(count)
        self.store.read_values(slot.number, what, first, count, values.data_ptr())
        return values


def _tensor(parameter: torch.Tensor, group: int, name: str, memory: torch.Tensor) -> Tensor:
    shape = tuple(parameter.shape) or (1,)
    return Tensor(name, shape, TYPES[parameter.dtype], group=group, home="caller", address=memory.data_ptr())


def check_parameter(parameter: torch.Tensor, name: str) -> None:
    """Refuses what no optimizer of Terrace can update."""
    what = "cannot optimize a parameter"
    if torch.nn.parameter.is_lazy(parameter):
        raise MisuseError(what, name, "it has no shape yet", "run the model forward once before its first step")
    reason = None
    if torch.utils._python_dispatch.is_traceable_wrapper_subclass(parameter):
        reason = f"it is a {type(parameter).__name__}, whose memory is that of other tensors"
    elif parameter.layout != torch.strided:
        reason = f"it is sparse ({parameter.layout})"
    elif parameter.is_quantized or parameter.dtype not in TYPES:
        reason = f"its type is {parameter.dtype}"
    if reason is not None:
        raise ConfigError(
            what,
            name,
            reason,
            "give dense parameters of float32, bfloat16 or float16, or freeze it with requires_grad_(False)",
        )
    if parameter.numel() != 0 and parameter.data_ptr() == 0:
        raise MisuseError(
            what,
            name,
            f"it has no memory (device {parameter.device})",
            "give the parameter values before the step, for instance with to_empty() and a load",
        )


def _host_gradient(slot: Slot, gradient: torch.Tensor) -> torch.Tensor:
    """The gradient as the store takes it: contiguous, in host memory and of the parameter's type."""
    if gradient.layout != torch.strided:
        raise ConfigError(
            "cannot take a gradient",
            slot.name,
            f"it is sparse ({gradient.layout})",
            "set sparse=False where the model makes it, for instance in torch.nn.Embedding",
        )
    if slot.landing is not None:
        return slot.landing.copy_(gradient.detach().reshape(-1))
    return gradient.detach().to(dtype=slot.parameter.dtype).contiguous()


def _check_overlap(found: list[Found]) -> None:
    """Two parameters in the same memory would be updated twice, and one that overlaps itself in no order."""
    for parameter, _, name, _ in found:
        require_values(parameter, name, "cannot optimize a parameter")
        if torch._debug_has_internal_overlap(parameter) == 1:
            raise ConfigError(
                "cannot optimize a parameter",
                name,
                "its elements share memory with each other",
                "give it memory of its own: parameter.data = parameter.data.clone()",
            )
    shared = overlapping([(parameter, name) for parameter, _, name, _ in found])
    if shared is not None:
        raise ConfigError(
            "cannot optimize two parameters in the same memory",
            " and ".join(shared),
            "an update of one would change the other",
            "use one torch.nn.Parameter in both places, or give one memory of its own",
        )


def _pieces(slot: Slot) -> list[tuple[int, int]]:
    count = slot.parameter.numel()
    return [(first, min(_PIECE, count - first)) for first in range(0, count, _PIECE)]


def _settle_masters(store: Store, slot: Slot, masters: Callable[[int, int], torch.Tensor]) -> None:
    """Gives the store the values of a parameter, and of a 16-bit one `masters` wherever they round to it.

    The store rounds as its updates do, so it is asked: the parameter is as before in the end, and counts as that
    for a graph which has saved it (.data has a version of its own).
    """
    memory = slot.memory.data
    for first, count in _pieces(slot):
        part = memory[first : first + count]
        kept = part.clone()
        given = kept if slot.type == "fp32" else masters(first, count)
        try:
            store.write_values(slot.number, given.data_ptr(), "master", first, count)
            differing = part != kept
            if bool(differing.any()):
                given = torch.where(differing, kept.float(), given)
                store.write_values(slot.number, given.data_ptr(), "master", first, count)
        finally:
            part.copy_(kept)


def _load_slot(store: Store, slot: Slot, moments: Sequence[torch.Tensor], master: torch.Tensor | None) -> None:
    for what, values in zip(MOMENTS, moments):
        values = values.detach().reshape(-1)
        for first, count in _pieces(slot):
            part = values[first : first + count].to(device="cpu", dtype=torch.float32).contiguous()
            store.write_values(slot.number, part.data_ptr(), what, first, count)
    if master is not None and slot.type != "fp32":
        values = master.detach().reshape(-1)
        _settle_masters(store, slot, lambda first, count: values[first : first + count].to("cpu", torch.float32))


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
            return Store(tensors, **options, tier_name=f"optimizer-{number}" if options["nvme_paths"] else None)
        except IoError as error:
            if error.cause != "folder_in_use":
                raise
    raise AssertionError  # there is always a next number
