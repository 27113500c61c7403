"""Which part of a model this process trains, where processes divide the model: stages of a pipeline, and ranks of tensor
parallelism. Processes with the same part divide its parameters, gradients and states, as all ranks do where each has the
whole model. The gradient norm, and whether a step is left out, are those of the model."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch

from ...errors import ConfigError, PeerError
from ...ranks import Ranks
from ..local import is_dtensor
from .alike import agree
from .launched import free_place, join_ranks
from .replicas import sum_of_ends

if TYPE_CHECKING:
    from torch import nn


_WHAT = "cannot divide a model among processes"


class Parts(NamedTuple):
    """`all`: every process of the run; None: there is one part. `data`: those that train this part; None: this process
    alone. `copies`: names of parameters which another part has too and counts in the norm. `block_of` says by the name of a
    parameter what begins with a tile of its own in a store: then the norm has the same bits for any division between such
    blocks."""

    all: Ranks | None
    data: Ranks | None
    part: int = 0
    parts: int = 1
    copies: frozenset[str] = frozenset()
    block_of: Callable[[str], str] | None = None

    @property
    def everybody(self) -> Ranks | None:
        return self.data if self.all is None else self.all

    @property
    def is_whole(self) -> bool:
        """Whether this process has all of the model, and lays it out as it likes."""
        return self.everybody is None and self.block_of is None

    def tier_name(self, given: str | None) -> str | None:
        """The folder of what this part has on nvme, where parts may share a drive."""
        if self.parts == 1:
            return given
        return f"{given + '-' if given else ''}part-{self.part + 1}-of-{self.parts}"


def parts_of(model: nn.Module, group: Any, size: int | None, mpu: Any) -> Parts:
    """What the model says of its parts, or the groups that terrace.initialize is given."""
    of_model = getattr(model, "parts", None)
    ranks = join_ranks()
    if isinstance(of_model, Parts):
        _require_own_division(model, group, size, mpu)
        if of_model.all is not None:
            _require_alike_among(of_model.all, model, copies_of(model))
        return of_model
    colour = _colour_of(ranks, group, size, mpu)
    if ranks is None or colour is None:
        return Parts(None, ranks)
    parts, copies = divide(ranks, colour), copies_of(model)
    if parts.parts > 1:
        _require_alike(ranks, model, copies)
    return parts._replace(copies=copies if parts.part > 0 else frozenset())


def _colour_of(ranks: Ranks | None, group: Any, size: int | None, mpu: Any) -> int | None:
    """The same for processes that train the same part; None where each trains the whole model."""
    if size is not None:
        count = 1 if ranks is None else ranks.count
        if isinstance(size, bool) or not isinstance(size, int) or size < 1 or count % size:
            raise _refused("model_parallel_size", f"it is {size!r}, and there are {count} processes")
        return None if ranks is None or size == 1 else ranks.rank % size
    shared = getattr(mpu, "get_model_parallel_world_size", lambda: 1)()
    if group is None and shared > 1:
        if ranks is None:
            raise _refused("mpu", f"it says that {shared} processes share a copy, and this one is alone")
        group = mpu.get_data_parallel_group()
    if group is None or ranks is None:
        return None
    members = sorted(group if isinstance(group, list) else torch.distributed.get_process_group_ranks(group))
    return None if len(members) == ranks.count else members[0]


def _require_own_division(model: nn.Module, group: Any, size: int | None, mpu: Any) -> None:
    """A model that says itself which of its parts each process has may be told so once more."""
    grid = cast(Any, model).mpu()
    shared = grid.get_slice_parallel_world_size()
    of_mpu = getattr(mpu, "get_slice_parallel_world_size", getattr(mpu, "get_tensor_model_parallel_world_size", None))
    told = {"model_parallel_size": size, "mpu": None if of_mpu is None else of_mpu()}
    advice = "give PipelineModule topology=PipeModelDataParallelTopology(num_pp=, num_mp=, num_dp=), and nothing here"
    for what, number in told.items():
        if number not in (None, shared):
            reason = (
                f"it says that {number} processes divide the tensors of a stage, and the model was made for {shared}"
            )
            raise ConfigError(_WHAT, what, reason, advice)
    if group is not None:
        raise ConfigError(
            _WHAT, "data_parallel_group", "the model says itself which of its parts each process has", advice
        )


def _refused(what: str, reason: str) -> ConfigError:
    return ConfigError(
        _WHAT,
        what,
        reason,
        "give model_parallel_size, the processes that share one copy of the model; or mpu, or data_parallel_group",
    )


def copies_of(model: nn.Module) -> frozenset[str]:
    """What all processes of a copy of the model have whole, as Megatron and DeepSpeed mark the rest."""
    return frozenset(name for name, one in model.named_parameters() if not is_shard(one))


def _require_alike(ranks: Ranks, model: nn.Module, copies: frozenset[str]) -> None:
    facts = {f"values of {name}": sum_of_ends(one) for name, one in model.named_parameters() if name in copies}
    agree(ranks, facts, _WHAT, _ALIKE)


_ALIKE = (
    "let all processes of a copy begin with the same values, and set tensor_model_parallel = True on each parameter that "
    "is a shard or is in one part alone"
)


def _require_alike_among(ranks: Ranks, model: nn.Module, copies: frozenset[str]) -> None:
    """As _require_alike, of the processes whose models say that they are alike: others have other parameters."""
    names = [name for name, _ in model.named_parameters() if name in copies]
    sums = [zlib.crc32(f"{name} {sum_of_ends(model.get_parameter(name))}".encode()) for name in names]
    own = _SUM.pack(zlib.crc32(str(cast(Any, model).alike).encode())) + b"".join(map(_SUM.pack, sums))
    for rank, other in enumerate(ranks.texts_of_all(own)):
        if other[: _SUM.size] != own[: _SUM.size] or other == own:
            continue
        if len(other) != len(own):
            there = len(other) // _SUM.size - 1
            what, reason = "its parameters", f"rank {ranks.rank} has {len(names)} whole, and rank {rank} has {there}"
        else:
            place = next(n for n, one in enumerate(sums) if _SUM.unpack_from(other, (n + 1) * _SUM.size)[0] != one)
            what, reason = f"values of {names[place]}", f"they are others on rank {ranks.rank} and on rank {rank}"
        raise ConfigError(_WHAT, what, reason, _ALIKE)


def is_shard(parameter: torch.Tensor) -> bool:
    if is_dtensor(parameter):
        return any(place.is_shard() for place in cast(Any, parameter).placements)
    return any(getattr(parameter, name, False) for name in ("tensor_model_parallel", "model_parallel"))


_SUM = struct.Struct("<I")
_met: dict[tuple[int, ...], Parts] = {}


def divide(ranks: Ranks, colour: int) -> Parts:
    """Every process calls it. Those with the same colour train the same part; parts are numbered as their first processes
    are."""
    colours = tuple(ranks.all_of(colour))
    if colours not in _met:
        _met[colours] = _meet(ranks, colours)
    return _met[colours]


def _meet(ranks: Ranks, colours: tuple[int, ...]) -> Parts:
    numbered = list(dict.fromkeys(colours))
    members = [rank for rank, one in enumerate(colours) if one == colours[ranks.rank]]
    if any(colours.count(one) != len(members) for one in numbered):
        raise PeerError(
            _WHAT,
            "its parts",
            f"they have {', '.join(str(colours.count(one)) for one in numbered)} processes",
            "let each part have as many processes as the others",
        )
    part, parts = numbered.index(colours[ranks.rank]), len(numbered)
    if parts == 1:
        return Parts(None, ranks)
    hosts = [host.decode() for host in ranks.texts_of_all(ranks.host.encode())]
    is_first = members[0] == ranks.rank
    places = ranks.texts_of_all(free_place([hosts[rank] for rank in members]).encode() if is_first else b"")
    if len(members) == 1:
        return Parts(ranks, None, part, parts)
    transport = "nccl" if ranks.transport == "nccl" else "auto"
    data = Ranks(
        rank=members.index(ranks.rank),
        count=len(members),
        place=places[members[0]].decode(),
        transport=transport,
        ends_process="with_store",
        among=ranks,
    )
    return Parts(ranks, data, part, parts)


def copies_in(model: nn.Module) -> set[int]:
    """The ids of parameters that another part trains, whose values this one gets after each update."""
    followers: dict[str, nn.Module] = getattr(model, "followers", dict)()
    return {id(parameter) for module in followers.values() for parameter in module.parameters()}


def without(copies: set[int], groups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Parameter groups without these parameters; the same groups where there is none."""
    if not copies:
        return groups
    return [dict(group, params=[one for one in group["params"] if id(one) not in copies]) for group in groups]
