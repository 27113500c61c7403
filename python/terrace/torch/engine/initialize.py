"""terrace.initialize: from a model of torch and a configuration to an engine, with everything planned before it
is allocated."""

from __future__ import annotations

import faulthandler
import functools
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import nn

from ..._lib import in_words_of_the_configuration
from ...config import read_config
from ...errors import ConfigError, MisuseError
from ..dealt import DealtLoader, RankSampler
from ..emptied import require_values
from .alike import agree
from .attach import attach_words
from .deepspeed_names import ENGINES, require_no_mesh, source_of
from .device import choose_device, require_own_gpu, tensor_at, torch_device_of
from .engine import Engine
from .launched import join_ranks, obey
from .matrices import defaults_of_muon, muon_groups
from .optimizer import EngineOptimizer, kind_of
from .others import line_of_outside, settle_others
from .parameters import Parameters
from .parts import Parts, copies_in, parts_of, without
from .passes.needs import Shortage
from .placeholders import (
    TORCH_TYPES,
    Placeholders,
)
from .planned import Planned, options_of
from .replicas import share_replicas
from .saved.checkpoint import require_same_model
from .schedule import EngineSchedule
from .services import require_packages
from .together import facts_of, on_all, refuse_second_engine
from .values import has_engine

if TYPE_CHECKING:
    from ..._types import ConfigSource, Log, Named, Path
    from ...config import Config
    from ...ranks import Ranks

# Parameters of so many elements stay torch's own.
SMALL_ELEMENTS = 64 << 10


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
    step_log: Path | None = None,
    control: bool | Path = False,
    config_params: ConfigSource | None = None,
    mpu: object = None,
    data_parallel_group: Any = None,
    model_parallel_size: int | None = None,
    mesh_param: object = None,
    dist_init_required: object = None,
    distributed_port: object = None,
) -> tuple[Engine, EngineOptimizer, Any, Any]:
    """(engine, optimizer, dataloader, scheduler), as DeepSpeed's initialize. Where a launcher has started several
    processes, each calls it with the same arguments, and all of them train the one model (docs/ranks.md).

    model: a module, whose parameters go into a store; outside of its passes they read as NaN. Leave it on the
        processor, a GPU needs no room for it: what it computes with goes there here.
    optimizer: one of torch.optim, or a function that makes it from parameters; else the configuration's.
    lr_scheduler: a scheduler of torch for that optimizer, or a function that makes it; else the configuration's.
    units: what is leased together: "auto" (layers, where device memory has room), "leaf", or classes and names.
    persistence_threshold: trained parameters of at most so many elements stay in torch's memory.
    log: is given a level and a line of what there is to say; without it warnings are Python's.
    step_log: a file to which a JSON object is appended for every step, as `terrace train --log` does.
    control: whether `terrace top` and `terrace ctl` reach this run, as one of the program; or the folder of its socket.
    resume: True goes on from the commit in nvme_path, "auto" does where there is one.
    discard_commits: a commit of an earlier run in nvme_path may be removed.
    args: `args.deepspeed_config` names the file where `config` is not given; so does `config_params`, its old name.
    model_parallel_size, data_parallel_group, mpu: of processes that have parts of the model (docs/python_parts.md).
    mesh_param, dist_init_required, distributed_port: DeepSpeed's, without effect or refused.
    """
    joined = join_ranks(lambda: source_of(config, config_params, args))
    parts = on_all(joined, _WHAT, lambda: parts_of(model, data_parallel_group, model_parallel_size, mpu))
    ranks = parts.data
    named: Named = {"config": config, "config_params": config_params, "args": args, "optimizer": optimizer}
    named.update(parts=parts, mesh_param=mesh_param, model_parameters=model_parameters, lr_scheduler=lr_scheduler)
    named.update(training_data=training_data, device=device, collate_fn=collate_fn, total_steps=total_steps)
    named.update(persistence_threshold=persistence_threshold, resume=resume)
    made = _prepare_all(parts, model, named)
    if ranks is not None:
        named.update(units=units, discard_commits=discard_commits, tier_name=tier_name)
        named.update(control=bool(control), step_log=step_log is not None)
        agree(ranks, facts_of(made.settings, model, made.groups, _alike_in(named)))
    _say(log if ranks is None or ranks.is_first else _unheard, _notes(made.settings, made.parameters))
    more = {"tier_name": parts.tier_name(tier_name), "discard_commits": discard_commits, "log": log}
    engine = on_all(parts.all, _WHAT, lambda: _made_engine(made, units, resume, more))
    engine.tier_name, engine.client_optimizer, engine.client_lr_scheduler = tier_name, optimizer, lr_scheduler
    followed = {"step_log": step_log, "control": control, "total_steps": total_steps}
    engine.adopt(made.optimizer, made.scheduler, made.loader, **followed)
    return engine, made.optimizer, made.loader, made.scheduler


_WHAT = "cannot train a model with Terrace"


class _Prepared(NamedTuple):
    """What this rank has made of its arguments, before anything is planned."""

    settings: Config
    groups: list[Named]
    optimizer: EngineOptimizer
    scheduler: Any
    loader: Any
    parameters: Parameters
    device: Any


def _prepare_all(parts: Parts, model: Any, given: Named) -> _Prepared:
    made = on_all(parts.everybody, _WHAT, lambda: _prepare(parts, model, given))
    if parts.everybody is not None:
        require_own_gpu(made.device, parts.everybody)
    return made


def _prepare(parts: Parts, model: Any, given: Named) -> _Prepared:
    """Raises for what this rank cannot use."""
    ranks = parts.data
    refuse_second_engine(parts.everybody, bool(ENGINES))
    require_no_mesh(given["mesh_param"])
    _require_start(given["resume"], parts)
    settings: Config = read_config(
        source_of(given["config"], given["config_params"], given["args"]),
        given["total_steps"],
        given["optimizer"] is not None,
        given["lr_scheduler"] is not None,
        met=ranks,
    )
    for one in filter(None, dict.fromkeys((parts.all, ranks))):
        settings.warnings.extend(obey(one, settings))
    if ranks is None or ranks.is_first:
        require_packages(settings.values)
    require_plain(model)
    _require_all_values(model)
    device = choose_device(settings, given["device"], parts.everybody)
    _require_order(settings)
    groups, kind, defaults = groups_of(model, settings, given["optimizer"], given["model_parameters"], parts)
    optimizer = EngineOptimizer(kind, groups, defaults)
    scheduler = _scheduler(optimizer, settings, given["lr_scheduler"])
    loader = _dataloader(given["training_data"], settings, given["collate_fn"], ranks)
    threshold = given["persistence_threshold"]
    parameters = Parameters(model, settings, groups, threshold, torch_device_of(device), parts, kind)
    return _Prepared(settings, groups, optimizer, scheduler, loader, parameters, device)


def _made_engine(made: _Prepared, units: Any, resume: bool | str, more: Named) -> Engine:
    ranks = made.parameters.parts.data
    with in_words_of_the_configuration():
        options = options_of(made.parameters, made.optimizer.kind, made.groups, **more)
        made.parameters.copy_small()
        engine = _make(_planned(ranks, made, units, options), resume, made.optimizer.kinds)
    engine.join_parts(made.parameters.parts)
    return engine


def _require_start(resume: object, parts: Parts) -> None:
    if resume not in (True, False, "auto"):
        raise ConfigError("cannot resume a training", "resume", f"it is {resume!r}", 'give True, False or "auto"')
    if resume and parts.parts > 1:
        raise ConfigError(
            "cannot resume a training",
            f"resume={resume!r}",
            f"{parts.parts} parts of a model commit each by itself, and may have come to different steps",
            "save a checkpoint of all parts (engine.save_checkpoint), and load that",
        )


def _planned(ranks: Ranks | None, made: _Prepared, units: Any, options: Named) -> Planned:
    planned = on_all(ranks, _WHAT, lambda: Planned(made.parameters, units, made.device, options))
    if ranks is not None:
        planned.exchange_alike(ranks, _WHAT)
        if options["log"] is not None and ranks.is_first:
            options["log"]("info", planned.line_of_exchange(ranks.count))
    return planned


def _unheard(level: str, line: str) -> None:
    """What all ranks say alike is said by the first."""


def _alike_in(named: Named) -> Named:
    """Of the arguments of terrace.initialize those that all ranks give alike."""
    alike = (
        "units",
        "resume",
        "persistence_threshold",
        "discard_commits",
        "total_steps",
        "tier_name",
        "control",
        "step_log",
    )
    return {**{name: named[name] for name in alike}, "training_data": _length_of(named["training_data"])}


def _length_of(data: Any) -> str:
    return "none" if data is None else str(len(data)) if hasattr(data, "__len__") else "without a length"


def _say(log: Log | None, lines: Iterator[str]) -> None:
    for line in lines:
        if log is not None:
            log("warning", line)
        else:
            warnings.warn(line, stacklevel=4)  # below terrace.initialize


# DistributedDataParallel, FullyShardedDataParallel, and what fully_shard makes of a module.
_WRAPPERS = {"DataParallel", "DistributedDataParallel", "FullyShardedDataParallel", "FSDPModule"}


def require_plain(model: nn.Module) -> None:
    what = _WHAT
    if not isinstance(model, nn.Module):
        raise ConfigError(what, type(model).__name__, "it is no torch.nn.Module", "give model=")
    for module in model.modules():
        if any(kind.__name__ in _WRAPPERS for kind in type(module).__mro__):
            raise ConfigError(
                what,
                type(module).__name__,
                "terrace.initialize divides the work among processes itself",
                "give the plain module, as it is before it is wrapped",
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


def _require_all_values(model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        if parameter.device.type == "meta":
            raise ConfigError(
                "cannot take a parameter into Terrace",
                name,
                "it is on the meta device and has no values",
                "load them first: terrace.torch.load(model, path)",
            )
        require_values(parameter, name, _WHAT)


_WHOLE = Parts(None, None)
# Of every optimizer but Muon.
_SETTINGS = ("lr", "betas", "eps", "weight_decay", "momentum", "dampening", "nesterov", "bias_correction")


def groups_of(
    model: nn.Module, config: Config, optimizer: Any, model_parameters: Any, parts: Parts = _WHOLE
) -> tuple[list[Named], str, Named]:
    """(parameter groups, kind, torch's defaults). A part of a model may train nothing."""
    own = config.optimizer
    followers = copies_in(model)
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
        cast(Any, optimizer)._opt_called = True  # a scheduler of torch made for it asks for this
        return without(followers, optimizer.param_groups), kind_of(optimizer), dict(optimizer.defaults)
    parameters = list(parameters)
    if not parameters and parts.parts == 1:
        raise ConfigError(
            "cannot train a model with Terrace",
            type(model).__name__,
            "no parameter is to be trained",
            "set requires_grad, or give model_parameters",
        )
    first = parameters[0] if parameters else None
    if isinstance(first, (tuple, list)):
        parameters = [parameter for _, parameter in parameters]
    groups = [dict(group) for group in parameters] if isinstance(first, dict) else [{"params": parameters}]
    for group in groups:
        group["params"] = [group["params"]] if isinstance(group["params"], torch.Tensor) else list(group["params"])
    groups = without(followers, groups)
    if config.optimizer_of_rest is not None:
        are_alike = parts.parts > 1 or parts.block_of is not None
        found = muon_groups(model, groups, own, config.optimizer_of_rest, are_alike)
        return found, own.kind, defaults_of_muon(own)
    defaults = {name: getattr(own, name) for name in _SETTINGS}
    for group in groups:
        for name, value in defaults.items():
            group.setdefault(name, value)
    return groups, own.kind, defaults


def _require_order(config: Config) -> None:
    if config.store_options["layer_major"]:
        raise ConfigError(
            "cannot use the configuration",
            "terrace.microbatch_order",
            "it is layer, and a loop of torch goes one micro-batch at a time",
            "leave it out",
        )


def _notes(config: Config, parameters: Parameters) -> Iterator[str]:
    """What is to be said before anything is planned, a line each."""
    without, old = config.without_effect, config.old_names
    if len(without) == 1:
        yield f"without effect here: {without[0]}"
    elif without:
        names = ", ".join(line.partition(": ")[0] for line in without)
        yield f"without effect here: {names} (engine.config.without_effect has the reasons)"
    if old:
        yield f"old names of the configuration, which are taken: {'; '.join(old)}"
    yield from config.warnings
    if parameters.outside:
        yield line_of_outside(parameters.outside, parameters.device)


def _make(planned: Planned, resume: bool | str, kinds: Sequence[str]) -> Engine:
    """What can be refused has been. `kinds`: of the optimizer, by group."""
    parameters, device = planned.parameters, planned.used_device
    is_strict = device is not None and device.strict
    if is_strict and not faulthandler.is_enabled():
        faulthandler.enable()  # which says the line of Python beside the tensor that was touched
    store, is_resumed = planned.create(resume)
    try:
        if is_resumed:
            require_same_model(store.taken_up_text, parameters.tracked, kinds)
        else:
            parameters.fill(store)
        placeholders = Placeholders()
        for one in parameters.tracked:
            if one.words is not None:
                attach_words(parameters.model, one, store, device, None if is_strict else placeholders)
            elif one.is_managed:
                real = tensor_at(store, one.number, one.shape, TORCH_TYPES[one.type], device)
                one.attach(real, real if is_strict else placeholders.like(real))
            else:
                one.attach(one.values, one.values)
                one.values = None
        known = {id(one.parameter) for one in parameters.tracked}
        settle_others(parameters.model, parameters.type_of, known, parameters.config, parameters.device)
        if store.ranks is not None:
            share_replicas(store.ranks, parameters.model, known)
        for unit in planned.chosen:
            unit.settle(store)
        kind: type[Engine] = getattr(parameters.model, "engine_class", Engine)
        return kind(
            parameters.model,
            parameters.config,
            store,
            parameters.tracked,
            planned.chosen,
            placeholders,
            planned.options["log"],
            functools.partial(Shortage, planned),
        )
    except BaseException:
        store.close()
        raise


def _scheduler(optimizer: EngineOptimizer, config: Config, given: Any) -> Any:
    if given is None:
        if config.schedule is None:
            return None
        return EngineSchedule(optimizer, config.schedule, config.optimizer.kind == "muon")
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


def _dataloader(data: Any, config: Config, collate_fn: Callable[..., Any] | None, ranks: Ranks | None) -> Any:
    """In the order of the data. Each rank has the micro-batches that are its own. The last of them that
    make no whole update are left out, so that any number of ranks makes the same steps."""
    size = config.train_micro_batch_size_per_gpu
    if data is None:
        return None
    rank, count = (0, 1) if ranks is None else (ranks.rank, ranks.count)
    of_update = config.gradient_accumulation_steps * count
    if isinstance(data, torch.utils.data.IterableDataset):
        loader: Any = torch.utils.data.DataLoader(data, batch_size=size, collate_fn=collate_fn)
        return loader if of_update == 1 else DealtLoader(loader, rank, count, of_update)
    micro_batches = -(-len(data) // size)
    if count == 1 and (micro_batches < of_update or micro_batches % of_update == 0):
        return torch.utils.data.DataLoader(data, batch_size=size, shuffle=False, collate_fn=collate_fn)
    sampler = RankSampler(data, size, rank=rank, ranks=count, update_batches=of_update)
    dealt = sampler._dealt()
    if dealt.left_out and rank == 0:
        config.warnings.append(dealt.line_of_left_out("training_data"))
        sampler.has_told = True
    return torch.utils.data.DataLoader(data, batch_sampler=sampler, collate_fn=collate_fn)
