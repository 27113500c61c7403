"""Types that signatures of several files name."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Union

if TYPE_CHECKING:
    from typing_extensions import Buffer as Buffer  # what memoryview takes; Python has a name for it from 3.12 on

# Given a level ("info", "warning", "error") and a line.
Log = Callable[[str, str], object]
Path = Union[str, "os.PathLike[str]"]
# A tensor of a store, by its name or by its place in the list.
TensorKey = Union[str, int]
# Memory: a buffer, or its address.
Source = Union["Buffer", int]
# A configuration: what JSON holds, or a file of it.
ConfigSource = Union[dict[str, Any], Path]
# Members of terrace_options, or a parameter group of torch, by name.
Named = dict[str, Any]


def not_yet() -> Any:
    """None, for a member that is set before anything reads it."""
    return None
