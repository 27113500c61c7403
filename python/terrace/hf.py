"""transformers.Trainer over a model whose parameters are in a store.

    trainer = TerraceTrainer(model=model, args=arguments, train_dataset=..., terrace_config="ds.json")

The training arguments stay as they are: the optimizer, its groups and the schedule are the Trainer's. The
configuration says where parameters and states lie, and within which budgets.
"""

from transformers import Trainer

from . import config_text
from .errors import ConfigError
from .torch import initialize

# The Trainer decides these.
_OF_THE_TRAINER = (
    "gradient_accumulation_steps",
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "optimizer",
    "scheduler",
    "gradient_clipping",
)


class TerraceTrainer(Trainer):
    def __init__(self, *arguments, terrace_config, terrace_options=None, **named):
        """`terrace_options`: further arguments of terrace.initialize."""
        self._terrace_config = terrace_config
        self._terrace_options = terrace_options or {}
        self.engine = None
        super().__init__(*arguments, **named)
        if self.args.fp16:
            raise ConfigError(
                "cannot train in fp16",
                "TrainingArguments.fp16",
                "its scaler reads gradients, which Terrace has",
                "set fp16.enabled in terrace_config, or train in bf16",
            )

    def create_optimizer(self, model=None):
        """The Trainer's optimizer says what kind it is, and lends its parameter groups."""
        if self.engine is None:
            optimizer = super().create_optimizer(model)
            self.engine, self.optimizer, _, _ = initialize(
                model=self.model, optimizer=optimizer, config=self._full_config(), **self._terrace_options
            )
            backward = self.accelerator.backward
            self.accelerator.backward = lambda loss, **named: backward(self.engine.scale(loss), **named)
        return self.optimizer

    def _full_config(self):
        given = self._terrace_config
        given = dict(given) if isinstance(given, dict) else config_text.read_text(given)[0]
        steps = self.args.gradient_accumulation_steps
        for name in _OF_THE_TRAINER:
            value = given.pop(name, "auto")
            if name == "gradient_accumulation_steps" and value not in ("auto", steps):
                raise ConfigError(
                    "cannot use the configuration",
                    name,
                    f"it is {value}, and that of TrainingArguments is {steps}",
                    'leave it out, or set it to "auto"',
                )
        return dict(given, gradient_accumulation_steps=steps, gradient_clipping=0.0, optimizer={"type": "AdamW"})

    def _clip_grad_norm(self, model):
        return self.engine.clip_grad_norm_(self.args.max_grad_norm)

    def _get_grad_norm(self, model, grad_norm=None):
        """A tensor that has the norm when the optimizer has stepped, before it is logged."""
        return self.engine.clip_grad_norm_(0.0) if grad_norm is None else grad_norm
