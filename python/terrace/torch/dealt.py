"""Micro-batches that several ranks share: rank r of N has those with the numbers r, N + r, 2 N + r and so on, so that a
step has the same ones on any number of ranks."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sized
from typing import Any, cast

import torch
from torch.utils.data import BatchSampler

from ..errors import ConfigError


class RankSampler(torch.utils.data.Sampler[list[int]]):
    """Batches of a rank, for `torch.utils.data.DataLoader(data, batch_sampler=RankSampler(data, batch_size=8))`.

    `source` is a data set, or a sampler of it that gives the same order on all ranks, such as a RandomSampler with a
    generator of one seed. Rank and number of ranks are those of terrace.initialize unless you give them. Every rank has
    as many batches: the last of them, which not every rank would have one of, are left out. With `update_batches`, how
    many batches of all ranks make an update (train_batch_size / batch_size), those that make no whole update are left
    out too: then a pass over the data has the same steps on any number of ranks.
    """

    def __init__(
        self,
        source: Any,
        batch_size: int = 1,
        drop_last: bool = False,
        rank: int | None = None,
        ranks: int | None = None,
        update_batches: int | None = None,
    ) -> None:
        for name, number in (
            ("batch_size", batch_size),
            ("update_batches", 1 if update_batches is None else update_batches),
        ):
            if not isinstance(number, int) or number < 1:
                raise ConfigError("cannot deal batches", name, f"it is {number!r}", "give a number above 0")
        if not hasattr(source, "__len__"):
            raise ConfigError(
                "cannot deal batches",
                type(source).__name__,
                "it has no length",
                "give a data set or a sampler with one",
            )
        is_sampler = isinstance(source, torch.utils.data.Sampler)
        order: Any = source if is_sampler else range(len(source))
        self._batches = BatchSampler(order, batch_size, drop_last)
        self._place = (rank, ranks)
        self._update_batches = update_batches
        self.has_told = False  # what is left out

    def _where(self) -> tuple[int, int]:
        rank, ranks = self._place
        if rank is not None and ranks is not None:
            return rank, ranks
        from .engine.launched import join_ranks

        joined = join_ranks()
        return (0, 1) if joined is None else (joined.rank, joined.count)

    def __len__(self) -> int:
        return len(self._dealt())

    def __iter__(self) -> Iterator[list[int]]:
        dealt = self._dealt()
        if dealt.left_out and self._update_batches and dealt.rank == 0 and not self.has_told:
            warnings.warn(dealt.line_of_left_out("RankSampler"), stacklevel=2)
            self.has_told = True
        return iter(dealt)

    def _dealt(self) -> DealtBatches:
        rank, ranks = self._where()
        dealt = DealtBatches(self._batches, rank, ranks, together=together_of(self._update_batches, ranks))
        if self._update_batches and not len(dealt):
            raise ConfigError(
                "cannot deal batches",
                "update_batches",
                f"the data make {dealt.count} batches, and an update takes {self._update_batches}",
                "give more samples, or a smaller train_batch_size",
            )
        return dealt


def together_of(update_batches: int | None, ranks: int) -> int:
    """How many batches of all ranks come together or not at all."""
    if update_batches is None:
        return ranks
    if update_batches % ranks:
        raise ConfigError(
            "cannot deal batches",
            "update_batches",
            f"{ranks} ranks cannot have equal parts of {update_batches}",
            "give a multiple of the number of ranks",
        )
    return update_batches


class DealtBatches(torch.utils.data.Sampler[Any]):
    """Of the batches of a batch sampler those of a rank. All ranks have as many: of the last ones, those that are not
    `together` are left out (as many as there are ranks, unless it says more). For evaluations no sample may be: with
    `repeats_last` the ranks that would have none have the last one again, and `has(k)` says whether the k-th is this
    rank's own."""

    def __init__(
        self, batches: Iterable[Any], rank: int, ranks: int, repeats_last: bool = False, together: int | None = None
    ) -> None:
        self.batches, self.rank, self.ranks, self.repeats_last = batches, rank, ranks, repeats_last
        self._together = together or ranks

    @property
    def sampler(self) -> Any:
        """What gives the order, for who shuffles anew."""
        return getattr(self.batches, "sampler", None)

    @property
    def count(self) -> int:
        """Of all ranks."""
        return len(cast(Sized, self.batches))

    @property
    def left_out(self) -> int:
        return self.count % self._together

    def line_of_left_out(self, what: str) -> str:
        return (
            f"{what} has {self.count} micro-batches, and an update takes {self._together}: the last {self.left_out} of "
            "every pass over the data are left out"
        )

    def has(self, number: int) -> bool:
        return number * self.ranks + self.rank < self.count

    def __len__(self) -> int:
        if self.repeats_last:
            return -(-self.count // self.ranks)
        return self.count // self._together * (self._together // self.ranks)

    def __iter__(self) -> Iterator[Any]:
        left, last = len(self), None
        for number, last in enumerate(self.batches):
            if number % self.ranks == self.rank and left:
                left -= 1
                yield last
        if left:
            yield last


class DealtLoader:
    """The batches of a loader that are this rank's, where its data has no length: all ranks read all of it. Of the last
    ones, those that are not `together` are left out."""

    def __init__(self, loader: Iterable[Any], rank: int, ranks: int, together: int) -> None:
        self._loader, self._rank, self._ranks, self._together = loader, rank, ranks, together

    def __iter__(self) -> Iterator[Any]:
        mine: list[Any] = []
        for number, batch in enumerate(self._loader):
            if number % self._ranks == self._rank:
                mine.append(batch)
            if number % self._together == self._together - 1:
                yield from mine
                mine = []
