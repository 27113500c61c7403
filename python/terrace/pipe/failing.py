"""What becomes of the other stages when a batch does not end on one of them: it tells its neighbours, and they tell theirs, so
that all raise the same, with its words."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NoReturn

from ..errors import ConfigError, Error, PeerError

if TYPE_CHECKING:
    from .stages import PipelineEngine

_WHAT = "cannot go on with a pipeline"
_LAST = "look there for why it has ended; go on from the last checkpoint"
_MOST_TEXT = 1000


class Batches:
    """Of one call. Data that end within it are an error, since all stages have to take the same micro-batches."""

    def __init__(self, found: Iterator[Any], wanted: int, where: str) -> None:
        self._found, self._wanted, self._where, self._taken = found, wanted, where, 0

    def __iter__(self) -> Batches:
        return self

    def __next__(self) -> Any:
        try:
            batch = next(self._found)
        except StopIteration:
            raise ConfigError(
                "cannot take a micro-batch",
                f"the data of {self._where}",
                f"they ended after {self._taken} micro-batches of this call, and an update has {self._wanted}",
                "give an iterator that has gradient_accumulation_steps batches for each call of train_batch, such as one that "
                "begins anew (set_dataloader), and end the loop by a number of updates that all processes know",
            ) from None
        self._taken += 1
        return batch


def told_of(stage: int, failure: BaseException) -> list[str]:
    """(where, the reason, what to do) for the other stages: those of the failure that came first."""
    if isinstance(failure, StageError):
        return [failure.subject, failure.reason, failure.advice]
    said = str(failure).partition("\n")[0]
    if not isinstance(failure, Error):
        said = f"{type(failure).__name__}: {said}" if said else type(failure).__name__
    advice = failure.advice if isinstance(failure, Error) else ""
    return [f"stage {stage}", said[:_MOST_TEXT], (advice or _LAST)[:_MOST_TEXT]]


class StageError(PeerError):
    """Another stage has failed, and says why."""


def raise_told(told: list[str]) -> NoReturn:
    raise StageError(_WHAT, *told)


class WholeOrFailed:
    """What leaves the block early leaves the stages at several places."""

    def __init__(self, engine: PipelineEngine) -> None:
        self._engine = engine

    def __enter__(self) -> None:
        self._engine.has_failed = True

    def __exit__(self, kind: object, failure: BaseException | None, *_: object) -> None:
        if failure is None:
            self._engine.has_failed = False
            return
        with contextlib.suppress(Exception):
            self._engine.tell_stages(failure)
        if self._engine.is_model_parallel and _is_connection(failure):  # of layers
            try:
                self._engine.everybody.any(True)
            except PeerError as first:  # an ended connection of torch says less than who has failed, and why
                raise first from failure


def _is_connection(failure: BaseException) -> bool:
    """Whether torch.distributed says that another process is gone."""
    said = str(failure).lower()
    is_of_torch = isinstance(failure, RuntimeError) and not isinstance(failure, Error)
    return is_of_torch and ("gloo" in said or "nccl" in said or "connection" in said)
