"""What the system says of files: whether something is there, and failures as errors of Terrace.

Only ENOENT and ENOTDIR say that nothing is there (is_absence in base/error.h). What the system does not let be seen
for another reason may be there and whole."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from typing import TYPE_CHECKING

from .errors import Error, IoError

if TYPE_CHECKING:
    from ._types import Path


def is_there(path: Path) -> bool:
    """Whether a name exists; a link that leads nowhere does."""
    return _status(path, follow=False) is not None


def is_folder(path: Path) -> bool:
    status = _status(path, follow=True)
    return status is not None and stat.S_ISDIR(status.st_mode)


def _status(path: Path, follow: bool) -> os.stat_result | None:
    try:
        return os.stat(path, follow_symlinks=follow)
    except (FileNotFoundError, NotADirectoryError, ValueError):  # no file has a name with NUL
        return None
    except OSError as error:
        raise IoError(
            "cannot see whether there is a", os.fspath(path), reason_of(error), "see that you may look into its folder"
        ) from error


def reason_of(error: OSError) -> str:
    return error.strerror or str(error)


@contextlib.contextmanager
def failures(what: str, path: Path) -> Iterator[None]:
    """What the system refuses within the block is an IoError with its reason."""
    try:
        yield
    except Error:
        raise
    except OSError as error:
        raise IoError(
            what, os.fspath(path), reason_of(error), "see that the path is right, and that its drive has room"
        ) from error
