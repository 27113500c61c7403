"""How the ranks of a training make one step with their optimizers: each alone, with a share of the states, or with shards.

step() is called by all ranks. It collects gradients, and returns what the update did, or None without any gradient. An
error of one rank is an error on all of them, where they would wait for it otherwise.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from ...errors import ConfigError, MisuseError, PeerError
from ...store.spec import UpdateResult
from ...store.squares import SQUARES_LIMBS, norm_of
from ..local import is_dtensor
from .agreement import first_bytes
from .division import Division
from .gathering import Run, gather_runs
from .group import Group, digest

if TYPE_CHECKING:
    from ...store.spec import Optimizer
    from .state_store import StateStore

# Gradients of a step whose first element the ranks compare.
_COMPARED = 16

_SETTINGS = "settings"


class Step:
    """What a step is made with: `collect` hands gradients over, and says whether there are any."""

    def __init__(
        self, collect: Callable[[], bool], settings: Sequence[Optimizer], clip_norm: float, loss_scale: float
    ) -> None:
        self.collect, self.settings = collect, settings
        self.clip_norm, self.loss_scale = clip_norm, loss_scale

    def norm(self, limbs: Sequence[int]) -> float:
        return norm_of(limbs) / self.loss_scale

    def scale(self, norm: float) -> float:
        """The loss scale with which a store that does not clip multiplies gradients by the same factor of fp32 as one
        that clips by this norm."""
        clip = min(1.0, self.clip_norm / (norm + 1e-6)) if self.clip_norm > 0 else 1.0
        (factor,) = struct.unpack("f", struct.pack("f", clip / self.loss_scale))
        return 1 / factor if factor else 1e308


class Alone:
    """Nobody is asked."""

    def step(self, states: StateStore, step: Step) -> UpdateResult | None:
        if not step.collect():
            return None
        return states.update(step.settings, step.clip_norm, step.loss_scale)


class Sharing:
    """Each rank has the states of its share, and updates it; then all parameters are gathered to all ranks."""

    def __init__(self, states: StateStore, group: Group) -> None:
        self.group = group
        self._steps = 0
        # The runs of every rank in the parameters of these slots.
        self._slots: Any = None
        self._runs: list[list[Run]] = []
        states.group, states.division = group, Division(group.rank, group.count)

    def step(self, states: StateStore, step: Step) -> UpdateResult | None:
        has_any, limbs, not_finite = self._collected(states, step)
        if not has_any:
            return None
        if not_finite != 0:
            states.abandon()
            return UpdateResult(False, not_finite, False)
        norm, touched = step.norm(limbs), states.touched
        self._together(
            lambda: states.update(step.settings, 0.0, step.scale(norm)),
            "states and parameters of ranks are of different steps now: go on from a checkpoint",
        )
        self._gather(states, touched)
        return UpdateResult(True, norm, False)

    def _collected(self, states: StateStore, step: Step) -> tuple[bool, list[int], float]:
        """Whether there are gradients, and the sum of their squares on all ranks, which have the same."""
        has_any = False

        def collect() -> list[int]:
            nonlocal has_any
            has_any = step.collect()
            limbs, not_finite = states.squares() if has_any else ([0] * SQUARES_LIMBS, 0.0)
            settings = digest([repr(step.settings).encode(), struct.pack("d", step.loss_scale)])
            return [settings, *self._seen(states), *struct.unpack("q", struct.pack("d", not_finite)), *limbs]

        of_all = self._together(collect, "nothing has been updated: find out what it has told", 4 + SQUARES_LIMBS)
        self._steps += 1
        for place, what in enumerate((_SETTINGS, "sets of parameters with gradients", "gradients")):
            others = [str(rank) for rank, words in enumerate(of_all) if words[place] != of_all[0][place]]
            if others:
                _refuse_others(what, others)
        limbs = [sum(words) for words in list(zip(*of_all))[4:]]
        not_finite = sum(struct.unpack("d", struct.pack("q", words[3]))[0] for words in of_all)
        return has_any, limbs, not_finite

    def _seen(self, states: StateStore) -> tuple[int, int]:
        """Digests of which parameters have a gradient, and of some of these, others in every step."""
        every = [slot.parameter for slot in states.slots.values()]
        given = [parameter.grad for parameter in every if parameter.grad is not None]
        has_gradient = bytes(parameter.grad is not None for parameter in every)
        first = self._steps * _COMPARED % max(len(given), 1)
        chosen = (given[first:] + given[:first])[:_COMPARED]
        return digest([has_gradient]), digest([first_bytes(gradient, 1) for gradient in chosen])

    def _together(self, act: Callable[[], Any], advice: str, count: int = 0) -> list[list[int]]:
        """The numbers that `act` gives on every rank, so many; an error on all ranks where it fails on one."""
        failure: BaseException | None = None
        mine = [0] * count
        try:
            given = act()
            mine = given if count else mine
        except BaseException as error:
            failure = error
        of_all = self.group.words_of_all([int(failure is not None), *mine])
        if failure is not None:
            raise failure
        _require_well([rank for rank, words in enumerate(of_all) if words[0]], advice)
        return [words[1:] for words in of_all]

    def _gather(self, states: StateStore, touched: list[torch.Tensor]) -> None:
        every = [slot.parameter for slot in states.slots.values()]
        if self._slots is not states.slots:
            self._slots = states.slots
            self._runs = [
                [(place, *part) for place, part in enumerate(states.division.parts(every, rank)) if part.elements]
                for rank in range(self.group.count)
            ]
        updated = {id(parameter) for parameter in touched}
        runs = [[run for run in own if id(every[run[0]]) in updated] for own in self._runs]
        gather_runs(self.group, every, runs)
        states.note(touched)


class Sharded:
    """Parameters are DTensors: each rank updates its shards where they lie, and nothing is exchanged but whether all
    gradients are finite, and the sum of their squares."""

    def __init__(self, parameters: Sequence[torch.Tensor]) -> None:
        spread = [parameter for parameter in parameters if is_dtensor(parameter)]
        meshes = dict.fromkeys(parameter.device_mesh for parameter in spread)  # type: ignore[attr-defined]
        groups: dict[tuple[int, ...], Group] = {}
        for mesh in meshes:
            device = torch.device(mesh.device_type)
            for each in mesh.get_all_groups():
                group = Group(each, device)
                if group.count > 1:
                    groups.setdefault(tuple(group.ranks), group)
        self._groups = list(groups.values())
        self._counts = _counts_here(parameters)

    def step(self, states: StateStore, step: Step) -> UpdateResult | None:
        failure: BaseException | None = None
        has_any, limbs, not_finite = False, [0] * SQUARES_LIMBS, 0.0
        try:
            if step.clip_norm > 0 and self._counts is None:
                _refuse_clipping()
            has_any = step.collect()
            if has_any:
                limbs, not_finite = states.squares()
        except BaseException as error:
            failure = error
        if not self._counts:
            limbs = [0] * SQUARES_LIMBS
        words = [int(failure is not None), int(math.isinf(not_finite)), int(math.isnan(not_finite)), *limbs]
        for group in self._groups:
            words = group.summed(words)
        if failure is not None:
            raise failure
        if words[0]:
            _require_well([None], "nothing has been updated: find out what it has told")
        if not has_any:
            return None
        if words[1] or words[2]:
            states.abandon()
            return UpdateResult(False, math.nan if words[2] else math.inf, False)
        norm = step.norm(words[3:])
        states.update(step.settings, 0.0, step.scale(norm))
        return UpdateResult(True, math.nan if self._counts is None else norm, False)


def _counts_here(parameters: Sequence[torch.Tensor]) -> bool | None:
    """Whether this rank's shards count for the norm, as those of one replica do; None where that is not the same for
    all parameters."""
    kinds: dict[Any, bool] = {}
    for parameter in parameters:
        if not is_dtensor(parameter):
            return None
        given: Any = parameter
        replicated = [place for place, one in enumerate(given.placements) if one.is_replicate()]
        at = given.device_mesh.get_coordinate()
        kinds[given.device_mesh, tuple(replicated)] = all(at[place] == 0 for place in replicated)
    return next(iter(kinds.values())) if len(kinds) == 1 else None


def _require_well(failed: Sequence[int | None], advice: str) -> None:
    if failed:
        named = ", ".join("another" if rank is None else str(rank) for rank in failed)
        raise PeerError("cannot make a step with the other ranks", f"rank {named}", "it has failed in the step", advice)


def _refuse_others(what: str, ranks: Sequence[str]) -> NoReturn:
    if what == _SETTINGS:
        advice = (
            "set the same learning rate, weight decay and loss scale on all ranks; a schedule that follows a loss needs the "
            "same loss on all of them"
        )
    else:
        advice = "average gradients over the ranks before step(), as DistributedDataParallel does outside of no_sync()"
    raise MisuseError(
        "cannot update shares of one model",
        f"{what} of rank {', '.join(ranks)}",
        f"they are others than those of rank 0, so that ranks would update one model with different {what}",
        f'{advice}; or keep states whole on every rank by ranks="whole"',
    )


def _refuse_clipping() -> NoReturn:
    raise ConfigError(
        "cannot clip gradients",
        "max_grad_norm",
        "parameters are spread over processes in several ways, and their norm has no sum over one of these",
        "leave max_grad_norm out, and call torch.nn.utils.clip_grad_norm_ before step()",
    )
