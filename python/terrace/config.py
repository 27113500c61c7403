"""A DeepSpeed configuration, a dict or a JSON file, as what a training in Python needs (docs/config.md).

    config = read_config("ds.json", total_steps=1000)
    store = Store(tensors, config.device(), **config.options_for(tensors))
    store.update(config.optimizer_at(step), step + 1, clip_norm=config.gradient_clipping)

The library reads and checks it (capi/terrace_run.h). A key without effect is in .without_effect with the reason, and one
that has another name now in .old_names; what cannot be done is a ConfigError that names it.
"""

from __future__ import annotations

import ctypes
import json
import math
import os
import weakref
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from . import _declarations as c
from ._lib import check, library, new, raw_of, text_of
from .errors import ConfigError
from .schedule import Schedule
from .store import plan
from .store.spec import CudaDevice, Optimizer, SimulatedDevice

if TYPE_CHECKING:
    from ._types import ConfigSource, Named, Path
    from .ranks import Ranks
    from .store.spec import Device


_OF_MUON = ("weight_decay", "momentum", "nesterov", "ns_steps", "adjust_lr_fn")


class LossScale(NamedTuple):
    """The keys of fp16."""

    loss_scale: float
    initial_scale_power: int
    loss_scale_window: int
    hysteresis: int
    consecutive_hysteresis: bool
    min_loss_scale: float


def read_config(
    source: ConfigSource,
    total_steps: int | None = None,
    brings_optimizer: bool = False,
    brings_schedule: bool = False,
    ranks: int = 1,
    met: Ranks | None = None,
) -> Config:
    """The Config of a dict or of the path of a file. `total_steps` are those of the run, for schedules that end. What the
    program brings is not made up for a file of "auto" without these sections, and its schedule stands for the file's.
    `ranks` train together, and the batch is counted over them. With `met`, who have met, they are these, and the nvme
    paths are those of this rank."""
    options = new(
        c.terrace_config_options,
        total_steps=total_steps or 0,
        brings_optimizer=bool(brings_optimizer),
        brings_schedule=bool(brings_schedule),
        ranks=ranks if met is None else met.count,
        met=None if met is None else met._handle,
    )
    if isinstance(source, dict):
        text = json.dumps(_plain(source, ""), default=repr)
        options.text = text.encode()
    elif isinstance(source, (str, os.PathLike)):
        options.path = raw_of(source, "the configuration")
    else:
        raise ConfigError(
            "cannot read the configuration",
            repr(source),
            f"it is of type {type(source).__name__}",
            "give a dict or the path of a JSON file",
        )
    return Config(ConfigHandle(options))


def document_of(path: Path) -> Named:
    """What a file says, as a dict; nothing in it is checked."""
    options = new(c.terrace_config_options, path=raw_of(path, "the configuration"), document_only=True)
    return ConfigHandle(options).resolved()


def known_keys() -> list[dict[str, str]]:
    """Every key that there is, a dict each: key, value (what it may be), default, effect and note."""
    text = ctypes.c_char_p()
    check(library().terrace_config_keys(ctypes.byref(text)))
    found: list[dict[str, str]] = json.loads(text_of(text.value))
    return found


class ConfigHandle:
    """A terrace_config."""

    def __init__(self, options: c.terrace_config_options) -> None:
        self.address = ctypes.c_void_p()
        check(library().terrace_config_read(options, ctypes.byref(self.address)))
        weakref.finalize(self, library().terrace_config_free, ctypes.c_void_p(self.address.value))

    def resolved(self) -> Named:
        text = ctypes.c_char_p()
        check(library().terrace_config_json(self.address, ctypes.byref(text)))
        found: Named = json.loads(text_of(text.value))
        return found


class Config:
    """Batch: .train_batch_size, .train_micro_batch_size_per_gpu, .gradient_accumulation_steps. Optimizer:
    .optimizer, .schedule (a Schedule or None), .gradient_clipping, .precision, .loss_scale (fp16; else None). Where that
    is Muon, .optimizer_of_rest is AdamW for what is no matrix; else None.
    Store: .store_options, device(), options_for(). Commits: .commit_every_steps, .commit_every_seconds.
    .values has every value by its path, and .warnings what else there is to say."""

    def __init__(self, handle: ConfigHandle) -> None:
        self.handle = handle
        resolved = handle.resolved()
        self.values = resolved["values"]
        self.without_effect = resolved["without_effect"]
        self.old_names = resolved["old_names"]
        self.warnings = resolved["warnings"]
        self._store = resolved["store"]
        self.train_batch_size = self.values["train_batch_size"]
        self.train_micro_batch_size_per_gpu = self.values["train_micro_batch_size_per_gpu"]
        self.gradient_accumulation_steps = self.values["gradient_accumulation_steps"]
        self.gradient_clipping = float(self.values["gradient_clipping"])
        self.precision = self._store["precision"]
        self.accumulation_type = self._store["accumulation_type"]
        self.moment_type = self._store["moment_type"]
        self.buffer_type = self.values["data_types.buffer_dtype"]
        loss_scale = LossScale(*(self.values["fp16." + name] for name in LossScale._fields))
        self.loss_scale = loss_scale if self.precision == "fp16" else None
        self.optimizer = self._optimizer()
        self.optimizer_of_rest = self._optimizer_of_rest()
        kind = self.values.get("scheduler.type")
        self.schedule = Schedule(kind, handle, self.optimizer.lr) if kind is not None else None
        self.zero_stage = self.values["zero_optimization.stage"]
        is_given = "zero_optimization.sub_group_size" in resolved["written"]
        self.sub_group_size = self.values["zero_optimization.sub_group_size"] if is_given else None
        self.device_kind = "cuda" if self._own("device") == "cuda" else "simulated"
        self.device_memory = self._own("device_memory")
        self.strict = self._own("strict")
        self.commit_every_steps = self._own("commit_every_steps")
        self.commit_every_seconds = self._own("commit_every_seconds")
        self.store_options = self._store_options()

    def device(self, budget_bytes: int | None = None) -> Device:
        """The device of terrace.device. `budget_bytes` counts where terrace.device_memory is not given."""
        budget_bytes = self.device_memory or budget_bytes
        if not budget_bytes:
            raise ConfigError(
                "cannot use the configuration",
                "terrace.device_memory",
                "there is no budget of device memory",
                "set it, or give a device",
            )
        kind = CudaDevice if self.device_kind == "cuda" else SimulatedDevice
        return kind(budget_bytes, strict=self.strict)

    def options_for(
        self, tensors: Iterable[Any], device: Device | None = None, uses: Iterable[Any] | None = None, **more: Any
    ) -> Named:
        """The options of a Store of these tensors: chunks are no larger than zero_optimization.sub_group_size.
        `more` are options that no configuration has."""
        options = dict(self.store_options, **more)
        if options["optimizer"] == "muon" and any(one.trainable and not one.by_matrix for one in tensors):
            options["optimizer"] = "adamw"  # whose moments have room for Muon's
        most = self._store["most_chunk_elements"]
        if "chunk_elements" not in options and self.sub_group_size and most:
            if device is None and any(tensor.home != "caller" for tensor in tensors):
                device = self.device()
            if plan(tensors, device, uses, **options).chunk_elements > most:
                options["chunk_elements"] = most
        return options

    def optimizer_at(self, update: int) -> Optimizer:
        """The optimizer with what the schedule sets in an update, from 0."""
        if self.schedule is None:
            return self.optimizer
        betas = self.schedule.betas(update)
        return self.optimizer._replace(lr=self.schedule.lr(update), betas=betas or self.optimizer.betas)

    def _own(self, key: str) -> Any:
        return self.values["terrace." + key]

    def _optimizer(self) -> Optimizer:
        prefix = "optimizer.params."
        params = {name: self.values[prefix + name] for name in Optimizer._fields if prefix + name in self.values}
        if "betas" in params:
            params["betas"] = tuple(params["betas"])
        kind = self._store["optimizer"]
        if kind == "muon":  # whose betas and eps are those of AdamW beside it
            params = {name: params[name] for name in _OF_MUON if name in params}
            params["lr"] = self.values[prefix + "muon_lr"]
        return Optimizer(kind, **params)

    def _optimizer_of_rest(self) -> Optimizer | None:
        if self.optimizer.kind != "muon":
            return None
        lr, betas, eps = (self.values["optimizer.params." + name] for name in ("adam_lr", "betas", "eps"))
        return Optimizer("adamw", lr, tuple(betas), eps, self.optimizer.weight_decay)

    def _store_options(self) -> Named:
        places = [
            self.values[f"zero_optimization.{section}.device"] for section in ("offload_param", "offload_optimizer")
        ]
        engine, when = self._own("engine"), self._own("update")
        exchange, kept = self._own("rank_exchange"), self._own("offload_activations")
        if kept == "auto":
            kept = "nvme" if self._store["nvme_paths"] else "cpu"
        options = {
            "parameters": "device" if places[0] == "none" else places[0],
            "states": "device" if places[1] == "none" else places[1],
            "saved_activations": "device" if kept == "none" else kept,
            "nvme_paths": self._store["nvme_paths"],
            "no_host_lock": not self._store["page_locked"],
            "host_bytes": self._own("host_memory") or _available_bytes() * 4 // 5,
            "chunk_elements": self._own("chunk_elements"),
            "accumulation_steps": self.gradient_accumulation_steps,
            "divide_parameters": self.zero_stage == 3,
            "layer_major": self._own("microbatch_order") == "layer",
            "update_when": "after_backward" if when == "auto" else when,
            "threads": self._own("threads"),
            "optimizer": self.optimizer.kind,
            "sgd_momentum": self.optimizer.momentum != 0,
            "moment_type": self.moment_type,
            "masters": "compact" if self._own("compact_state") else "whole",
            "accumulation_type": self.accumulation_type,
            "durable": self._own("durable") and "nvme" in places,
            "retained_commits": self._own("retained_checkpoints"),
            "io_engine": {"auto": "best", "io_uring": "uring"}.get(engine, engine),
            "no_checksums": not self._own("verify_checksums"),
            "rank_exchange": None if exchange == "auto" else exchange,
        }
        return {name: given for name, given in options.items() if given is not None}


def _plain(value: Any, place: str) -> Any:
    """What JSON has for a value of a dict, which may have numbers of numpy, paths, tuples and infinities."""
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise ConfigError(
                    "cannot use the configuration",
                    f"{place}{key!r}",
                    f"a key of type {type(key).__name__} is no text",
                    "write every key as a text",
                )
        # Infinity is accelerate's word for never.
        never = {"steps_per_print"} if not place and value.get("steps_per_print") == math.inf else ()
        return {key: _plain(inner, f"{place}{key}.") for key, inner in value.items() if key not in never}
    if isinstance(value, (list, tuple)):
        return [_plain(inner, place) for inner in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "tolist"):
        value = value.tolist()
    return repr(value) if isinstance(value, float) and not math.isfinite(value) else value


def _available_bytes() -> int:
    """What this machine has left, as the program takes four fifths of it where nothing is said."""
    with open("/proc/meminfo", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("MemAvailable:")) * 1024
