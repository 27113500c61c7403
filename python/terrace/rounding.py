"""fp32 values in the 16-bit types, as bytes."""

from __future__ import annotations

import array
import struct
from typing import TYPE_CHECKING

from .errors import ConfigError

if TYPE_CHECKING:
    from ._types import Buffer


def rounded(values: array.array[float], dtype: str) -> Buffer:
    """fp32 values as bytes of another dtype, rounded to the nearest, ties to even."""
    if dtype == "F32":
        return values
    if dtype == "F16":
        return _as_fp16(values)
    raw = memoryview(values).cast("B").tobytes()
    count = len(raw) // 4
    if raw[0::4].count(0) + raw[1::4].count(0) < 2 * count:  # else they are bf16 already
        raw = array.array("I", map(_rounded_to_bf16, array.array("I", raw))).tobytes()
    result = bytearray(2 * count)
    result[0::2], result[1::2] = raw[2::4], raw[3::4]
    return result


def _rounded_to_bf16(word: int) -> int:
    if word & 0x7FFFFFFF > 0x7F800000:  # a NaN stays one
        return word | 0x400000
    return word + 0x7FFF + (word >> 16 & 1)


def _as_fp16(values: array.array[float]) -> bytes:
    try:
        return struct.pack(f"<{len(values)}e", *values)
    except OverflowError:
        raise ConfigError(
            "cannot save the weights", "fp16", "a value is too large for it", "save fp32 or bf16"
        ) from None
