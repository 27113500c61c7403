"""Where each process of a pipeline is: coordinates on named axes, with DeepSpeed's names and order."""

from __future__ import annotations

import itertools
from collections import namedtuple
from collections.abc import Sequence
from typing import Any

from ..errors import ConfigError
from .groups import Place, place_in

_WHAT = "cannot lay out the processes of a pipeline"


class ProcessTopology:
    """Ranks count through the coordinates of `axes`, the last axis fastest: with axes=["pipe", "data"] and dims=[2, 4] rank 5
    is (pipe=1, data=1)."""

    def __init__(self, axes: Sequence[str], dims: Sequence[int]) -> None:
        self.axes, self.dims = list(axes), list(dims)
        if len(self.axes) != len(self.dims) or len(set(self.axes)) != len(self.axes):
            raise ConfigError(
                _WHAT, "axes", f"they are {self.axes}, with the lengths {self.dims}", "give each axis one length"
            )
        for axis, length in zip(self.axes, self.dims):
            if isinstance(length, bool) or not isinstance(length, int) or length < 1:
                raise ConfigError(_WHAT, axis, f"its length is {length!r}", "give a number above 0")
        self.ProcessCoord: Any = namedtuple("ProcessCoord", self.axes)  # type: ignore[misc]
        places: Any = itertools.product(*(range(length) for length in self.dims))
        self.mapping = {self.ProcessCoord(*place): rank for rank, place in enumerate(places)}
        self._coords = list(self.mapping)

    def get_axis_names(self) -> list[str]:
        return self.axes

    def get_dim(self, axis: str) -> int:
        """The length of an axis; 0 of one that is not there."""
        return self.dims[self.axes.index(axis)] if axis in self.axes else 0

    def world_size(self) -> int:
        return len(self._coords)

    def get_rank(self, **coordinates: int) -> int:
        """Of the process at these coordinates, one for each axis."""
        if set(coordinates) != set(self.axes):
            raise ConfigError(
                "cannot find a process",
                f"coordinates {sorted(coordinates)}",
                f"the axes are {self.axes}",
                "give one coordinate for each axis, or ask filter_match",
            )
        place = self.ProcessCoord(**coordinates)
        if place not in self.mapping:
            raise ConfigError(
                "cannot find a process", str(place), f"the lengths are {self.dims}", "give coordinates below them"
            )
        return self.mapping[place]

    def get_coord(self, rank: int) -> Any:
        """A named tuple with a coordinate for each axis."""
        if not 0 <= rank < self.world_size():
            raise ConfigError(
                "cannot find a process", f"rank {rank}", f"there are {self.world_size()}", "give a rank below that"
            )
        return self._coords[rank]

    def get_rank_repr(
        self, rank: int, omit_axes: Sequence[str] = ("data", "pipe"), inner_sep: str = "_", outer_sep: str = "-"
    ) -> str:
        """A word for a process, such as "model_00", without the axes that are omitted."""
        coord = self.get_coord(rank)
        return outer_sep.join(
            f"{axis}{inner_sep}{getattr(coord, axis):02d}" for axis in self.axes if axis not in omit_axes
        )

    def filter_match(self, **coordinates: int) -> list[int]:
        """The ranks with all of these coordinates."""
        wanted = coordinates.items()
        return [
            rank for coord, rank in self.mapping.items() if all(getattr(coord, name) == own for name, own in wanted)
        ]

    def get_axis_list(self, axis: str, idx: int) -> list[int]:
        """The ranks whose coordinate of `axis` is `idx`."""
        return self.filter_match(**{axis: idx})

    def get_axis_comm_lists(self, axis: str) -> list[list[int]]:
        """Lists of the ranks that differ in `axis` alone; [] for an axis that is not there."""
        if axis not in self.axes:
            return []
        others = [one for one in self.axes if one != axis]
        found: dict[Any, list[int]] = {}
        for coord, rank in self.mapping.items():
            found.setdefault(tuple(getattr(coord, one) for one in others), []).append(rank)
        return list(found.values())

    def __str__(self) -> str:
        return str(self.mapping)


class PipeDataParallelTopology(ProcessTopology):
    """`num_dp` neighbouring ranks train one stage."""

    def __init__(self, num_pp: int, num_dp: int) -> None:
        super().__init__(["pipe", "data"], [num_pp, num_dp])


class PipeModelDataParallelTopology(ProcessTopology):
    """As PipeDataParallelTopology, where each stage of each part of the data has `num_mp` ranks, which divide its tensors."""

    def __init__(self, num_pp: int, num_mp: int, num_dp: int) -> None:
        super().__init__(["pipe", "data", "model"], [num_pp, num_dp, num_mp])


class PipelineParallelGrid:
    """This process in a topology, as DeepSpeed's programs ask for it (engine.grid, module.mpu()).

    Without `rank` it is the one that calls. All processes do so at the same time then, and where the axis "model" is longer than
    1 torch's groups are made, for layers that are made after it."""

    def __init__(self, topology: ProcessTopology, rank: int | None = None) -> None:
        self._topology = topology
        rank, self._groups = place_in(topology) if rank is None else Place(rank, None)
        self.global_rank = rank
        self.world_size = topology.world_size()
        coord = topology.get_coord(rank)
        self.stage_id: int = coord.pipe
        self.data_parallel_id: int = getattr(coord, "data", 0)
        self.slice_parallel_id: int = getattr(coord, "model", 0)
        self.pipe_parallel_size = max(topology.get_dim("pipe"), 1)
        self.data_parallel_size = max(topology.get_dim("data"), 1)
        self.model_parallel_size = self.slice_parallel_size = max(topology.get_dim("model"), 1)
        self.pp_group = self.stages_of(self.data_parallel_id)
        self.slice_group = topology.filter_match(**self._beside(("model",)))
        self.dp_group = topology.filter_match(pipe=self.stage_id, **self._beside(("pipe", "data")))

    def _beside(self, without: Sequence[str]) -> dict[str, int]:
        """The own coordinates on all other axes."""
        coord = self._topology.get_coord(self.global_rank)
        return {axis: getattr(coord, axis) for axis in self._topology.axes if axis not in without}

    def stages_of(self, data_parallel_id: int) -> list[int]:
        """The ranks that have the stages of one part of the data, from the first stage on."""
        where = self._beside(("pipe", "data"))
        if self._has_data:
            where["data"] = data_parallel_id
        return self._topology.filter_match(**where)

    def tellers(self) -> list[int]:
        """The rank of each part of the data that says its losses: of the last stage the first of those that divide tensors."""
        where = {"model": 0} if "model" in self._topology.axes else {}
        return self._topology.filter_match(pipe=self.pipe_parallel_size - 1, **where)

    def topology(self) -> ProcessTopology:
        return self._topology

    def stage_to_global(self, stage_id: int, **coordinates: int) -> int:
        """The rank that has a stage where this one is on the other axes."""
        return self._topology.get_rank(**{**self._beside(("pipe",)), **coordinates, "pipe": stage_id})

    def is_first_stage(self) -> bool:
        return self.stage_id == 0

    def is_last_stage(self) -> bool:
        return self.stage_id == self.pipe_parallel_size - 1

    def get_global_rank(self) -> int:
        return self.global_rank

    def get_stage_id(self) -> int:
        return self.stage_id

    def get_data_parallel_id(self) -> int:
        return self.data_parallel_id

    def get_pipe_parallel_rank(self) -> int:
        return self.stage_id

    def get_pipe_parallel_world_size(self) -> int:
        return self.pipe_parallel_size

    def get_pipe_parallel_group(self) -> list[int]:
        """Its ranks: no group of torch.distributed is made."""
        return self.pp_group

    def get_data_parallel_rank(self) -> int:
        return self.data_parallel_id

    def get_data_parallel_world_size(self) -> int:
        return self.data_parallel_size

    def get_data_parallel_group(self) -> list[int]:
        """Its ranks: no group of torch.distributed is made."""
        return self.dp_group

    # As with DeepSpeed "slice" means those that divide tensors, and "model" all that share a copy of the model, stages too.

    def get_slice_parallel_rank(self) -> int:
        return self.slice_parallel_id

    def get_slice_parallel_world_size(self) -> int:
        return self.slice_parallel_size

    def get_slice_parallel_group(self) -> Any:
        """torch's group of the processes that divide the tensors of this stage; None where tensors are whole."""
        return None if self._groups is None else self._groups.slice

    def get_model_parallel_rank(self) -> int:
        return self._copy_group.index(self.global_rank)

    def get_model_parallel_world_size(self) -> int:
        return len(self._copy_group)

    def get_model_parallel_group(self) -> Any:
        """torch's group of all processes that share a copy of the model; None where tensors are whole."""
        return None if self._groups is None else self._groups.copy

    @property
    def _copy_group(self) -> list[int]:
        return sorted(self._topology.filter_match(**({"data": self.data_parallel_id} if self._has_data else {})))

    @property
    def _has_data(self) -> bool:
        return "data" in self._topology.axes
