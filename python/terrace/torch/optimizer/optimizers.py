"""Optimizers for torch whose states lie in host memory or on nvme. Parameters stay torch's, and so does the loop.

    optimizer = terrace.torch.OffloadAdamW(model.parameters(), lr=1e-3, states="nvme", path="/mnt/nvme")
    loss.backward()
    optimizer.step()

They take the place of torch.optim's of the same names and give the same numbers to the last digits of fp32.
ReadWatch rate schedulers, clip_grad_norm_, GradScaler and state_dict() work as with torch's.
"""

from __future__ import annotations

import contextlib
import numbers
import os
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, SupportsIndex

import torch

from ...errors import ConfigError, IoError, MisuseError, did_you_mean
from ...optimizer_kinds import optimizer_kinds
from ...system import is_folder
from .gradients import AtStep, InBackward
from .meeting import Companions
from .settings import NEUTRAL, number_of, require, settings_of
from .slots import check_parameter
from .state_store import StateStore
from .state_view import StateView
from .together import Step

if TYPE_CHECKING:
    from ..._types import Named, Path
    from ...store.spec import Optimizer, UpdateResult

# The types of a store's moments, by their bits.
MOMENT_TYPES = {32: "fp32", 16: "bf16", 8: "int8"}

# Settings of how torch computes, which mean nothing here: they may have any value.
_HINTS = ("foreach", "fused")


class OffloadOptions(NamedTuple):
    """Where states are, and how gradients get there.

    states              "cpu", or "nvme" with files in `path`, a folder or a list of folders on several drives
    host_bytes          host memory for states; None: all of them with "cpu", a cache of at most 256 MiB with "nvme"
    state_bits          of each moment: 32, 16 (bf16), or 8, which is one byte with its share of a scale, rounded at random
    max_grad_norm       the largest norm of the whole gradient, beyond which it is scaled down; 0: it is not
    hand_over           "step": p.grad is taken by step(). "backward": it is taken as soon as it is complete, which
                        frees its memory; then clip by max_grad_norm, and say how many backward passes a step has
    accumulation_steps  backward passes of a step, with hand_over="backward"; p.grad sums any number with "step"
    threads             for computing; 0: one per core
    ranks               of torch.distributed. "auto": they share the states where they train one model, and each keeps
                        all of them where not, with a warning. "share": an error where not. "whole": nobody asks
    process_group       the ranks that may share, which average their gradients; None: all
    """

    states: str = "cpu"
    path: Path | Sequence[Path] | None = None
    host_bytes: int | None = None
    state_bits: int = 32
    max_grad_norm: float = 0.0
    hand_over: str = "step"
    accumulation_steps: int = 1
    threads: int = 0
    ranks: str = "auto"
    process_group: Any = None

    @classmethod
    def of(cls, named: Named) -> OffloadOptions:
        for name in named:
            if name not in cls._fields:
                raise ConfigError(
                    "cannot use an option of the optimizer",
                    name,
                    "there is no option of this name",
                    did_you_mean(name, cls._fields),
                )
        options = cls(**named)
        words = {"states": ("cpu", "nvme"), "hand_over": ("step", "backward"), "ranks": ("auto", "share", "whole")}
        for name, known in words.items():
            require(getattr(options, name) in known, name, getattr(options, name), " or ".join(map(repr, known)))
        for name, least in (("accumulation_steps", 1), ("threads", 0), ("host_bytes", 0)):
            value = getattr(options, name)
            is_default = name == "host_bytes" and value is None
            is_whole = isinstance(value, numbers.Integral) and int(value) >= least
            require(is_default or is_whole, name, value, f"a whole number of {least} or more")
        require(
            options.hand_over == "backward" or options.accumulation_steps == 1,
            "accumulation_steps",
            options.accumulation_steps,
            '1 with hand_over="step", where torch sums backward passes in p.grad',
        )
        all_bits = " or ".join(map(str, MOMENT_TYPES))
        require(options.state_bits in MOMENT_TYPES, "state_bits", options.state_bits, all_bits)
        require(number_of(options.max_grad_norm) >= 0, "max_grad_norm", options.max_grad_norm, "a number of 0 or more")
        require(
            (options.path is not None) == (options.states == "nvme"),
            "path",
            options.path,
            'a folder with states="nvme", and left out with "cpu"',
        )
        options._require_folders()
        return options

    def _require_folders(self) -> None:
        paths = [self.path] if isinstance(self.path, (str, os.PathLike)) else self.path or ()
        are_paths = isinstance(paths, (list, tuple)) and all(isinstance(one, (str, os.PathLike)) for one in paths)
        require(are_paths, "path", self.path, "a folder or a list of folders")
        for path in paths:
            if not is_folder(path):
                raise IoError(
                    "cannot use the path for optimizer states",
                    os.fspath(path),
                    "it is no folder",
                    "create it on a fast local drive",
                )


class OffloadOptimizer(torch.optim.Optimizer):
    """What OffloadAdamW and the others share."""

    # torch's GradScaler leaves unscaling to the optimizer then, which has it for nothing.
    _step_supports_amp_scaling = True
    kind: str

    def __init__(self, params: Any, defaults: Named, given: Named, options: Named) -> None:
        self.options = OffloadOptions.of(options)
        o = self.options
        row = optimizer_kinds()[self.kind]
        self._states = StateStore(
            self.kind,
            len(row.moments),
            o.states,
            o.path,
            o.host_bytes,
            "borrowed" if o.hand_over == "step" else "handed_over",
            o.accumulation_steps,
            o.threads,
            MOMENT_TYPES[o.state_bits],
        )
        if o.hand_over == "backward":
            self._gradients: InBackward | AtStep = InBackward(self._states, self, o.accumulation_steps)
        else:
            self._gradients = AtStep(self._states, self)
        # What the last step() did: .applied and .gradient_norm, before clipping. None before the first.
        self.last_update: UpdateResult | None = None
        self._companions = Companions(self._states, o.ranks, o.process_group, o.hand_over)
        super().__init__(params, {**defaults, **given})
        self.state: StateView = StateView(  # type: ignore[assignment]
            self._states, self._gradients, row.moments, row.counts_steps
        )
        every = [parameter for group in self.param_groups for parameter in group["params"]]
        if not any(map(torch.nn.parameter.is_lazy, every)):
            self._companions.expect(every)
            self._states.plan(self.param_groups)

    def add_param_group(self, param_group: Named) -> None:
        _refuse_repeated(param_group, self.param_groups)
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        try:
            self._settings_of(group)
            names = group.get("param_names") or [str(number) for number in range(len(group["params"]))]
            for name, parameter in zip(names, group["params"]):
                if parameter.requires_grad and not torch.nn.parameter.is_lazy(parameter):
                    check_parameter(parameter, name)
            self._companions.renew(group["params"])
        except BaseException:
            self.param_groups.pop()
            raise
        self._gradients.watch(group["params"])

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Updates every parameter that has a gradient. An exception leaves parameters and states as they were."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        settings = [self._settings_of(group) for group in self.param_groups]
        # GradScaler sets both for the time of the call. What it has found the update finds too.
        scale, has_scaler = getattr(self, "grad_scale", None), hasattr(self, "found_inf")
        self.state.forget()
        try:
            one = Step(
                self._gradients.collect, settings, self.options.max_grad_norm, 1.0 if scale is None else float(scale)
            )
            done = self._companions.step(self.param_groups, one)
        except BaseException:
            self._gradients.drop()
            raise
        if done is None:
            return loss
        self.last_update = done
        self._gradients.spent()
        if not self.last_update.applied and not has_scaler:
            warnings.warn("a gradient is infinite or NaN: the step has changed nothing", RuntimeWarning, 2)
        return loss

    def step_counters(self) -> dict[str, int]:
        """Bytes moved, waits and times of the last step, by key (docs/c_api.md); {} before the first."""
        return {} if self._states.store is None else self._states.store.step_counters()

    def zero_grad(self, set_to_none: bool = True) -> None:
        if self.options.hand_over == "backward":
            if not set_to_none:
                raise ConfigError(
                    "cannot set gradients to zero",
                    "set_to_none=False",
                    'with hand_over="backward" there is no gradient that could stay as zeros',
                    "leave set_to_none out; parameters without a gradient are left as they are",
                )
            self._gradients.drop()
        super().zero_grad(set_to_none)

    def consolidate_state_dict(self, to: int | None = 0) -> None:
        """Where ranks share the states: brings them together on rank `to`, or on all of them (None), for state_dict()
        there. All ranks call it, as that of torch's ZeroRedundancyOptimizer; they stay until the next step or load.
        Elsewhere it does nothing."""
        self.state.consolidate(to)

    def collective_state_dict(self) -> contextlib.AbstractContextManager[None]:
        """Within the block state_dict(), and what calls it as torch.distributed.checkpoint does, is called by all ranks
        together, and gives states whole on each."""
        return self.state.collective()

    def state_dict(self) -> Named:
        """In torch's layout. The tensors are copies. Where ranks share the states, of a rank that has them whole by
        consolidate_state_dict(); where parameters are DTensors, DTensors."""
        with self.state.free():
            return super().state_dict()

    def load_state_dict(self, state_dict: Named) -> None:
        """Takes what state_dict() of this class or of torch's own gave, on every rank, of any number of ranks. If it
        fails, nothing has changed."""
        state_dict = dict(state_dict)
        for hook in self._optimizer_load_state_dict_pre_hooks.values():
            changed = hook(self, state_dict)
            state_dict = state_dict if changed is None else changed
        groups = self._loaded_groups(state_dict.get("param_groups", []))
        ids = [number for group in state_dict["param_groups"] for number in group["params"]]
        parameters = dict(zip(ids, (parameter for group in groups for parameter in group["params"])))
        states = {}
        for number, state in state_dict["state"].items():
            if number not in parameters:
                raise ConfigError(
                    "cannot load optimizer states",
                    f"parameter {number}",
                    "no parameter group has it",
                    "load what state_dict() gave, as a whole",
                )
            parsed = self.state.parsed(parameters[number], state, f"parameter {number}")
            if parsed is not None:
                states[id(parameters[number])] = parsed
        self._gradients.drop()
        self.state.forget()
        if states:
            self._companions.meet(self.param_groups)
        self._states.load(groups, states)
        self.param_groups = groups
        for after in self._optimizer_load_state_dict_post_hooks.values():
            after(self)

    def _loaded_groups(self, saved: Sequence[Named]) -> list[Named]:
        """This optimizer's parameters with the settings that were saved, where they are those of a group."""
        sizes, saved_sizes = ([len(group["params"]) for group in groups] for groups in (self.param_groups, saved))
        if sizes != saved_sizes:
            raise ConfigError(
                "cannot load optimizer states",
                f"parameter groups of {saved_sizes} parameters",
                f"this optimizer has groups of {sizes}",
                "make it with the groups that were saved",
            )
        loaded = []
        for ours, theirs in zip(self.param_groups, saved):
            own: Named = {key: ours[key] for key in ("params", "param_names", *self._fixed) if key in ours}
            loaded.append({**self.defaults, **theirs, **own})
            self._settings_of(loaded[-1])
        return loaded

    # What a group says of the class and not of a run: a load does not change it.
    _fixed: tuple[str, ...] = ()

    def _settings_of(self, group: Named) -> Optimizer:
        return settings_of(self.kind, group)

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise MisuseError(
            "cannot copy or pickle an optimizer",
            f"terrace.torch.{type(self).__name__}",
            "it holds memory, files and threads of this process",
            "save its state_dict(), and load that into an optimizer made where it is wanted",
        )


class OffloadAdam(OffloadOptimizer):
    """torch.optim.Adam, whose weight decay is part of the gradient. OffloadOptions says all that is not torch's."""

    kind = "adam"
    _fixed = ("decoupled_weight_decay",)

    def __init__(
        self,
        params: Any,
        lr: float = 0.001,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-08,
        weight_decay: float = 0.0,
        **options: Any,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        own = _own(options, "amsgrad", "maximize", "capturable", "differentiable")
        own["decoupled_weight_decay"] = self.kind == "adamw"
        super().__init__(params, defaults, own, options)


class OffloadAdamW(OffloadAdam):
    """torch.optim.AdamW."""

    kind = "adamw"

    def __init__(
        self,
        params: Any,
        lr: float = 0.001,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-08,
        weight_decay: float = 0.01,
        **options: Any,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay, **options)


class OffloadLion(OffloadOptimizer):
    """Lion (Chen et al., arXiv:2302.06675), with the states of lion-pytorch."""

    kind = "lion"

    def __init__(
        self,
        params: Any,
        lr: float = 0.0001,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
        **options: Any,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay}, {}, options)


class OffloadAdagrad(OffloadOptimizer):
    """torch.optim.Adagrad."""

    kind = "adagrad"

    def __init__(
        self, params: Any, lr: float = 0.01, weight_decay: float = 0.0, eps: float = 1e-10, **options: Any
    ) -> None:
        own = _own(options, "lr_decay", "initial_accumulator_value", "maximize", "differentiable")
        super().__init__(params, {"lr": lr, "eps": eps, "weight_decay": weight_decay}, own, options)


class OffloadSGD(OffloadOptimizer):
    """torch.optim.SGD."""

    kind = "sgd"

    def __init__(
        self,
        params: Any,
        lr: float = 0.001,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        **options: Any,
    ) -> None:
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "dampening": dampening,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
        }
        super().__init__(params, defaults, _own(options, "maximize", "differentiable"), options)


def _own(options: Named, *names: str) -> Named:
    """torch's settings among the options, taken out of them; groups have them all, as torch's own do."""
    own = {name: options.pop(name, NEUTRAL[name]) for name in names}
    return {**own, **{name: options.pop(name, None) for name in _HINTS}}


def _refuse_repeated(param_group: Named, groups: Sequence[Named]) -> None:
    """torch warns of a parameter that is twice in a group, and updates it twice."""
    given = param_group["params"]
    given = param_group["params"] = [given] if isinstance(given, torch.Tensor) else list(given)
    seen = {id(parameter) for group in groups for parameter in group["params"]}
    for number, entry in enumerate(given):
        parameter = entry[1] if isinstance(entry, tuple) else entry
        if id(parameter) in seen:
            raise ConfigError(
                "cannot take a parameter twice",
                f"group {len(groups)}, parameter {number}",
                "it is in this group or an earlier one already",
                "give every parameter once",
            )
        seen.add(id(parameter))
