"""The norm of one training whose parts are in several stores: exact sums of squares, which add up without rounding."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

from .._lib import check, library

if TYPE_CHECKING:
    from .store import Store

SQUARES_LIMBS = 21  # TERRACE_SQUARES_LIMBS


def gradient_squares(store: Store) -> tuple[list[int], float]:
    """After the last micro-batch of a step and before its update: the sum of the squares of all gradients as limbs,
    and 0, or the infinity or NaN that the sum is."""
    limbs, not_finite = (ctypes.c_uint64 * SQUARES_LIMBS)(), ctypes.c_double()
    given = limbs, SQUARES_LIMBS, ctypes.byref(not_finite)
    check(library().terrace_gradient_squares(store._handle, *given))
    return list(limbs), not_finite.value


def norm_of(limbs: Sequence[int]) -> float:
    """The root of a sum, as a store takes it: limb i is worth 2**(32 * i - 320)."""
    return math.sqrt(Fraction(sum(limb << 32 * place for place, limb in enumerate(limbs)), 1 << 320))
