"""A Trainer of transformers on several ranks: which micro-batches are a rank's, what is gathered of evaluations, and what is
refused. Nothing of accelerate wraps the model: the ranks of the engine divide it."""

from __future__ import annotations

import contextlib
import functools
import os
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from accelerate import utils
from accelerate.data_loader import BatchSamplerShard

from .errors import ConfigError
from .torch.dealt import DealtBatches
from .torch.engine.alike import agree
from .torch.engine.launched import join_ranks

if TYPE_CHECKING:
    from .ranks import Ranks

_WHAT = "cannot make a TerraceTrainer"
_WRAPPERS = ("DataParallel", "DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule")
# What accelerate launch sets in its processes.
_LAUNCHED_WITH = {"ACCELERATE_USE_DEEPSPEED": "DeepSpeed", "ACCELERATE_USE_FSDP": "FSDP"}

# accelerate numbers processors as GPUs, and transformers 4 gives torch.load that, which torch has no place for.
torch.serialization.register_package(
    50, lambda _: None, lambda storage, place: storage if re.fullmatch(r"cpu:\d+", place) else None
)


def refuse_other_engines(model: Any, arguments: Any) -> None:
    """Where something else is to divide the model. `arguments`: TrainingArguments; None where there are none yet."""
    for module in model.modules() if isinstance(model, torch.nn.Module) else ():
        for kind in type(module).__mro__:
            if kind.__name__ in _WRAPPERS:
                reason = "the ranks of Terrace divide the work themselves"
                raise ConfigError(_WHAT, kind.__name__, reason, "give the plain model, as it is before it is wrapped")
    if getattr(arguments, "fsdp", None):
        reason = "FSDP would divide the model too, and TerraceTrainer does it by itself"
        raise ConfigError(_WHAT, "TrainingArguments.fsdp", reason, "leave it out")
    for variable, name in _LAUNCHED_WITH.items():
        if os.environ.get(variable, "false").lower() in ("1", "true", "yes", "on"):
            raise ConfigError(
                _WHAT,
                variable,
                f"accelerate has been told to use {name}, which would divide the model too",
                "run accelerate launch --num_processes N with --config_file of a configuration without it, or torchrun",
            )


def join(arguments: Any) -> Ranks | None:
    """The ranks, which are the processes that transformers sees; None where one process trains."""
    ranks = join_ranks()
    count = 1 if ranks is None else ranks.count
    if count != arguments.world_size:
        raise ConfigError(
            _WHAT,
            f"{count} rank{'s' if count > 1 else ''}",
            f"transformers takes this process for one of {arguments.world_size}",
            "start the script by torchrun or accelerate launch, or call torch.distributed.init_process_group before",
        )
    return ranks


def deal(ranks: Ranks | None, loader: Any, what: str, is_training: bool = True) -> Any:
    """The loader of the Trainer, whose k-th micro-batch on rank r of N is number k N + r then, and nothing is repeated. One
    of data without a length stays accelerate's."""
    if ranks is None:
        return loader
    data: Any = getattr(loader, "dataset", None)
    agree(ranks, {f"the length of {what}": len(data) if hasattr(data, "__len__") else "none"})
    batches = getattr(loader, "batch_sampler", None)
    if isinstance(batches, BatchSamplerShard) and batches.num_processes == ranks.count and not batches.split_batches:
        batches.batch_sampler = DealtBatches(batches.batch_sampler, ranks.rank, ranks.count, not is_training)
        batches.num_processes, batches.process_index, batches.even_batches = 1, 0, False
    return loader


class Losses:
    """Of micro-batches, summed over all ranks in the order of their numbers, as one process does. The Trainer makes a
    rank's loss N times what it adds to the mean, which loses a bit unless N is a power of two."""

    MOST = 1 << 12  # that are kept before they are summed

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._kept: list[float] = []
        self._sum = torch.zeros(())

    def add(self, loss: torch.Tensor) -> None:
        self._kept.append(loss.item())
        if len(self._kept) == self.MOST:
            self._fold()

    def _fold(self) -> None:
        mine = torch.tensor(self._kept)
        every = [torch.frombuffer(bytearray(one), dtype=mine.dtype) for one in self._of_all(mine)] if len(mine) else []
        for of_round in zip(*every):
            for loss in of_round:
                self._sum += loss / self._ranks.count
        self._kept = []

    def _of_all(self, mine: torch.Tensor) -> list[bytes]:
        return self._ranks.texts_of_all(mine.numpy().tobytes())

    def take(self) -> torch.Tensor:
        """Their sum since the last call."""
        self._fold()
        found, self._sum = self._sum, torch.zeros(())
        return found


class Gathering:
    """What an evaluation gathers from all ranks: the samples of one process, in their order. Ranks that have no micro-batch
    in the last round evaluate one that another has, and give nothing."""

    def __init__(self, accelerator: Any) -> None:
        self._others = accelerator.gather_for_metrics
        self._accelerator = accelerator
        self._dealt: DealtBatches | None = None
        self._round = -1

    @contextlib.contextmanager
    def of(self, loader: Any, arguments: Any) -> Iterator[None]:
        """An evaluation, whose losses are means over the rank's own micro-batches, as those of one process."""
        dealt = getattr(getattr(loader, "batch_sampler", None), "batch_sampler", None)
        if not isinstance(dealt, DealtBatches):
            yield
            return
        self._dealt, self._round = dealt, -1
        over_all = arguments.average_tokens_across_devices
        arguments.average_tokens_across_devices = False
        try:
            yield
        finally:
            self._dealt, arguments.average_tokens_across_devices = None, over_all

    def next(self) -> None:
        self._round += 1

    def __call__(self, given: Any, use_gather_object: bool = False) -> Any:
        """In the place of accelerator.gather_for_metrics."""
        if self._dealt is None:
            return self._others(given, use_gather_object=use_gather_object)
        has = self._dealt.has(self._round)
        try:
            utils.recursively_apply(lambda tensor: tensor, given, error_on_other_type=True)
        except TypeError:
            use_gather_object = True
        if use_gather_object:
            return utils.gather_object(given if has else [])
        return utils.recursively_apply(functools.partial(self._gathered, self._rows(has)), given)

    def _rows(self, has: bool) -> int | None:
        """How many samples this rank gives at most; None: all that a tensor has."""
        dealt = self._dealt
        assert dealt is not None
        number = self._round * dealt.ranks + dealt.rank
        size = getattr(dealt.batches, "batch_size", None)
        if not has or number < dealt.count - 1 or not size or not hasattr(dealt.sampler, "__len__"):
            return None if has else 0
        return len(dealt.sampler) % size or None  # the Trainer repeats a loss for a whole micro-batch

    def _gathered(self, most: int | None, tensor: torch.Tensor) -> torch.Tensor:
        mine = tensor.reshape(1) if tensor.dim() == 0 else tensor
        mine = mine if most is None else mine[:most]
        gather = self._accelerator.gather
        counts = [int(one) for one in gather(torch.tensor([mine.shape[0]], device=tensor.device))]
        padded = mine.new_zeros((max(counts), *mine.shape[1:]))
        padded[: mine.shape[0]] = mine
        every = gather(padded.contiguous()).split(max(counts))
        return torch.cat([part[:count] for part, count in zip(every, counts)])
