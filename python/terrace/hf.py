"""transformers.Trainer over a model whose parameters are in a store, with transformers 4.50 to 5.

    trainer = TerraceTrainer(model=model, args=arguments, train_dataset=..., terrace_config="ds.json")

The training arguments stay as they are: the optimizer, its groups and the schedule are the Trainer's. The
configuration says where parameters and states lie, and within which budgets. TerraceTrainer also goes before a
trainer that is derived from transformers' own, as `class Tuner(TerraceTrainer, trl.SFTTrainer)`.

Versions differ in what create_optimizer is given, and in the method that clips. So nothing of them is replaced
but what all call: create_optimizer, and accelerator.backward and accelerator.clip_grad_norm_.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import transformers
from transformers import Trainer, TrainingArguments

from ._types import not_yet
from .errors import ConfigError
from .hf_config import config_for, precision_for, require_deepspeed_away
from .torch import initialize

if TYPE_CHECKING:
    import torch
    from torch import nn

    from ._types import ConfigSource, Named
    from .torch.engine.engine import Engine

# The versions that were tried (docs/hugging_face.md), as (first, first that is not among them).
SUPPORTED = ((4, 50), (6, 0))


class TerraceArguments(TrainingArguments):
    """TrainingArguments whose `deepspeed`, a file or a dict, is the configuration of TerraceTrainer. The package
    deepspeed is not needed. As with DeepSpeed, bf16 and fp16 mean the type of the parameters, not autocast.

    For another class of arguments: `class Arguments(TerraceArguments, trl.SFTConfig): pass`.
    """

    def __post_init__(self) -> None:
        self.terrace_config: Any = self.deepspeed
        self.deepspeed: Any = None
        if self.terrace_config is not None:
            self.terrace_config = precision_for(self.terrace_config, self)
        super().__post_init__()


class TerraceTrainer(Trainer):
    def __init__(
        self,
        *arguments: Any,
        terrace_config: ConfigSource | None = None,
        terrace_options: Named | None = None,
        **named: Any,
    ) -> None:
        """`terrace_config`: a file or a dict; without it that of TrainingArguments.deepspeed.
        `terrace_options`: further arguments of terrace.initialize."""
        _require_version(transformers.__version__)
        given = named.get("args", arguments[1] if len(arguments) > 1 else None)
        if terrace_config is None:
            terrace_config = getattr(given, "terrace_config", None) or getattr(given, "deepspeed", None)
        if terrace_config is None:
            raise ConfigError(
                "cannot make a TerraceTrainer",
                "terrace_config",
                "there is no configuration",
                "give terrace_config=, a file or a dict, or deepspeed= to terrace.hf.TerraceArguments",
            )
        if getattr(given, "deepspeed", None):
            require_deepspeed_away(given)
        self._terrace_config = terrace_config
        self._terrace_options = terrace_options or {}
        self.engine: Engine = not_yet()  # until create_optimizer
        super().__init__(*arguments, **named)
        if self.args.fp16:
            raise ConfigError(
                "cannot train in fp16",
                "TrainingArguments.fp16",
                "its scaler reads gradients, which Terrace has",
                "set fp16.enabled in terrace_config, or train in bf16",
            )

    def create_optimizer(self, *arguments: Any, **named: Any) -> torch.optim.Optimizer:
        """The Trainer's optimizer says what kind it is, and lends its parameter groups."""
        if self.engine is None:
            optimizer = super().create_optimizer(*arguments, **named)
            self.engine, made, _, _ = initialize(
                model=self.model,
                optimizer=optimizer,
                config=config_for(self._terrace_config, self.args, optimizer),
                **self._terrace_options,
            )
            self.optimizer: Any = made
            backward = self.accelerator.backward
            self.accelerator.backward = lambda loss, **named: backward(self.engine.scale(loss), **named)
            self.accelerator.clip_grad_norm_ = self._clip_in_update
            self.add_callback(_Watched(self.engine))
        return self.optimizer

    def _clip_in_update(self, parameters: object, max_norm: float, norm_type: float = 2) -> torch.Tensor:
        """In the place of accelerator.clip_grad_norm_, which the Trainer calls with an infinite norm where it wants to
        know the norm alone. A tensor that has the norm when the optimizer has stepped, before it is logged."""
        if norm_type != 2:
            raise ConfigError("cannot clip gradients", "norm_type", f"it is {norm_type}", "clip by the norm of order 2")
        return self.engine.clip_grad_norm_(max_norm)

    def _clip_grad_norm(self, model: nn.Module) -> torch.Tensor:
        """Of transformers 5, which would look at gradients to find meshes of devices."""
        return self.accelerator.clip_grad_norm_(model.parameters(), self.args.max_grad_norm)

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> Any:
        infinite = float("inf")
        return self.accelerator.clip_grad_norm_(model.parameters(), infinite) if grad_norm is None else grad_norm


class _Watched(transformers.TrainerCallback):
    """The log of steps hears of evaluations, and the Trainer of `terrace ctl stop`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **_: Any) -> None:
        if metrics and "eval_loss" in metrics:
            self._engine.following.evaluated(float(metrics["eval_loss"]))

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        control.should_training_stop |= self._engine.stop_requested


def _require_version(version: str) -> None:
    found = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if not SUPPORTED[0] <= found < SUPPORTED[1]:
        first, end = (".".join(map(str, one)) for one in SUPPORTED)
        raise ConfigError(
            "cannot make a TerraceTrainer",
            f"transformers {version}",
            f"versions from {first} on and below {end} are supported",
            f'pip install "transformers>={first},<{end}", or take terrace.torch.OffloadAdamW as the optimizer',
        )
