"""Saved states: files in a folder of their own, which is found whole or not at all, and no damaged byte of which is
given out. The library writes and reads them (capi/terrace_run.h, docs/saved_state_format.md), and the states of a store
in those that are checkpoints (docs/checkpoint_format.md)."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from . import _declarations as c
from ._lib import check, library, new, raw_of, text_of
from .errors import CorruptError
from .store.memory import Memory
from .store.request import log_function

if TYPE_CHECKING:
    from ._types import Buffer, Log, Path
    from .store import Store


class StateWriter:
    """`with StateWriter(folder, name, files) as state:` write each file, then state.complete(facts). What is not
    complete at the end of the block leaves no trace."""

    def __init__(
        self, folder: Path, name: str, files: Sequence[str], log: Log | None = None, is_checkpoint: bool = False
    ) -> None:
        options, self._kept = _options(folder, name, files, log, is_checkpoint)
        self._lib = library()
        self._handle = ctypes.c_void_p()
        check(self._lib.terrace_state_begin(options, ctypes.byref(self._handle)))
        self._end = weakref.finalize(self, self._lib.terrace_state_end, ctypes.c_void_p(self._handle.value))

    def checkpoint(self, store: Store, scale: Mapping[str, float] | None, **facts: Any) -> None:
        """Of a state with is_checkpoint, first of all: the states of a store. `facts` are members of
        terrace_checkpoint, and `scale` those of terrace_loss_scale_state, where the loss is scaled."""
        given = new(c.terrace_checkpoint, **facts)
        if scale is not None:
            scaled = new(c.terrace_loss_scale_state, **scale)
            given.loss_scale = ctypes.pointer(scaled)
        check(self._lib.terrace_state_checkpoint(self._handle, store._handle, given))

    def file(self, name: str, parts: Iterable[Buffer]) -> None:
        """One of the files, of buffers in turn."""
        check(self._lib.terrace_state_file(self._handle, raw_of(name, "name of a file")))
        for part in parts:
            self._write(part)

    def _write(self, part: Buffer) -> None:
        memory = Memory(part, "cannot save a checkpoint")
        check(self._lib.terrace_state_write(self._handle, memory.address, memory.bytes))

    def complete(self, facts: str | None, set_latest: bool = True) -> None:
        """None: the state is a checkpoint, whose facts checkpoint() has given."""
        raw = None if facts is None else raw_of(facts, "facts")
        check(self._lib.terrace_state_complete(self._handle, raw, int(set_latest)))

    def __enter__(self) -> StateWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()


class StateReader:
    """A state in `folder`: the one of this name, or the one that `latest` names. Its manifest and the sizes of its
    files are those that were saved; verify() reads every byte. A state that was saved without a manifest has the
    facts "", and its bytes come as they are."""

    def __init__(self, folder: Path, name: str | None, files: Sequence[str], is_checkpoint: bool = False) -> None:
        options, _kept = _options(folder, name, files, None, is_checkpoint)
        self._lib = library()
        self._handle = ctypes.c_void_p()
        check(self._lib.terrace_state_open(options, ctypes.byref(self._handle)))
        self._end = weakref.finalize(self, self._lib.terrace_state_close, ctypes.c_void_p(self._handle.value))
        self.path = text_of(self._text(self._lib.terrace_state_path))
        self.facts = text_of(self._text(self._lib.terrace_state_facts))

    def _text(self, question: Callable[..., int | None]) -> bytes | None:
        answer = ctypes.c_char_p()
        check(question(self._handle, ctypes.byref(answer)))
        return answer.value

    def size(self, file: str) -> int:
        size = ctypes.c_uint64()
        check(self._lib.terrace_state_size(self._handle, raw_of(file, "name of a file"), ctypes.byref(size)))
        return size.value

    def read_into(self, file: str, offset: int, count: int, address: int) -> None:
        """Every byte has been compared with its checksum when this returns."""
        check(self._lib.terrace_state_read(self._handle, raw_of(file, "name of a file"), offset, count, address))

    def read(self, file: str, offset: int = 0, count: int | None = None) -> bytearray:
        count = self.size(file) - offset if count is None else count
        raw = bytearray(count)
        if count:
            self.read_into(file, offset, count, Memory(raw, "cannot load a checkpoint", writable=True).address)
        return raw

    def values(self, tensor: int, what: str, first: int, count: int, address: int) -> None:
        """Of a checkpoint, as fp32: elements of a tensor, by its number in the list of the facts."""
        kind = c.ENUMS["terrace_what"][what]
        check(self._lib.terrace_state_values(self._handle, tensor, kind, first, count, address))

    def verify(self) -> None:
        check(self._lib.terrace_state_verify(self._handle))

    def refuse(self, file: str, reason: str) -> NoReturn:
        raise CorruptError("cannot load a checkpoint", f"{self.path}/{file}", reason, "load an earlier checkpoint")

    def __enter__(self) -> StateReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()


def _options(
    folder: Path, name: str | None, files: Sequence[str], log: Log | None, is_checkpoint: bool
) -> tuple[c.terrace_state_options, object]:
    """(terrace_state_options, what it points to)"""
    names = (ctypes.c_char_p * len(files))(*(raw_of(file, "name of a file") for file in files))
    options = new(
        c.terrace_state_options,
        folder=raw_of(folder, "folder"),
        name=None if name is None else raw_of(name, "name of a checkpoint"),
        files=names,
        file_count=len(files),
        is_checkpoint=int(is_checkpoint),
    )
    if log is not None:
        options.log = log_function(log)
    return options, (names, options)
