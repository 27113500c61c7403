"""torch.load of bytes that anybody may have written."""

from __future__ import annotations

import io
import zipfile
from typing import TYPE_CHECKING, Any

import torch

from ....errors import ConfigError

if TYPE_CHECKING:
    from ...._types import Buffer


def unpickled(data: Buffer) -> Any:
    """What torch.save has written: numbers, texts, tensors, lists and dicts. No code of the file runs, and it takes no
    more memory than it has bytes. Whatever else it is, is a ValueError."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            if any(one.compress_type != zipfile.ZIP_STORED for one in archive.infolist()):
                raise ValueError("it is compressed, which torch.save never does")
        return torch.load(io.BytesIO(data), weights_only=True)
    except Exception as error:  # torch has no class for what it does not read
        raise ValueError(str(error).partition("\n")[0] or type(error).__name__) from None


def pickled(state: object, what: str, subject: str) -> bytes:
    """What unpickled() reads. torch.save writes many an object, and reads some alone without running code of the
    file: others are a ConfigError."""
    try:
        data = io.BytesIO()
        try:
            torch.save(state, data)
        except MemoryError:
            raise
        except Exception as error:  # the methods of an object that pickle it may raise any
            raise ValueError(str(error).partition("\n")[0] or type(error).__name__) from None
        unpickled(data.getvalue())
        return data.getvalue()
    except ValueError as error:
        raise ConfigError(what, subject, str(error), "give numbers, texts, tensors, lists and dicts") from None
