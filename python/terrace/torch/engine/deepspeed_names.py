"""Names of DeepSpeed's engine, optimizer and initialize that loops use, each with what it means here.

docs/from_deepspeed.md lists them. What is not here has a sentence that says what to do instead (WAYS).
"""

from __future__ import annotations

import contextlib
import weakref
from collections import namedtuple
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch

from ...errors import ConfigError, MisuseError
from ...store.saved import SavedUse, saved_use
from ...suggestions import suggestion_among
from .parts import Parts
from .together import mean_in_order

if TYPE_CHECKING:
    from torch import nn

    from ..._types import ConfigSource, Named
    from ...config import Config
    from ...store import Store
    from ..loss_scale import LossScaler
    from .engine import Engine
    from .following import Following
    from .optimizer import EngineOptimizer
    from .passes import Passes
    from .placeholders import Tracked

# Where states or parameters are: "none" (device memory), "cpu" or "nvme", and the folders of nvme.
OffloadPlace = namedtuple("OffloadPlace", "device nvme_path")

# Engines that are not closed.
ENGINES: weakref.WeakSet[Engine] = weakref.WeakSet()

_ALONE = "gradients of all processes are summed in the step by themselves"
_TIMES = "measure steps with time.perf_counter() or torch.profiler; engine.store.counters() has bytes and waits"
WAYS = {
    "allreduce_gradients": _ALONE,
    "deepspeed_io": "give training_data= to terrace.initialize, or make a torch.utils.data.DataLoader",
    "empty_partition_cache": "parameters leave device memory by themselves, within terrace.device_memory",
    "flops_profiler": "use torch.profiler, or torch.utils.flop_counter",
    "monitor": "switch tensorboard, csv_monitor, wandb or comet on in the configuration, or give step_log to terrace.initialize",
    "offload_states": "states are where the configuration places them (offload_optimizer, offload_param)",
    "reload_states": "states are where the configuration places them (offload_optimizer, offload_param)",
    "timers": _TIMES,
    "tput_timer": _TIMES,
}


def source_of(config: ConfigSource | None, config_params: ConfigSource | None, args: object) -> ConfigSource:
    """What initialize reads: `config`, its old name, or what add_config_arguments has put into `args`."""
    given: dict[str, Any] = {
        "config": config,
        "config_params": config_params,
        "args.deepspeed_config": getattr(args, "deepspeed_config", None),
    }
    given = {name: value for name, value in given.items() if value is not None}
    (first, chosen), *others = given.items() if given else [("config", {})]
    for name, value in others:
        if value != chosen:
            raise ConfigError(
                "cannot read the configuration",
                name,
                f"{first} names another one",
                "give one of the two",
            )
    return chosen


def require_whole_save(folder: object, exclude_frozen_parameters: bool) -> None:
    """Raises where a checkpoint is to hold a part of the model."""
    if exclude_frozen_parameters:
        raise ConfigError(
            "cannot save a checkpoint",
            str(folder),
            "exclude_frozen_parameters asks for a part of the model, and a checkpoint has all of it",
            "leave it out; torch.save(engine.module_state_dict(exclude_frozen_parameters=True), file) writes what is "
            "trained",
        )


def require_whole_load(folder: object, load_module_strict: bool, custom_load_fn: object) -> None:
    """Raises where a part of a checkpoint's weights is to be loaded, or in another way."""
    given = {"load_module_strict": not load_module_strict, "custom_load_fn": custom_load_fn is not None}
    for name in (name for name, is_given in given.items() if is_given):
        raise ConfigError(
            "cannot load a checkpoint",
            str(folder),
            f"the third argument, load_module_strict, is {load_module_strict!r}: a checkpoint is loaded into the model "
            "that it is of, or not at all"
            if name == "load_module_strict"
            else "custom_load_fn is given, and a checkpoint is read as it was written",
            "leave it out; weights without optimizer states are loaded with load_optimizer_states=False, and a part of "
            "them with engine.load_module_state_dict(state, strict=False)",
        )


def require_reduction(reduce_output: str | None) -> None:
    if reduce_output not in ("avg", None):
        raise ConfigError("cannot evaluate", "reduce_output", f"it is {reduce_output!r}", 'give "avg" or None')


def require_no_mesh(mesh_param: object) -> None:
    if mesh_param is not None:
        raise ConfigError(
            "cannot divide a model among processes",
            "mesh_param",
            "a mesh of DeepSpeed names processes for its own layers",
            "give data_parallel_group, the processes that have the same part of the model",
        )


def missing(name: str, engine: type, module: nn.Module) -> str:
    """The text for an attribute that neither an engine nor its model has."""
    if name in WAYS:
        return f"Terrace's engine has no {name!r}: {WAYS[name]}"
    near = suggestion_among(name, [one for one in dir(engine) if not one.startswith("_")])
    return (
        f"Terrace's engine has no {name!r}, and neither has its model, a {type(module).__name__}: "
        f"{near or 'docs/from_deepspeed.md lists the names of the engine'}"
    )


class OptimizerNames:
    """Of DeepSpeed's optimizers, for the engine's."""

    engine: Engine

    @property
    def cur_scale(self) -> float:
        return self.engine.scaler.scale

    loss_scale = cur_scale

    @property
    def overflow(self) -> bool:
        """Whether the last update was left out, because a gradient was infinite or NaN."""
        return not self.engine.was_step_applied()


class EngineNames:
    """For Engine, which has .config, .module, .optimizer, .store, .scaler and the counters of steps."""

    if TYPE_CHECKING:  # of Engine
        module: nn.Module
        config: Config
        store: Store
        optimizer: EngineOptimizer
        training_dataloader: Any
        scaler: LossScaler
        global_steps: int
        micro_steps: int
        skipped_steps: int
        following: Following
        _passes: Passes
        _tracked: Sequence[Tracked]
        _norm: float
        _was_applied: bool

        def __call__(self, *arguments: Any, **named: Any) -> Any: ...
        def backward(self, loss: torch.Tensor) -> torch.Tensor: ...
        def step(self) -> None: ...
        def train(self, mode: bool = True) -> Any: ...
        def eval(self) -> Any: ...
        def close(self) -> None: ...

    client_optimizer: Any = None
    client_lr_scheduler: Any = None
    loaded_checkpoint_tag: str | None = None
    tier_name: str | None = None  # of terrace.initialize
    _boundary: bool | None = None  # what set_gradient_accumulation_boundary has said
    _own_batches: Iterator[Any] | None = None
    parts = Parts(None, None)  # which part of the model this process trains

    # --- Ranks: the processes that train together ---

    @property
    def global_rank(self) -> int:
        return 0 if self.parts.everybody is None else self.parts.everybody.rank

    @property
    def local_rank(self) -> int:
        """Among the ranks of this host."""
        return 0 if self.parts.everybody is None else self.parts.everybody.local_rank

    @property
    def world_size(self) -> int:
        """How many processes divide the micro-batches of an update: those that train the same part of the model."""
        return 1 if self.store.ranks is None else self.store.ranks.count

    @property
    def micro_batches(self) -> int:
        """Of an update, over all ranks."""
        return self.config.gradient_accumulation_steps * self.world_size

    # --- Micro-batches and updates ---

    def is_gradient_accumulation_boundary(self) -> bool:
        if self._boundary is not None:
            return self._boundary
        return (self.micro_steps + 1) % self.config.gradient_accumulation_steps == 0

    def set_gradient_accumulation_boundary(self, is_boundary: bool) -> None:
        """Whether the next step() updates, in place of the count. An update has at most gradient_accumulation_steps
        micro-batches, and engine.backward divides each loss by that number."""
        if self.store.update_when == "during_backward":
            raise MisuseError(
                "cannot set the end of an update",
                "set_gradient_accumulation_boundary",
                'with "update": "during_backward" an update begins in the last backward pass, by count',
                'leave "update" out, or set gradient_accumulation_steps and call step() after each micro-batch',
            )
        self._boundary = bool(is_boundary)

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Does nothing: gradients of all micro-batches are summed where their parameters' states are."""
        yield

    def train_batch(self, data_iter: Iterator[Any] | None = None) -> torch.Tensor:
        """Runs all micro-batches of an update, and returns the mean of their losses, over all ranks.

        `data_iter`: an iterator; without it the loader of training_data, again and again. A batch is what the model
        takes; where the model has a `loss_fn`, it is (inputs, labels).
        """
        self.train()
        batches = self._batches_of(data_iter)
        losses = []
        for _ in range(self.config.gradient_accumulation_steps):
            loss = self._loss_and_output(next(batches))[0]
            self.backward(loss)
            self.step()
            losses.append(loss.detach())
        return mean_in_order(self.store.ranks, losses)

    @torch.no_grad()
    def eval_batch(
        self,
        data_iter: Iterator[Any] | None,
        return_logits: bool = False,
        compute_loss: bool = True,
        reduce_output: str | None = "avg",
        bcast_loss: bool = True,
        num_micro_batches: int | None = None,
    ) -> Any:
        """Evaluates gradient_accumulation_steps micro-batches. Returns the mean of their losses; with
        return_logits (loss, outputs); without compute_loss the outputs."""
        require_reduction(reduce_output)
        was_training = self.module.training
        self.eval()
        try:
            batches = self._batches_of(data_iter)
            found = [
                self._loss_and_output(next(batches), compute_loss)
                for _ in range(num_micro_batches or self.config.gradient_accumulation_steps)
            ]
        finally:
            self.train(was_training)
        losses, outputs = [loss for loss, _ in found], [output for _, output in found]
        outputs = outputs[0] if len(outputs) == 1 else outputs
        if not compute_loss:
            return outputs
        loss = mean_in_order(self.store.ranks, losses) if reduce_output else losses
        return (loss, outputs) if return_logits else loss

    def _batches_of(self, data_iter: Iterator[Any] | None) -> Iterator[Any]:
        if data_iter is None:
            if self.training_dataloader is None:
                raise ConfigError(
                    "cannot take a batch",
                    "data_iter",
                    "there is none, and no training_data",
                    "give an iterator, such as iter(loader), or training_data= to terrace.initialize",
                )
            if self._own_batches is None:
                self._own_batches = _again_and_again(self.training_dataloader)
            return self._own_batches
        if not hasattr(data_iter, "__next__"):
            raise ConfigError(
                "cannot take a batch",
                "data_iter",
                f"a {type(data_iter).__name__} is no iterator",
                "give iter(loader), made once: a new one would begin with the first batch again",
            )
        return data_iter

    def _loss_and_output(self, batch: Any, is_loss_wanted: bool = True) -> tuple[Any, Any]:
        loss_fn = getattr(self.module, "loss_fn", None)
        if loss_fn is not None:
            inputs, labels = batch
            output = self(inputs)
            return (loss_fn(output, labels) if is_loss_wanted else None), output
        if isinstance(batch, Mapping):
            output = self(**batch)
        else:
            output = self(*batch) if isinstance(batch, (list, tuple)) else self(batch)
        return (_loss_in(output) if is_loss_wanted else None), output

    # --- Settings ---

    def set_lr(self, lr: float) -> None:
        """The rate of all parameter groups, until a schedule sets another."""
        for group in self.optimizer.param_groups:
            group["lr"] = lr

    def get_lr(self) -> list[float]:
        return [group["lr"] for group in self.optimizer.param_groups]

    def get_mom(self) -> list[Any]:
        """Of each group the momentum of SGD and of Muon, else the betas."""
        names = ["momentum" if kind in ("sgd", "muon") else "betas" for kind in self.optimizer.kinds]
        return [group.get(name) for name, group in zip(names, self.optimizer.param_groups)]

    def set_train_batch_size(self, train_batch_size: int) -> None:
        """The number that the engine has. Another one is refused: memory is planned for the micro-batches of an
        update."""
        if train_batch_size != self.config.train_batch_size:
            raise ConfigError(
                "cannot change the batch of a training",
                "train_batch_size",
                f"it is {self.config.train_batch_size}, and memory is planned for its micro-batches",
                f"make another engine with train_batch_size {train_batch_size}: save_checkpoint, close, "
                "terrace.initialize, load_checkpoint. For an update of fewer micro-batches there is "
                "set_gradient_accumulation_boundary",
            )

    def train_batch_size(self) -> int:
        return self.config.train_batch_size

    def train_micro_batch_size_per_gpu(self) -> int:
        return self.config.train_micro_batch_size_per_gpu

    def gradient_accumulation_steps(self) -> int:
        return self.config.gradient_accumulation_steps

    def get_batch_info(self) -> tuple[int, int, int]:
        """(train_batch_size, train_micro_batch_size_per_gpu, gradient_accumulation_steps)"""
        config = self.config
        return config.train_batch_size, config.train_micro_batch_size_per_gpu, config.gradient_accumulation_steps

    def gradient_clipping(self) -> float:
        return self.config.gradient_clipping

    def get_global_grad_norm(self) -> float:
        return self._norm

    def was_step_applied(self) -> bool:
        return self._was_applied

    def zero_optimization(self) -> bool:
        return self.config.zero_stage > 0

    def zero_optimization_stage(self) -> int:
        return self.config.zero_stage

    def zero_offload_optimizer(self) -> OffloadPlace:
        """Where optimizer states are."""
        return self._place_of("states")

    def zero_offload_param(self) -> OffloadPlace:
        """Where parameters are."""
        return self._place_of("parameters")

    def zero_cpu_offload(self) -> bool:
        return self.zero_offload_optimizer().device == "cpu"

    def _place_of(self, what: str) -> OffloadPlace:
        options = self.config.store_options
        device = "none" if options[what] == "device" else options[what]
        return OffloadPlace(device, options["nvme_paths"] if device == "nvme" else None)

    def fp16_enabled(self) -> bool:
        return self.config.precision == "fp16"

    def bfloat16_enabled(self) -> bool:
        return self.config.precision == "bf16"

    def dynamic_loss_scale(self) -> bool:
        """Whether the scale of fp16 follows overflows."""
        return self.config.loss_scale is not None and self.config.loss_scale.loss_scale == 0

    def memory_breakdown(self) -> bool:
        """False: nothing is printed. engine.store.plan has the bytes of each tier, and engine.saved_activations those of
        activations."""
        return False

    @property
    def saved_activations(self) -> SavedUse:
        """What the inputs of checkpoints take in the store, now and at most so far (terrace.offload_activations)."""
        self._passes.tidy()
        return saved_use(self.store)

    @property
    def loss_scale(self) -> float:
        return self.scaler.scale

    @property
    def device(self) -> torch.device:
        found = self._tracked[0].parameter if self._tracked else next(self.module.parameters(), None)
        return torch.device("cpu") if found is None else found.device

    @property
    def stop_requested(self) -> bool:
        """Whether somebody has asked the run to end (`terrace ctl stop`). The loop decides."""
        return self.following.stop_requested

    @property
    def global_samples(self) -> int:
        return (self.global_steps + self.skipped_steps) * self.config.train_batch_size

    # --- Values, and the end ---

    def module_state_dict(
        self,
        destination: Named | None = None,
        prefix: str = "",
        keep_vars: bool = False,
        exclude_frozen_parameters: bool = False,
    ) -> Named:
        state: Named = self.module.state_dict(
            destination=cast("Named", destination), prefix=prefix, keep_vars=keep_vars
        )
        if exclude_frozen_parameters:
            for name, parameter in self.module.named_parameters(remove_duplicate=False):
                if not parameter.requires_grad:
                    state.pop(prefix + name, None)
        return state

    def load_module_state_dict(self, checkpoint: Mapping[str, Any], strict: bool = True) -> Any:
        return self.module.load_state_dict(checkpoint, strict=strict)

    def destroy(self) -> None:
        self.close()


def _again_and_again(loader: Iterable[Any]) -> Iterator[Any]:
    while True:
        count = 0
        for batch in loader:
            count += 1
            yield batch
        if not count:
            return


def _loss_in(output: Any) -> torch.Tensor:
    """The loss in what a model returns: its member "loss", or itself, or the first of several."""
    loss = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if loss is None:
        loss = output[0] if isinstance(output, (list, tuple)) and output else output
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        raise ConfigError(
            "cannot find the loss of a batch",
            type(output).__name__,
            "the model returns no single number, and has no loss_fn",
            "set model.loss_fn to a function of (outputs, labels), or write the loop: engine.backward(loss); "
            "engine.step()",
        )
    return loss.reshape(())
