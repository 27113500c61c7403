"""The processes that train one model together: which of them this is, and how they meet.

A launcher's variables say it, or torch.distributed where a program has initialised that. They meet once in the life of a
process, and every engine after that is of all of them."""

from __future__ import annotations

import contextlib
import ctypes
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch.distributed

from ..._lib import check, library
from ...config import read_config
from ...errors import ConfigError, Error
from ...ranks import Ranks

if TYPE_CHECKING:
    from ..._types import ConfigSource, Named
    from ...config import Config

_joined: Ranks | None = None
_met_by: Named = {}  # how they have met, as a configuration or nobody has said


def join_ranks(source: Callable[[], ConfigSource] | None = None) -> Ranks | None:
    """All ranks, this one among them; None where this process trains alone. The first call waits for the others.

    `source` gives a configuration, whose keys say how they meet. What is wrong with it is said when they have met."""
    global _joined
    if _joined is None:
        given = _given()
        if given is None:
            return None
        count = given.pop("count")
        _met_by.update(_meeting_of(source, count))
        if given:  # else the launcher's variables say it
            given["count"] = count
        _joined = Ranks(ends_process="with_store", **given, **_met_by)
        _tell_of_failures(_joined)
    return _joined


def obey(ranks: Ranks, config: Config) -> Iterator[str]:
    """What the configuration says of ranks that have met. Yields a line for each key that comes too late."""
    ranks.patience(config.values["terrace.stall_warning_seconds"], config.values["terrace.stall_abort_seconds"])
    for key, name in _MEETING.items():
        if name in _met_by and config.values[key] != _met_by[name]:
            yield f"{key} has no effect: the ranks met before terrace.initialize, with {_met_by[name]}"


_MEETING = {"terrace.communicator": "transport", "terrace.rank_timeout_seconds": "timeout"}


def _meeting_of(source: Callable[[], ConfigSource] | None, count: int) -> Named:
    """How ranks meet that have this configuration."""
    values = {"terrace.communicator": "auto", "terrace.rank_timeout_seconds": 60}
    if source is not None:
        with contextlib.suppress(Error):
            values = read_config(source(), 1, True, True, count).values
    return {name: values[key] for key, name in _MEETING.items()}


def _given() -> Named | None:
    """The number of ranks, and what Ranks needs to know beside the launcher's variables; None where one process trains
    alone."""
    numbers, name = (ctypes.c_uint32(), ctypes.c_uint32()), ctypes.c_char_p()
    check(library().terrace_launched(*map(ctypes.byref, numbers), ctypes.byref(name)))
    rank, count = (number.value for number in numbers)
    group = torch.distributed.is_available() and torch.distributed.is_initialized()
    if not group or torch.distributed.get_world_size() == 1:
        return {"count": count} if count > 1 else None
    own = torch.distributed.get_rank(), torch.distributed.get_world_size()
    if count > 1 and own != (rank, count):
        raise ConfigError(
            "cannot join the other ranks",
            f"rank {rank} of {count}",
            f"torch.distributed says that this process is rank {own[0]} of {own[1]}",
            "give both the same, or leave init_process_group out",
        )
    return {"count": count} if count > 1 else {"rank": own[0], "count": own[1], "place": _place_of_group()}


def _place_of_group() -> str:
    """Where the ranks of torch's group meet: the first one chooses it and tells the others."""
    hosts: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(hosts, socket.gethostname())
    chosen: list[Any] = [None]
    if torch.distributed.get_rank() == 0:
        chosen = [free_place(hosts)]
    torch.distributed.broadcast_object_list(chosen, src=0)
    return str(chosen[0])


def free_place(hosts: Sequence[str]) -> str:
    """Where processes on these hosts can meet, the first of which chooses it."""
    host = "127.0.0.1" if len(set(hosts)) == 1 else hosts[0]
    with contextlib.closing(socket.socket()) as free:
        free.bind(("", 0))
        return f"{host}:{free.getsockname()[1]}"


def _tell_of_failures(ranks: Ranks) -> None:
    """An exception that ends this process is told to the others, so that none waits for it."""
    before = sys.excepthook

    def tell(kind: type[BaseException], failure: BaseException, trace: TracebackType | None) -> None:
        before(kind, failure, trace)
        with contextlib.suppress(Exception):
            ranks.end(failure)

    sys.excepthook = tell
