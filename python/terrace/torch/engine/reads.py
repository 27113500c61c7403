"""What the code of modules says about their parameters: which modules run at all, and which parameters a module
reads that another one has, as `functional.linear(x, self.table.weight)` does.

It is asked before the first pass, so that a plan has room for what is read so; what really is read where is seen in
that pass (read_watch.py). A parameter is found where code names it: `self.head.weight`, or `layer.out.weight` of any
layer below. One that is read in another way, as by a name made at run time, is not."""

from __future__ import annotations

import dis
import functools
import inspect
from collections.abc import Hashable, Iterator
from typing import TYPE_CHECKING, cast

from torch import nn

if TYPE_CHECKING:
    from types import CodeType

# What is asked of a parameter without reading its values.
_HARMLESS = frozenset(
    "dtype device shape size dim ndim numel nelement stride requires_grad requires_grad_ grad is_cuda layout "
    "is_floating_point element_size".split()
)


def runs(module: nn.Module) -> bool:
    """Whether a module has a forward of its own; lists of modules and of parameters have none."""
    forward = module.__dict__.get("forward", getattr(type(module), "forward", None))
    return forward is not nn.Module.forward


def parameters_read_elsewhere(module: nn.Module) -> list[nn.Parameter]:
    """The parameters of modules below that the module's own code reads, each once."""
    found: dict[int, nn.Parameter] = {}
    for is_own, path in sorted(_paths(cast(Hashable, type(module)))):
        if is_own:
            _follow(module, path, found)
        else:
            _search(module, path, found)
    return list(found.values())


def _follow(module: nn.Module, path: tuple[str, ...], found: dict[int, nn.Parameter]) -> None:
    """self.a.b.weight"""
    inside: nn.Module | None = module
    for place, name in enumerate(path):
        if inside is None:
            return
        parameter = inside._parameters.get(name)
        if parameter is not None:
            if inside is not module and not _is_harmless(path, place):
                found[id(parameter)] = parameter
            return
        inside = inside._modules.get(name)


def _search(module: nn.Module, path: tuple[str, ...], found: dict[int, nn.Parameter]) -> None:
    """layer.b.weight of whatever layer; weight alone is that of a module directly below."""
    for place, last in enumerate(path):
        for name, child in _below(module, place):
            parameter = child._parameters.get(last)
            wanted = ".".join(path[:place])
            if parameter is None or place and not f".{name}".endswith(f".{wanted}") or _is_harmless(path, place):
                continue
            found[id(parameter)] = parameter


def _below(module: nn.Module, depth: int) -> list[tuple[str, nn.Module]]:
    """[(name, module)]: children, or where a path names some modules, all that are below."""
    if not depth:
        return [(name, child) for name, child in module.named_children() if runs(child)]
    return [(name, child) for name, child in module.named_modules() if name]


def _is_harmless(path: tuple[str, ...], place: int) -> bool:
    return place + 1 < len(path) and path[place + 1] in _HARMLESS


@functools.cache
def _paths(kind: type) -> frozenset[tuple[bool, tuple[str, ...]]]:
    """{(is_own, (attribute, ...))} of a class's forward and of the methods that it comes to."""
    found, seen, waiting = set(), set(), ["forward"]
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        for code in _codes(kind, name):
            for is_own, path in _chains(code, code.co_varnames[:1]):
                found.add((is_own, path))
                waiting.append(path[0])
    return frozenset(found)


def _codes(kind: type, name: str) -> Iterator[CodeType]:
    """The code of a method, as each class has it of which `kind` is made, but for torch's plain modules."""
    for base in kind.__mro__:
        if base in (nn.Module, object):
            return
        method = base.__dict__.get(name)
        if isinstance(method, property):
            method = method.fget
        method = inspect.unwrap(getattr(method, "__func__", method)) if callable(method) else None
        code = getattr(method, "__code__", None)
        if code is not None and code.co_argcount:
            yield code


def _chains(code: CodeType, own: tuple[str, ...]) -> Iterator[tuple[bool, tuple[str, ...]]]:
    """(is_own, (attribute, ...)) for each chain of attributes, in functions within too."""
    base: str | None = None
    path: tuple[str, ...] = ()
    is_chain = False
    for one in dis.get_instructions(code):
        if one.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            path = path + (one.argval,) if is_chain else (one.argval,)
            is_chain = True
            continue
        if is_chain:
            yield base in own, path
        is_chain = False
        path = ()
        base = one.argval[-1] if isinstance(one.argval, tuple) and one.argval else one.argval
        base = base if isinstance(base, str) and one.opname.startswith("LOAD_") else None
    for constant in code.co_consts:
        if inspect.iscode(constant):
            yield from _chains(constant, own)
