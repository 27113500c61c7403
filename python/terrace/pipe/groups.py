"""Groups of torch.distributed for the layers of a pipeline whose tensors processes divide: what they exchange within a pass is
theirs. They are there before any layer is made."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed

from ..errors import ConfigError
from ..torch.engine.launched import free_place, join_ranks

if TYPE_CHECKING:
    from ..ranks import Ranks
    from .topology import ProcessTopology

_WHAT = "cannot divide a model into stages"
_AXES = ("pipe", "data", "model")


class Groups(NamedTuple):
    """`slice`: of the processes that share the tensors of this one's stage. `copy`: of all that share a copy of the model."""

    slice: Any
    copy: Any


class Place(NamedTuple):
    """This process among all that train. `groups` is None where tensors are whole."""

    rank: int
    groups: Groups | None


def place_in(topology: ProcessTopology) -> Place:
    """Every process calls it. Raises ConfigError where the topology is not of these processes."""
    ranks = join_ranks()
    require_fit(topology, 1 if ranks is None else ranks.count)
    if ranks is None or topology.get_dim("model") < 2:
        return Place(0 if ranks is None else ranks.rank, None)
    _meet(ranks)
    world = torch.distributed.group.WORLD
    key = tuple(topology.axes), tuple(topology.dims)
    if _made.get(key, (None,))[0] is not world:
        copies: list[list[int]] = [
            sorted(topology.get_axis_list("data", number)) for number in range(topology.get_dim("data"))
        ] or [list(range(ranks.count))]
        slices = topology.get_axis_comm_lists("model")
        _made[key] = world, Groups(_own(slices, ranks.rank), _own(copies, ranks.rank))
    return Place(ranks.rank, _made[key][1])


_made: dict[Any, tuple[Any, Groups]] = {}  # by axes and lengths, with the default group that they belong to


def _own(every: list[list[int]], rank: int) -> Any:
    """Each process makes all groups."""
    made = [torch.distributed.new_group(members) for members in every]
    return next(group for group, members in zip(made, every) if rank in members)


def _meet(ranks: Ranks) -> None:
    """The processes become torch's default group, if the program has made none."""
    if torch.distributed.is_initialized():
        return
    hosts = [host.decode() for host in ranks.texts_of_all(ranks.host.encode())]
    host, _, port = ranks.of_first(free_place(hosts).encode()).decode().rpartition(":")
    names: Any = torch.distributed  # which does not say all that it has
    patience = datetime.timedelta(seconds=300)
    store = names.TCPStore(host, int(port), is_master=ranks.is_first, wait_for_workers=False, timeout=patience)
    backend = None if torch.cuda.is_available() else "gloo"  # None: NCCL on GPUs, and gloo on the processor
    torch.distributed.init_process_group(backend, store=store, rank=ranks.rank, world_size=ranks.count)


def require_fit(topology: ProcessTopology, world: int) -> None:
    if topology.get_dim("pipe") < 1 or topology.world_size() != world:
        raise ConfigError(
            _WHAT,
            "topology",
            f"it has {topology.world_size()} processes, and {world} train",
            'give an axis "pipe", and as many processes as train',
        )
    others = [axis for axis in topology.get_axis_names() if axis not in _AXES and topology.get_dim(axis) > 1]
    if others:
        raise ConfigError(
            _WHAT,
            f"the axis {others[0]!r} of the topology",
            "processes have stages, parts of the data, and shards of tensors",
            'leave it out, or name it "pipe", "data" or "model"',
        )
