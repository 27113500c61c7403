"""Companions: which of the ways of together.py the ranks of an optimizer go, found out at the first step or load."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from ...errors import ConfigError, MisuseError
from ..local import is_dtensor
from .agreement import agreed
from .division import Division
from .group import Group
from .together import Alone, Sharded, Sharing, Step

if TYPE_CHECKING:
    from ..._types import Named
    from ...store.spec import UpdateResult
    from .state_store import StateStore


class Companions:
    def __init__(self, states: StateStore, ranks: str, process_group: Any, hand_over: str) -> None:
        self._states, self._ranks, self._process_group = states, ranks, process_group
        self._in_backward = hand_over == "backward"
        self._way: Alone | Sharing | Sharded | None = None

    def expect(self, parameters: Iterable[torch.Tensor]) -> None:
        """Before the first step: the division that will be, if the ranks agree."""
        if self._may_share(list(parameters)):
            given = self._process_group
            self._states.division = Division(dist.get_rank(given), dist.get_world_size(given))

    def renew(self, added: Sequence[torch.Tensor]) -> None:
        """There are parameters that were not there before."""
        if not isinstance(self._way, Sharing):
            self._way = None
        elif any(map(is_dtensor, added)):
            raise ConfigError(
                "cannot add a parameter group",
                "a DTensor",
                "ranks share the states of parameters that each of them has whole",
                "use an optimizer of its own for parameters that are spread over ranks",
            )

    def meet(self, groups: Sequence[Named]) -> Alone | Sharing | Sharded:
        """All ranks come here in their first step or load, whichever is first."""
        if self._way is None:
            self._way = self._chosen(groups)
        return self._way

    def step(self, groups: Sequence[Named], step: Step) -> UpdateResult | None:
        if self._way is None:
            every = [parameter for group in groups for parameter in group["params"]]
            if all(parameter.grad is None for parameter in every) and self._may_share(every):
                return None  # There is nothing yet to agree about.
        return self.meet(groups).step(self._states, step)

    def _chosen(self, groups: Sequence[Named]) -> Alone | Sharing | Sharded:
        parameters = [parameter for group in groups for parameter in group["params"]]
        if any(map(is_dtensor, parameters)):
            self._states.division = Division()
            return Sharded(parameters)
        if not self._may_share(parameters):
            self._states.division = Division()
            return Alone()
        names = [name for group in groups for name in group.get("param_names") or map(str, range(len(group["params"])))]
        group = Group(self._process_group, parameters[0].device)
        reason = agreed(group, names, parameters)
        if not reason:
            return Sharing(self._states, group)
        self._states.division = Division()
        if self._ranks == "share":
            raise MisuseError(
                "cannot share optimizer states",
                f"{group.count} ranks",
                reason,
                "make DistributedDataParallel of the model before the first step or load, so that ranks are alike; or "
                'keep states whole on every rank by ranks="whole"',
            )
        warnings.warn(
            f"every rank keeps all of its optimizer states: {reason}. If that is as it should be, say so by "
            'ranks="whole"; ranks that train one model with averaged gradients share them',
            RuntimeWarning,
            7,  # that of the program, through what torch wraps around step()
        )
        return Alone()

    def _may_share(self, parameters: Sequence[torch.Tensor]) -> bool:
        """Whether there are others, and each parameter is whole on every one of them."""
        if self._ranks == "whole" or not parameters:
            return False
        has_others = dist.is_available() and dist.is_initialized()
        is_spread = any(map(is_dtensor, parameters))
        if self._ranks == "share" and (is_spread or not has_others):
            raise ConfigError(
                "cannot share optimizer states",
                'ranks="share"',
                "parameters are DTensors, of which each rank has a shard"
                if is_spread
                else "torch.distributed is not initialized",
                "leave ranks out" if is_spread else "call torch.distributed.init_process_group() before",
            )
        if not has_others or (dist.get_world_size() == 1 and not is_spread):
            return False
        if self._in_backward:
            raise ConfigError(
                "cannot take gradients in the backward pass",
                'hand_over="backward"',
                "there they are not averaged over the ranks of torch.distributed yet",
                'use hand_over="step"; or ranks="whole", where every rank trains a model of its own',
            )
        if dist.get_rank(self._process_group) < 0:
            raise ConfigError(
                "cannot share optimizer states", "process_group", "this rank is none of it", "give one that has it"
            )
        return not is_spread and dist.get_world_size(self._process_group) > 1
