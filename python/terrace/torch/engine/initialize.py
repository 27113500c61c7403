"""terrace.initialize: from a model of torch and a configuration to an engine, with everything planned before it
is allocated."""

from __future__ import annotations

import faulthandler
import functools
import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

from ...config import read_config
from ...config_words import in_words_of_the_configuration
from ...errors import CapacityError, ConfigError, MisuseError
from ...saved_state import has_commit
from ...store import Store, plan
from ...store.spec import Tensor
from ..emptied import require_values
from .deepspeed_names import require_undivided, source_of
from .device import choose_device, device_that_holds_all, tensor_at, torch_device_of
from .engine import Engine
from .launched import require_alone
from .optimizer import EngineOptimizer, kind_of
from .others import kept_in_fp32, line_of_outside, settle_others
from .passes.needs import Shortage
from .placeholders import (
    TORCH_TYPES,
    TYPES,
    Placeholders,
    Tracked,
    named_once,
    require_storage_of_its_own,
    require_trainable_kind,
)
from .saved.checkpoint import require_same_model
from .schedule import EngineSchedule
from .units import choose_units, expected_uses
from .values import has_engine

if TYPE_CHECKING:
    from ..._types import ConfigSource, Log, Named
    from ...config import Config

# Parameters of so many elements stay torch's own.
SMALL_ELEMENTS = 64 << 10
# Of the flat space (base/record_layout.h): sums of squares are taken by tile, and tensors are aligned.
_TILE_ELEMENTS, _ALIGNED_ELEMENTS = 4096, 64


def initialize(
    args: object = None,
    model: Any = None,
    optimizer: Any = None,
    model_parameters: Any = None,
    training_data: Any = None,
    lr_scheduler: Any = None,
    *,
    config: ConfigSource | None = None,
    units: Any = "auto",
    device: Any = None,
    collate_fn: Callable[..., Any] | None = None,
    persistence_threshold: int = SMALL_ELEMENTS,
    resume: bool | str = False,
    discard_commits: bool = False,
    total_steps: int | None = None,
    tier_name: str | None = None,
    log: Log | None = None,
    config_params: ConfigSource | None = None,
    mpu: object = None,
    mesh_param: object = None,
    dist_init_required: object = None,
    distributed_port: object = None,
) -> tuple[Engine, EngineOptimizer, Any, Any]:
    """(engine, optimizer, dataloader, scheduler), as DeepSpeed's initialize.

    model: a module, whose parameters go into a store; outside of its passes they read as NaN. Leave it on the
        processor, a GPU needs no room for it: what it computes with goes there here.
    optimizer: one of torch.optim, or a function that makes it from parameters; else the configuration's.
    lr_scheduler: a scheduler of torch for that optimizer, or a function that makes it; else the configuration's.
    units: what is leased together: "auto" (layers, where device memory has room), "leaf", or classes and names.
    persistence_threshold: trained parameters of at most so many elements stay in torch's memory.
    log: is given a level and a line of what there is to say; without it warnings are Python's.
    resume: True goes on from the commit in nvme_path, "auto" does where there is one.
    discard_commits: a commit of an earlier run in nvme_path may be removed.
    args: `args.deepspeed_config` names the file where `config` is not given; so does `config_params`, its old name.
    mpu, mesh_param, dist_init_required, distributed_port: DeepSpeed's, of processes that train together. There is one.
    """
    require_alone()
    require_undivided(mpu, mesh_param)
    if resume not in (True, False, "auto"):
        raise ConfigError("cannot resume a training", "resume", f"it is {resume!r}", 'give True, False or "auto"')
    settings: Config = read_config(
        source_of(config, config_params, args), total_steps, optimizer is not None, lr_scheduler is not None
    )
    _require_plain(model)
    build = _Build(model, settings, units, device, persistence_threshold)
    groups, kind, defaults = _groups(model, settings, optimizer, model_parameters)
    own_optimizer = EngineOptimizer(kind, groups, defaults)
    if isinstance(optimizer, torch.optim.Optimizer):
        cast(Any, optimizer)._opt_called = True  # a scheduler of torch made for it asks for this
    scheduler = _scheduler(own_optimizer, settings, lr_scheduler)
    loader = _dataloader(training_data, settings, collate_fn)
    build.describe(groups)
    for line in build.notes():
        _say(log, line)
    with in_words_of_the_configuration():
        build.plan(kind, groups, log, tier_name=tier_name, discard_commits=discard_commits)
        engine = build.make(resume)  # what can be refused has been
    engine.tier_name = tier_name
    engine.adopt(own_optimizer, scheduler, loader)
    engine.client_optimizer, engine.client_lr_scheduler = optimizer, lr_scheduler
    return engine, own_optimizer, loader, scheduler


def _say(log: Log | None, line: str) -> None:
    if log is not None:
        log("warning", line)
    else:
        warnings.warn(line, stacklevel=4)  # below terrace.initialize


def _require_plain(model: nn.Module) -> None:
    what = "cannot train a model with Terrace"
    if not isinstance(model, nn.Module):
        raise ConfigError(what, type(model).__name__, "it is no torch.nn.Module", "give model=")
    for module in model.modules():
        if isinstance(module, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
            raise ConfigError(
                what,
                type(module).__name__,
                "one process trains the whole model here",
                "give the module inside of it (.module)",
            )
    if has_engine(model):
        raise MisuseError(
            what,
            type(model).__name__,
            "an engine has this model already",
            "close that engine first, or give copy.deepcopy(model)",
        )
    for name, parameter in model.named_parameters():
        if nn.parameter.is_lazy(parameter):
            raise ConfigError(what, name, "it has no shape yet", "run the model forward once before terrace.initialize")
        if parameter.device.type != "meta":
            require_values(parameter, name, what)


def _groups(model: nn.Module, config: Config, optimizer: Any, model_parameters: Any) -> tuple[list[Named], str, Named]:
    """(parameter groups, kind, torch's defaults)"""
    own = config.optimizer
    parameters = (
        [one for one in model.parameters() if one.requires_grad] if model_parameters is None else model_parameters
    )
    if optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):
        if not callable(optimizer):
            raise ConfigError(
                "cannot train a model with Terrace",
                "optimizer",
                f"it is {optimizer!r}",
                "give one of torch.optim, a function that makes it, or optimizer.type in the configuration",
            )
        optimizer = optimizer(parameters)
    if optimizer is not None:
        return optimizer.param_groups, kind_of(optimizer), dict(optimizer.defaults)
    parameters = list(parameters)
    if not parameters:
        raise ConfigError(
            "cannot train a model with Terrace",
            type(model).__name__,
            "no parameter is to be trained",
            "set requires_grad, or give model_parameters",
        )
    defaults = {name: getattr(own, name) for name in own._fields if name != "kind"}
    if isinstance(parameters[0], (tuple, list)):
        parameters = [parameter for _, parameter in parameters]
    groups = [dict(group) for group in parameters] if isinstance(parameters[0], dict) else [{"params": parameters}]
    for group in groups:
        group["params"] = [group["params"]] if isinstance(group["params"], torch.Tensor) else list(group["params"])
        for name, value in defaults.items():
            group.setdefault(name, value)
    return groups, own.kind, defaults


def _aligned(elements: int) -> int:
    return -(-elements // _ALIGNED_ELEMENTS) * _ALIGNED_ELEMENTS


class _Build:
    """An engine in the making."""

    def __init__(self, model: nn.Module, config: Config, units: Any, device: Any, threshold: int) -> None:
        self.model = model
        self.config = config
        self.units = units
        self.device = choose_device(config, device)
        states_below = config.store_options["states"] != "device" and config.store_options["masters"] == "whole"
        self.threshold = threshold
        self.kept_in_fp32 = kept_in_fp32(model, config)
        self.torch_device = torch_device_of(self.device)
        # Parameters in torch's own memory can be updated there where it is host memory.
        self.has_small = states_below and self.torch_device.type == "cpu"
        if config.store_options["layer_major"]:
            raise ConfigError(
                "cannot use the configuration",
                "terrace.microbatch_order",
                "it is layer, and a loop of torch goes one micro-batch at a time",
                "leave it out",
            )

    def describe(self, groups: list[Named]) -> None:
        """Which parameters a store gets, and how."""
        self.group_count = len(groups)
        group_of = {id(parameter): number for number, group in enumerate(groups) for parameter in group["params"]}
        found = named_once(self.model)
        strange = set(group_of) - {id(parameter) for parameter, _ in found}
        if strange:
            raise ConfigError(
                "cannot train a parameter",
                "optimizer",
                f"{len(strange)} of its parameters are not the model's",
                "give parameters of the model",
            )
        has_place = [require_trainable_kind(parameter, names[0]) for parameter, names in found]
        self.outside = [
            (parameter, names[0])
            for (parameter, names), has in zip(found, has_place)
            if not has and parameter.numel() > self.threshold
        ]
        found = [one for one, has in zip(found, has_place) if has]
        require_storage_of_its_own(found, self.model)
        self.tracked = []
        for parameter, names in found:
            is_trained = parameter.requires_grad and id(parameter) in group_of
            if not parameter.numel():
                continue
            one = Tracked(parameter, names, self._type_of(parameter), is_trained, group_of.get(id(parameter), 0))
            one.is_small = parameter.numel() <= self.threshold
            one.is_managed = not one.is_small or not self.has_small
            if not one.is_small or is_trained:
                self.tracked.append(one)
        # The same order wherever small ones are, since the norm of the gradient is summed in it.
        self.tracked.sort(key=lambda one: one.is_small)
        self.managed_of = {id(one.parameter): one for one in self.tracked if one.is_managed}

    def _type_of(self, parameter: nn.Parameter) -> str:
        """The type that it has in the store, or beside it."""
        precision = self.config.precision
        is_kept = precision == "fp32" or id(parameter) in self.kept_in_fp32
        return TYPES[parameter.dtype] if is_kept else precision

    def notes(self) -> Iterator[str]:
        """What is to be said before anything is planned, a line each."""
        without, old = self.config.without_effect, self.config.old_names
        if len(without) == 1:
            yield f"without effect here: {without[0]}"
        elif without:
            names = ", ".join(line.partition(": ")[0] for line in without)
            yield f"without effect here: {names} (engine.config.without_effect has the reasons)"
        if old:
            yield f"old names of the configuration, which are taken: {'; '.join(old)}"
        if self.outside:
            yield line_of_outside(self.outside, self.torch_device)

    def _specs(self) -> list[Tensor]:
        specs: list[Tensor] = []
        place_in_tile: dict[str, int] = {}
        for one in self.tracked:
            if one.is_small and one.is_managed:
                # Small ones begin with a tile of their own, as they do where they are not in the store's memory.
                padding = -_aligned(place_in_tile.pop(one.type, 0)) % _TILE_ELEMENTS
                if padding:
                    specs.append(Tensor(f"padding of {one.type}", (padding,), one.type))
            elif one.is_trainable:
                place_in_tile[one.type] = _aligned(place_in_tile.get(one.type, 0)) + one.parameter.numel()
            one.number = len(specs)
            memory = {} if one.is_managed else {"home": "caller", "address": one.values.data_ptr()}
            specs.append(
                Tensor(one.name, tuple(one.parameter.shape) or (1,), one.type, one.is_trainable, one.group, **memory)
            )
        return specs

    def plan(self, kind: str, groups: list[Named], log: Log | None, **more: Any) -> None:
        """Finds units, device and options that fit; raises CapacityError with the least budgets where none do."""
        config = self.config
        for one in self.tracked:
            if not one.is_managed:
                dtype = TORCH_TYPES[one.type]
                one.values = one.parameter.detach().to(dtype, memory_format=torch.contiguous_format, copy=True)
        self.specs = self._specs()
        options = dict(
            config.store_options,
            gradients="handed_over",
            unused_gradients="skip",
            optimizer=kind,
            log=log,
            **more,
            sgd_momentum=any(group.get("momentum", 0) for group in groups),
        )
        try:
            self._try(self.units, options)
            return
        except CapacityError:
            if self.units != "auto":
                raise
        self._try("leaf", options)

    def _try(self, units: Any, options: Named) -> None:
        self.chosen = choose_units(self.model, self.managed_of, units)
        self.uses = expected_uses(self.model, self.chosen, self.config.gradient_accumulation_steps, self.managed_of)
        device = self.device if self.managed_of else None
        if isinstance(device, type):
            device = device_that_holds_all(device, self.config, self.specs, self.uses, options)
        self.options = self.config.options_for(self.specs, device, self.uses, **options)
        plan(self.specs, device, self.uses, **self.options)
        self.used_device = device

    def make(self, resume: bool | str) -> Engine:
        is_strict = self.used_device is not None and self.used_device.strict
        if is_strict and not faulthandler.is_enabled():
            faulthandler.enable()  # which says the line of Python beside the tensor that was touched
        store, self.resumed = self._create(resume)
        try:
            if self.resumed:
                require_same_model(store.taken_up_text, self.tracked, self.group_count)
            else:
                self._fill(store)
            placeholders = Placeholders()
            for one in self.tracked:
                if one.is_managed:
                    real = tensor_at(store, one.number, one.parameter.shape, TORCH_TYPES[one.type], self.used_device)
                    one.attach(real, real if is_strict else placeholders.like(real))
                else:
                    one.attach(one.values, one.values)
                    one.values = None
            known = {id(one.parameter) for one in self.tracked}
            settle_others(self.model, self._type_of, known, self.config, self.torch_device)
            for unit in self.chosen:
                unit.settle(store)
            return Engine(
                self.model,
                self.config,
                store,
                self.tracked,
                self.chosen,
                placeholders,
                self.options["log"],
                functools.partial(Shortage, self),
            )
        except BaseException:
            store.close()
            raise

    def _create(self, resume: bool | str) -> tuple[Store, bool]:
        options = self.options
        if not resume or (resume == "auto" and not options.get("nvme_paths")):
            return Store(self.specs, self.used_device, self.uses, **options), False
        if not options.get("nvme_paths"):
            raise ConfigError(
                "cannot resume a training",
                "nvme_path",
                "nothing is on nvme, where commits are",
                "place optimizer states on nvme, or use load_checkpoint",
            )
        if resume == "auto" and not has_commit(options["nvme_paths"], options.get("tier_name")):
            return Store(self.specs, self.used_device, self.uses, **options), False
        return Store(self.specs, self.used_device, self.uses, **dict(options, resume=True)), True

    def _fill(self, store: Store) -> None:
        """From the parameters, in their own type: masters keep what a smaller type would lose."""
        sources = {}
        for one in self.tracked:
            source = one.parameter.detach().cpu()
            if not source.is_contiguous():
                source = source.contiguous()
            sources[one.number] = (source, TYPES[source.dtype])
        for number, spec in enumerate(self.specs):
            if number not in sources:
                sources[number] = (torch.zeros(spec.elements), "fp32")
        store.fill_arrays({number: (source.data_ptr(), type_) for number, (source, type_) in sources.items()})


def _scheduler(optimizer: EngineOptimizer, config: Config, given: Any) -> Any:
    if given is None:
        return EngineSchedule(optimizer, config.schedule) if config.schedule is not None else None
    is_maker = callable(given) and (isinstance(given, type) or not hasattr(given, "step"))
    scheduler = given(optimizer) if is_maker else given
    if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
        raise ConfigError(
            "cannot use a learning rate schedule",
            "ReduceLROnPlateau",
            "its step wants a metric, and engine.step() has none",
            "make it for the optimizer that terrace.initialize returns, and step it after evaluations",
        )
    return scheduler


def _dataloader(data: Any, config: Config, collate_fn: Callable[..., Any] | None) -> Any:
    if data is None:
        return None
    return torch.utils.data.DataLoader(
        data, batch_size=config.train_micro_batch_size_per_gpu, shuffle=False, collate_fn=collate_fn
    )
