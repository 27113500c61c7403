"""Checkpoints of an engine in a folder: weights, moments and progress as one saved state each.

A save leaves one whole state at every moment; a load looks at every byte, and at everything that has to fit, before
it changes anything."""

from __future__ import annotations

import json
import numbers
import os
import zlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from .... import safetensors
from ...._declarations import ENUMS
from ...._lib import raw_of
from ....errors import ConfigError, IoError
from ....saved_state import StateReader, StateWriter
from ....system import failures, is_folder, is_there
from ..alike import agree
from ..schedule import EngineSchedule
from ..together import on_all
from .by_first import tell_of_checkpoint
from .export import Entries, folder_of
from .saved_checkpoint import saved_checkpoint
from .unpickle import pickled

if TYPE_CHECKING:
    from ...._types import Log, Named, Path
    from ....ranks import Ranks
    from ..engine import Engine
    from ..values import Values
    from .averages import SavedAverage
    from .checkpoint import Checkpoints
    from .export import Exports, FoundMoment, FoundWeight
    from .saved_checkpoint import SavedCheckpoint

_STATES, _FROZEN, _BESIDE, _AVERAGE, _PROGRESS = (
    "states.bin",
    "frozen.bin",
    "beside.safetensors",
    "average.safetensors",
    "progress.pt",
)
_SAVE, _LOAD = "cannot save a checkpoint", "cannot load a checkpoint"
# Classes of transformers that `terrace export` and `terrace generate` compute too.
_KNOWN = ("GPT2LMHeadModel", "LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
_OF_DEEPSPEED = ("mp_rank_", "zero_pp_rank_", "bf16_zero_pp_rank_", "layer_")


class CheckpointFolder:
    def __init__(self, engine: Engine, values: Values, exports: Exports, progress: Checkpoints, say: Log) -> None:
        """`progress` keeps what is in no tensor (Checkpoints)."""
        self._engine = engine
        self._values = values
        self._exports = exports
        self._progress = progress
        self._say = say

    # --- Saving ---

    def save(self, folder: Path, tag: str | int | None, client_state: Any, save_latest: bool) -> str:
        """The folder of the state that is saved then."""
        folder = folder_of(folder, _SAVE)
        tag = f"global_step{self._engine.global_steps}" if tag is None else tag_of(tag, _SAVE)
        self._values.come_to_rest("save a checkpoint")
        engine, exports = self._engine, self._exports
        beside, average = exports.beside(), engine.average
        average_files = () if average is None else (_AVERAGE,)
        frozen_files = () if all(one.is_trainable for one in exports.tracked) else (_FROZEN,)
        progress = self._packed_progress(client_state)
        files = (_STATES, *frozen_files, _BESIDE, *average_files, _PROGRESS)
        with StateWriter(folder, tag, files, self._say, is_checkpoint=True) as state:
            tell_of_checkpoint(engine.store)
            state.checkpoint(engine.store, self._scale(), **self._facts())
            state.file(_BESIDE, safetensors.parts(beside.tensors, beside.values))
            if average is not None:
                entries = average.add_entries(Entries())
                state.file(_AVERAGE, safetensors.parts(entries.tensors, entries.values))
            state.file(_PROGRESS, [progress])
            state.complete(None, save_latest)
        return os.path.join(folder, tag)

    def _packed_progress(self, client_state: Any) -> bytes:
        progress = dict(self._progress.of_now(), client_state=client_state, kind=self._engine.optimizer.kind)
        return pickled(progress, _SAVE, "client_state or the state of the scheduler")

    def _facts(self) -> Named:
        """Whose state it is, as docs/checkpoint_format.md has it."""
        engine = self._engine
        return {
            "run": int(self._progress.run, 16),
            "step": engine.global_steps + engine.skipped_steps,
            "samples": engine.global_samples,
            "precision": ENUMS["terrace_type"][engine.config.precision],
            "optimizer": ENUMS["terrace_optimizer_kind"][engine.optimizer.kind],
            "model": raw_of(type(engine.module).__name__, "name of the model"),
            "architecture": self._architecture(),
        }

    def _architecture(self) -> bytes | None:
        """What the program makes such a model of, where it is one of transformers whose family it knows and all of it
        is in the store."""
        model, tracked = self._engine.module, self._exports.tracked
        of, in_store = type(model), {id(one.parameter) for one in tracked}
        is_known = of.__module__.startswith("transformers.models.") and of.__name__ in _KNOWN
        if not is_known or any(id(one) not in in_store for one in model.parameters()):
            return None
        config: Any = model.config
        named = {"model_config": json.loads(config.to_json_string(use_diff=False))}
        return json.dumps({**named, "frozen": [one.name for one in tracked if not one.is_trainable]}).encode()

    def _scale(self) -> Mapping[str, float] | None:
        """Of the loss, where it is scaled."""
        engine = self._engine
        if engine.config.precision != "fp16":
            return None
        scale, hysteresis, good_steps, in_a_row = engine.scaler.state()
        return {
            "scale": scale,
            "hysteresis": int(hysteresis),
            "good_steps": int(good_steps),
            "skipped_steps": engine.skipped_steps,
            "skipped_in_a_row": int(in_a_row),
        }

    # --- Loading ---

    def load(
        self, folder: Path, tag: str | int | None, with_optimizer: bool, with_scheduler: bool
    ) -> tuple[str | None, Any]:
        folder = folder_of(folder, _LOAD)
        ranks = self._ranks
        state = on_all(ranks, _LOAD, lambda: self._open(folder, tag if tag is None else tag_of(tag, _LOAD)))
        facts = {
            "the checkpoint": _found_as(state),
            "load_optimizer_states": with_optimizer,
            "load_lr_scheduler_states": with_scheduler,
        }
        agree(ranks, facts, _LOAD, "let all ranks load one checkpoint alike, from a folder that each of them can read")
        if state is None:
            return None, {}
        with state:
            if not state.facts:
                self._say(
                    "warning",
                    f"{state.path} was saved by an earlier Terrace and has no manifest: nothing shows damage of its "
                    "bytes",
                )
            saved, weights, moments = on_all(
                ranks, _LOAD, lambda: self._looked_at(state, with_optimizer, with_scheduler)
            )
            average = self._average_in(saved) if with_optimizer else None
            self._values.come_to_rest("load a checkpoint", is_load=with_optimizer)
            with self._values.replaced_or_lost(f"a load of {state.path}"):
                self._exports.load_weights(weights)
                if with_optimizer:
                    self._exports.load_moments(moments, saved.steps)
                    self._progress.tell_of_other_settings(saved.progress["groups"], "checkpoint")
                    self._progress.restore(saved.progress, with_scheduler)
                    self._progress.run = saved.run or self._progress.run
                    if self._engine.average is not None:
                        self._engine.average.take(average)
            return state.path, saved.progress["client_state"]

    def _looked_at(
        self, state: StateReader, with_optimizer: bool, with_scheduler: bool
    ) -> tuple[SavedCheckpoint, list[FoundWeight], list[FoundMoment]]:
        saved = self._saved_in(state)
        return saved, *self._require_fit(saved, with_optimizer, with_scheduler)

    def _saved_in(self, state: StateReader) -> SavedCheckpoint:
        state.verify()
        return saved_checkpoint(state, self._engine)

    @property
    def _ranks(self) -> Ranks | None:
        """Those that load together."""
        return self._engine.store.ranks

    def _open(self, folder: str, tag: str | None) -> StateReader | None:
        """None where there is nothing, which is said."""
        refuse_deepspeed(folder, tag)
        try:
            return StateReader(folder, tag, (), is_checkpoint=True)
        except IoError:
            if tag is not None or is_there(os.path.join(folder, "latest")):
                raise
        self._say("warning", f"no checkpoint was loaded: {_why_nothing(folder)}")
        return None

    def _require_fit(
        self, saved: SavedCheckpoint, with_optimizer: bool, with_scheduler: bool
    ) -> tuple[list[FoundWeight], list[FoundMoment]]:
        """(weights, moments); raises where something is of another model or optimizer."""
        engine, kind = self._engine, saved.progress["kind"]
        if with_optimizer and kind != engine.optimizer.kind:
            raise ConfigError(
                _LOAD,
                saved.path,
                f"its optimizer is {kind}, and that of the engine {engine.optimizer.kind}",
                "load it with load_optimizer_states=False",
            )
        weights = self._exports.weights_of(saved.weights, saved.may_lack_beside)
        if not with_optimizer:
            return weights, []
        strange = sorted(set(saved.trained) - set(self._exports.trained_names()))
        if strange:
            raise ConfigError(
                _LOAD,
                saved.path,
                f'it has optimizer states of "{strange[0]}", which is not trained here',
                "load a checkpoint of the same model, or load it with load_optimizer_states=False",
            )
        self._require_same_matrices(saved)
        moments = self._exports.moments_of(saved.moments, engine.optimizer.kinds)
        self._require_groups(saved.path, saved.progress, with_scheduler)
        return weights, moments

    def _require_same_matrices(self, saved: SavedCheckpoint) -> None:
        """A moment of one optimizer means nothing to another."""
        changed = sorted(saved.matrices ^ set(self._exports.matrix_names()))
        if changed:
            before, now = ("Muon", "AdamW") if changed[0] in saved.matrices else ("AdamW", "Muon")
            raise ConfigError(
                f"{_LOAD} from {saved.path}",
                changed[0],
                f"{before} has trained it there, and {now} does here",
                "let use_muon be what it was, or load it with load_optimizer_states=False",
            )

    def _average_in(self, saved: SavedCheckpoint) -> SavedAverage | None:
        """(tensors, its state) of a checkpoint; None where it has no average."""
        average, state = self._engine.average, saved.progress.get("average")
        if average is not None and state is not None:
            average.require_tensors(saved.average, saved.path)
            return saved.average, state
        if average is not None:
            self._say("warning", "the checkpoint has no average of the weights: it begins anew")
        elif state is not None:
            self._say(
                "warning",
                "the average of the weights in the checkpoint is left out: call engine.averaged before load_checkpoint",
            )
        return None

    def _require_groups(self, place: str, progress: Named, with_scheduler: bool) -> None:
        engine, saved = self._engine, progress["scheduler"]
        if progress["groups"] is None:  # of a program that has none
            return
        counts = len(progress["groups"]), len(engine.optimizer.param_groups)
        if counts[0] != counts[1]:
            raise ConfigError(
                _LOAD,
                place,
                f"its optimizer has {counts[0]} parameter groups, and that of the engine {counts[1]}",
                "make the groups of the run that saved it, or load it with load_optimizer_states=False",
            )
        advice = "make the groups of the run that saved it, or load it with load_optimizer_states=False"
        engine.optimizer.require_kinds(progress["groups"], f"{_LOAD} from {place}", advice)
        if with_scheduler and saved is not None and isinstance(engine.lr_scheduler, EngineSchedule):
            engine.lr_scheduler.require_own(saved, place)


def _found_as(state: StateReader | None) -> str:
    """What is the same of one checkpoint wherever it is read."""
    if state is None:
        return "there is none"
    return f"{os.path.basename(state.path)}, of manifest {zlib.crc32(state.facts.encode()):08x}"


def tag_of(tag: object, what: str) -> str:
    if isinstance(tag, str) or isinstance(tag, numbers.Number) and not isinstance(tag, bool):
        return str(tag)
    raise ConfigError(what, "tag", f"it is {tag!r}, of type {type(tag).__name__}", "give a text or a number")


def _why_nothing(folder: str) -> str:
    if not is_folder(folder):
        return f"{folder} is no folder"
    with failures(_LOAD, folder):
        names = os.listdir(folder)
    # A neighbour that may not be looked into, such as lost+found, is no failure.
    states = sorted(name for name in names if _holds_checkpoint(os.path.join(folder, name), os.path.exists))
    if states:
        return f"{folder} has no file latest; give tag= one of {', '.join(states[-5:])}"
    if _holds_checkpoint(folder, is_there):
        parent, name = os.path.split(os.path.abspath(folder))
        return f'{folder} is a checkpoint itself; load it as load_checkpoint("{parent}", tag="{name}")'
    return f"{folder} holds none"


def _holds_checkpoint(place: str, has: Callable[[str], bool]) -> bool:
    return any(has(os.path.join(place, name)) for name in (_STATES, _PROGRESS))


def latest_in(folder: str) -> str | None:
    """For a look at whose folder it is; None where the library has to say what is wrong."""
    try:
        with open(os.path.join(folder, "latest"), encoding="utf-8") as file:
            return file.read(4096).strip() or None
    except (OSError, ValueError):
        return None


def refuse_deepspeed(folder: str, tag: str | None) -> None:
    """Raises where the state that would be read is one of DeepSpeed's checkpoints."""
    named = latest_in(folder) if tag is None else tag
    if named is None:
        return
    place = os.path.join(folder, named)
    try:
        names = os.listdir(place)
    except (OSError, ValueError):
        return
    if _PROGRESS not in names and any(name.startswith(_OF_DEEPSPEED) and name.endswith(".pt") for name in names):
        raise ConfigError(
            _LOAD,
            place,
            "DeepSpeed has saved it, in files of its own",
            "make one file of its weights with the zero_to_fp32.py that lies beside it, and give that to "
            "engine.load_state_dict; its optimizer states do not come along",
        )
