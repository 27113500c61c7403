"""torch.load of bytes that anybody may have written."""

import io
import zipfile

import torch

from ..errors import ConfigError


def unpickled(data):
    """What torch.save has written: numbers, texts, tensors, lists and dicts. No code of the file runs, and it takes no
    more memory than it has bytes. Whatever else it is, is a ValueError."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            if any(one.compress_type != zipfile.ZIP_STORED for one in archive.infolist()):
                raise ValueError("it is compressed, which torch.save never does")
        return torch.load(io.BytesIO(data), weights_only=True)
    except Exception as error:  # torch has no class for what it does not read
        raise ValueError(str(error).partition("\n")[0] or type(error).__name__) from None


def require_readable(data, what, subject):
    """torch.save writes any object, and reads some alone without running code of the file."""
    try:
        unpickled(data)
    except ValueError as error:
        raise ConfigError(what, subject, str(error), "give numbers, texts, tensors, lists and dicts") from None
