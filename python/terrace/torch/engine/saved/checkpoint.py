"""Progress of a training, which is in no tensor, and commits on nvme that survive any crash."""

from __future__ import annotations

import base64
import json
import os
import time
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from ...._lib import in_words_of_the_configuration
from ....errors import ConfigError, Error, MisuseError
from ..alike import within
from ..schedule import EngineSchedule
from .by_first import by_first
from .checkpoint_folder import CheckpointFolder
from .export import named_tensors
from .unpickle import pickled, unpickled

if TYPE_CHECKING:
    from ...._types import Log, Named, Path
    from ....store import Store
    from ..engine import Engine
    from ..placeholders import Tracked
    from ..values import Values
    from .averages import Average
    from .export import Exports

# Of the text of a commit (capi/limits.h).
_MOST_TEXT_BYTES = 1 << 20
# Of what a saved average is called in that text, with more than enough room.
_AVERAGE_BYTES = 4 << 10
# Of what lies in no store, in that text, where it takes a third more.
_MOST_BYTES_BESIDE = 600 << 10
# Of a commit's state out of its text: names and shapes of a hundred thousand tensors have a tenth of it.
_MOST_STATE_BYTES = 64 << 20


class Checkpoints:
    def __init__(
        self, engine: Engine, store: Store, tracked: Sequence[Tracked], values: Values, exports: Exports, say: Log
    ) -> None:
        self._engine = engine
        self._say = say
        self._store = store
        self._tracked = tracked
        self._values = values
        self._exports = exports
        options = engine.config.store_options
        self.keeps_commits = bool(options.get("durable")) and not store.why_no_commits
        if options.get("durable") and options["states"] == "nvme" and not self.keeps_commits:
            self._say("warning", f"no commits are made, and nothing can be resumed: {store.why_no_commits}")
        self._is_new = False  # an update has run since begin_if_due
        self._is_asked_for = False  # by begin_soon
        self._random: Named | None = None
        self._last_commit = time.monotonic()
        self._failure: Error | None = None  # of a commit
        self._has_told_of_size = False
        self.client_state: Any = {}
        self._average: tuple[Named | None, int] | None = (
            None  # (its state in the commit that was taken up, the step of that)
        )
        run = os.urandom(8) if store.ranks is None else store.ranks.of_first(os.urandom(8))
        self.run = f"{int.from_bytes(run, 'big') or 1:016x}"  # of this run, and of all that go on from it
        self._folder = CheckpointFolder(engine, values, exports, self, say)

    # --- Progress: what is in no tensor ---

    def of_now(self) -> Named:
        engine = self._engine
        scheduler = engine.lr_scheduler
        return {
            "steps": engine.global_steps,
            "skipped_steps": engine.skipped_steps,
            "loss_scale": engine.scaler.state(),
            "groups": [
                {name: value for name, value in group.items() if name != "params" and _is_plain(value)}
                for group in engine.optimizer.param_groups
            ],
            "scheduler": scheduler.state_dict() if hasattr(scheduler, "state_dict") else None,
            "average": engine.average.state() if engine.average is not None else None,
            "seeded_passes": getattr(engine.module, "seeded_passes", 0),
        }

    def _beside(self) -> dict[str, torch.Tensor]:
        """{name: tensor} of buffers, and of parameters that are too small for the store and not trained."""
        known = {id(one.parameter) for one in self._tracked}
        return {name: tensor for name, tensor in named_tensors(self._engine.module) if id(tensor) not in known}

    def restore(self, progress: Named, with_scheduler: bool = True) -> None:
        engine = self._engine
        engine.global_steps = progress["steps"]
        engine.skipped_steps = progress["skipped_steps"]
        engine.micro_steps = 0
        if hasattr(engine.module, "seeded_passes"):
            engine.module.seeded_passes = progress.get("seeded_passes", 0)
        engine.scaler.restore(progress["loss_scale"])
        if with_scheduler and progress["groups"] is None:
            self._go_on_at(progress["steps"])
        elif with_scheduler:
            for group, saved in zip(engine.optimizer.param_groups, progress["groups"]):
                group.update(
                    {name: tuple(value) if isinstance(value, list) else value for name, value in saved.items()}
                )
            if progress["scheduler"] is not None and hasattr(engine.lr_scheduler, "load_state_dict"):
                engine.lr_scheduler.load_state_dict(progress["scheduler"])

    def _go_on_at(self, updates: int) -> None:
        """The schedule, from what a program without schedules of torch has saved."""
        scheduler = self._engine.lr_scheduler
        if isinstance(scheduler, EngineSchedule):
            scheduler.step(updates)
        elif scheduler is not None:
            self._say("warning", "the checkpoint knows nothing of a scheduler of torch, which stays where it is")

    # --- Commits ---

    def note_update(self) -> None:
        """What comes after an update, such as the next batch, may draw random numbers before the commit is made."""
        self._is_new = self.keeps_commits
        if self._is_new:
            self._random = self._random_numbers()

    def begin_if_due(self, is_told: bool = True) -> None:
        """Between steps, where the configuration asks for commits. With is_told=False what an earlier commit failed
        with is kept for tell(): the update before this has been made, and who calls must not repeat it."""
        config, engine = self._engine.config, self._engine
        if not self._is_new:
            return
        self._is_new = False
        by_steps = config.commit_every_steps and engine.global_steps % config.commit_every_steps == 0
        by_time = config.commit_every_seconds and time.monotonic() - self._last_commit >= config.commit_every_seconds
        is_due = bool(by_steps or by_time or self._is_asked_for)
        if self._store.ranks is not None and (config.commit_every_seconds or engine.following.is_shared):
            is_due = self._store.ranks.of_first(b"1" if is_due else b"") == b"1"  # by the clock of the first one
        if not is_due:
            return
        self._is_asked_for = False
        try:
            self.begin(self.client_state, False, self._random)
        except Error as error:
            if is_told:
                raise
            self._failure = error

    def begin_soon(self) -> bool:
        """Has a commit begin the next time between two steps. False: none are kept."""
        self._is_asked_for = self.keeps_commits
        return self.keeps_commits

    def tell(self) -> None:
        """Raises once what begin_if_due() has kept."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def begin(self, client_state: Any, retain: bool, random: Named | None = None) -> None:
        """`client_state` is in force when it is in a commit that has begun: what is refused leaves the one before."""
        client_state = self.client_state if client_state is None else client_state
        client_text = _json_of(client_state)
        self._engine._settle_average("commit")
        self._values.come_to_rest("commit")
        state = dict(
            self.of_now(),
            run=self.run,
            **(random or self._random_numbers()),
            layout=layout_of(self._tracked),
            kinds=list(self._engine.optimizer.kinds),
            beside=self._beside_in_commits(),
        )
        average = self._engine.average
        text = _text_of_commit(client_text, state, 0 if average is None else _AVERAGE_BYTES)
        if average is not None:  # a text that is refused leaves the files of averages as they are
            durable = self._store.finish_commit()  # which names the file of the average before this
            text = f'{text[:-1]}, "average": {json.dumps(average.snapshots.write(retain, durable))}}}'
        if self._store.ranks is not None:  # generators of random numbers may be elsewhere on each
            text = self._store.ranks.of_first(text.encode()).decode()
        with in_words_of_the_configuration():
            self._store.begin_commit(text, retain)
        self._engine.following.commit_begins()
        self.client_state = client_state
        self._last_commit = time.monotonic()

    def _random_numbers(self) -> dict[str, torch.Tensor]:
        """Where torch's generators are, by their keys in a commit."""
        states = {"random": torch.get_rng_state()}
        if self._store.cuda_ordinal is not None:
            states["random_of_gpu"] = torch.cuda.get_rng_state(self._store.cuda_ordinal)
        return states

    def _beside_in_commits(self) -> dict[str, torch.Tensor]:
        beside = self._beside()
        size = sum(tensor.numel() * tensor.element_size() for tensor in beside.values())
        if size <= _MOST_BYTES_BESIDE:
            return {name: tensor.detach().cpu() for name, tensor in beside.items()}
        if not self._has_told_of_size:
            self._has_told_of_size = True
            self._say(
                "warning",
                f"buffers and small frozen parameters take {size} bytes and are in no commit: a model that is resumed "
                "keeps those that it is made with",
            )
        return {}

    def take_up(self) -> None:
        """After a resume: progress, schedule, buffers and torch's random numbers go on from the commit."""
        text = self._store.taken_up_text
        if not text:
            return
        state = _unpacked(text)
        self.tell_of_other_settings(state["groups"], "commit")
        self.restore(state)
        self.run = state.get("run", self.run)
        self._average = (state.get("average"), state["steps"] + state["skipped_steps"])
        self.client_state = json.loads(text)["client_state"]
        torch.set_rng_state(state["random"])
        if self._store.cuda_ordinal is not None and "random_of_gpu" in state:
            torch.cuda.set_rng_state(state["random_of_gpu"], self._store.cuda_ordinal)
        for name, tensor in self._beside().items():
            if name in state["beside"]:
                tensor.data.copy_(state["beside"][name])
        self._engine.following.went_on()

    def take_up_average(self, average: Average) -> None:
        """Of the commit that the engine goes on from; without one, files of an earlier run go."""
        if self._average is None:
            return average.snapshots.remove_all()
        state, step = self._average
        if state is None:
            return None
        if self._engine.global_steps + self._engine.skipped_steps != step:
            raise MisuseError(
                "cannot resume an average",
                "engine.averaged",
                "steps were made since the commit that has it",
                "call it right after terrace.initialize",
            )
        return average.snapshots.load(state)

    def tell_of_other_settings(self, groups: Sequence[Named] | None, where: str) -> None:
        """Rates that a schedule sets differ in any case."""
        is_scheduled: set[str] = {"lr", "initial_lr"} if self._engine.lr_scheduler is not None else set()
        others = []
        for number, (group, saved) in enumerate(zip(self._engine.optimizer.param_groups, groups or ())):
            for name, value in saved.items():
                if name not in is_scheduled and name in group and not _is_same(group[name], value):
                    others.append(f"{name} of group {number} is {value}, and not {group[name]}")
        if others:
            text = "; ".join(others)
            self._say("warning", f"the settings of the {where} are in force: {text}; set param_groups to change them")

    # --- Checkpoints in a folder ---

    def use(self, kind: type[CheckpointFolder]) -> None:
        """Of an engine whose checkpoints are in several folders."""
        self._folder = kind(self._engine, self._values, self._exports, self, self._say)

    def save(self, folder: Path, tag: str | int | None, client_state: Any, save_latest: bool) -> bool:
        self._values.come_to_rest("save a checkpoint")
        write = self._folder.save
        path = by_first(self._store, "save a checkpoint", lambda: write(folder, tag, client_state, save_latest))
        self._engine.following.checkpoint_saved(path)
        return True

    def load(
        self, folder: Path, tag: str | int | None, with_optimizer: bool, with_scheduler: bool
    ) -> tuple[str | None, Any]:
        with within(self._store.ranks, "load a checkpoint"):
            path, client_state = self._folder.load(folder, tag, with_optimizer, with_scheduler)
        if path is not None and with_optimizer:
            self._engine.following.stands_at_checkpoint()
        return path, client_state


def layout_of(tracked: Sequence[Tracked]) -> list[tuple[str, tuple[int, ...]]]:
    """[(name, shape)] of the parameters in a store, in its order."""
    return [(one.name, one.shape) for one in tracked]


def require_same_model(text: str, tracked: Sequence[Tracked], kinds: Sequence[str]) -> None:
    """Of the text of a commit that is taken up: it was made of these parameters, in groups of these optimizers."""
    if not text:
        return
    state = _unpacked(text)
    what, advice = "cannot resume a training", "make the groups that the commit was made with"
    saved_kinds = state.get("kinds", kinds)  # commits of an earlier Terrace do not say
    for number, (kind, own) in enumerate(zip(saved_kinds, kinds)):
        if kind != own:
            reason = f"{kind} has updated it, and here it is {own}'s"
            raise ConfigError(what, f"parameter group {number}", reason, advice)
    for saved, here in zip(state["layout"], layout_of(tracked)):
        if saved[0] != here[0] or tuple(saved[1]) != here[1]:
            raise ConfigError(
                what,
                here[0],
                f'the commit has "{saved[0]}" of shape {tuple(saved[1])} in its place',
                "make the model that the commit was made of, with the same use_muon, or load a checkpoint",
            )
    if len(state["groups"]) != len(kinds):
        reason = f"the commit has {len(state['groups'])} parameter groups, and there are {len(kinds)}"
        raise ConfigError(what, "optimizer", reason, advice)


def _json_of(client_state: Any) -> str:
    try:
        return json.dumps(client_state)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(
            "cannot commit", "client_state", str(error), "give what JSON holds: numbers, texts, lists and dicts"
        ) from None


def _text_of_commit(client_text: str, state: Named, left_free: int) -> str:
    room = _MOST_TEXT_BYTES - left_free
    text = f'{{"client_state": {client_text}, "state": "{_packed(state)}"}}'
    if len(text) > room:
        raise ConfigError(
            "cannot commit",
            "client_state",
            f"it has {len(client_text)} bytes as JSON, and the engine's progress {len(text) - len(client_text)}: "
            f"a commit has room for {room} bytes of both",
            "give less, or write it to a file of its own and give its name",
        )
    return text


def _packed(state: Named) -> str:
    """As text, losing nothing that torch.save keeps."""
    data = pickled(state, "cannot commit", "the state of the scheduler")
    return base64.b64encode(zlib.compress(data, 1)).decode()


def _unpacked(text: str) -> Named:
    """The state in the text of a commit, which may be any text of any program."""
    try:
        members = json.loads(text)
        packed = zlib.decompressobj()
        data = packed.decompress(base64.b64decode(members["state"]), _MOST_STATE_BYTES)
        if packed.unconsumed_tail:
            raise ValueError(f"it has more than {_MOST_STATE_BYTES} bytes")
        state = unpickled(data)
        if not isinstance(state, dict) or not all(name in state for name in _MEMBERS):
            raise ValueError("members of it are missing")
        # An earlier Terrace had all of the average within the state.
        return {**state, "average": members["average"]} if "average" in members else state
    except (ValueError, KeyError, TypeError, zlib.error) as error:
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise ConfigError(
            "cannot resume a training",
            "the text of its commit",
            f"terrace.initialize has not made it: {reason}",
            "resume with the program that made the commit, or load a checkpoint",
        ) from None


_MEMBERS = ("steps", "skipped_steps", "loss_scale", "groups", "scheduler", "random", "layout", "beside")


def _is_plain(value: object) -> bool:
    return isinstance(value, (int, float, str, bool, tuple, list, torch.Tensor)) or value is None


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, (tuple, list)) and isinstance(other, (tuple, list)):
        return list(one) == list(other)
    return bool(one == other)
