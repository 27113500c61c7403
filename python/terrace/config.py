"""A DeepSpeed configuration, a dict or a JSON file, as what a training in Python needs (docs/config.md).

    config = read_config("ds.json", total_steps=1000)
    store = Store(tensors, config.device(), **config.options_for(tensors))
    store.update(config.optimizer_at(step), step + 1, clip_norm=config.gradient_clipping)

A key without effect is in .without_effect with the reason, and one that has another name now in .old_names; what cannot
be done is a ConfigError that names it.
"""

import json
import os
from collections import namedtuple

from . import config_text
from .config_schema import Checked
from .errors import ConfigError
from .schedule import Schedule
from .store import plan
from .store.spec import CudaDevice, Optimizer, SimulatedDevice

LossScale = namedtuple(
    "LossScale", "loss_scale initial_scale_power loss_scale_window hysteresis consecutive_hysteresis min_loss_scale"
)

_ADAM_KEYS = ("betas", "eps", "bias_correction", "adam_w_mode")
_OPTIMIZER_KEYS = {
    "Adam": _ADAM_KEYS,
    "AdamW": _ADAM_KEYS,
    "Adagrad": ("eps",),
    "Lion": ("betas",),
    "SGD": ("momentum", "dampening", "nesterov"),
}
_WARMUP = ("warmup_num_steps", "warmup_type")
_SCHEDULER_KEYS = {
    "linear": ("total_num_steps",),
    "WarmupLR": (*_WARMUP, "warmup_min_lr", "warmup_max_lr"),
    "WarmupDecayLR": (*_WARMUP, "warmup_min_lr", "warmup_max_lr", "total_num_steps"),
    "WarmupCosineLR": (*_WARMUP, "warmup_min_ratio", "cos_min_ratio", "total_num_steps"),
    "LRRangeTest": tuple(
        "lr_range_test_" + name for name in ("min_lr", "step_size", "step_rate", "staircase")
    ),
    "OneCycle": (
        "cycle_min_lr", "cycle_max_lr", "decay_lr_rate", "cycle_first_step_size", "cycle_second_step_size",
        "cycle_first_stair_count", "cycle_second_stair_count", "decay_step_size", "cycle_momentum",
        "cycle_min_mom", "cycle_max_mom", "decay_mom_rate",
    ),
}
# What the program does and this package does not, with what to do instead. Everything else that no attribute takes
# changes no number, and is said in .without_effect.
_NOT_IN_PYTHON = {
    "terrace.frozen": "set requires_grad or Tensor.trainable in the model",
    "terrace.lora": "add adapters to the model, as peft does",
    "terrace.parameter_groups": "give parameter groups to the optimizer",
    "zero_optimization.offload_optimizer.ratio": "leave it at 1.0: updates run on the processor",
    "aio.use_gds": "leave it out",
    "terrace.compute": "leave it out: the model computes",
    "terrace.gradient_group": "leave it out: micro-batches are added one after the other",
    "zero_optimization.zero_quantized_weights": "leave it out: parameters stay exact",
    "zero_optimization.zero_quantized_gradients": "leave it out: gradients stay exact",
}


def read_config(source, total_steps=None, brings_optimizer=False, brings_schedule=False):
    """The Config of a dict or of the path of a file. `total_steps` are those of the run, for schedules that end. What the
    program brings is not made up for a file of "auto" without these sections, and its schedule stands for the file's."""
    brings = brings_optimizer, brings_schedule
    if isinstance(source, dict):
        return Config(source, lambda path: "", total_steps, *brings)
    if not isinstance(source, (str, os.PathLike)):
        raise ConfigError("cannot read the configuration", repr(source), f"it is of type {type(source).__name__}",
                          "give a dict or the path of a JSON file")
    found, text = config_text.read_text(source)

    def where(path):
        return f"{source}{config_text.line_of(text, path.rpartition('.')[2])}: "

    return Config(found, where, total_steps, *brings)


class Config:
    """Batch: .train_batch_size, .train_micro_batch_size_per_gpu, .gradient_accumulation_steps. Optimizer:
    .optimizer, .schedule (a Schedule or None), .gradient_clipping, .precision, .loss_scale (fp16; else None).
    Store: .store_options, device(), options_for(). Commits: .commit_every_steps, .commit_every_seconds."""

    def __init__(self, found, where, total_steps=None, brings_optimizer=False, brings_schedule=False):
        self._checked = Checked(found, where)
        self._taken = set()
        self.without_effect = self._checked.without_effect
        self.old_names = self._checked.old_names
        # A file for a trainer that brings the optimizer, and nobody here does.
        is_for_trainer = '"auto"' in json.dumps(found, default=str) and "optimizer" not in found
        self._is_for_trainer = is_for_trainer and not brings_optimizer
        self._brings_schedule = brings_schedule
        self._read_batch()
        self._read_precision()
        self._read_optimizer()
        self._read_schedule(total_steps)
        self._read_placement()
        self._read_run()
        self._read_rest()

    # --- What it is for ---

    def device(self, budget_bytes=None):
        """The device of terrace.device. `budget_bytes` counts where terrace.device_memory is not given."""
        budget_bytes = self.device_memory or budget_bytes
        if not budget_bytes:
            self._refuse("terrace.device_memory", "there is no budget of device memory", "set it, or give a device")
        kind = CudaDevice if self.device_kind == "cuda" else SimulatedDevice
        return kind(budget_bytes, strict=self.strict)

    def options_for(self, tensors, device=None, uses=None, **more):
        """The options of a Store of these tensors: chunks are no larger than zero_optimization.sub_group_size.
        `more` are options that no configuration has."""
        options = dict(self.store_options, **more)
        if "chunk_elements" not in options and self.sub_group_size:
            most = max(4096, self.sub_group_size // 4096 * 4096)
            if device is None and any(tensor.home != "caller" for tensor in tensors):
                device = self.device()
            if plan(tensors, device, uses, **options).chunk_elements > most:
                options["chunk_elements"] = most
        return options

    def optimizer_at(self, update):
        """The optimizer with what the schedule sets in an update, from 0."""
        if self.schedule is None:
            return self.optimizer
        betas = self.schedule.betas(update)
        return self.optimizer._replace(lr=self.schedule.lr(update), betas=betas or self.optimizer.betas)

    # --- Reading ---

    def _refuse(self, path, reason, advice):
        self._checked.refuse(self._checked.written(path), reason, advice)

    def _given(self, path):
        self._taken.add(path)
        return self._checked.values.get(path)

    def _is_auto(self, path):
        return path in self._checked.autos

    def _value(self, path):
        given = self._given(path)
        return self._checked.default(path) if given is None else given

    def _read_batch(self):
        total = self._given("train_batch_size")
        micro = self._given("train_micro_batch_size_per_gpu")
        steps = self._given("gradient_accumulation_steps")
        count = self._given("terrace.micro_batches")
        if count is not None:
            if steps not in (None, count):
                self._refuse("terrace.micro_batches", f"it is {count}, but gradient_accumulation_steps is {steps}",
                             "leave one of the two out")
            steps = count
        if total is not None:
            micro, steps = self._parts_of_batch(total, micro, steps)
        self.train_micro_batch_size_per_gpu = micro or 1
        self.gradient_accumulation_steps = steps or 1
        self.train_batch_size = self.train_micro_batch_size_per_gpu * self.gradient_accumulation_steps
        # Without it a loop is not clipped, as with torch and DeepSpeed; the program clips at 1.
        self.gradient_clipping = self._given("gradient_clipping") or 0.0
        if not self.gradient_clipping >= 0:
            self._refuse("gradient_clipping", f"{self.gradient_clipping} is no norm", "give a number of at least 0")

    def _parts_of_batch(self, total, micro, steps):
        """(sequences per micro-batch, micro-batches) of an update of `total` sequences in this one process."""
        known = (micro or 1) * (steps or 1)
        if total % known or (micro and steps and known != total):
            sizes = {"train_micro_batch_size_per_gpu": micro, "gradient_accumulation_steps": steps}
            reason = f"{total} is no multiple of " + " x ".join(
                f"{size} ({name})" for name, size in sizes.items() if size)
            if not total % known:
                reason = (f"{total} = {micro} x {steps} x {total // known} ranks ({' x '.join(sizes)} x ranks), and "
                          "this is a training of one process, which is 1 rank")
            keeps = micro and not total % micro
            self._refuse("train_batch_size", reason,
                         f"gradient_accumulation_steps {total // micro} keeps the batch" if keeps else
                         "leave one of the three out")
        return (micro, total // micro) if micro else (total // (steps or 1), steps or 1)

    def _read_precision(self):
        fp16 = bool(self._value("fp16.enabled"))
        bf16 = self._value("bf16.enabled") or (self._is_auto("bf16.enabled") and not fp16)
        if fp16 and bf16:
            self._refuse("fp16.enabled", "bf16.enabled is true as well", "set one of them to false")
        self.precision = "fp16" if fp16 else "bf16" if bf16 else "fp32"
        loss_scale = LossScale(*(self._value("fp16." + name) for name in LossScale._fields))
        self.loss_scale = loss_scale if fp16 else None
        words = {"float32": "fp32", "float": "fp32", "bfloat16": "bf16", "float16": "fp16", "half": "fp16"}
        sums = self._value("data_types.grad_accum_dtype")
        sums = "fp32" if sums in (None, "none") else words.get(sums, sums)
        if sums not in ("fp32", self.precision):
            self._refuse("data_types.grad_accum_dtype", f"gradients of {self.precision} are not summed in {sums}",
                         f"give fp32 or {self.precision}")
        self.accumulation_type = sums
        small = self._value("bf16.bf16_optimizer_states")
        if self._value("bf16.bf16_master_weights_and_grads"):
            if not small:
                self._refuse("bf16.bf16_master_weights_and_grads", "bf16.bf16_optimizer_states is not true",
                             "leave it out: master weights are always fp32")
            self.without_effect.append("bf16.bf16_master_weights_and_grads: master weights are always fp32")
        full = self._value("optimizer.params.fp32_optimizer_states")
        if self.precision == "fp16" and not full:
            self._refuse("optimizer.params.fp32_optimizer_states", "moments are fp32 or bf16, not fp16",
                         "leave it out")
        self.moment_type = "bf16" if self.precision == "bf16" and (small or not full) else "fp32"
        self.buffer_type = self._given("data_types.buffer_dtype")

    def _read_optimizer(self):
        name = self._value("optimizer.type")
        self._require_own("optimizer", name, ("lr", "weight_decay", "fp32_optimizer_states"), _OPTIMIZER_KEYS)

        def value(key, default, auto):
            given = self._given("optimizer.params." + key)
            return given if given is not None else auto if self._is_auto("optimizer.params." + key) else default

        rate = value("lr", 5e-5 if self._is_for_trainer else 1e-2 if name == "Adagrad" else 1e-3, 5e-5)
        betas = value("betas", (0.9, 0.99) if name == "Lion" else (0.9, 0.999), (0.9, 0.999))
        if len(betas) != 2:
            self._refuse("optimizer.params.betas", f"it has {len(betas)} values", "give two")
        decoupled = self._value("optimizer.params.adam_w_mode")
        if name == "AdamW" and not decoupled:
            self._refuse("optimizer.params.adam_w_mode", "it is false, and optimizer.type is AdamW",
                         "set the type to Adam")
        kind = {"Adam": "adamw" if decoupled else "adam"}.get(name, name.lower())
        params = {key: self._value("optimizer.params." + key)
                  for key in ("weight_decay", "momentum", "dampening", "nesterov", "bias_correction")}
        if params["nesterov"] and (params["momentum"] == 0 or params["dampening"] != 0):
            self._refuse("optimizer.params.nesterov", "it needs momentum, and no dampening",
                         "set momentum, and dampening to 0")
        eps = value("eps", 1e-10 if name == "Adagrad" else 1e-8, 1e-8)
        self.optimizer = Optimizer(kind, rate, tuple(betas), eps, **params)

    def _require_own(self, section, name, common, keys_of):
        """DeepSpeed passes keys to a constructor, which does not know another one's."""
        prefix = section + ".params."
        for path in [*self._checked.values, *self._checked.autos]:
            key = path[len(prefix):]
            if path.startswith(prefix) and key not in common and key not in keys_of.get(name, ()):
                owners = [owner for owner, keys in keys_of.items() if key in keys]
                self._refuse(path, f"it is not a key of {name}", f"it belongs to {', '.join(owners)}")

    def _read_schedule(self, total_steps):
        kind = self._given("scheduler.type")
        self.schedule = None
        if self._brings_schedule:
            self._taken.update(path for path in self._checked.values if path.startswith("scheduler."))
            return
        if kind is None and self._is_for_trainer:
            kind = "linear"
        self._require_own("scheduler", kind, ("last_batch_iteration", "total_num_steps"), _SCHEDULER_KEYS)
        if kind is None:
            return
        settings = {key: self._value("scheduler.params." + key) for key in _SCHEDULER_KEYS[kind]}
        if self._is_auto("scheduler.params.warmup_num_steps"):
            settings["warmup_num_steps"] = 1
        if kind == "WarmupDecayLR" and settings["warmup_max_lr"] is None and not self._is_auto(
                "scheduler.params.warmup_max_lr"):
            settings["warmup_max_lr"] = 1e-3
        for key in ("cycle_min_lr", "cycle_max_lr"):
            if kind == "OneCycle" and settings[key] is None:
                self._refuse("scheduler.params." + key, "OneCycle needs it", "give it")
        if kind == "OneCycle" and self.optimizer.kind in ("adagrad", "sgd"):
            settings["cycle_momentum"] = False
        if "total_num_steps" in settings and settings["total_num_steps"] is None:
            if total_steps is None:
                self._refuse("scheduler.params.total_num_steps",
                             f"{kind} ends with the run, whose steps are not known", "give it, or total_steps")
            settings["total_num_steps"] = total_steps
        self.schedule = Schedule(kind, settings, self.optimizer.lr)

    def _read_placement(self):
        stage = self._value("zero_optimization.stage")
        self.zero_stage = stage
        places, paths, locked = [], [], True
        for section, least in (("offload_param", 3), ("offload_optimizer", 1)):
            prefix = f"zero_optimization.{section}."
            place = self._value(prefix + "device")
            if place != "none" and stage < least:
                self._refuse(prefix + "device", f"it is {place}, and zero_optimization.stage is {stage}",
                             f"set the stage to {3 if least == 3 else '1, 2 or 3'}")
            folders = self._given(prefix + "nvme_path") or []
            folders = [folders] if isinstance(folders, str) else folders
            if place == "nvme" and not folders:
                self._refuse(prefix + "nvme_path", f"{section}.device is nvme, and there is no path",
                             "name an existing folder")
            if place == "nvme":
                if paths and paths != folders:
                    self._refuse(prefix + "nvme_path", "it is another one than that of offload_param",
                                 "name the same folders for both")
                paths = folders
            elif folders:
                self.without_effect.append(f"{self._checked.written(prefix + 'nvme_path')}: its device is {place}")
            places.append("device" if place == "none" else place)
            locked = locked and self._value(prefix + "pin_memory")
        self.store_options = {"parameters": places[0], "states": places[1], "nvme_paths": paths,
                              "no_host_lock": not locked}
        self.sub_group_size = self._given("zero_optimization.sub_group_size")

    def _read_run(self):
        def value(key):
            return self._value("terrace." + key)

        self.device_kind = "cuda" if value("device") == "cuda" else "simulated"
        self.device_memory = value("device_memory")
        self.strict = value("strict")
        self.commit_every_steps = value("commit_every_steps")
        self.commit_every_seconds = value("commit_every_seconds")
        for key in ("commit_every_steps", "commit_every_seconds", "retained_checkpoints"):
            if self._given("terrace." + key) and self.store_options["states"] != "nvme":
                self.without_effect.append(f"terrace.{key}: only optimizer states on nvme are committed")
            elif self._given("terrace." + key) and not value("durable"):
                self.without_effect.append(f"terrace.{key}: terrace.durable is false")
        on_nvme = "nvme" in (self.store_options["parameters"], self.store_options["states"])
        when, engine = value("update"), value("engine")
        options = {
            "host_bytes": value("host_memory") or _available_bytes() * 4 // 5,
            "chunk_elements": value("chunk_elements"),
            "accumulation_steps": self.gradient_accumulation_steps,
            "layer_major": value("microbatch_order") == "layer",
            "update_when": "after_backward" if when == "auto" else when,
            "threads": value("threads"),
            "optimizer": self.optimizer.kind,
            "sgd_momentum": self.optimizer.momentum != 0,
            "moment_type": self.moment_type,
            "masters": "compact" if value("compact_state") else "whole",
            "accumulation_type": self.accumulation_type,
            "durable": value("durable") and on_nvme,
            "retained_commits": value("retained_checkpoints"),
            "io_engine": {"auto": "best", "io_uring": "uring"}.get(engine, engine),
            "no_checksums": not value("verify_checksums"),
        }
        self.store_options.update({name: given for name, given in options.items() if given is not None})

    def _read_rest(self):
        """What nothing above has taken."""
        values = {**self._checked.values, **dict.fromkeys(self._checked.sections)}
        for path, value in values.items():
            if path in self._taken or (path in self._checked.values and value == self._checked.default(path)):
                continue
            for name, advice in _NOT_IN_PYTHON.items():
                if path == name or path.startswith(name + "."):
                    self._refuse(path, "the package for Python does not do this", advice)
            if path not in self._checked.sections:
                self.without_effect.append(f"{self._checked.written(path)}: the program alone has a use for it")


def _available_bytes():
    """What this machine has left, as the program takes four fifths of it where nothing is said."""
    with open("/proc/meminfo", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("MemAvailable:")) * 1024
