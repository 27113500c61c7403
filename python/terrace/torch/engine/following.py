"""Following: what an engine tells whoever looks at its run: the log of steps, the monitors of the configuration, and
`terrace top` and `terrace ctl` (docs/python.md)."""

from __future__ import annotations

import json
import os
import struct
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from ...errors import Error, IoError
from ...store.run import Run
from ...system import reason_of
from .services import SECRET, Services, wanted
from .together import in_order_of_micro_batches, on_all

if TYPE_CHECKING:
    from ..._types import Named, Path
    from ...store.spec import UpdateResult
    from .engine import Engine


class Following:
    """Without anything to tell every call does nothing. The run begins with the first step of training, because only
    then it is known what it goes on from: a checkpoint may be loaded before."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.run: Run | None = None
        self._wanted: Named | None = None  # the run that begins with the next step
        self._services: Services | None = None  # of the first rank
        self._losses: list[torch.Tensor] = []
        self._tokens = self._forward_ns = 0
        self._began_ns, self._loss_scale = 0, 1.0  # of the update
        self._commit_step: int | None = None
        self.stop_requested = False
        self.is_shared = False  # of several ranks the first one has the run, and tells the others what it is asked for

    def begin(self, step_log: Path | None, control: bool | Path, total_steps: int | None) -> None:
        """`step_log`: a path, or None. `control`: whether `terrace ctl` reaches the run; or the folder of the socket.
        A log that cannot be written and a service that does not answer end the engine, and leave the model as it was."""
        config = self._engine.config
        folders = {name: _folder_of(config.values, section) for name, section in _MONITORS.items()}
        if step_log is None and not control and not any(folders.values()) and not wanted(config.values):
            return
        ranks = self._engine.store.ranks
        self.is_shared = ranks is not None
        try:
            on_all(ranks, "cannot follow the run", lambda: self._open(step_log))
        except BaseException:
            self._engine.close(keep_values=True)
            raise
        seconds = config.values["terrace.stall_warning_seconds"]
        self._wanted = dict(
            steps=total_steps or 0,
            no_stall_warnings=seconds == 0,
            stall_warning_seconds=seconds,
            config=json.dumps({name: value for name, value in config.values.items() if name != SECRET}),
            log_path=step_log,
            **folders,
            has_loss_scale=config.precision == "fp16",
            has_times=bool(config.values.get("wall_clock_breakdown")),
            no_control=not control,
            control_folder=None if isinstance(control, bool) else control,
            micro_batches=config.gradient_accumulation_steps,
        )

    def _open(self, step_log: Path | None) -> None:
        """What may fail outside of this process, before the first step."""
        if self._is_others():
            return
        if step_log is not None:
            try:
                open(step_log, "ab").close()
            except OSError as error:
                raise IoError(
                    "cannot open the log of steps", str(step_log), reason_of(error), "give a path that can be written"
                ) from None
        self._services = Services(self._engine.config.values, self._engine._say)

    def _steps_done(self) -> int:
        """Of the whole run, those included that changed nothing."""
        return self._engine.global_steps + self._engine.skipped_steps

    # --- What the engine does ---

    def _tell_ranks(self, doing: str) -> None:
        """Where this rank is, for those that wait for it."""
        if self._engine.store.ranks is not None:
            self._engine.store.ranks.step(self._steps_done() + 1, doing)

    def step_begins(self) -> None:
        """Before the first pass of a step."""
        self._tell_ranks("the beginning of a step")
        if self._wanted is None or self._is_others():
            return
        engine, done = self._engine, self._steps_done()
        self.run = Run(
            engine.store,
            save=self._save,
            log=engine._say,
            scalars=None if self._services is None else self._services.send,
            is_resumed=done > 0,
            completed_steps=done,
            samples=engine.global_samples,
            model=_name_of(engine.module),
            **self._wanted,
        )
        self._wanted = None

    def _is_others(self) -> bool:
        ranks = self._engine.store.ranks
        return self._engine.parts.part > 0 or ranks is not None and not ranks.is_first

    def forward(self, module: torch.nn.Module, arguments: tuple[Any, ...], named: Named) -> Any:
        if (self.run is None and self._wanted is None) or not module.training:
            return module(*arguments, **named)
        self._tokens += _tokens_in(arguments, named)
        began_ns = time.perf_counter_ns()
        output = module(*arguments, **named)
        self._forward_ns += time.perf_counter_ns() - began_ns
        return output

    def backward_begins(self, loss: torch.Tensor) -> None:
        """`loss` is the part of a micro-batch in the loss of the step."""
        if self.run is not None or self.is_shared:
            self._losses.append(loss.detach())

    def update_begins(self) -> None:
        if self.run is not None:
            self._loss_scale, self._began_ns = self._engine.scaler.scale, time.perf_counter_ns()

    def update_done(self, result: UpdateResult) -> None:
        """After an update, between two steps."""
        if self.is_shared:
            self._share_losses()
        self.look_at_commit()
        self._tell_ranks("the program, between two steps")
        self._tell(lambda run: self._tell_of_step(run, result, time.perf_counter_ns() - self._began_ns))

    def _tell(self, action: Callable[[Run], None]) -> None:
        """What cannot be written ends the log and not what it is told of, which is done and must not be repeated."""
        run = self.run
        if run is None:
            return
        try:
            action(run)
        except Error as error:
            self._engine._say("error", f"this run is not followed any more: {error}")
            self.run = None
            run.close()

    def _tell_of_step(self, run: Run, result: UpdateResult, update_ns: int) -> None:
        engine = self._engine
        losses, self._losses = self._losses, []
        tokens, self._tokens = self._tokens, 0
        forward_ns, self._forward_ns = self._forward_ns, 0
        stops = run.step_done(
            self._steps_done(),
            loss=float(torch.stack(losses).float().sum()) if losses else float("nan"),
            learning_rate=float(engine.optimizer.param_groups[0]["lr"]),
            gradient_norm=result.gradient_norm,
            loss_scale=self._loss_scale,
            next_loss_scale=engine.scaler.scale,
            skipped=not result.applied,
            tokens=tokens,
            samples=engine.global_samples,
            forward_ns=forward_ns,
            update_ns=update_ns,
        )
        if stops and not self.stop_requested:
            self.stop_requested = True
            engine._say("warning", "`terrace ctl stop` asks this run to end: engine.stop_requested is True")

    def _share_losses(self) -> None:
        """The losses of all ranks, in the order of micro-batches, and whether the run is to end after the step before."""
        ranks = self._engine.store.ranks
        losses = torch.stack(self._losses).double().cpu() if self._losses else torch.zeros(0, dtype=torch.float64)
        told = _TOLD.pack(self._tokens, self.stop_requested) + losses.numpy().tobytes()
        every = ranks.texts_of_all(told) if ranks is not None else []
        heads = [_TOLD.unpack_from(one) for one in every]
        self._losses = in_order_of_micro_batches([one[_TOLD.size :] for one in every])
        self._tokens = sum(tokens for tokens, _ in heads)
        self.stop_requested = any(stops for _, stops in heads)
        if self._is_others():
            self.drop_step()

    def drop_step(self) -> None:
        """The micro-batches so far are given up."""
        self._losses, self._tokens, self._forward_ns = [], 0, 0

    def commit_begins(self) -> None:
        """The one before it is durable then."""
        self._tell_of_commit(True)
        self._commit_step = self._steps_done()

    def look_at_commit(self) -> None:
        """Of the one that has begun, whether it is durable now."""
        self._tell_of_commit(self._commit_step is not None and not self._engine.store.commit_in_progress)

    def went_on(self) -> None:
        """From a commit of the step that the engine is at."""
        self._tell_kept(_GO_ON.format(self._steps_done()))

    def _tell_of_commit(self, is_durable: bool) -> None:
        step = self._commit_step
        if step is not None and is_durable:
            self._commit_step = None
            self._tell_kept(_GO_ON.format(step))
            self._tell(lambda run: run.kept(step))

    def checkpoint_saved(self, folder: str | None) -> None:
        """`folder`: of the first rank, which has written it."""
        self.stands_at_checkpoint()
        if folder is not None:
            self._tell(lambda run: run.kept(self._steps_done(), folder))

    def stands_at_checkpoint(self) -> None:
        """The engine is at the step of one, which the run would go on from."""
        if not self._engine._checkpoints.keeps_commits:
            self._tell_kept(f"the last checkpoint is that of step {self._steps_done()}")

    def _tell_kept(self, text: str) -> None:
        """What becomes of the run should a rank die now, for whoever names it and for `terrace launch --restarts`."""
        ranks = self._engine.store.ranks
        if ranks is not None:
            ranks.kept(text)

    def evaluated(self, loss: float) -> None:
        self._tell(lambda run: run.evaluated(self._steps_done(), loss))

    def end(self, failure: BaseException | None) -> None:
        """Before the store is closed."""
        services, self._services = self._services, None
        try:
            self._end_run(failure)
        finally:
            if services is not None:
                services.end(failure is not None)

    def _end_run(self, failure: BaseException | None) -> None:
        run, self.run = self.run, None
        if run is None:
            return
        step = self._steps_done()
        try:
            if failure is not None:
                run.end(step, failure=f"{type(failure).__name__}: {failure}", survives=self._survives())
            else:
                run.end(step, "terrace ctl stop" if self.stop_requested else None)
        finally:
            run.close()

    # --- What others ask for ---

    def _save(self) -> list[str]:
        """`terrace ctl save`: the next time between two steps."""
        return ["commit"] if self._engine._checkpoints.begin_soon() else []

    def _survives(self) -> str:
        if self._engine.store.why_no_commits:
            return "the checkpoints that the program has saved"
        return 'the last commit on nvme: resume="auto" goes on from it'


_GO_ON = 'the state is that of step {}: resume="auto" goes on from there with any number of ranks'
_TOLD = struct.Struct("=QB")  # tokens, and whether the run is to end; losses come behind
_MONITORS = {"tensorboard": "tensorboard", "csv": "csv_monitor"}


def _folder_of(values: Named, section: str) -> str | None:
    """The folder of a monitor; None where it is switched off."""
    if not values.get(section + ".enabled"):
        return None
    return os.path.join(values.get(section + ".output_path") or "", values.get(section + ".job_name") or "") or "."


def _name_of(module: torch.nn.Module) -> str:
    return f"{type(module).__name__}, {sum(one.numel() for one in module.parameters())} parameters"


def _tokens_in(arguments: tuple[Any, ...], named: Named) -> int:
    """Of a batch of token ids: a tensor of whole numbers with two dimensions, as Hugging Face's input_ids."""
    ids = named.get("input_ids", arguments[0] if arguments else None)
    if not torch.is_tensor(ids) or ids.dim() != 2 or ids.is_floating_point():
        return 0
    return ids.numel()
