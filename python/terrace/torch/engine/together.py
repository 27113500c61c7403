"""What all ranks of a training have alike, held against each other before anything is made; and acts that either all of
them have done or none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch

from ...errors import MisuseError, PeerError
from .replicas import sum_of_ends
from .services import SECRET

if TYPE_CHECKING:
    from torch import nn

    from ..._types import Named
    from ...config import Config
    from ...ranks import Ranks

_Made = TypeVar("_Made")

# What may be another on every rank.
_OWN = {
    "zero_optimization.offload_param.nvme_path",
    "zero_optimization.offload_optimizer.nvme_path",
    "terrace.threads",
    "terrace.bind_threads",
    "terrace.rank_timeout_seconds",
    "terrace.device_memory",
    "terrace.host_memory",
    SECRET,
}
_MOST_TEXT = 2000


def on_all(ranks: Ranks | None, what: str, make: Callable[[], _Made]) -> _Made:
    """What `make` returns. Where it fails on one rank it fails on all: there with its own failure, and elsewhere with a
    PeerError that has its words."""
    if ranks is None:
        return make()
    failure: BaseException | None = None
    made: Any = None
    try:
        made = make()
    except BaseException as error:
        failure = error
    text = "" if failure is None else (str(failure) or type(failure).__name__)
    texts = ranks.texts_of_all(text.encode()[:_MOST_TEXT])
    if failure is not None:
        raise failure
    failed = [rank for rank, one in enumerate(texts) if one]
    if failed:
        said = texts[failed[0]].decode(errors="replace").partition("\n")[0]
        raise PeerError(what, f"rank {failed[0]} of {ranks.count}", said, "do there what its own error says")
    return made


def facts_of(config: Config, model: nn.Module, groups: Sequence[Named], given: Named) -> Named:
    """What has to be the same, by name. `given`: what else terrace.initialize was given."""
    facts = {name: value for name, value in config.values.items() if name not in _OWN}
    facts.update({f"{name} of terrace.initialize": value for name, value in given.items()})
    facts["torch.initial_seed()"] = torch.initial_seed()
    facts["the model"] = type(model).__name__
    group_of = {id(parameter): number for number, group in enumerate(groups) for parameter in group["params"]}
    for number, (name, one) in enumerate(model.named_parameters()):
        use = f"trained in group {group_of[id(one)]}" if id(one) in group_of and one.requires_grad else "frozen"
        facts[f"parameter {name}"] = f"number {number}, {one.dtype} {tuple(one.shape)} on {one.device.type}, {use}"
        facts[f"values of {name}"] = sum_of_ends(one)
    for name, buffer in model.named_buffers():
        facts[f"buffer {name}"] = f"{buffer.dtype} {tuple(buffer.shape)}"
    for number, group in enumerate(groups):
        for name, value in group.items():
            if isinstance(value, (int, float, str, tuple, bool)):
                facts[f"{name} of parameter group {number}"] = value
    return facts


def least_of(ranks: Ranks | None, number: int) -> int:
    return number if ranks is None else min(ranks.all_of(number))


def mean_in_order(ranks: Ranks | None, losses: Sequence[torch.Tensor]) -> torch.Tensor:
    """The mean of the losses of all micro-batches of a step, in the order of their numbers. `losses`: this rank's."""
    if ranks is None:
        return torch.stack(list(losses)).mean()
    mine = torch.stack(list(losses)).detach().double().cpu()
    found = in_order_of_micro_batches(ranks.texts_of_all(mine.numpy().tobytes()))
    return torch.stack(found).to(losses[0].dtype).mean().to(losses[0].device)


def in_order_of_micro_batches(losses: Sequence[bytes]) -> list[torch.Tensor]:
    """The losses of all ranks, of which each has as many as it has gone backward from; fp64 numbers of each."""
    every = [torch.frombuffer(bytearray(one), dtype=torch.float64) if one else torch.zeros(0) for one in losses]
    return [one[k] for k in range(max(map(len, every))) for one in every if k < len(one)]


class StepVote(NamedTuple):
    """What a rank knows of its step before it ends, or all of them."""

    has_gradients: bool
    ways: frozenset[bool]  # of its backward passes: whether the engine was given the loss
    gives_up: bool = False  # and does not update

    def of_all(self, ranks: Ranks) -> StepVote:
        """Raises PeerError where some update and others give up."""
        mine = [self.has_gradients, True in self.ways, False in self.ways, self.gives_up, True]
        # As many bytes as nothing else of Python's, so that a rank that is elsewhere is found out here.
        votes = ranks._ballot(bytes(mine))
        for rank, vote in enumerate(votes):
            if vote[3] != self.gives_up:
                raise PeerError(
                    "cannot give up a step with" if self.gives_up else "cannot update with",
                    f"rank {rank}",
                    "it updates" if self.gives_up else "it has given up the step",
                    "let all ranks update, or all of them give up the step (zero_grad)",
                )
        gradients, *ways = (any(found) for found in zip(*votes))
        return StepVote(gradients, frozenset(way for way, found in zip((True, False), ways) if found), self.gives_up)


def refuse_second_engine(ranks: Ranks | None, are_open: bool) -> None:
    if ranks is not None and are_open:
        raise MisuseError(
            "cannot train a second model on several ranks",
            f"rank {ranks.rank} of {ranks.count}",
            "they have an engine already, and divide one model at a time",
            "call close() of that engine on all ranks",
        )
