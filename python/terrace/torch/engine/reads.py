"""What the code of modules says about their parameters: which modules run at all, and which parameters a module
reads that another one has, as `functional.linear(x, self.table.weight)` does.

It is asked before the first pass, so that a plan has room for what is read so; what really is read where is seen in
that pass (read_watch.py). A parameter is found where code names it: `self.head.weight`, or `layer.out.weight` of any
layer below. One that is read in another way, as by a name made at run time, is not."""

import dis
import functools
import inspect

from torch import nn

# What is asked of a parameter without reading its values.
_HARMLESS = frozenset(
    "dtype device shape size dim ndim numel nelement stride requires_grad requires_grad_ grad is_cuda layout "
    "is_floating_point element_size".split()
)


def runs(module):
    """Whether a module has a forward of its own; lists of modules and of parameters have none."""
    forward = module.__dict__.get("forward", getattr(type(module), "forward", None))
    return forward is not nn.Module.forward


def parameters_read_elsewhere(module):
    """The parameters of modules below that the module's own code reads, each once."""
    found = {}
    for is_own, path in sorted(_paths(type(module))):
        if is_own:
            _follow(module, path, found)
        else:
            _search(module, path, found)
    return list(found.values())


def _follow(module, path, found):
    """self.a.b.weight"""
    inside = module
    for place, name in enumerate(path):
        parameter = inside._parameters.get(name)
        if parameter is not None:
            if inside is not module and not _is_harmless(path, place):
                found[id(parameter)] = parameter
            return
        inside = inside._modules.get(name)
        if inside is None:
            return


def _search(module, path, found):
    """layer.b.weight of whatever layer; weight alone is that of a module directly below."""
    for place, last in enumerate(path):
        for name, child in _below(module, place):
            parameter = child._parameters.get(last)
            wanted = ".".join(path[:place])
            if parameter is None or place and not f".{name}".endswith(f".{wanted}") or _is_harmless(path, place):
                continue
            found[id(parameter)] = parameter


def _below(module, depth):
    """[(name, module)]: children, or where a path names some modules, all that are below."""
    if not depth:
        return [(name, child) for name, child in module.named_children() if runs(child)]
    return [(name, child) for name, child in module.named_modules() if name]


def _is_harmless(path, place):
    return place + 1 < len(path) and path[place + 1] in _HARMLESS


@functools.cache
def _paths(kind):
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


def _codes(kind, name):
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


def _chains(code, own):
    """(is_own, (attribute, ...)) for each chain of attributes, in functions within too."""
    base, path, is_chain = None, (), False
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
