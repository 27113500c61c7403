"""What is in a checkpoint, whoever has saved it: this engine, one of an earlier Terrace, or `terrace train`."""

from __future__ import annotations

import json
import os
import struct
from typing import TYPE_CHECKING

from ....errors import ConfigError, CorruptError
from ....saved_state import StateReader
from ....system import is_there
from .saved_tensors import SavedTensors, StoredTensor, stored_moments, stored_tensors, tensors_in_file
from .unpickle import unpickled

if TYPE_CHECKING:
    from ...._types import Named
    from ..engine import Engine

_BESIDE, _AVERAGE, _PROGRESS = "beside.safetensors", "average.safetensors", "progress.pt"
_EARLIER_WEIGHTS, _EARLIER_MOMENTS = "model.safetensors", "optimizer.safetensors"
_FORMAT, _EARLIER_FORMAT = "terrace-checkpoint", "terrace-torch-checkpoint"
_VERSION, _EARLIER_VERSION = 5, 1
_LOAD = "cannot load a checkpoint"
# What a progress has to have, and of which types.
_MEMBERS = {
    "steps": int,
    "skipped_steps": int,
    "loss_scale": object,
    "groups": list,
    "scheduler": object,
    "client_state": object,
    "kind": str,
}


class SavedCheckpoint:
    """`progress` is what is in no tensor; its groups and the state of its scheduler are None where the program that
    saved has no such thing. `steps` are the updates of each parameter."""

    def __init__(self, path: str, run: str | None, progress: Named) -> None:
        self.path = path
        self.run = run
        self.progress = progress
        self.weights: SavedTensors = {}
        self.moments: SavedTensors = {}
        self.average: SavedTensors = {}
        self.trained: list[str] = []
        self.matrices: set[str] = set()  # of these, which Muon has updated
        self.steps: dict[str, int] = {}
        self.may_lack_beside = False  # there are none of the tensors that are in no store


def saved_checkpoint(state: StateReader, engine: Engine) -> SavedCheckpoint:
    """Of a state whose bytes have been verified. What breaks a rule of the formats is a CorruptError."""
    facts = _facts_of(state)
    return _of_today(state, facts, engine) if facts.get("format") == _FORMAT else _earlier(state, facts)


def weights_in(state: StateReader) -> tuple[SavedTensors, list[str]]:
    """(weights, names of those that are trained), of a state whose bytes have been verified."""
    facts = _facts_of(state)
    if facts.get("format") != _FORMAT:
        return tensors_in_file(state, _EARLIER_WEIGHTS), facts.get("trained", [])
    return _stored_weights(state, stored_tensors(facts))


def _stored_weights(state: StateReader, stored: dict[str, StoredTensor]) -> tuple[SavedTensors, list[str]]:
    weights = {name: one.saved(state, "master" if one.trained else "parameter") for name, one in stored.items()}
    if _has(state, _BESIDE):
        weights.update(tensors_in_file(state, _BESIDE))
    return weights, [name for name, one in stored.items() if one.trained]


def _of_today(state: StateReader, facts: Named, engine: Engine) -> SavedCheckpoint:
    is_of_engine = _has(state, _PROGRESS)
    saved = SavedCheckpoint(
        state.path, facts.get("run"), _progress_of(state) if is_of_engine else _progress_of_trainer(facts, engine)
    )
    stored = stored_tensors(facts)
    saved.weights, saved.trained = _stored_weights(state, stored)
    saved.matrices = {name for name, one in stored.items() if one.is_matrix}
    saved.moments = dict(stored_moments(state, stored, facts["moments"]))
    saved.may_lack_beside = not _has(state, _BESIDE)
    if _has(state, _AVERAGE):
        saved.average = tensors_in_file(state, _AVERAGE)
    counts = facts.get("tensor_steps")
    updates = facts["step"] - facts.get("loss_scaler", {}).get("skipped_steps", 0)
    for name, one in stored.items():
        saved.steps[name] = counts[one.parts[0][0]] if counts is not None else updates if one.trained else 0
    return saved


def _progress_of_trainer(facts: Named, engine: Engine) -> Named:
    """Of `terrace train`, which has neither groups nor a scheduler of torch: those of the engine go on at its step."""
    scaler = facts.get("loss_scaler", {})
    skipped = scaler.get("skipped_steps", 0)
    scale = engine.scaler.state()
    if scaler:
        value = struct.unpack("<d", struct.pack("<Q", scaler["scale_bits"]))[0]
        scale = [value, scaler["hysteresis"], scaler["good_steps"], 0]
    kind = json.loads(facts.get("settings", {}).get("optimizer.type", '"AdamW"')).lower()
    return {
        "steps": facts["step"] - skipped,
        "skipped_steps": skipped,
        "loss_scale": scale,
        "groups": None,
        "scheduler": None,
        "client_state": {},
        "kind": kind,
    }


def _earlier(state: StateReader, facts: Named) -> SavedCheckpoint:
    """Of engines before the format of today, with a manifest or without one."""
    progress = _progress_of(state)
    if not isinstance(progress.get("tensor_steps"), dict):
        state.refuse(_PROGRESS, "it is not what save_checkpoint writes")
    saved = SavedCheckpoint(state.path, facts.get("run"), progress)
    saved.weights = tensors_in_file(state, _EARLIER_WEIGHTS)
    saved.moments = saved.average = tensors_in_file(state, _EARLIER_MOMENTS)
    saved.trained = facts.get("trained", [])
    saved.steps = progress["tensor_steps"]
    if facts and [[name, one.dtype, list(one.shape)] for name, one in saved.weights.items()] != facts["weights"]:
        state.refuse(_EARLIER_WEIGHTS, "its tensors are not those that the manifest names")
    return saved


def _facts_of(state: StateReader) -> Named:
    """{} of a state without a manifest."""
    if not state.facts:
        return {}
    try:
        facts: Named = json.loads(state.facts)
        if facts["format"] not in (_FORMAT, _EARLIER_FORMAT):
            raise ValueError(f"the format is {facts['format']!r}")
        newest = _VERSION if facts["format"] == _FORMAT else _EARLIER_VERSION
        if facts["version"] != newest:
            raise ConfigError(
                _LOAD,
                state.path,
                f"its version is {facts['version']!r}, and this Terrace reads version {newest}",
                "load it with the Terrace that saved it, or a later one",
            )
        if facts["format"] == _EARLIER_FORMAT:
            facts["weights"], facts["trained"] = list(facts["weights"]), list(facts["trained"])
        return facts
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptError(
            _LOAD,
            os.path.join(state.path, "manifest.json"),
            f"its facts are not those of an engine: {error}",
            "load a checkpoint that engine.save_checkpoint has written",
        ) from None


def _has(state: StateReader, file: str) -> bool:
    return is_there(os.path.join(state.path, file))


def _progress_of(state: StateReader) -> Named:
    try:
        progress: Named = unpickled(state.read(_PROGRESS))
    except ValueError as error:
        state.refuse(_PROGRESS, str(error))
    if not isinstance(progress, dict) or not all(
        name in progress and isinstance(progress[name], kind) for name, kind in _MEMBERS.items()
    ):
        state.refuse(_PROGRESS, "it is not what save_checkpoint writes")
    if not all(isinstance(group, dict) for group in progress["groups"]):
        state.refuse(_PROGRESS, "its groups are not those of an optimizer")
    return progress
