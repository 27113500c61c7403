"""Checkpoints of an engine in a folder: weights, moments and progress as one saved state each.

A save leaves one whole state at every moment; a load looks at every byte, and at everything that has to fit, before
it changes anything."""

from __future__ import annotations

import json
import numbers
import os
from typing import TYPE_CHECKING, Any

from .... import safetensors
from ....errors import ConfigError, CorruptError, IoError
from ....saved_state import StateReader, StateWriter
from ....system import failures, is_folder, is_there
from ..schedule import EngineSchedule
from .export import folder_of, read_part
from .unpickle import pickled, unpickled

if TYPE_CHECKING:
    from ...._types import Log, Named, Path
    from ..engine import Engine
    from ..values import Values
    from .averages import SavedAverage
    from .checkpoint import Checkpoints
    from .export import Entries, Exports, FoundMoment, FoundWeight

_WEIGHTS, _MOMENTS, _PROGRESS = FILES = "model.safetensors", "optimizer.safetensors", "progress.pt"
_SAVE, _LOAD = "cannot save a checkpoint", "cannot load a checkpoint"
# What a progress has to have, and of which types.
_MEMBERS = {
    "steps": int,
    "skipped_steps": int,
    "loss_scale": object,
    "groups": list,
    "scheduler": object,
    "client_state": object,
    "kind": str,
    "tensor_steps": dict,
}
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
        tag = f"global_step{self._engine.global_steps}" if tag is None else _tag_of(tag, _SAVE)
        self._values.come_to_rest("save a checkpoint")
        weights = self._exports.weights(with_masters=True)
        moments = self._exports.moments(self._engine.optimizer.kind)
        progress = self._packed_progress(client_state)
        with StateWriter(folder, tag, FILES, self._say) as state:
            state.file(_WEIGHTS, safetensors.parts(weights.tensors, weights.values, {"format": "pt"}))
            state.file(_MOMENTS, safetensors.parts(moments.tensors, moments.values))
            state.file(_PROGRESS, [progress])
            state.complete(self._facts(weights, moments), save_latest)
        return os.path.join(folder, tag)

    def _packed_progress(self, client_state: Any) -> bytes:
        progress = dict(
            self._progress.of_now(),
            client_state=client_state,
            kind=self._engine.optimizer.kind,
            tensor_steps=self._exports.steps_by_name(),
        )
        return pickled(progress, _SAVE, "client_state or the state of the scheduler")

    def _facts(self, weights: Entries, moments: Entries) -> str:
        """Whose state it is, as docs/checkpoint_format.md has it."""
        facts = {
            "format": "terrace-torch-checkpoint",
            "version": 1,
            "run": self._progress.run,
            "step": self._engine.global_steps,
            "optimizer": self._engine.optimizer.kind,
            "precision": self._engine.config.precision,
            "weights": [[name, dtype, list(shape)] for name, dtype, shape in weights.tensors],
            "trained": [one.name for one in self._exports.tracked if one.is_trainable],
            "moments": len(moments.tensors),
        }
        return json.dumps(facts, ensure_ascii=True)

    # --- Loading ---

    def load(
        self, folder: Path, tag: str | int | None, with_optimizer: bool, with_scheduler: bool
    ) -> tuple[str | None, Any]:
        folder = folder_of(folder, _LOAD)
        state = self._open(folder, tag if tag is None else _tag_of(tag, _LOAD))
        if state is None:
            return None, {}
        with state:
            if not state.facts:
                self._say(
                    "warning",
                    f"{state.path} was saved by an earlier Terrace and has no manifest: nothing shows damage of its "
                    "bytes",
                )
            state.verify()
            facts = _facts_of(state)
            progress = _progress_of(state)
            weights, moments = self._require_fit(state, facts, progress, with_optimizer, with_scheduler)
            average = self._average_in(state, progress.get("average")) if with_optimizer else None
            self._values.come_to_rest("load a checkpoint", is_load=with_optimizer)
            with self._values.replaced_or_lost(f"a load of {state.path}"):
                self._exports.load_weights(state, _WEIGHTS, weights)
                if with_optimizer:
                    self._exports.load_moments(state, _MOMENTS, moments, progress["tensor_steps"])
                    self._progress.tell_of_other_settings(progress["groups"], "checkpoint")
                    self._progress.restore(progress, with_scheduler)
                    self._progress.run = facts.get("run") or self._progress.run
                    if self._engine.average is not None:
                        self._engine.average.take(average)
            return state.path, progress["client_state"]

    def _open(self, folder: str, tag: str | None) -> StateReader | None:
        """None where there is nothing, which is said."""
        named = _latest_in(folder) if tag is None else tag
        if named is not None:
            _refuse_deepspeed(os.path.join(folder, named))
        try:
            return StateReader(folder, tag, FILES)
        except IoError:
            if tag is not None or is_there(os.path.join(folder, "latest")):
                raise
        self._say("warning", f"no checkpoint was loaded: {_why_nothing(folder)}")
        return None

    def _require_fit(
        self, state: StateReader, facts: Named, progress: Named, with_optimizer: bool, with_scheduler: bool
    ) -> tuple[list[FoundWeight], list[FoundMoment]]:
        """(entries of weights, entries of moments); raises where something is of another model or optimizer."""
        engine = self._engine
        if with_optimizer and progress["kind"] != engine.optimizer.kind:
            raise ConfigError(
                _LOAD,
                state.path,
                f"its optimizer is {progress['kind']}, and that of the engine {engine.optimizer.kind}",
                "load it with load_optimizer_states=False",
            )
        entries = _entries_of(state, _WEIGHTS)
        weights = self._exports.weights_of(entries)
        if facts and [[name, one.dtype, list(one.shape)] for name, one in entries.items()] != facts["weights"]:
            state.refuse(_WEIGHTS, "its tensors are not those that the manifest names")
        if not with_optimizer:
            return weights, []
        strange = sorted(set(facts["trained"]) - set(self._exports.trained_names())) if facts else []
        if strange:
            raise ConfigError(
                _LOAD,
                state.path,
                f'it has optimizer states of "{strange[0]}", which is not trained here',
                "load a checkpoint of the same model, or load it with load_optimizer_states=False",
            )
        moments = self._exports.moments_of(_entries_of(state, _MOMENTS), progress["kind"])
        self._require_groups(state.path, progress, with_scheduler)
        return weights, moments

    def _average_in(self, state: StateReader, saved: Named | None) -> SavedAverage | None:
        """(entries, how to read them, its state) of a checkpoint; None where it has no average."""
        average = self._engine.average
        if average is not None and saved is not None:
            entries = _entries_of(state, _MOMENTS)
            average.require_entries(entries, os.path.join(state.path, _MOMENTS))
            return entries, lambda entry, first, count: read_part(state, _MOMENTS, entry, first, count), saved
        if average is not None:
            self._say("warning", "the checkpoint has no average of the weights: it begins anew")
        elif saved is not None:
            self._say(
                "warning",
                "the average of the weights in the checkpoint is left out: call engine.averaged before load_checkpoint",
            )
        return None

    def _require_groups(self, place: str, progress: Named, with_scheduler: bool) -> None:
        engine, saved = self._engine, progress["scheduler"]
        counts = len(progress["groups"]), len(engine.optimizer.param_groups)
        if counts[0] != counts[1]:
            raise ConfigError(
                _LOAD,
                place,
                f"its optimizer has {counts[0]} parameter groups, and that of the engine {counts[1]}",
                "make the groups of the run that saved it, or load it with load_optimizer_states=False",
            )
        if with_scheduler and saved is not None and isinstance(engine.lr_scheduler, EngineSchedule):
            engine.lr_scheduler.require_own(saved, place)


def _tag_of(tag: object, what: str) -> str:
    if isinstance(tag, str) or isinstance(tag, numbers.Number) and not isinstance(tag, bool):
        return str(tag)
    raise ConfigError(what, "tag", f"it is {tag!r}, of type {type(tag).__name__}", "give a text or a number")


def _why_nothing(folder: str) -> str:
    if not is_folder(folder):
        return f"{folder} is no folder"
    with failures(_LOAD, folder):
        names = os.listdir(folder)
    # A neighbour that may not be looked into, such as lost+found, is no failure.
    states = sorted(name for name in names if os.path.exists(os.path.join(folder, name, _PROGRESS)))
    if states:
        return f"{folder} has no file latest; give tag= one of {', '.join(states[-5:])}"
    if is_there(os.path.join(folder, _PROGRESS)):
        parent, name = os.path.split(os.path.abspath(folder))
        return f'{folder} is a checkpoint itself; load it as load_checkpoint("{parent}", tag="{name}")'
    return f"{folder} holds none"


def _latest_in(folder: str) -> str | None:
    """For a look at whose folder it is; None where the library has to say what is wrong."""
    try:
        with open(os.path.join(folder, "latest"), encoding="utf-8") as file:
            return file.read(4096).strip() or None
    except (OSError, ValueError):
        return None


def _refuse_deepspeed(place: str) -> None:
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


def _facts_of(state: StateReader) -> Named:
    """{} of a state without a manifest."""
    if not state.facts:
        return {}
    try:
        facts = json.loads(state.facts)
        if facts["format"] != "terrace-torch-checkpoint":
            raise ValueError(f"the format is {facts['format']!r}")
        if facts["version"] != 1:
            raise ConfigError(
                _LOAD,
                state.path,
                f"its version is {facts['version']!r}, and this Terrace reads version 1",
                "load it with the Terrace that saved it, or a later one",
            )
        facts["weights"], facts["trained"] = list(facts["weights"]), list(facts["trained"])
        return facts
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptError(
            _LOAD,
            os.path.join(state.path, "manifest.json"),
            f"its facts are not those of an engine: {error}",
            "load a checkpoint that engine.save_checkpoint has written",
        ) from None


def _progress_of(state: StateReader) -> Named:
    try:
        progress = unpickled(state.read(_PROGRESS))
    except ValueError as error:
        state.refuse(_PROGRESS, str(error))
    if not isinstance(progress, dict) or not all(
        name in progress and isinstance(progress[name], kind) for name, kind in _MEMBERS.items()
    ):
        state.refuse(_PROGRESS, "it is not what save_checkpoint writes")
    if not all(isinstance(group, dict) for group in progress["groups"]):
        state.refuse(_PROGRESS, "its groups are not those of an optimizer")
    return progress


def _entries_of(state: StateReader, file: str) -> dict[str, safetensors.Entry]:
    return safetensors.entries_of(
        os.path.join(state.path, file), state.size(file), lambda offset, count: bytes(state.read(file, offset, count))
    )[0]
