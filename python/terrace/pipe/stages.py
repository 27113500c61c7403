"""The engine of a stage: it carries out the instructions of a schedule (schedule.py), with the passes of an engine that has one
part of a model."""

from __future__ import annotations

import marshal
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn, cast

import torch

from ..errors import ConfigError, MisuseError, PeerError
from ..torch.engine.deepspeed_names import require_reduction, require_whole_save
from ..torch.engine.engine import Engine
from ..torch.engine.together import in_order_of_micro_batches
from .boundary import Caught
from .failing import Batches, WholeOrFailed, told_of
from .saved import StagedFolder, save_stages
from .schedule import InferenceSchedule, PipeSchedule, TrainSchedule
from .tied import TiedLayers
from .transfer import Line

if TYPE_CHECKING:
    from .._types import Named, Path
    from ..ranks import Ranks
    from .module import PipelineModule
    from .topology import PipelineParallelGrid

_ACTIVATIONS, _GRADIENTS = 0, 1


class _MicroBatch:
    """What a stage keeps of one between forward and backward."""

    def __init__(self) -> None:
        self.inputs: Any = None
        self.labels: Any = None
        self.caught: Caught | None = None
        self.sent: list[torch.Tensor] = []  # which gradients come back to
        self.loss: torch.Tensor | None = None


class PipelineEngine(Engine):
    """Of a PipelineModule. With one stage it is an Engine with more names. With several `train_batch` and `eval_batch` take the
    place of forward, backward and step."""

    module: PipelineModule
    _line: Line | None = None
    _tied: TiedLayers | None = None
    has_failed = False  # a batch that has not ended
    _given_batches: Iterator[Any] | None = None
    _batch_fn: Callable[[Any], Any] | None = None

    # --- Where it is ---

    @property
    def grid(self) -> PipelineParallelGrid:
        return self.module.mpu()

    @property
    def mpu(self) -> PipelineParallelGrid:
        return self.grid

    @property
    def num_stages(self) -> int:
        return self.grid.pipe_parallel_size

    @property
    def stage_id(self) -> int:
        return self.grid.stage_id

    @property
    def is_pipe_parallel(self) -> bool:
        return self.num_stages > 1

    @property
    def is_data_parallel(self) -> bool:
        return self.grid.data_parallel_size > 1

    @property
    def is_model_parallel(self) -> bool:
        return self.grid.slice_parallel_size > 1

    def is_first_stage(self) -> bool:
        return self.grid.is_first_stage()

    def is_last_stage(self) -> bool:
        return self.grid.is_last_stage()

    # --- Its beginning and its end ---

    def adopt(self, *given: Any, **followed: Any) -> None:
        super().adopt(*given, **followed)
        self._checkpoints.use(StagedFolder)
        if self.num_stages > 1:
            self._line = Line(self.everybody, self.grid, self.device, self._waits)
            self._tied = TiedLayers(self, self.module, self._line)
            self._tied.share()

    @property
    def everybody(self) -> Ranks:
        """All processes of a model in several parts."""
        return cast("Ranks", self.parts.everybody)

    def close(self, keep_values: bool = False, failure: BaseException | None = None) -> None:
        line, self._line = self._line, None
        if line is not None:
            line.close()
        super().close(keep_values, failure)

    def _waits(self, whom: str, seconds: float) -> None:
        """Of a wait for another stage. The keys of the configuration for waits that take too long count here too."""
        warns, ends = (self.config.values[f"terrace.stall_{what}_seconds"] for what in ("warning", "abort"))
        if ends and seconds > ends:
            raise PeerError(
                "cannot go on with a pipeline",
                whom,
                f"stage {self.stage_id} has waited for it for {seconds:.0f} s ({self.everybody.where()})",
                "look there for what it does; go on from the last checkpoint",
            )
        if warns and seconds > self._warn_after(warns):
            self._warned_after = seconds
            self._say("warning", f"no progress for {seconds:.0f} s: stage {self.stage_id} waits for {whom}")
        elif seconds < warns:
            self._warned_after = 0.0

    _warned_after = 0.0

    def _warn_after(self, seconds: float) -> float:
        return 2 * self._warned_after if self._warned_after else seconds

    # --- Data ---

    def set_dataloader(self, loader: Any) -> None:
        """What train_batch reads again and again."""
        self.training_dataloader, self._own_batches, self._given_batches = loader, None, None

    def set_dataiterator(self, iterator: Iterator[Any]) -> None:
        """What train_batch reads from now on."""
        self._given_batches = iterator

    def set_batch_fn(self, fn: Callable[[Any], Any]) -> None:
        """What makes (inputs, labels) of a batch."""
        self._batch_fn = fn

    def reset_activation_shape(self) -> None:
        """Does nothing: each message says its shapes."""

    def set_has_attention_mask(self, value: bool) -> None:
        """Does nothing: a tensor of whole numbers passes without a gradient wherever it is."""

    def _batches_of(self, data_iter: Iterator[Any] | None) -> Iterator[Any]:
        given = self._given_batches if data_iter is None else data_iter
        found = super()._batches_of(given)
        everybody = self.parts.everybody
        where = "this process" if everybody is None else f"rank {everybody.rank} of {everybody.count}"
        batches = Batches(found, self._steps_of_update, where)
        return batches if self._batch_fn is None else map(self._batch_fn, batches)

    # --- What a loop calls ---

    def train_batch(self, data_iter: Iterator[Any] | None = None) -> torch.Tensor:
        """Runs all micro-batches of an update through all stages, and returns the mean of their losses on each of them. The first
        and the last stage read `data_iter`; the others need none."""
        if self.num_stages == 1:
            with WholeOrFailed(self):
                return super().train_batch(data_iter)
        self._require_sound()
        self.train()
        batches = self._batches_here(data_iter)
        losses: list[torch.Tensor] = []
        with WholeOrFailed(self):
            self._run(TrainSchedule(self._steps_of_update, self.num_stages, self.stage_id), batches, losses, [])
            every = self._losses_of_all(losses)
            self._tell_losses(every)
            Engine.step(self)
            if self._tied is not None and self.was_step_applied():
                self._tied.share()
        return self._mean(every)

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
        """As EngineNames.eval_batch, through all stages. Outputs are those of the last stage, and None elsewhere; so is the loss
        without bcast_loss."""
        if self.num_stages == 1:
            return super().eval_batch(
                data_iter, return_logits, compute_loss, reduce_output, bcast_loss, num_micro_batches
            )
        require_reduction(reduce_output)
        self._require_sound()
        was_training = self.module.training
        self.eval()
        batches = self._batches_here(data_iter)
        losses: list[torch.Tensor] = []
        outputs: list[Any] = []
        schedule = InferenceSchedule(num_micro_batches or self._steps_of_update, self.num_stages, self.stage_id)
        try:
            with WholeOrFailed(self):
                self._run(schedule, batches, losses, outputs, is_loss_wanted=compute_loss)
        finally:
            self.train(was_training)
        found: Any = (outputs[0] if len(outputs) == 1 else outputs) if self.is_last_stage() else None
        if not compute_loss:
            return found
        loss = self._evaluated_loss(losses, reduce_output, bcast_loss)
        return (loss, found) if return_logits else loss

    def _evaluated_loss(self, losses: list[torch.Tensor], reduce_output: str | None, is_told: bool) -> Any:
        every = self._losses_of_all(losses)
        if not is_told and not self.is_last_stage():
            return None
        return self._mean(every) if reduce_output else self._of_this_line(every)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        if self.num_stages > 1:
            _refuse("forward")
        return super().__call__(*arguments, **named)

    forward = __call__

    def backward(self, loss: torch.Tensor, retain_graph: bool = False, scale_wrt_gas: bool = True) -> torch.Tensor:
        if self.num_stages > 1:
            _refuse("backward")
        return super().backward(loss, retain_graph, scale_wrt_gas)

    def step(self) -> None:
        if self.num_stages > 1:
            _refuse("step")
        super().step()

    # --- Checkpoints ---

    def save_checkpoint(
        self,
        save_dir: Path,
        tag: str | int | None = None,
        client_state: Named | None = None,
        save_latest: bool = True,
        exclude_frozen_parameters: bool = False,
    ) -> bool:
        """As SavingNames.save_checkpoint. Each part writes its own state, and all of them count when the last is whole."""
        if self.parts.parts == 1:
            return super().save_checkpoint(save_dir, tag, client_state, save_latest, exclude_frozen_parameters)
        require_whole_save(save_dir, exclude_frozen_parameters)
        save_stages(self, save_dir, tag, client_state or {}, save_latest)
        return True

    def save_part(self, folder: str, name: str, client_state: Any) -> None:
        """The state of what this process trains."""
        super().save_checkpoint(folder, name, client_state, save_latest=False)

    def load_checkpoint(self, load_dir: Path, *given: Any, **named: Any) -> tuple[str | None, Any]:
        """As SavingNames.load_checkpoint, from a checkpoint of any number of stages."""
        path, client_state = super().load_checkpoint(load_dir, *given, **named)
        if path is not None and self._tied is not None:
            self._tied.share()
        return path, client_state

    # --- Instructions ---

    @property
    def _steps_of_update(self) -> int:
        return self.config.gradient_accumulation_steps

    def _require_sound(self) -> None:
        if self.has_failed:
            raise MisuseError(
                "cannot go on with a pipeline",
                f"stage {self.stage_id}",
                "a batch did not end on this stage, and the others have come to another place",
                "end all processes, and go on from the last checkpoint",
            )

    def tell_stages(self, failure: BaseException) -> None:
        """The stages beside this one, which wait for what it will not send any more."""
        if self._line is not None:
            self._line.tell(told_of(self.stage_id, failure), _ACTIVATIONS, _GRADIENTS)

    def _batches_here(self, data_iter: Iterator[Any] | None) -> Iterator[Any] | None:
        return self._batches_of(data_iter) if self.is_first_stage() or self.is_last_stage() else None

    def _run(
        self,
        schedule: PipeSchedule,
        batches: Iterator[Any] | None,
        losses: list[torch.Tensor],
        outputs: list[Any],
        is_loss_wanted: bool = True,
    ) -> None:
        line, is_training = cast(Line, self._line), isinstance(schedule, TrainSchedule)
        if not schedule.is_first_stage:
            line.expect(self.stage_id - 1, _ACTIVATIONS, schedule.micro_batches)
        if not schedule.is_last_stage and is_training:
            line.expect(self.stage_id + 1, _GRADIENTS, schedule.micro_batches)
        if self._tied is not None and is_training:
            self._tied.expect(schedule.micro_batches)
        live: dict[int, _MicroBatch] = {}
        for step in schedule:
            for instruction in step:
                number = instruction.micro_batch
                if instruction.name == "LoadMicroBatch":
                    self._load(live.setdefault(number, _MicroBatch()), next(cast("Iterator[Any]", batches)))
                elif instruction.name == "RecvActivation":
                    self._receive(live.setdefault(number, _MicroBatch()))
                elif instruction.name == "ForwardPass":
                    output = self._forward(live[number], is_loss_wanted)
                    if schedule.is_last_stage:
                        _keep(losses, live[number].loss)
                        outputs.extend([] if is_training else [output])
                elif instruction.name == "SendActivation":
                    self._send(live[number], output)
                    del output
                elif instruction.name == "BackwardPass":
                    self._backward(live.pop(number), is_last=number + 1 == schedule.micro_batches)
            if not is_training:
                live.clear()

    def _load(self, micro_batch: _MicroBatch, batch: Any) -> None:
        has_two = isinstance(batch, (tuple, list)) and len(batch) == 2
        if self.module.loss_fn is not None and not has_two:
            raise ConfigError(
                "cannot take a batch", type(batch).__name__, "it is not (inputs, labels)", "let the loader give both"
            )
        if self.is_first_stage():
            micro_batch.inputs = batch[0] if has_two or isinstance(batch, (tuple, list)) else batch
        if self.is_last_stage() and has_two:
            micro_batch.labels = batch[1]

    def _receive(self, micro_batch: _MicroBatch) -> None:
        arrived = cast(Line, self._line).receive(self.stage_id - 1, _ACTIVATIONS)
        micro_batch.caught = Caught(arrived.tensors, arrived.head.carries)
        arrived.tensors = micro_batch.caught.tensors
        micro_batch.inputs = arrived.value

    def _forward(self, micro_batch: _MicroBatch, is_loss_wanted: bool) -> Any:
        self._passes.step.begin_forward()
        output = self.following.forward(self.module, (micro_batch.inputs,), {})
        micro_batch.inputs = None
        if micro_batch.caught is not None:
            micro_batch.caught.tensors = []
        if self.is_last_stage() and is_loss_wanted:
            loss_fn = self.module.loss_fn
            loss = output if loss_fn is None else loss_fn(output, micro_batch.labels)
            if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
                raise ConfigError(
                    "cannot find the loss of a batch",
                    type(loss).__name__,
                    "the last stage returns no single number",
                    "give loss_fn, a function of (outputs, labels), to PipelineModule",
                )
            micro_batch.loss = loss.reshape(())
        return output

    def _send(self, micro_batch: _MicroBatch, output: Any) -> None:
        line = cast(Line, self._line)
        message = line.send(self.stage_id + 1, _ACTIVATIONS, output)
        micro_batch.sent = [one for one, does in zip(message.tensors, message.head.carries) if does]

    def _backward(self, micro_batch: _MicroBatch, is_last: bool) -> None:
        line = cast(Line, self._line)
        tied = cast(TiedLayers, self._tied)
        if self.is_last_stage():
            tied.before_backward()
            loss, micro_batch.loss = cast(torch.Tensor, micro_batch.loss), None
            Engine.backward(self, loss)
        else:
            gradients = line.receive(self.stage_id + 1, _GRADIENTS).value
            tied.before_backward()
            pairs = [(one, gradient) for one, gradient in zip(micro_batch.sent, gradients) if gradient is not None]
            micro_batch.sent = []
            if pairs:
                self._passes.backward.is_scaled = True  # by the last stage
                torch.autograd.backward([one for one, _ in pairs], [gradient for _, gradient in pairs])
            del pairs, gradients
        tied.after_backward()
        if micro_batch.caught is not None:
            line.send(self.stage_id - 1, _GRADIENTS, micro_batch.caught.gradients)
        if not is_last:
            Engine.step(self)

    # --- Losses ---

    def _losses_of_all(self, losses: list[torch.Tensor]) -> list[tuple[str, bytes]]:
        """Of the last stage of each part of the data, in their order: the type of the losses and their fp64 numbers."""
        text = b""
        if self.is_last_stage() and losses:
            numbers = torch.stack(losses).detach().double().cpu()
            text = marshal.dumps((str(losses[0].dtype).removeprefix("torch."), numbers.numpy().tobytes()))
        every = self.everybody.texts_of_all(text)
        return [marshal.loads(every[rank]) for rank in self.grid.tellers()]

    def _mean(self, every: list[tuple[str, bytes]]) -> torch.Tensor:
        found = in_order_of_micro_batches([one for _, one in every])
        return torch.stack(found).to(getattr(torch, every[0][0])).mean().to(self.device)

    def _of_this_line(self, every: list[tuple[str, bytes]]) -> list[torch.Tensor]:
        name, numbers = every[self.grid.data_parallel_id]
        return list(torch.frombuffer(bytearray(numbers), dtype=torch.float64).to(getattr(torch, name)).to(self.device))

    def _tell_losses(self, every: list[tuple[str, bytes]]) -> None:
        """Who follows the run is on the first stage."""
        if self.is_first_stage():
            for loss in self._of_this_line(every):
                self.following.backward_begins(loss / self.micro_batches)

    # --- Values of tied layers ---

    def parts_of_values(self, parameter: torch.nn.Parameter, most: int) -> Iterator[torch.Tensor]:
        """So many values of a parameter at a time, in its own type. All processes of a stage call it."""
        self._values.come_to_rest("read the values of a tied layer")
        one = next(iter(self._values.find([parameter])), None)
        if one is None or not one.is_managed:
            yield from parameter.detach().reshape(-1).clone().split(most)
            return
        for first in range(0, parameter.numel(), most):
            values = torch.empty(min(most, parameter.numel() - first), dtype=torch.float32)
            self.store.read_values(one.number, first=first, count=values.numel(), out=values.data_ptr())
            yield values.to(parameter.dtype)

    def write_part_of_values(self, parameter: torch.nn.Parameter, first: int, values: torch.Tensor) -> None:
        """Values of a copy, which no optimizer has. All processes of a stage call it."""
        one = next(iter(self._values.find([parameter])), None)
        if one is None or not one.is_managed:
            parameter.detach().view(-1)[first : first + values.numel()].copy_(values)
            return
        self._values.come_to_rest("write the values of a tied layer")
        wide = values.float().contiguous()
        self.store.write_values(one.number, wide.data_ptr(), what="parameter", first=first, count=wide.numel())


def _keep(losses: list[torch.Tensor], loss: torch.Tensor | None) -> None:
    if loss is not None:
        losses.append(loss.detach())


def _refuse(name: str) -> NoReturn:
    raise MisuseError(
        f"cannot call engine.{name}",
        "a pipeline of several stages",
        "no process has the whole model",
        "call engine.train_batch(iterator), which runs all micro-batches of an update, or engine.eval_batch",
    )
