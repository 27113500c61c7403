"""transformers.Trainer over a model whose parameters are in a store, with transformers 4.50 to 5.

    trainer = TerraceTrainer(model=model, args=arguments, train_dataset=..., terrace_config="ds.json")

The training arguments stay as they are: the optimizer, its groups and the schedule are the Trainer's. The
configuration says where parameters and states lie, and within which budgets. TerraceMixin does the same for a trainer
that is derived from transformers' own, as `class Tuner(TerraceMixin, trl.SFTTrainer)`.

Versions differ in what create_optimizer is given, and in the method that clips. So nothing of them is replaced
but what all call: create_optimizer, and of the accelerator backward, clip_grad_norm_, prepare_model and
gather_for_metrics. Under torchrun and accelerate launch all processes train the one model (hf_ranks.py).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import transformers
from transformers import Trainer, TrainingArguments

from ._types import not_yet
from .errors import ConfigError
from .hf_config import config_for, precision_for, require_deepspeed_away
from .hf_figures import add_figures
from .hf_ranks import Gathering, Losses, deal, join, refuse_other_engines
from .torch import initialize
from .torch.engine.saved.by_first import by_first

if TYPE_CHECKING:
    from torch import nn
    from transformers import Trainer as _Trainer

    from ._types import ConfigSource, Named
    from .torch.engine.engine import Engine
else:
    _Trainer = object  # a mixin has no base of its own

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


class TerraceMixin(_Trainer):
    """Before any trainer that derives from transformers' own: `class Tuner(TerraceMixin, trl.SFTTrainer): pass`."""

    def __init_subclass__(cls, **named: Any) -> None:
        super().__init_subclass__(**named)
        before = cls.__mro__[: cls.__mro__.index(TerraceMixin)]
        for base in before:
            if issubclass(base, Trainer) and not issubclass(base, TerraceMixin):
                raise ConfigError(
                    f"cannot make the class {cls.__name__}",
                    "TerraceMixin",
                    f"it comes after {base.__name__}, whose methods would go before its own",
                    f"write class {cls.__name__}(TerraceMixin, {base.__name__})",
                )

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
        if not isinstance(self, Trainer):
            raise ConfigError(
                f"cannot make a {type(self).__name__}",
                "TerraceMixin",
                "it is not before a Trainer",
                f"write class {type(self).__name__}(TerraceMixin, transformers.Trainer), or another trainer's name",
            )
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
        refuse_other_engines(named.get("model", arguments[0] if arguments else None), given)
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

    def create_accelerator_and_postprocess(self) -> None:
        """The model is not wrapped for several processes, and evaluations gather what Terrace has dealt."""
        super().create_accelerator_and_postprocess()
        self._ranks = join(self.args)
        self._prepare_model = self.accelerator.prepare_model
        self.accelerator.prepare_model = self._prepare_unwrapped
        self._gathering = Gathering(self.accelerator)
        self._losses = None if self._ranks is None else Losses(self._ranks)
        if self._ranks is not None:
            self.accelerator.gather_for_metrics = self._gathering
            is_of_objects = getattr(self.args, "eval_use_gather_object", False)
            self.gather_function = functools.partial(self._gathering, use_gather_object=is_of_objects)

    def _prepare_unwrapped(self, model: nn.Module, **named: Any) -> nn.Module:
        """In the place of accelerator.prepare_model, which would wrap a model that trains. The engine has brought its own
        to the device."""
        if self.engine is not None and model is self.model:
            named["device_placement"] = False
        return self._prepare_model(model, **dict(named, evaluation_mode=True))

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
            add_figures(self.callback_handler, self.engine)
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

    # --- On several ranks ---

    def get_train_dataloader(self) -> Any:
        return deal(self._ranks, super().get_train_dataloader(), "train_dataset")

    def get_eval_dataloader(self, *arguments: Any, **named: Any) -> Any:
        loader = super().get_eval_dataloader(*arguments, **named)
        return deal(self._ranks, loader, "eval_dataset", is_training=False)

    def get_test_dataloader(self, *arguments: Any, **named: Any) -> Any:
        loader = super().get_test_dataloader(*arguments, **named)
        return deal(self._ranks, loader, "test_dataset", is_training=False)

    def evaluation_loop(self, dataloader: Any, *arguments: Any, **named: Any) -> Any:
        with self._gathering.of(dataloader, self.args):
            return super().evaluation_loop(dataloader, *arguments, **named)

    def prediction_step(self, *arguments: Any, **named: Any) -> Any:
        self._gathering.next()
        return super().prediction_step(*arguments, **named)

    def training_step(self, *arguments: Any, **named: Any) -> torch.Tensor:
        loss: torch.Tensor = super().training_step(*arguments, **named)
        if self._losses is not None:
            self._losses.add(loss)
        return loss

    def _maybe_log_save_evaluate(self, tr_loss: torch.Tensor, *arguments: Any, **named: Any) -> None:
        """`tr_loss`: the sum since the last log, of which the mean over the ranks is logged."""
        is_due = self.control.should_log and self.state.global_step > self._globalstep_last_logged
        if self._losses is not None and is_due:
            found = self._losses.take()
            tr_loss.copy_(found if torch.isfinite(found) else tr_loss)
        super()._maybe_log_save_evaluate(tr_loss, *arguments, **named)

    def save_model(self, *arguments: Any, **named: Any) -> None:
        self._by_first("save the model", lambda: super(TerraceMixin, self).save_model(*arguments, **named))

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        save = super()._save_optimizer_and_scheduler
        self._by_first("save the optimizer states", lambda: save(output_dir))

    def _by_first(self, what: str, write: Callable[[], object]) -> None:
        """What the first rank writes: the others bring their shares, and it never has the model whole."""
        if self.engine is None:
            write()
        else:
            by_first(self.engine.store, what, write)


class TerraceTrainer(TerraceMixin, Trainer):
    """transformers.Trainer with `terrace_config` and `terrace_options`, of TerraceMixin."""


class _Watched(transformers.TrainerCallback):
    """Whoever follows the run hears of evaluations and counts its steps as the Trainer does, which has loaded no step of
    the engine. The Trainer hears of `terrace ctl stop`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if self._engine.global_steps + self._engine.skipped_steps == 0:
            self._engine.global_steps = state.global_step

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
