"""The learning-rate schedule of a configuration, which the library computes (runtime/config/lr_schedule.h).

It is a pure function of the number of updates. Update k (from 0) runs with what DeepSpeed's scheduler sets in its
iteration k - 1, and the first one with what its constructor sets. Updates that fp16 skips do not count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import _declarations as c
from ._lib import check, library, new

if TYPE_CHECKING:
    from .config import ConfigHandle


class Schedule:
    def __init__(self, kind: str, handle: ConfigHandle, base_lr: float) -> None:
        """Of a configuration; `base_lr` is the rate of the optimizer."""
        self.kind = kind
        self.base_lr = base_lr
        self._handle = handle

    def lr(self, update: int, group: int = 0, base_lr: float | None = None) -> float:
        """The rate of a parameter group, whose own rate is `base_lr`, in an update (from 0)."""
        return self._at(update, group, self.base_lr if base_lr is None else base_lr).lr

    def betas(self, update: int, group: int = 0) -> tuple[float, float] | None:
        """Adam's betas, where OneCycle cycles the momentum; else None."""
        values = self._at(update, group, self.base_lr)
        return (values.beta1, values.beta2) if values.sets_betas else None

    def _at(self, update: int, group: int, base_lr: float) -> c.terrace_scheduled:
        values = new(c.terrace_scheduled)
        check(library().terrace_config_scheduled(self._handle.address, update, group, float(base_lr), values))
        return values
