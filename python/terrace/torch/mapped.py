"""Tensors in unlinked files: values that the system may put on disk, and that end with the last tensor over
them."""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from ..errors import IoError

if TYPE_CHECKING:
    from .._types import Path

# What is exported to torch lies in memory up to here, and in files beyond.
MOST_IN_MEMORY = 64 << 20


def mapped_empty(shape: Sequence[int], dtype: torch.dtype, folder: Path | None = None) -> torch.Tensor:
    """A tensor of zeros over a new unlinked file in `folder`."""
    elements = 1
    for extent in shape:
        elements *= extent
    if not elements:
        return torch.empty(shape, dtype=dtype)
    size = elements * torch.empty((), dtype=dtype).element_size()
    folder = folder or tempfile.gettempdir()
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            os.posix_fallocate(file.fileno(), 0, size)
            memory = mmap.mmap(file.fileno(), size)
    except OSError as error:
        raise IoError(
            "cannot make a file for a tensor",
            str(folder),
            f"{error.strerror} ({size} bytes are wanted)",
            "free space there, or name another folder",
        ) from None
    return torch.frombuffer(memory, dtype=dtype).view(shape)


def mapped_copy(tensor: torch.Tensor, folder: Path | None = None) -> torch.Tensor:
    copy = mapped_empty(tensor.shape, tensor.dtype, folder)
    copy.copy_(tensor)
    return copy
