"""The library's table of optimizers (optimizer_cpu/optimizer_table.h)."""

from __future__ import annotations

import ctypes
import functools
from typing import NamedTuple

from ._lib import check, library


class OptimizerKind(NamedTuple):
    word: str
    moments: tuple[str, ...]  # as torch calls them, first and second
    counts_steps: bool  # torch's state has a "step"
    has_betas: bool
    has_eps: bool
    has_momentum: bool  # which keeps the moment only where it is not 0
    has_bias_correction: bool
    lr: float
    beta2: float
    eps: float


@functools.cache
def optimizer_kinds() -> dict[str, OptimizerKind]:
    """By word, in the order of terrace_optimizer_kind."""
    import json  # takes a while to load

    text = ctypes.c_char_p()
    check(library().terrace_optimizers(ctypes.byref(text)))
    rows = [OptimizerKind(**dict(row, moments=tuple(row["moments"]))) for row in json.loads(text.value or b"[]")]
    return {row.word: row for row in rows}
