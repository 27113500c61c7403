"""DeepSpeed's names: `import terrace.compat.deepspeed as deepspeed` is the line of a script that changes.

What they name is elsewhere in Terrace; modules.py says where, module by module. A name that has no meaning here can be
imported, and is a ConfigError that says what to use instead when it is called. docs/from_deepspeed.md has the list."""

from __future__ import annotations

import sys
from typing import Any

from ... import add_config_arguments
from ...comm import init_distributed
from . import modules
from .finder import Finder, found, names_of
from .helpers import log_dist, logger
from .starting import DeepSpeedConfigError, DeepSpeedEngine, DeepSpeedOptimizer, initialize

__all__ = [
    "DeepSpeedConfigError",
    "DeepSpeedEngine",
    "DeepSpeedOptimizer",
    "add_config_arguments",
    "init_distributed",
    "initialize",
    "log_dist",
    "logger",
    "version",
]
# Of the release whose names these are: scripts compare it with the one that they need.
__version__ = version = modules.RELEASE
__version_major__, __version_minor__, __version_patch__ = map(int, modules.RELEASE.split("."))
__git_hash__ = __git_branch__ = None

if not any(isinstance(one, Finder) for one in sys.meta_path):
    sys.meta_path.append(Finder())


def __getattr__(name: str) -> Any:
    return found("", name)


def __dir__() -> list[str]:
    return sorted({*globals(), *names_of("")})
