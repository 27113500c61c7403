"""The configuration of a Trainer of transformers, as its DeepSpeed integration reads it: "auto" is what
TrainingArguments say, and a value that contradicts them is refused, since one of the two would be ignored."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from .config import document_of
from .errors import ConfigError

if TYPE_CHECKING:
    import torch

    from ._types import ConfigSource, Named

_WHAT = "cannot use the configuration"
# The Trainer decides these.
_OF_THE_TRAINER = (
    "gradient_accumulation_steps",
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "optimizer",
    "scheduler",
    "gradient_clipping",
)
# The learning rate schedules of transformers that are those of DeepSpeed.
_SCHEDULES = {
    "WarmupLR": "constant_with_warmup",
    "WarmupDecayLR": "linear",
    "WarmupCosineLR": "cosine",
    "linear": "linear",
}


def read(source: ConfigSource) -> Named:
    """A dict of its own, of a dict or a file."""
    found = source if isinstance(source, dict) else document_of(source)
    return {name: dict(value) if isinstance(value, dict) else value for name, value in found.items()}


def precision_for(source: ConfigSource, arguments: Any) -> Named:
    """The configuration with bf16.enabled and fp16.enabled filled in. The arguments' own are turned off: they are
    autocast, which keeps a copy of each parameter."""
    config = read(source)
    is_wanted = {
        "fp16": bool(arguments.fp16 or arguments.fp16_full_eval),
        # None is "unless fp16" in the arguments of trl.
        "bf16": bool(arguments.bf16 or arguments.bf16_full_eval or (arguments.bf16 is None and not arguments.fp16)),
    }
    for name, wanted in is_wanted.items():
        section = config.get(name)
        if isinstance(section, dict) and section.get("enabled") == "auto":
            section["enabled"] = wanted
        if isinstance(section, dict) and section.get("enabled") is True:
            setattr(arguments, name, False)
            setattr(arguments, f"{name}_full_eval", False)
            if name == "fp16":
                arguments.bf16 = False
    return config


def config_for(source: ConfigSource, arguments: Any, optimizer: torch.optim.Optimizer) -> Named:
    """What terrace.initialize gets: the placement of the configuration, and what the Trainer has no engine for."""
    config = read(source)
    for name, enabled in (("bf16", arguments.bf16 or arguments.bf16_full_eval), ("fp16", False)):
        if isinstance(config.get(name), dict) and config[name].get("enabled") == "auto":
            config[name]["enabled"] = bool(enabled)
    expected = _expected(config, arguments, optimizer)
    for path, (value, argument) in expected.items():
        given = _found(config, path)
        if given not in (None, "auto") and not _is_same(given, value):
            raise ConfigError(
                _WHAT,
                path,
                f"it is {given}, and {argument} of TrainingArguments {'is' if argument else 'are'} {value}",
                'leave it out, or set it to "auto"',
            )
    _require_schedule(_found(config, "scheduler.type"), arguments)
    for name in _OF_THE_TRAINER:
        config.pop(name, None)
    return dict(
        config,
        train_micro_batch_size_per_gpu=arguments.per_device_train_batch_size,
        gradient_accumulation_steps=arguments.gradient_accumulation_steps,
        gradient_clipping=0.0,
        optimizer={"type": "AdamW"},
    )


def _expected(config: Named, arguments: Any, optimizer: torch.optim.Optimizer) -> dict[str, tuple[Any, str]]:
    """{path in the configuration: (value, the argument that says it)}"""
    micro, steps = arguments.per_device_train_batch_size, arguments.gradient_accumulation_steps
    product = "the product of per_device_train_batch_size and gradient_accumulation_steps"
    found = {
        "gradient_accumulation_steps": (steps, "gradient_accumulation_steps"),
        "train_micro_batch_size_per_gpu": (micro, "per_device_train_batch_size"),
        "train_batch_size": (
            micro * steps * arguments.world_size,
            product if arguments.world_size == 1 else f"{product} on {arguments.world_size} ranks",
        ),
        "gradient_clipping": (arguments.max_grad_norm or 0.0, "max_grad_norm"),
        "optimizer.type": (_kind_of(optimizer, config), "optim"),
        "optimizer.params.lr": (arguments.learning_rate, "learning_rate"),
        "optimizer.params.weight_decay": (arguments.weight_decay, "weight_decay"),
        "scheduler.params.warmup_max_lr": (arguments.learning_rate, "learning_rate"),
    }
    if type(optimizer).__name__ in ("Adam", "AdamW"):
        found["optimizer.params.betas"] = ([arguments.adam_beta1, arguments.adam_beta2], "adam_beta1 and adam_beta2")
        found["optimizer.params.eps"] = (arguments.adam_epsilon, "adam_epsilon")
    return found


def _kind_of(optimizer: torch.optim.Optimizer, config: Named) -> str:
    """What the configuration calls the kind. DeepSpeed's Adam is AdamW unless adam_w_mode says otherwise."""
    kind = type(optimizer).__name__
    is_adamw = kind == "AdamW" and _found(config, "optimizer.params.adam_w_mode") is not False
    given = str(_found(config, "optimizer.type")).lower()
    return "Adam" if given == "adam" and is_adamw else kind


def _found(config: Any, path: str) -> Any:
    for name in path.split("."):
        config = config.get(name) if isinstance(config, dict) else None
    return config


def _is_same(given: Any, value: Any) -> bool:
    if isinstance(value, list):
        return isinstance(given, (list, tuple)) and list(given) == value
    if isinstance(value, str):
        return str(given).lower() == value.lower()
    return given == value


def _require_schedule(kind: Any, arguments: Any) -> None:
    here = getattr(arguments.lr_scheduler_type, "value", arguments.lr_scheduler_type)
    if kind in (None, "auto") or _SCHEDULES.get(kind) == here:
        return
    advice = "leave the section out, and set TrainingArguments.lr_scheduler_type"
    if kind in _SCHEDULES:
        advice += f' to "{_SCHEDULES[kind]}"'
    raise ConfigError(_WHAT, "scheduler.type", f"it is {kind}, and lr_scheduler_type is {here}", advice)


def require_deepspeed_away(arguments: Any) -> None:
    """TrainingArguments(deepspeed=...), which transformers lets nobody make without the package deepspeed: takes the
    Trainer's own integration out of them, so that DeepSpeed does not start beside Terrace."""
    arguments.deepspeed = arguments.deepspeed_plugin = arguments.hf_deepspeed_config = None
    os.environ.pop("ACCELERATE_USE_DEEPSPEED", None)
    integration = sys.modules.get("transformers.integrations.deepspeed")
    if integration is not None:
        integration.unset_hf_deepspeed_config()
