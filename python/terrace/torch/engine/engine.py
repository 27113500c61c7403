"""The engine of a model: DeepSpeed's methods over passes, updates, values and commits (deepspeed_names.py has those that
follow from the configuration)."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, SupportsIndex

import torch

from ..._types import not_yet
from ...errors import CancelledError, ConfigError
from ..emptied import refuse_without_values
from ..loss_scale import LossScaler
from .away import OutsideReads
from .deepspeed_names import ENGINES, EngineNames, missing
from .following import Following
from .interrupts import uninterrupted
from .layout import Layout
from .notices import Notices
from .passes import Passes
from .passes.hooks import Hooks, refuse_to_pickle, refuse_tracers
from .passes.read_watch import ReadWatch
from .replicas import require_alike
from .saved.averages import begin_average
from .saved.checkpoint import Checkpoints
from .saved.export import Exports
from .saving import SavingNames
from .values import Values

if TYPE_CHECKING:
    import contextlib

    from torch import nn

    from ..._types import Log, Named
    from ...config import Config
    from ...store import Store
    from ...store.spec import Optimizer, UpdateResult
    from .optimizer import EngineOptimizer
    from .parts import Parts
    from .passes.needs import Shortage
    from .placeholders import Placeholders, Tracked
    from .saved.averages import Average
    from .units import Unit


class Engine(EngineNames, SavingNames):
    """Call it as the model. `loss.backward(); optimizer.step()` works as well as `engine.backward(loss);
    engine.step()`."""

    def __init__(
        self,
        model: nn.Module,
        config: Config,
        store: Store,
        tracked: Sequence[Tracked],
        units: Sequence[Unit],
        placeholders: Placeholders,
        log: Log | None,
        shortage: Callable[..., Shortage],
    ) -> None:
        self.module = model
        self.config = config
        self.store = store
        self.optimizer: EngineOptimizer = not_yet()  # until adopt()
        self.lr_scheduler = self.training_dataloader = not_yet()
        self.global_steps = self.micro_steps = self.skipped_steps = 0
        self.average: Average | None = None
        self._log = log
        self._norm = 0.0
        self._clip_once: tuple[float, torch.Tensor] | None = None
        self._in_update: int | None = None  # how many updates had run before the one that runs
        # Of engine.step(): its update is asked for, it has run, and the schedule has not followed it yet.
        self._is_in_step = self._has_updated = self._is_schedule_due = False
        self._was_applied = True
        self.scaler = LossScaler(config)
        self.following = Following(self)
        self._hooks = Hooks()
        self._passes = Passes(
            store,
            tracked,
            config.gradient_accumulation_steps,
            self._before_pass,
            self._before_step,
            self._announce,
            self._evaluated,
            shortage,
        )
        self._passes.backward.needs_scale = self.scaler.may_skip
        options: Named = config.store_options
        if options["saved_activations"] != "device":
            self._passes.save_inputs()
        folders = options.get("nvme_paths")
        self._values = Values(model, store, self._passes, tracked, self._hooks, folders[0] if folders else None)
        self._exports = Exports(model, store, self._values, tracked, bool(options.get("sgd_momentum")))
        self._checkpoints = Checkpoints(self, store, tracked, self._values, self._exports, self._say)
        if store.pulls:  # a commit is of all ranks, which begin their next steps at other times
            self._passes.rested = self._checkpoints.begin_if_due
        self._hooks.watch_passes(self._passes, units)
        self._layout = Layout(model)
        self._tracked = tracked
        self._placeholders = placeholders
        tracked_of = {id(one.parameter): one for one in tracked}
        self._read_watch = ReadWatch(model, self._passes, tracked_of, self._warn_of_autocast)
        self._notices = Notices(self._say)
        self._layout.mark(model, self.zero_grad)
        outside = OutsideReads(self._passes.are_running, self._values.read, log)
        for one in tracked:
            one.outside = outside

    def join_parts(self, parts: Parts) -> None:
        self.parts = parts
        self._passes.has_other_parts = parts.all is not None

    # --- A training loop ---

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self.following.forward(self.module, arguments, named)

    forward = __call__

    def backward(self, loss: torch.Tensor, retain_graph: bool = False, scale_wrt_gas: bool = True) -> torch.Tensor:
        """Goes backward from the loss of a micro-batch, divided by how many an update has."""
        count = self.micro_batches if scale_wrt_gas else self.world_size
        if count > 1:
            loss = loss / count
        self._scaled(loss).backward(retain_graph=retain_graph)
        return loss

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """What an fp16 model goes backward from, so that small gradients are not lost. Of several ranks the loss of each
        is its own, and their mean is what is trained."""
        return self._scaled(loss / self.world_size if self.world_size > 1 else loss)

    def _scaled(self, loss: torch.Tensor) -> torch.Tensor:
        self._passes.backward.is_scaled = True
        self.following.backward_begins(loss)
        return loss * self.scaler.scale if self.scaler.may_skip else loss

    def step(self) -> None:
        """Ends a micro-batch; the last one of an update updates, and moves the learning rate schedule on."""
        is_last = self.is_gradient_accumulation_boundary()
        self._values.require_whole()
        self._passes.require_sound()
        if not is_last:
            self.micro_steps += 1
            if self.store.pulls:
                self._passes.step.note_call()
            return
        self._is_in_step = True
        try:
            self.optimizer.step()
        except Exception:  # it was refused, and can be repeated
            self._is_in_step = False
            raise
        self._has_updated = True
        self._finish_step()
        self._checkpoints.begin_if_due(is_told=False)

    def _finish_step(self) -> None:
        """What follows an update of engine.step(). After Ctrl-C it is made up for when the program goes on."""
        if not self._has_updated:
            return
        with uninterrupted():
            self._is_in_step = self._has_updated = False
            self.micro_steps += 1
            if self._is_schedule_due:
                self._is_schedule_due = False
                self.lr_scheduler.step()

    def update(self) -> None:
        """The optimizer's step, where gradients have come."""
        self._values.require_whole()
        if self.store.pulls:  # other ranks may have begun a step, and this one may not
            self._checkpoints.begin_if_due()
        with torch._C.DisableTorchFunctionSubclass():  # of parameters that are away (away.py)
            is_due = self._passes.complete()
        if not is_due:
            return
        self._values.take_small(is_between_steps=False)
        if self.store.ranks is not None and self.config.strict:
            require_alike(self.store.ranks, self.module, {id(one.parameter) for one in self._tracked})
        self._in_update = self.global_steps + self.skipped_steps
        self.following.update_begins()
        try:
            result = self.store.update(*self._update_settings())
            self._count(result)
            self._passes.step.updated()
            self._values.small_were_updated()
            self._in_update = None
            if self.average is not None:
                self.average.note_update()
        except KeyboardInterrupt:
            self._settle_update()
            raise
        except ConfigError:  # what the ranks give is not the same: the step has ended without an update, on all of them
            self._in_update = self._clip_once = None
            self._passes.had_ended()
            self._passes.step.updated()
            self._give_up_micro_steps()
            raise
        if result.partly_applied:
            raise CancelledError(
                "cannot go on after an update",
                "the engine",
                "a gradient was infinite or NaN when a part of the update had run in the backward pass already",
                "resume from the last commit, or load a checkpoint into a new engine; set gradient_clipping, or "
                "another terrace.update, so that such steps are left out",
            )
        self._checkpoints.note_update()
        self.following.update_done(result)

    def _count(self, result: UpdateResult) -> None:
        self._is_schedule_due = self._is_in_step and result.applied and self.lr_scheduler is not None
        self._has_updated = self._is_in_step
        self.global_steps += result.applied
        self.skipped_steps += not result.applied
        self._was_applied = result.applied
        self._norm = result.gradient_norm
        if self._clip_once is not None:
            self._clip_once[1].fill_(result.gradient_norm)
            self._clip_once = None
        self.scaler.note(not result.applied)
        if result.applied:
            self._read_watch.note_update()
        elif not result.partly_applied:
            self._explain_skip()

    def _settle_update(self) -> None:
        """After Ctrl-C in an update, which may have come before it or after it."""
        if self._in_update is not None:
            if self._passes.had_ended():
                if self.global_steps + self.skipped_steps == self._in_update:
                    self.global_steps += 1
                    self._has_updated = self._is_in_step
                    self._is_schedule_due = self._is_in_step and self.lr_scheduler is not None
                self._passes.step.updated()
                self._values.small_were_updated()
            else:
                self._give_up_micro_steps()
            self._in_update = None
        self._finish_step()

    def _give_up_micro_steps(self) -> None:
        self._is_in_step = False
        self._passes.step.calls = 0
        self.micro_steps -= self.micro_steps % self.config.gradient_accumulation_steps

    def _update_settings(self) -> tuple[list[Optimizer], int, float, float]:
        clip = self._clip_once[0] if self._clip_once is not None else self.config.gradient_clipping
        scale = self.scaler.scale * self._passes.backward.sums_of_losses(self.world_size)
        return self.optimizer.settings(), self.global_steps + 1, clip, scale

    def _explain_skip(self) -> None:
        """fp16 skips such steps as a matter of course. Else a new path through the model may have read a
        placeholder."""
        if self._passes.step.has_read_nothing or not self.scaler.may_skip:
            self._notices.of_skipped_step()
            self._read_watch.watch_steps()

    def _evaluated(self, has_nan: bool) -> None:
        if not self._read_watch.note_evaluation() and has_nan:
            self._read_watch.watch_evaluations()
            self._notices.of_nan()

    def _warn_of_autocast(self) -> None:
        self._notices.of_autocast(self._tracked)

    def _announce(self) -> None:
        # The first pass may find that there is too little device memory, and leaves a whole state then.
        if self._passes.step.updates and self.store.update_when == "during_backward":
            self.store.announce_update(*self._update_settings())

    def _before_pass(self) -> None:
        self._values.require_whole()
        refuse_tracers()
        if self.store.cuda_ordinal is not None:  # leases and their ends are in the order of torch's operations
            self.store.use_stream(torch.cuda.current_stream(self.store.cuda_ordinal).cuda_stream)
        with torch._C.DisableTorchFunction():  # a watched pass may begin within another module's forward
            self._placeholders.require_untouched()
            self._placeholders.require_in_place(self._tracked)

    def _before_step(self) -> None:
        self._settle_update()
        self._settle_average("train")
        self.following.step_begins()
        self._layout.require_unchanged()
        self._checkpoints.tell()
        self._checkpoints.begin_if_due()  # in a plain loop schedulers have been stepped now
        self._values.take_small(is_between_steps=True)

    def drop_gradients(self) -> None:
        """zero_grad: gives up a step that has gradients, or that failed."""
        self.following.drop_step()
        self._passes.close_leftovers()
        self._settle_update()
        if self._passes.step.has_gradients or self._passes.step.failure is not None:
            self._passes.give_up()
            self._give_up_micro_steps()
        self._passes.marks.remove()
        with torch._C.DisableTorchFunctionSubclass():
            for group in self.optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.grad = None

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.drop_gradients()

    def clip_grad_norm_(self, max_norm: float) -> torch.Tensor:
        """Clips the next update; with an infinite norm it only asks for the norm, as in torch. The norm that it
        returns is known, and filled in, when the update has run."""
        max_norm = float(max_norm)
        if not max_norm > 0:
            raise ConfigError(
                "cannot clip gradients", "max_norm", f"it is {max_norm}", "give a norm above 0, or do not clip"
            )
        norm = torch.full((), float("nan"))
        self._clip_once = (max_norm if math.isfinite(max_norm) else 0.0, norm)
        return norm

    # --- Values ---

    def gathered(
        self, parameters: Any, write: bool = False, modifier_rank: int | None = None
    ) -> contextlib.AbstractContextManager[None]:
        """`with engine.gathered(parameters, write=True):` parameters, names or modules have their values, to be changed.
        All ranks write the same, or get what `modifier_rank` has written."""
        return self._values.gathered(parameters, write, modifier_rank)

    def has_parameter(self, parameter: Any) -> bool:
        return bool(self._values.find([parameter]))

    def state_dict(self, *arguments: Any, **named: Any) -> Named:
        return self.module.state_dict(*arguments, **named)

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        return self.module.load_state_dict(state_dict, strict=strict, assign=assign)

    def named_values(
        self, parameters: Any = None, dtype: torch.dtype | None = None
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """(name, values) of all parameters, or of those that gathered() would take, one after the other: for norms and
        logs. The values are a new tensor in the parameter's type, or in `dtype`, and only one is in memory at a time
        unless you keep it. Between passes; trained ones in fp32 are masters."""
        chosen = self._tracked if parameters is None else self._values.find(parameters)
        for one in list(chosen):
            is_master = one.is_trainable and dtype == torch.float32
            yield one.name, self._values.read(one, "master" if is_master else "parameter", dtype)

    def master(self, parameter: Any) -> torch.Tensor:
        """The fp32 value that a parameter is rounded from, as a new tensor."""
        found = self._values.find(parameter)
        if len(found) != 1:
            raise ConfigError(
                "cannot read a master",
                str(parameter),
                "it is no trained parameter of this model",
                "give one parameter, or its name",
            )
        return self._values.read(found[0], "master")

    def averaged(self, decay: float | None = 0.999, *, every: int = 1, host_memory: int | None = None) -> Average:
        """Begins an average of the weights over the steps, engine.average from then on (averages.py). `decay`: of an
        exponential moving average; None: the equal average of SWA. `every` so many steps it takes the weights in; 0:
        with average.update_parameters() alone. `host_memory`: its bytes, beside terrace.host_memory; without it what
        it needs. After a resume it goes on from the commit: call it before the first step then, and before
        load_checkpoint."""
        return begin_average(self, decay, every, host_memory)

    def _settle_average(self, what: str) -> None:
        if self.average is not None:
            self.average.require_at_home(what)
            self.average.catch_up()

    def adopt(self, optimizer: EngineOptimizer, scheduler: Any, dataloader: Any, **followed: Any) -> None:
        """The last act of terrace.initialize. After a resume they go on from the commit. `followed`: of following.py."""
        self.optimizer, self.lr_scheduler, self.training_dataloader = optimizer, scheduler, dataloader
        optimizer.engine = self
        self._checkpoints.take_up()
        self.following.begin(**followed)
        ENGINES.add(self)

    def train(self, mode: bool = True) -> Engine:
        self.module.train(mode)
        return self

    def eval(self) -> Engine:
        return self.train(False)

    # --- Its end ---

    def close(self, keep_values: bool = False, failure: BaseException | None = None) -> None:
        """Ends the store. The model is as it was before, without values, or with them where `keep_values` asks
        for it. `failure`: the exception that ends the run, for the log of its steps."""
        if self._passes.is_closed:
            return
        self._passes.turn.require("close the engine")
        kept = [self._values.read(one) for one in self._tracked] if keep_values else []
        try:
            if failure is None or not self.store.pulls:  # all ranks give up a step that has gradients, or none
                self._passes.abandon()
            self._passes.marks.remove()
            if failure is None or self.store.ranks is None:  # the others may be elsewhere
                self._checkpoints.begin_if_due()
            self._checkpoints.tell()
            self.following.end(failure)
        finally:  # a store that has failed says so at every call
            if self.average is not None:
                self.average.end()
            self._leave_model(kept)
            self.store.close()
            self._passes.close()
            ENGINES.discard(self)

    def _leave_model(self, kept: list[torch.Tensor]) -> None:
        self._read_watch.stop()
        self._hooks.remove()
        self._values.detach(self.module)
        self._layout.unmark(self.module)
        for one in self._tracked:
            if one.is_managed:
                one.leave_store(self._placeholders.of(one, one.memory.device))
        for one, values in zip(self._tracked, kept):
            one.show(values)
        if not kept:
            refuse_without_values(self.module)

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self.close(failure=error)

    def __getattr__(self, name: str) -> Any:
        """What an engine has not is the model's."""
        if name == "module" or name.startswith("__"):
            raise AttributeError(name)
        try:
            return getattr(self.module, name)
        except AttributeError as error:
            if hasattr(type(self.module), name):  # a property of the model has failed
                raise
            raise AttributeError(missing(name, type(self), self.module)) from error

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        refuse_to_pickle()

    def _say(self, level: str, line: str) -> None:
        if self._log is not None:
            self._log(level, line)
        else:
            warnings.warn(line, stacklevel=3)
