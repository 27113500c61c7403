"""Makes the modules of modules.py when they are first imported. Each hands on the names of its homes."""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, NoReturn

from ...errors import ConfigError
from ...suggestions import suggestion_among
from .modules import MODULES, WAYS, WAYS_OF_MODULES

_PACKAGE = __package__


class Finder(MetaPathFinder):
    """Stands behind Python's own finders, for modules that are no files."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith(f"{_PACKAGE}."):
            return None
        module = fullname[len(_PACKAGE) + 1 :]
        if not is_module(module):
            # Without a name, so that `from module import name` has this text as well.
            raise ModuleNotFoundError(missing(*split(module)))
        return ModuleSpec(fullname, _Names(), is_package=True)


class _Names(Loader):
    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return Names(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """There is nothing to run."""


class Names(ModuleType):
    """A module whose names are those of others."""

    def __getattr__(self, name: str) -> Any:
        return found(self.__name__[len(_PACKAGE) + 1 :], name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *names_of(self.__name__[len(_PACKAGE) + 1 :])})


def split(path: str) -> tuple[str, str]:
    """(module, name)"""
    module, _, name = path.rpartition(".")
    return module, name


def is_module(path: str) -> bool:
    return _is_in_table(path) or way_of_module(path) is not None


def _is_in_table(path: str) -> bool:
    return any(one == path or one.startswith(f"{path}.") for one in MODULES)


def way_of_module(path: str) -> str | None:
    """What to use in place of a module without meaning, or of the one that it is in."""
    while path:
        if path in WAYS_OF_MODULES:
            return WAYS_OF_MODULES[path]
        path = split(path)[0]
    return None


def found(module: str, name: str) -> Any:
    """What a module of DeepSpeed has under a name; an AttributeError that says what is near, or what to do."""
    path = f"{module}.{name}" if module else name
    if name.startswith("__"):
        raise AttributeError(name)
    if path in WAYS_OF_MODULES or _is_in_table(path):
        return import_module(f"{_PACKAGE}.{path}")
    for home in MODULES.get(module, ()):
        value = getattr(import_module(home), name, _Absent) if name in known(home) else _Absent
        if value is not _Absent:
            return value
    way = WAYS.get(name) or way_of_module(module)
    if way is None:
        raise AttributeError(missing(module, name))
    return without_meaning(path, way)


class _Absent:
    """In no module."""


class WithoutMeaning(type):
    """Of classes, so that `isinstance` answers, which nobody can call or derive from."""

    path: str
    way: str

    def __call__(cls, *_: object, **__: object) -> NoReturn:
        cls._refuse()

    def __getattr__(cls, name: str) -> WithoutMeaning:
        if name.startswith("__"):
            raise AttributeError(name)
        return without_meaning(f"{cls.path}.{name}", cls.way)

    def _refuse(cls) -> NoReturn:
        raise ConfigError("cannot use a name of DeepSpeed", f"deepspeed.{cls.path}", "it has no meaning here", cls.way)


def without_meaning(path: str, way: str) -> WithoutMeaning:
    def refuse(cls: WithoutMeaning, **_: object) -> NoReturn:
        cls._refuse()

    return WithoutMeaning(split(path)[1], (), {"path": path, "way": way, "__init_subclass__": refuse})


def missing(module: str, name: str) -> str:
    where = f"{_PACKAGE}.{module}" if module else _PACKAGE
    near = suggestion_among(name, names_of(module))
    if not near:
        places = [place for place in MODULES if place and name in names_of(place)]
        near = (
            f"it is in {_PACKAGE}.{min(places, key=len)}"
            if places
            else "docs/from_deepspeed.md lists what of DeepSpeed is here"
        )
    return f"{where} has no {name!r}: {near}"


def names_of(module: str) -> list[str]:
    """Those that have a meaning."""
    prefix = f"{module}." if module else ""
    names = {one[len(prefix) :].partition(".")[0] for one in MODULES if one.startswith(prefix) and one != module}
    for home in MODULES.get(module, ()):
        names |= {name for name in known(home) if not name.startswith("_")}
    return sorted(names)


@functools.cache
def known(home: str) -> frozenset[str]:
    """The names of a module of Terrace that are its own: what it has imported for itself is not among them."""
    names = vars(import_module(home))
    return frozenset(names.get("__all__", [name for name, value in names.items() if _is_own(home, name, value)]))


def _is_own(home: str, name: str, value: object) -> bool:
    if isinstance(value, (dict, list, str, logging.Logger)):
        return not name.startswith("__")
    of = getattr(value, "__module__", "")
    return of == home or (str(of).startswith("terrace.") and getattr(value, "__name__", name) != name)
