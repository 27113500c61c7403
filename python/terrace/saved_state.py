"""Saved states: files in a folder of their own, which is found whole or not at all, and no damaged byte of which is
given out. The library writes and reads them (capi/terrace_run.h, docs/saved_state_format.md)."""

import ctypes
import weakref

from . import _declarations as c
from ._lib import check, library, new, raw_of, text_of
from .errors import CorruptError
from .store.memory import Memory
from .store.request import log_function


class StateWriter:
    """`with StateWriter(folder, name, files) as state:` write each file, then state.complete(facts). What is not
    complete at the end of the block leaves no trace."""

    def __init__(self, folder, name, files, log=None):
        options, self._kept = _options(folder, name, files, log)
        self._lib = library()
        self._handle = ctypes.c_void_p()
        check(self._lib.terrace_state_begin(options, ctypes.byref(self._handle)))
        self._end = weakref.finalize(self, self._lib.terrace_state_end, ctypes.c_void_p(self._handle.value))

    def file(self, name, parts):
        """One of the files, of buffers in turn."""
        check(self._lib.terrace_state_file(self._handle, raw_of(name, "name of a file")))
        for part in parts:
            self._write(part)

    def _write(self, part):
        memory = Memory(part, "cannot save a checkpoint")
        check(self._lib.terrace_state_write(self._handle, memory.address, memory.bytes))

    def complete(self, facts, set_latest=True):
        check(self._lib.terrace_state_complete(self._handle, raw_of(facts, "facts"), int(set_latest)))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._end()


class StateReader:
    """A state in `folder`: the one of this name, or the one that `latest` names. Its manifest and the sizes of its
    files are those that were saved; verify() reads every byte. A state that was saved without a manifest has the
    facts "", and its bytes come as they are."""

    def __init__(self, folder, name, files):
        options, _kept = _options(folder, name, files, None)
        self._lib = library()
        self._handle = ctypes.c_void_p()
        check(self._lib.terrace_state_open(options, ctypes.byref(self._handle)))
        self._end = weakref.finalize(self, self._lib.terrace_state_close, ctypes.c_void_p(self._handle.value))
        self.path = text_of(self._text(self._lib.terrace_state_path))
        self.facts = text_of(self._text(self._lib.terrace_state_facts))

    def _text(self, question):
        answer = ctypes.c_char_p()
        check(question(self._handle, ctypes.byref(answer)))
        return answer.value

    def size(self, file):
        size = ctypes.c_uint64()
        check(self._lib.terrace_state_size(self._handle, raw_of(file, "name of a file"), ctypes.byref(size)))
        return size.value

    def read_into(self, file, offset, count, address):
        """Every byte has been compared with its checksum when this returns."""
        check(self._lib.terrace_state_read(self._handle, raw_of(file, "name of a file"), offset, count, address))

    def read(self, file, offset=0, count=None):
        count = self.size(file) - offset if count is None else count
        raw = bytearray(count)
        if count:
            self.read_into(file, offset, count, Memory(raw, "cannot load a checkpoint", writable=True).address)
        return raw

    def verify(self):
        check(self._lib.terrace_state_verify(self._handle))

    def refuse(self, file, reason):
        raise CorruptError("cannot load a checkpoint", f"{self.path}/{file}", reason, "load an earlier checkpoint")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._end()


def _options(folder, name, files, log):
    """(terrace_state_options, what it points to)"""
    names = (ctypes.c_char_p * len(files))(*(raw_of(file, "name of a file") for file in files))
    options = new(
        c.terrace_state_options,
        folder=raw_of(folder, "folder"),
        name=None if name is None else raw_of(name, "name of a checkpoint"),
        files=names,
        file_count=len(files),
    )
    if log is not None:
        options.log = log_function(log)
    return options, (names, options)


def has_commit(nvme_paths, tier_name=None):
    """Whether a store with these paths finds a commit of an earlier run."""
    paths = [raw_of(path, "nvme_paths") for path in nvme_paths]
    found = ctypes.c_uint32()
    tier_name = raw_of(tier_name, "tier_name") if tier_name else None
    check(
        library().terrace_has_commit((ctypes.c_char_p * len(paths))(*paths), len(paths), tier_name, ctypes.byref(found))
    )
    return bool(found.value)
