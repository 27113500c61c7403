"""The scale of an fp16 loss, which the library keeps (runtime/config/loss_scaler.h)."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .. import _declarations as c
from .._lib import check, library, new

if TYPE_CHECKING:
    from ..config import Config


class LossScaler:
    def __init__(self, config: Config) -> None:
        """Of a terrace.config.Config: the scale is 1 where that has no fp16."""
        self.may_skip = config.precision == "fp16"
        self._handle = ctypes.c_void_p()
        check(library().terrace_loss_scale_create(config.handle.address, ctypes.byref(self._handle)))
        weakref.finalize(self, library().terrace_loss_scale_free, ctypes.c_void_p(self._handle.value))
        self._look()

    def note(self, has_overflowed: bool) -> None:
        """After an update."""
        check(library().terrace_loss_scale_note(self._handle, bool(has_overflowed)))
        self._look()

    def state(self) -> list[float]:
        now = self._now
        return [now.scale, now.hysteresis, now.good_steps, now.skipped_in_a_row]

    def restore(self, state: Sequence[float]) -> None:
        scale, hysteresis, good_steps, skipped_in_a_row = state
        given = new(
            c.terrace_loss_scale_state,
            scale=scale,
            hysteresis=int(hysteresis),
            good_steps=int(good_steps),
            skipped_in_a_row=int(skipped_in_a_row),
        )
        check(library().terrace_loss_scale_restore(self._handle, given))
        self._look()

    def _look(self) -> None:
        self._now = new(c.terrace_loss_scale_state)
        check(library().terrace_loss_scale_get(self._handle, self._now))
        self.scale: float = self._now.scale
