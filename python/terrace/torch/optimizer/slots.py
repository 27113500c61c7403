"""Slot: a parameter, or a rank's part of it, and the tensor of a store that it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

import torch

from ...errors import ConfigError, MisuseError
from ...store.spec import Tensor
from ..emptied import require_values
from ..local import gradient_of, is_dtensor, local_of
from ..overlap import overlapping
from .division import Part

if TYPE_CHECKING:
    from ...store import Store

TYPES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
# A parameter with states: with its group, its name, and whether it has moments.
Found = tuple[torch.Tensor, int, str, bool]
MOMENTS = ("first_moment", "second_moment")
PIECE = 1 << 20  # elements that are copied at a time
NOT_STORED = -1  # the number of a slot that is no tensor of the store


class Slot:
    """`part` is a run of elements of what lies in this process. A vacant one, without any, is no tensor of the store,
    and counts its updates in `steps`; of others these are the first count of the store."""

    __slots__ = (
        "parameter",
        "number",
        "group",
        "name",
        "type",
        "rounding_place",
        "has_moments",
        "part",
        "steps",
        "mirror",
        "landing",
        "address",
        "version",
    )

    def __init__(
        self, place: int, number: int, part: Part, parameter: torch.Tensor, group: int, name: str, has_moments: bool
    ) -> None:
        self.parameter = parameter
        # The same on any number of ranks: `place` is that among all parameters.
        self.rounding_place = (place + 1 << 40) + part.first
        self.number, self.group, self.name = number, group, name
        self.type = TYPES[parameter.dtype]
        self.has_moments = has_moments
        self.part, self.steps = part, 0
        local = local_of(parameter)
        on_device = local.device.type != "cpu"
        # Page-locked where a device copies to it.
        self.mirror: torch.Tensor | None = None
        self.landing: torch.Tensor | None = None
        if on_device or not local.is_contiguous():
            self.mirror = torch.empty(part.elements, dtype=parameter.dtype, pin_memory=on_device)
        if on_device:
            self.landing = torch.empty_like(cast(torch.Tensor, self.mirror), pin_memory=True)
        self.note()

    @property
    def is_vacant(self) -> bool:
        return self.number == NOT_STORED

    def _seen(self) -> tuple[int, tuple[int, int]]:
        local = local_of(self.parameter)
        return local.data_ptr(), (self.parameter._version, local._version)

    def note(self) -> None:
        """What is there now is what the store knows."""
        self.address, self.version = self._seen()

    @property
    def has_moved(self) -> bool:
        return self._seen()[0] != self.address

    @property
    def is_written(self) -> bool:
        return self._seen()[1] != self.version

    @property
    def memory(self) -> torch.Tensor:
        """The values that the store updates, flat."""
        return part_of(local_of(self.parameter), self.part) if self.mirror is None else self.mirror

    def fetch(self) -> None:
        """The values into the mirror, if there is one."""
        if self.mirror is not None:
            self.mirror.copy_(part_of(local_of(self.parameter), self.part))

    def give_back(self) -> None:
        """The values of the mirror, if there is one, to the parameter."""
        if self.mirror is not None:
            write_part(local_of(self.parameter), self.part.first, self.mirror)

    def tensor(self) -> Tensor:
        return Tensor(
            self.name,
            (self.part.elements,),
            self.type,
            group=self.group,
            home="caller",
            address=self.memory.data_ptr(),
            rounding_place=self.rounding_place,
        )

    def pieces(self) -> list[tuple[int, int]]:
        """Runs (first, count) of the part's elements, counted from the part's first."""
        count = self.part.elements
        return [(first, min(PIECE, count - first)) for first in range(0, count, PIECE)]


def part_of(tensor: torch.Tensor, part: Part) -> torch.Tensor:
    """Flat; a view where the tensor is contiguous."""
    return tensor.detach().reshape(-1)[part.first : part.first + part.elements]


def write_part(tensor: torch.Tensor, first: int, values: torch.Tensor) -> None:
    """Writes elements of a tensor from `first` on."""
    own = tensor.detach()
    if values.numel() == own.numel():
        own.copy_(values.view(own.shape))
        return
    flat = own.reshape(-1)  # a copy where it is not contiguous
    flat[first : first + values.numel()] = values
    if not own.is_contiguous():
        own.copy_(flat.view(own.shape))


def check_parameter(parameter: torch.Tensor, name: str) -> None:
    """Refuses what no optimizer of Terrace can update."""
    what = "cannot optimize a parameter"
    if torch.nn.parameter.is_lazy(parameter):
        raise MisuseError(what, name, "it has no shape yet", "run the model forward once before its first step")
    advice = "give dense parameters of float32, bfloat16 or float16, or freeze it with requires_grad_(False)"
    reason = None
    if getattr(parameter, "_fsdp_flattened", False) or type(parameter).__name__ == "FlatParameter":
        reason = "FullyShardedDataParallel has flattened it, and moves it between passes"
        advice = "shard the model with torch.distributed.fsdp.fully_shard, whose parameters are taken"
    elif is_dtensor(parameter):
        if any(placement.is_partial() for placement in parameter.placements):  # type: ignore[attr-defined]
            reason = "it is a sum of parts that lie in several processes"
    elif torch.utils._python_dispatch.is_traceable_wrapper_subclass(parameter):
        reason = f"it is a {type(parameter).__name__}, whose memory is that of other tensors"
    local = local_of(parameter) if reason is None else parameter
    if reason is not None:
        pass
    elif local.layout != torch.strided:
        reason = f"it is sparse ({parameter.layout})"
    elif local.is_quantized or local.dtype not in TYPES:
        reason = f"its type is {parameter.dtype}"
    if reason is not None:
        raise ConfigError(what, name, reason, advice)
    if local.numel() != 0 and local.data_ptr() == 0:
        raise MisuseError(
            what,
            name,
            f"it has no memory (device {parameter.device})",
            "give the parameter values before the step, for instance with to_empty() and a load",
        )


def host_gradient(slot: Slot, gradient: torch.Tensor) -> torch.Tensor:
    """The slot's gradient as the store takes it: contiguous, in host memory and of the parameter's type."""
    if gradient.layout != torch.strided:
        raise ConfigError(
            "cannot take a gradient",
            slot.name,
            f"it is sparse ({gradient.layout})",
            "set sparse=False where the model makes it, for instance in torch.nn.Embedding",
        )
    own = part_of(gradient_of(slot.parameter, gradient), slot.part)
    if slot.landing is not None:
        return slot.landing.copy_(own)
    return own.to(dtype=slot.parameter.dtype).contiguous()


def check_overlap(found: list[Found]) -> None:
    """Two parameters in the same memory would be updated twice, and one that overlaps itself in no order."""
    here = [(local_of(parameter), name) for parameter, _, name, _ in found]
    for parameter, name in here:
        require_values(parameter, name, "cannot optimize a parameter")
        if torch._debug_has_internal_overlap(parameter) == 1:
            raise ConfigError(
                "cannot optimize a parameter",
                name,
                "its elements share memory with each other",
                "give it memory of its own: parameter.data = parameter.data.clone()",
            )
    shared = overlapping(here)
    if shared is not None:
        raise ConfigError(
            "cannot optimize two parameters in the same memory",
            " and ".join(shared),
            "an update of one would change the other",
            "use one torch.nn.Parameter in both places, or give one memory of its own",
        )


def settle_masters(store: Store, slot: Slot, masters: Callable[[int, int], torch.Tensor]) -> None:
    """Gives the store the values of a slot, and of a 16-bit one `masters` wherever they round to it.

    `masters` is given runs of slot.pieces(). The store rounds as its updates do, so it is asked: the parameter is as
    before in the end, and counts as that for a graph which has saved it (.data has a version of its own).
    """
    memory = slot.memory.data
    for first, count in slot.pieces():
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


def load_slot(store: Store, slot: Slot, moments: Sequence[torch.Tensor], master: torch.Tensor | None) -> None:
    """Writes states, given as values of what lies in this process."""

    def piece(flat: torch.Tensor, first: int, count: int) -> torch.Tensor:
        begin = slot.part.first + first
        return flat[begin : begin + count].to(device="cpu", dtype=torch.float32).contiguous()

    for what, values in zip(MOMENTS, moments):
        flat = values.detach().reshape(-1)
        for first, count in slot.pieces():
            part = piece(flat, first, count)
            store.write_values(slot.number, part.data_ptr(), what, first, count)
    if master is not None and slot.type != "fp32":
        masters = master.detach().reshape(-1)
        settle_masters(store, slot, lambda first, count: piece(masters, first, count))
