"""The first step is watched: which parameters does a forward pass read outside of the units that have them?

Such are a tied table that is used by a function, the output projection of torch's MultiheadAttention, or a
weight that another module borrows. The innermost unit that is open at that moment has them from then on. It is
also noted which parameters are read more than once. The first evaluation is watched too. After a step whose
gradients are not finite without a cause, or an evaluation that gives NaN, watching begins again, since a new path
through the model may have read a placeholder.

What a watched pass is about to write to a parameter in place is refused before it is written: it would reach the
copy on the device alone, which is gone when that is given up.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode

from ..away import is_write
from ..placeholders import refuse_write_of_pass
from .hooks import forget_compiled

if TYPE_CHECKING:
    import contextlib
    from types import CodeType

    from torch import nn

    from ..placeholders import Tracked
    from .passes import Passes

# They read no values.
_HARMLESS = frozenset(
    (
        "size",
        "dim",
        "stride",
        "numel",
        "nelement",
        "element_size",
        "is_floating_point",
        "is_complex",
        "get_device",
        "ndimension",
        "requires_grad_",
        "type",
        "storage_offset",
        "is_contiguous",
        "__len__",
        "__hash__",
        "register_hook",
        "is_shared",
        "has_names",
        "_is_view",
        "is_signed",
        "is_inference",
        "is_same_size",
        "__repr__",
        "__format__",
        "__reduce_ex__",
        "__deepcopy__",
    )
)
_PLAIN_PROPERTIES = frozenset(
    getattr(torch.Tensor, name).__set__ for name in ("data", "grad", "requires_grad")
) | frozenset(
    getattr(torch.Tensor, name).__get__
    for name in (
        "shape",
        "dtype",
        "device",
        "layout",
        "ndim",
        "requires_grad",
        "grad_fn",
        "grad",
        "is_leaf",
        "is_cuda",
        "is_cpu",
        "is_sparse",
        "is_quantized",
        "is_meta",
        "is_nested",
        "is_mkldnn",
        "is_mps",
        "is_xpu",
        "names",
        "_version",
        "output_nr",
        "_grad",
        "_grad_fn",
        "_base",
        "itemsize",
        "nbytes",
    )
    if hasattr(torch.Tensor, name)
)


# After a step that failed, so many updates are watched in which nothing is learned: the path through the model that
# failed may be a rare one.
_PATIENCE = 100


class Watch(TorchFunctionMode):
    """Leases what an operation is about to read, and refuses what it is about to write to a parameter."""

    def __init__(self, passes: Passes, tracked_of: Mapping[int, Tracked], found_autocast: Callable[[], None]) -> None:
        super().__init__()
        self._passes = passes
        self._tracked_of = tracked_of
        self._found_autocast = found_autocast

    def __torch_function__(self, function: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        named = named or {}
        if not _reads_nothing(function):
            if any(map(torch.is_autocast_enabled, ("cpu", "cuda"))):
                self._found_autocast()
            self._look(arguments)
            if named:
                self._look(named.values())
            self._refuse_writes(getattr(function, "__name__", ""), arguments, named)
        return function(*arguments, **named)

    def _look(self, values: Iterable[Any]) -> None:
        for value in values:
            if isinstance(value, torch.nn.Parameter):
                one = self._tracked_of.get(id(value))
                if one is not None:
                    self._passes.note_read(one)
            elif isinstance(value, (list, tuple)):
                self._look(value)

    def _refuse_writes(self, name: str, arguments: Any, named: Any) -> None:
        if arguments and is_write(name):
            self._refuse_write(arguments[0], name)
        if named.get("out") is not None:
            self._refuse_write(named["out"], name)
        if name in ("embedding", "embedding_bag"):  # functions, which scale rows of the table
            if named.get("max_norm", arguments[3] if len(arguments) > 3 else None) is not None:
                self._refuse_write(named.get("weight", arguments[1] if len(arguments) > 1 else None), "max_norm")

    def _refuse_write(self, written: object, function: str) -> None:
        """Raises where a tensor that an operation is about to write to has the memory of a leased parameter."""
        one = self._passes.leases.owner_of(written)
        if one is not None:
            refuse_write_of_pass(one, f"the model does it by {function}")


def _reads_nothing(function: Any) -> bool:
    return getattr(function, "__name__", "") in _HARMLESS or function in _PLAIN_PROPERTIES


class ReadWatch:
    """Watches forward passes, in place of the forwards of a model and its modules: those of steps, and evaluations.

    What is compiled runs uncompiled meanwhile, where every operation can be seen.
    """

    def __init__(
        self, model: nn.Module, passes: Passes, tracked_of: Mapping[int, Tracked], found_autocast: Callable[[], None]
    ) -> None:
        self._model = model
        self._passes = passes
        self._watch = Watch(passes, tracked_of, found_autocast)
        self._updates_left = self._patience = 1
        self._extensions = 0
        self._evaluations = True
        self._is_everywhere = False  # evaluations are watched that begin in a module below the model
        self._is_watching = self._has_watched = False
        self._places: dict[nn.Module, Watched] = {}  # the forwards that stand in for those of modules
        self._settle()

    def watch_steps(self) -> None:
        self._updates_left = self._patience = _PATIENCE
        self._extensions = self._passes.extensions
        self._settle()

    def watch_evaluations(self) -> None:
        self._evaluations = self._is_everywhere = True
        self._settle()

    def note_update(self) -> None:
        """An update was applied."""
        if self._updates_left:
            self._updates_left -= 1
            if self._passes.extensions > self._extensions and self._patience > 1:
                self._updates_left = self._patience
            self._extensions = self._passes.extensions
            if not self._updates_left:
                self._settle()

    def note_evaluation(self) -> bool:
        """An evaluation ended. Returns whether it was watched."""
        was_watched, self._has_watched = self._has_watched, False
        if was_watched:
            self._evaluations = self._is_everywhere = False
            self._settle()
        return was_watched

    def stop(self) -> None:
        self._updates_left, self._evaluations, self._is_everywhere = 0, False, False
        self._settle()

    def is_due(self) -> bool:
        if self._is_watching:
            return False
        return self._updates_left > 0 if torch.is_grad_enabled() else self._evaluations

    def run(self, inner: Callable[..., Any], arguments: Any, named: Any) -> Any:
        self._is_watching, self._has_watched = True, not torch.is_grad_enabled()
        self._passes.leases.begin_watched()
        is_whole = False
        try:
            with self._watch, _uncompiled():
                answer = inner(*arguments, **named)
            is_whole = True
            return answer
        finally:
            self._is_watching = False
            self._passes.leases.end_watched(is_whole)

    def _settle(self) -> None:
        """Stands in where a pass may begin that is to be watched, and nowhere else."""
        wanted: list[nn.Module] = []
        if self._updates_left or self._is_everywhere:
            wanted = [one for one in self._model.modules() if not isinstance(one, torch.jit.ScriptModule)]
        elif self._evaluations:
            wanted = [self._model]
        for module in set(self._places) - set(wanted):
            self._places.pop(module).leave(module)
        for module in wanted:
            if module not in self._places:
                self._places[module] = module.forward = Watched(self, module)
        forget_compiled()


class Watched:
    """A forward that looks like the one that it stands for: signatures are asked for by trainers."""

    def __init__(self, learning: ReadWatch, model: nn.Module) -> None:
        self._read_watch = learning
        self._run = torch.compiler.disable(learning.run)
        self.stands_for = model.__dict__.get("forward")
        self.__wrapped__ = model.forward
        self.__name__ = "forward"
        self.__doc__ = model.forward.__doc__

    @property
    def __code__(self) -> CodeType:
        """torch.export looks at it, before the engine refuses it in words."""
        return self.__wrapped__.__code__

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        if self._read_watch.is_due():
            return self._run(self.__wrapped__, arguments, named)
        return self.__wrapped__(*arguments, **named)

    def leave(self, module: nn.Module) -> None:
        if module.__dict__.get("forward") is self:  # another may stand in front, such as accelerate's autocast
            if self.stands_for is None:
                del module.forward
            else:
                module.forward = self.stands_for


class _Nothing:
    def __enter__(self) -> _Nothing:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def _uncompiled() -> contextlib.AbstractContextManager[Any]:
    if "torch._dynamo" in sys.modules and hasattr(torch.compiler, "set_stance"):
        return torch.compiler.set_stance("force_eager")
    return _Nothing()
