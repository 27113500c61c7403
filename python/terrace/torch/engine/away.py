"""What a parameter is while its values are in the store: reads outside of passes are told of, and writes refused.

Outside of leases a parameter's class is AwayParameter, so that torch hands every operation on it to this file. A
parameter that is leased has torch's own class, and passes pay nothing. What shares the placeholder's memory, such as
p.data or p.detach(), is an AwayTensor. Operations that read no values (shape, grad, to() where nothing is moved) are
torch's as ever. Dispatch happens in Python alone: what C++ reads by itself (torch.jit) is not seen."""

from __future__ import annotations

import sys
import warnings
import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NoReturn, SupportsIndex, cast

import torch
from torch import nn

from ...errors import MisuseError

if TYPE_CHECKING:
    from ..._types import Log
    from .placeholders import Tracked

# They read no values, though what they return does not share the placeholder's memory. Properties are told by the
# names of their getters, which torch calls __get__.
_READS_NOTHING = frozenset(
    (
        "__get__", "__set__", "__delete__", "__len__", "__hash__", "__repr__", "__str__", "__format__", "__dir__",
        "size", "dim", "ndimension", "stride", "storage_offset", "numel", "nelement", "element_size", "data_ptr",
        "is_floating_point", "is_complex", "is_signed", "is_contiguous", "is_pinned", "is_shared", "is_inference",
        "is_same_size", "is_set_to", "get_device", "type", "has_names", "_is_view", "untyped_storage", "storage",
        "requires_grad_", "register_hook", "register_post_accumulate_grad_hook", "retain_grad", "share_memory_",
        "empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "randint_like", "new_empty",
        "new_zeros", "new_ones", "new_full", "new_tensor", "result_type", "can_cast", "promote_types",
        "is_tensor", "is_storage", "_has_compatible_shallow_copy_type", "detach_", "_backward_hooks",
    )
)  # fmt: skip
# They read the type or the shape of an argument that is not the first.
_LIKE_ANOTHER = frozenset(("to", "type_as", "view_as", "reshape_as", "expand_as"))
_WRITES = frozenset(("__setitem__", "copy_")) | frozenset(
    f"__i{name}__" for name in ("add", "sub", "mul", "div", "truediv", "floordiv", "mod", "pow", "and", "or", "xor")
)
_HERE = __file__.rpartition("torch")[0]  # of the package
_TORCH = torch.__file__.rpartition("/")[0] + "/"


class OutsideReads:
    """Told of by every parameter of an engine. `is_in_pass` says whether a pass runs, where parameters are leased."""

    def __init__(
        self, is_in_pass: Callable[[], bool], read: Callable[[Tracked], torch.Tensor], log: Log | None
    ) -> None:
        self.is_in_pass = is_in_pass
        self.read = read
        self._log = log
        self._has_told = False

    def note(self, name: str, function: str) -> None:
        """Tells once, with the line of the program that reads."""
        if self._has_told:
            return
        self._has_told = True
        path, line = _caller()
        text = (
            f'{function} reads the parameter "{name}" outside of a pass and gets NaN, because its values are in the '
            "store. For an average call engine.averaged(decay), to see values one at a time `for name, value in "
            "engine.named_values()`, and to use several at once `with engine.gathered(parameters):`. This is told once"
        )
        if self._log is not None:
            self._log("warning", f"{path}:{line}: {text}")
        else:
            warnings.warn_explicit(text, UserWarning, path, line)

    @staticmethod
    def refuse_write(name: str, function: str) -> NoReturn:
        raise MisuseError(
            f"cannot write to a parameter by {function}",
            name,
            "its values are in the store, and outside of a pass it has no memory of its own",
            "write within `with engine.gathered(parameters, write=True):`",
        )


def _caller() -> tuple[str, int]:
    """(path, line) of the innermost line that is neither torch's nor Terrace's."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith((_HERE, _TORCH)):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


def _dispatch(function: Any, arguments: Any, named: Any) -> Any:
    with torch._C.DisableTorchFunctionSubclass():
        name = getattr(function, "__name__", "")
        first = _tracked_of(arguments[0] if arguments else named.get("tensor"))  # so nn.init hands it on
        away = first or _first_of((arguments, tuple(named.values())))
        if away is None or away.outside is None or away.outside.is_in_pass():
            return function(*arguments, **named)
        if first is not None and is_write(name):
            away.outside.refuse_write(away.name, name)
        result = function(*arguments, **named)
        if first is not None and arguments and result is arguments[0]:  # such as to() where nothing is to be done
            return result
        shared = _shared(result, away)
        if shared is not None:
            return shared
        if name not in _READS_NOTHING and not (name in _LIKE_ANOTHER and first is None):
            away.outside.note(away.name, name)
        return result


def _tracked_of(value: object) -> Tracked | None:
    reference = getattr(value, "_terrace_away", None)
    return reference() if reference is not None else None


def is_write(name: str) -> bool:
    """Whether the function of torch of this name writes to its first argument."""
    return name in _WRITES or (name.endswith("_") and not name.endswith("__") and name not in _READS_NOTHING)


def _first_of(values: Iterable[Any], depth: int = 3) -> Tracked | None:
    for one in values:
        tracked = _tracked_of(one) if isinstance(one, torch.Tensor) else None
        if tracked is None and depth and isinstance(one, (list, tuple)):
            tracked = _first_of(one, depth - 1)
        if tracked is not None:
            return tracked
    return None


def _shared(result: Any, away: Tracked) -> Any:
    """The result as tensors that are away too, where it has the placeholder's memory; else None."""
    if isinstance(result, (list, tuple)):
        parts = [_shared(one, away) for one in result]
        return None if not parts or any(one is None for one in parts) else type(result)(parts)
    if type(result) not in (torch.Tensor, AwayTensor) or result.layout != torch.strided or not result.numel():
        return None
    if result.untyped_storage().data_ptr() != away.away.untyped_storage().data_ptr():
        return None
    made = result.as_subclass(AwayTensor)
    made._terrace_away = weakref.ref(away)
    return made


class AwayTensor(torch.Tensor):
    """A view of a parameter that is away."""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        return _dispatch(function, arguments, named or {})


class AwayParameter(nn.Parameter):
    _terrace_away: Callable[[], Tracked]  # a weak reference, which lives as long as this class is the parameter's

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        return _dispatch(function, arguments, named or {})

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """A parameter with values, as a copy of the whole model has."""
        if id(self) not in memo:
            tracked = self._terrace_away()
            memo[id(self)] = nn.Parameter(cast(OutsideReads, tracked.outside).read(tracked), self.requires_grad)
        return memo[id(self)]

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise MisuseError(
            "cannot pickle a parameter",
            self._terrace_away().name,
            "its values are in a store of this process",
            "save model.state_dict(), or copy.deepcopy(parameter)",
        )
