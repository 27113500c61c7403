"""Activations that the program makes, which a store saves from forward to backward (capi/terrace_run.h)."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from .. import _declarations as c
from .._lib import check, library, new

if TYPE_CHECKING:
    from .spec import Plan
    from .store import Store


class SavedUse(NamedTuple):
    """What saved activations take, member by member of terrace_saved_use."""

    saved_count: int
    host_bytes: int
    host_peak_bytes: int
    host_held_bytes: int
    host_most_bytes: int
    nvme_bytes: int
    nvme_peak_bytes: int
    file_bytes: int
    # Of the step that is open, or else the last one.
    step_wanted_bytes: int
    step_host_bytes: int
    step_nvme_bytes: int
    step_d2h_bytes: int
    step_h2d_bytes: int
    step_read_bytes: int
    step_write_bytes: int


def saved_use(store: Store) -> SavedUse:
    use = new(c.terrace_saved_use)
    check(library().terrace_saved_use_of(store._handle, use))
    return SavedUse(*(getattr(use, name) for name in SavedUse._fields))


def with_saved(plan: Plan, use: SavedUse) -> Plan:
    return plan._replace(
        saved_most_bytes=use.host_most_bytes,
        saved_wanted_bytes=use.step_wanted_bytes,
        saved_host_bytes=use.step_host_bytes,
        saved_nvme_bytes=use.step_nvme_bytes,
    )


class SavedActivations:
    """Those of a store with saved_activations "cpu" or "nvme". A failure leaves everything else as it was."""

    def __init__(self, store: Store) -> None:
        self._lib, self._handle = library(), store._handle
        self._number, self._has_begun = ctypes.c_uint64(), ctypes.c_uint32()

    def start_save(self, address: int, size: int) -> int:
        """The number of an activation, whose bytes stay as they are until finish_save()."""
        check(self._lib.terrace_start_save(self._handle, address, size, ctypes.byref(self._number)))
        return self._number.value

    def finish_save(self, number: int) -> None:
        check(self._lib.terrace_finish_save(self._handle, number))

    def start_load(self, number: int, address: int, is_ahead: bool = False) -> bool:
        """Begins the way back to memory that is left alone until finish_load(). False: it `is_ahead` of its use, and
        others would have to make room."""
        has_begun = ctypes.byref(self._has_begun) if is_ahead else None
        check(self._lib.terrace_start_load(self._handle, number, address, has_begun))
        return not is_ahead or bool(self._has_begun.value)

    def finish_load(self, number: int) -> None:
        check(self._lib.terrace_finish_load(self._handle, number))

    def drop(self, numbers: Sequence[int]) -> None:
        count = len(numbers)
        check(self._lib.terrace_drop_saved(self._handle, (ctypes.c_uint64 * count)(*numbers), count))
