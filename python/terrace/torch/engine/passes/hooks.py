"""What is hung onto a model: hooks of passes, of state dicts and of copies. All of it comes off again."""

from __future__ import annotations

import dataclasses
import functools
import sys
import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from ....errors import MisuseError

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle

    from ..placeholders import Tracked
    from ..units import Unit
    from .backward import Backward
    from .passes import Passes


class Hooks:
    """The hooks on a model. Their ids are known, so that copies of modules can go without them. A model that carries
    them can be copied (see values.py), not pickled: what they are bound to refuses it."""

    def __init__(self) -> None:
        self._handles: list[RemovableHandle] = []
        self._ids: set[int] = set()

    def add(self, handle: RemovableHandle) -> None:
        self._handles.append(handle)
        self._ids.add(handle.id)

    def watch_passes(self, passes: Passes, units: Iterable[Unit]) -> None:
        for unit in units:
            self.watch_unit(passes, unit)
        for one in passes.trainable:
            # torch's garbage collection does not look into these hooks, so they must not hold what holds them.
            hook = functools.partial(_take_gradient, weakref.ref(passes), weakref.ref(one))
            self.add(one.parameter.register_post_accumulate_grad_hook(hook))
        forget_compiled()

    def watch_unit(self, passes: Passes, unit: Unit) -> None:
        # Before those of others, which may read parameters (weight_norm), and after a forward that fails too.
        before, after = functools.partial(passes.enter, unit), functools.partial(passes.leave, unit)
        self.add(unit.module.register_forward_pre_hook(before, prepend=True))
        self.add(unit.module.register_forward_hook(after, always_call=True))

    def are_own(self, identifier: int) -> bool:
        return identifier in self._ids

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles, self._ids = [], set()
        forget_compiled()


def _take_gradient(passes: weakref.ref[Passes], one: weakref.ref[Tracked], parameter: torch.Tensor) -> None:
    here, tracked = passes(), one()
    if here is not None and tracked is not None:
        here.take_gradient(tracked, parameter)


class Use:
    """One pass through a unit, after so many updates: the clock when it was entered and left, and the leases it has."""

    __slots__ = (
        "_backward",
        "unit",
        "keys",
        "updates",
        "entered",
        "left",
        "tracked",
        "leases",
        "wanted",
        "is_backward",
        "task",
        "is_suspended",
        "resumed",
    )

    def __init__(self, backward: Backward, unit: Unit, keys: tuple[bytes, bytes], updates: int, entered: int) -> None:
        self._backward = backward
        self.unit = unit
        self.keys = keys
        self.updates = updates
        self.entered = entered
        self.left = 0
        self.tracked: tuple[Tracked, ...] = ()
        self.leases: tuple[int, ...] = ()
        self.wanted: tuple[Tracked, ...] = ()  # what it would have, where the device has no room (needs.py)
        self.is_backward = False
        self.task = -1  # of autograd, in which it goes backward
        # It goes backward without its lease, and how often it has got that back (leases.py).
        self.is_suspended = False
        self.resumed = 0

    def __call__(self, gradients: object) -> None:
        """A hook before the operations that made an output: its gradient has arrived, so the unit goes backward."""
        if not self.is_backward:
            self._backward.come_to(self)


def hook_outputs(output: Any, use: Use) -> None:
    """Registers the use on every tensor of what a module returns, of which a gradient may arrive."""
    if isinstance(output, torch.Tensor):
        # A view that is changed in place gets another node of autograd; that of its base stays.
        base = output._base if output._is_view() else None
        node = base.grad_fn if base is not None else None
        if node is None:
            node = output.grad_fn
        if node is not None:
            node.register_prehook(use)
    elif isinstance(output, dict):
        for one in output.values():
            hook_outputs(one, use)
    elif isinstance(output, (list, tuple)):
        for one in output:
            hook_outputs(one, use)
    elif dataclasses.is_dataclass(output) or hasattr(output, "__dict__"):
        for one in vars(output).values():
            if isinstance(one, (torch.Tensor, dict, list, tuple)):
                hook_outputs(one, use)


def has_nan(output: Any, depth: int = 4) -> bool:
    """Whether a tensor that a module returned, by itself or in containers of so many levels, has a NaN."""
    if isinstance(output, torch.Tensor):
        return output.is_floating_point() and bool(output.isnan().any().item())
    if dataclasses.is_dataclass(output) and not isinstance(output, dict):
        output = vars(output)
    found = output.values() if isinstance(output, dict) else output if isinstance(output, (list, tuple)) else ()
    return depth > 0 and any(has_nan(one, depth - 1) for one in found)


def forget_compiled() -> None:
    """Code that torch has compiled does not ask whether hooks have come or gone."""
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()


def refuse_to_pickle() -> NoReturn:
    raise MisuseError(
        "cannot pickle a model",
        "terrace",
        "its parameters are in a store of this process",
        "save its values: engine.save_safetensors(folder), engine.save_checkpoint(folder) or "
        "torch.save(model.state_dict(), path); "
        "copy.deepcopy(model) gives a plain model that can be pickled",
    )


_is_exporting = getattr(torch.compiler, "is_exporting", lambda: False)  # torch before 2.7 does not say it


def refuse_tracers() -> None:
    """Raises in a pass whose operations are to become a graph that keeps the parameters."""
    tracer = "torch.jit.trace" if torch._C._get_tracing_state() is not None else "torch.export"
    if tracer == "torch.jit.trace" or _is_exporting():
        raise MisuseError(
            f"cannot {'trace' if tracer == 'torch.jit.trace' else 'export'} a model",
            tracer,
            "a graph keeps parameters, and theirs are in a store",
            f"give copy.deepcopy(model) to {tracer}, which has values of its own",
        )
