"""Ranks: the processes that a launcher has started to train together (capi/terrace_run.h). They join, agree on values,
learn who has died, and end together with one exit status."""

from __future__ import annotations

import contextlib
import ctypes
import struct
import weakref
import zlib
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, Callable, NoReturn

from . import _declarations as c
from ._lib import check, library, new, raw_of, text_of, value_of
from .errors import Error, PeerError
from .store.request import log_function

_WORD = struct.Struct("=Q")


class Ranks:
    """`with Ranks() as ranks: ...` joins the others that `terrace launch`, torchrun, mpirun or srun has started; a
    process that is alone is a rank of one, whose calls answer at once. An exception that leaves the block ends all
    ranks: the first that has it tells the user, and each process exits with the worst status of all.

    Without a launcher give `rank`, `count` and `place`, "HOST:PORT" or the path of a socket. `transport` is "auto",
    "host" (sockets of one host), "mpi" or "nccl" (parameters, and gradients that lie there, go from GPU to GPU). Ranks
    that have not come after `timeout` seconds are missing. With `ends_process` "always" a rank that still computes a
    second after another has died or failed, and has not been told of it by a call, ends too; with "with_store" it does
    while a store is divided over the ranks. `log` is given a level and a line; without it warnings and errors go to
    stderr. Some of the ranks `among` those of a run meet with `rank`, `count` and `place`.

    Every rank makes the same calls in the same order. PeerError names a rank that has died or left.
    """

    def __init__(
        self,
        *,
        rank: int = 0,
        count: int = 0,
        place: Any = None,
        transport: str = "auto",
        timeout: int = 0,
        ends_process: str = "never",
        log: Callable[[str, str], None] | None = None,
        among: Ranks | None = None,
    ) -> None:
        given = new(
            c.terrace_ranks_options,
            transport=value_of("terrace_transport", transport, "transport"),
            rank=rank,
            count=count,
            timeout_seconds=timeout,
            ends_process=value_of("terrace_ends_process", ends_process, "ends_process"),
            log=log_function(_to_stderr if log is None else log),
            among=among._handle if among is not None else None,
        )
        if place is not None:
            given.place = raw_of(place, "place")
        self.transport = transport
        self._kept = given  # what C calls has to live as long as the ranks
        self._doing = ""
        self._lib = library()
        self._handle: ctypes.c_void_p = ctypes.c_void_p()
        check(self._lib.terrace_ranks_join(given, ctypes.byref(self._handle)))
        self._free = weakref.finalize(self, self._lib.terrace_ranks_free, ctypes.c_void_p(self._handle.value))
        facts = new(c.terrace_ranks_facts)
        check(self._lib.terrace_ranks_get(self._handle, facts))
        self.rank: int = facts.rank
        self.count: int = facts.count
        self.local_rank: int = facts.local_rank
        self.local_count: int = facts.local_count
        self.host = text_of(facts.host)
        self.launcher = text_of(facts.launcher)

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def agree(self, facts: Mapping[str, object]) -> None:
        """Raises ConfigError on every rank where a value is not the same on all, with a line for each such name."""
        names = [raw_of(name, "a name") for name in facts]
        values = [raw_of(str(value), "a value") for value in facts.values()]
        texts = ctypes.c_char_p * len(names)
        check(self._lib.terrace_ranks_agree(self._handle, texts(*names), texts(*values), len(names)))

    def _ballot(self, mine: bytes) -> list[bytes]:
        """The bytes of all ranks, as many from each."""
        own = ctypes.create_string_buffer(mine, len(mine))
        of_all = ctypes.create_string_buffer(max(len(mine) * self.count, 1))
        check(self._lib.terrace_ranks_ballot(self._handle, own, len(mine), of_all))
        return [of_all.raw[rank * len(mine) : (rank + 1) * len(mine)] for rank in range(self.count)]

    def all_of(self, mine: int) -> list[int]:
        """The numbers of all ranks, in their order; from 0 to 2**64 - 1."""
        return [_WORD.unpack(word)[0] for word in self._ballot(_WORD.pack(mine))]

    def texts_of_all(self, mine: bytes) -> list[bytes]:
        """The bytes of all ranks, in their order, however many each has; at most 1 MiB."""
        lengths = self.all_of(len(mine))
        padded = self._ballot(mine.ljust(max(lengths), b"\0"))
        return [one[:length] for one, length in zip(padded, lengths)]

    def of_first(self, mine: bytes) -> bytes:
        """The bytes of the first rank."""
        return self.texts_of_all(mine if self.is_first else b"")[0]

    def any(self, mine: bool) -> bool:
        """True on all ranks where it is on any."""
        return any(self.all_of(int(mine)))

    def barrier(self) -> None:
        """Waits for every rank."""
        with self.within("a barrier"):
            self.any(False)

    def step(self, step: int, doing: str = "") -> None:
        """Where this rank is, as the others and their errors say it. Steps count from 1."""
        self._doing = doing
        check(self._lib.terrace_ranks_step(self._handle, step, raw_of(doing, "doing")))

    @contextlib.contextmanager
    def within(self, call: str) -> Iterator[None]:
        """Within the block this rank is said to be in a call that all of them have to make. Raises PeerError on all of
        them where some are in another one."""
        before = self._doing
        self.step(0, call)
        try:
            self._require_same(call)
            yield
        finally:
            with contextlib.suppress(Error):  # the block's own says more
                self.step(0, before)

    def _require_same(self, call: str) -> None:
        if len(set(self.all_of(zlib.crc32(call.encode())))) == 1:
            return
        calls = [one.decode() for one in self.texts_of_all(call.encode())]
        other = next(rank for rank, one in enumerate(calls) if one != call)
        raise PeerError(
            "ranks do not do the same",
            f"rank {other} of {self.count}",
            f"it is in {calls[other]}, and rank {self.rank} in {call}",
            "let all ranks make the same calls in the same order",
        )

    def kept(self, text: str) -> None:
        """The ranks have kept a state: what becomes of the run should a rank die now, for the error that names it.
        `terrace launch --restarts` learns that the run goes on from there. "" takes the words back.
        """
        check(self._lib.terrace_ranks_kept(self._handle, raw_of(text, "text")))

    def check(self) -> None:
        """Raises PeerError where a rank has died or failed. Any thread may ask."""
        check(self._lib.terrace_ranks_check(self._handle))

    def patience(self, warning: int = 60, abort: int = 0) -> None:
        """After `warning` seconds of one wait the log says for what, and who of the others is where; after `abort` seconds
        this rank gives the run up: all of them get a PeerError that names who keeps the others waiting. 0: never."""
        given = new(c.terrace_patience, stall_warning_seconds=warning, stall_abort_seconds=abort)
        check(self._lib.terrace_ranks_patience(self._handle, given))

    def where(self) -> str:
        """Who keeps this rank waiting; "" where another rank says it. Any thread may ask."""
        text = ctypes.c_char_p()
        check(self._lib.terrace_ranks_where(self._handle, ctypes.byref(text)))
        return text_of(text.value)

    def end(self, failure: BaseException | None = None, status: int = 1) -> int:
        """This rank ends because of that, or because its work is done. Tells the others, and the user once. Returns the
        status to exit with."""
        worst = ctypes.c_uint32()
        if failure is None:
            text, kind, status = None, 0, 0
        else:
            said = str(failure)
            if not isinstance(failure, Error):
                said = f"{type(failure).__name__}: {said}" if said else type(failure).__name__
            text = raw_of(said.replace("\0", " "), "failure")
            kind = _kind_of(failure)
        check(self._lib.terrace_ranks_end(self._handle, text, kind, status, ctypes.byref(worst)))
        return worst.value

    def close(self) -> None:
        """Leaves the others. A second close does nothing."""
        self._handle.value = None
        self._free()

    def __enter__(self) -> Ranks:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, trace: TracebackType | None
    ) -> None:
        if failure is None or isinstance(failure, GeneratorExit):
            self.close()
            return
        self._end_with(failure)

    def _end_with(self, failure: BaseException) -> NoReturn:
        if isinstance(failure, SystemExit) and not failure.code:
            self.close()
            raise failure
        status = failure.code if isinstance(failure, SystemExit) and isinstance(failure.code, int) else 1
        if not isinstance(failure, (Error, SystemExit, KeyboardInterrupt)):
            import traceback

            traceback.print_exception(type(failure), failure, failure.__traceback__)
        try:
            worst = self.end(failure, status)
        finally:
            self.close()
        raise SystemExit(worst) from failure


def _kind_of(failure: BaseException) -> int:
    if isinstance(failure, KeyboardInterrupt):
        return value_of("terrace_error_kind", "cancelled", "failure")
    word = failure.kind if isinstance(failure, Error) else "internal"
    return c.ENUMS["terrace_error_kind"].get(word, c.ENUMS["terrace_error_kind"]["internal"])


def _to_stderr(level: str, line: str) -> None:
    if level != "info":
        import sys

        print(f"terrace: {level}: {line}", file=sys.stderr)
