"""Checkpoints of a pipeline: each stage writes a state of its own, and a file beside them says that all are whole.

FOLDER/TAG/stages.json names the folder of the states, FOLDER/TAG/SAVE/stage-1-of-2/state and so on, each a checkpoint as
docs/checkpoint_format.md has it. It is replaced when all states of a save have been written, and what it named before goes after
that: so a save that is cut short leaves the last one whole. Whoever loads takes each tensor by its name from the state that has
it, and the number of stages may be another one.

Where processes divide the tensors of a stage, each of them has a state, FOLDER/TAG/SAVE/stage-1-of-2-shard-1-of-2/state, and
reads those of the same shard.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import zlib
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError, CorruptError
from ..saved_state import StateReader
from ..system import failures, is_there
from ..torch.engine.alike import agree, within
from ..torch.engine.saved.checkpoint_folder import CheckpointFolder, latest_in, tag_of
from ..torch.engine.saved.export import folder_of
from ..torch.engine.saved.saved_checkpoint import SavedCheckpoint, saved_checkpoint
from ..torch.engine.together import on_all

if TYPE_CHECKING:
    from .._types import Named, Path
    from ..ranks import Ranks
    from .stages import PipelineEngine
    from .topology import PipelineParallelGrid

_SAVE, _LOAD = "cannot save a checkpoint", "cannot load a checkpoint"
_STAGES, _FORMAT, _VERSION = "stages.json", "terrace-stages", 1
_VERSION_OF_SHARDS = 2  # which a program that knows no shards refuses
_STATE = "state"  # in a folder of the stage, since one job alone writes to a folder


def save_stages(engine: PipelineEngine, save_dir: Path, tag: Any, client_state: Any, save_latest: bool) -> None:
    """Every process calls it."""
    ranks = engine.everybody
    folder = folder_of(save_dir, _SAVE)
    tag = f"global_step{engine.global_steps}" if tag is None else tag_of(tag, _SAVE)
    with within(ranks, "save a checkpoint"):
        agree(
            ranks, {"the folder of the checkpoint": folder, "its tag": tag}, _SAVE, "let all stages save to one folder"
        )
        place = os.path.join(folder, tag)
        name = ranks.of_first(os.urandom(4).hex().encode()).decode()
        sets = os.path.join(place, name)
        on_all(ranks, _SAVE, lambda: _begin(place, sets) if ranks.is_first else None)
        try:
            _write(engine, sets, folder, tag, client_state, save_latest)
        except BaseException:
            if ranks.is_first:
                _clear(place, sets)
            raise


def _write(engine: PipelineEngine, sets: str, folder: str, tag: str, client_state: Any, save_latest: bool) -> None:
    ranks, grid = engine.everybody, engine.grid
    own = os.path.join(sets, _folder_of(grid.stage_id, engine.num_stages, _shard_of(grid)))
    on_all(ranks, _SAVE, lambda: engine.save_part(own, _STATE, client_state))
    facts = _facts_of(os.path.basename(sets), engine.num_stages, grid.slice_parallel_size)
    on_all(ranks, _SAVE, lambda: _end(folder, tag, facts, save_latest) if ranks.is_first else None)


def _clear(place: str, sets: str) -> None:
    """What a save has made that has failed, unless it is the checkpoint already."""
    with contextlib.suppress(Exception):
        if is_there(os.path.join(place, _STAGES)) and _facts_in(place)["states"] == os.path.basename(sets):
            return
    shutil.rmtree(sets, ignore_errors=True)
    with contextlib.suppress(FileNotFoundError):
        os.remove(os.path.join(place, _STAGES + ".new"))
    with contextlib.suppress(OSError):  # there is one before
        os.rmdir(place)


def _shard_of(grid: PipelineParallelGrid) -> tuple[int, int]:
    """The number of this process among those that divide the tensors of its stage, and theirs."""
    return grid.slice_parallel_id, grid.slice_parallel_size


def _folder_of(stage: int, stages: int, shard: tuple[int, int]) -> str:
    number, shards = shard
    return f"stage-{stage + 1}-of-{stages}" + (f"-shard-{number + 1}-of-{shards}" if shards > 1 else "")


def _facts_of(name: str, stages: int, shards: int) -> Named:
    """What stages.json says. Whole tensors are said as they were before there was anything else."""
    facts: Named = {"format": _FORMAT, "version": _VERSION, "stages": stages, "states": name}
    return facts if shards == 1 else {**facts, "version": _VERSION_OF_SHARDS, "shards": shards}


def _begin(place: str, sets: str) -> None:
    with failures(_SAVE, place):
        if is_there(place) and os.listdir(place) and not _is_own(place):
            raise ConfigError(
                _SAVE,
                place,
                "there is something else of this name, such as a checkpoint of one process",
                "give another tag, or remove what is there",
            )
        os.makedirs(sets)


def _is_own(place: str) -> bool:
    """Whether nothing is there but what a save of stages has made."""
    return all(
        name == _STAGES or name == _STAGES + ".new" or _is_save(os.path.join(place, name)) for name in os.listdir(place)
    )


def _is_save(place: str) -> bool:
    name = os.path.basename(place)
    return len(name) == 8 and set(name) <= set("0123456789abcdef") and os.path.isdir(place)


def _end(folder: str, tag: str, facts: Named, save_latest: bool) -> None:
    """All states are whole: from now on they are the checkpoint."""
    place = os.path.join(folder, tag)
    with failures(_SAVE, place):
        _replace(os.path.join(place, _STAGES), json.dumps(facts))
        if save_latest:
            _replace(os.path.join(folder, "latest"), tag)
        for other in os.listdir(place):
            if other != facts["states"] and _is_save(os.path.join(place, other)):
                shutil.rmtree(os.path.join(place, other))


def _replace(path: str, text: str) -> None:
    """A file that has the old text or the new one at every moment."""
    with open(path + ".new", "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(path + ".new", path)
    folder = os.open(os.path.dirname(path) or ".", os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _require_shards(place: str, there: int, here: int) -> None:
    if there != here:
        whole, parts = "its tensors are whole", f"{there} processes have divided its tensors"
        raise ConfigError(
            _LOAD,
            place,
            f"{whole if there == 1 else parts}, and {here} {'divide' if here > 1 else 'process has'} them here",
            f"load it with num_mp={there}; the numbers of stages and of data ranks may be others",
        )


class StagedState:
    """The states of all stages as one that is read: where tensors are divided, those of one shard."""

    def __init__(self, place: str, shard: tuple[int, int]) -> None:
        self.path = place
        facts = _facts_in(place)
        _require_shards(place, facts.get("shards", 1), shard[1])
        folder = os.path.join(place, facts["states"])
        found = [self._of_shard(folder, facts["stages"], (number, shard[1])) for number in range(shard[1])]
        self.states = found[shard[0]]
        sums = [zlib.crc32(state.facts.encode()) for states in found for state in states]
        self.facts = json.dumps([facts, sums])  # the same for all processes
        for states in found:
            for state in states if states is not self.states else []:
                state.__exit__()

    @staticmethod
    def _of_shard(folder: str, stages: int, shard: tuple[int, int]) -> list[StateReader]:
        folders = [os.path.join(folder, _folder_of(stage, stages, shard)) for stage in range(stages)]
        return [StateReader(own, _STATE, (), is_checkpoint=True) for own in folders]

    def __enter__(self) -> StagedState:
        return self

    def __exit__(self, *_: object) -> None:
        for state in self.states:
            state.__exit__()

    def merged(self, engine: PipelineEngine, names: set[str]) -> SavedCheckpoint:
        """What is saved of these names, by the stage that has trained them. Every byte of what is read has been looked at."""
        trained = [_trained_names(state) for state in self.states]
        needed = [number for number, own in enumerate(trained) if own & names] or [0]
        found: SavedCheckpoint | None = None
        for number in needed:
            self.states[number].verify()
            one = saved_checkpoint(self.states[number], engine)
            found = one if found is None else _joined(found, one)
        for number in range(len(self.states)):  # frozen ones may be in a state that has nothing trained of these
            if number not in needed and found is not None and not names <= set(found.weights):
                self.states[number].verify()
                found = _joined(found, saved_checkpoint(self.states[number], engine))
        assert found is not None
        return found


def _joined(found: SavedCheckpoint, one: SavedCheckpoint) -> SavedCheckpoint:
    """A copy of a layer is in both: what counts is that of the first stage, which trains it."""
    for name, weight in one.weights.items():
        if name not in found.weights:
            found.weights[name] = weight
            found.steps[name] = one.steps.get(name, 0)
    found.moments.update(one.moments)
    found.trained = [*found.trained, *one.trained]
    found.matrices |= one.matrices
    found.may_lack_beside = found.may_lack_beside and one.may_lack_beside
    return found


def _trained_names(state: StateReader) -> set[str]:
    try:
        return {one["name"] for one in json.loads(state.facts)["tensors"] if one["trained"]}
    except (KeyError, TypeError, ValueError):
        return set()  # whose error comes when it is read


def _facts_in(place: str) -> dict[str, Any]:
    path = os.path.join(place, _STAGES)
    with failures(_LOAD, path), open(path, encoding="utf-8") as file:
        text = file.read(1 << 16)
    try:
        facts: dict[str, Any] = json.loads(text)
        is_known = facts["format"] == _FORMAT and facts["version"] in (_VERSION, _VERSION_OF_SHARDS)
        if not is_known or not isinstance(facts["stages"], int) or not _is_save(os.path.join(place, facts["states"])):
            raise ValueError("it names no states that are there")
        return facts
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptError(
            _LOAD, path, f"it is not what save_checkpoint writes: {error}", "load an earlier checkpoint"
        ) from None


class StagedFolder(CheckpointFolder):
    """Loads checkpoints of any number of stages, and those of one process, into any number of stages."""

    _engine: PipelineEngine

    @property
    def _ranks(self) -> Ranks | None:
        return self._engine.parts.everybody

    def _open(self, folder: str, tag: str | None) -> Any:
        named = latest_in(folder) if tag is None else tag
        if named is not None and is_there(os.path.join(folder, named, _STAGES)):
            return StagedState(os.path.join(folder, named), _shard_of(self._engine.grid))
        state = super()._open(folder, tag)
        if state is not None:
            _require_shards(state.path, 1, self._engine.grid.slice_parallel_size)
        return state

    def _saved_in(self, state: Any) -> SavedCheckpoint:
        own = set(self._exports.names())
        saved = state.merged(self._engine, own) if isinstance(state, StagedState) else super()._saved_in(state)
        if self._engine.num_stages > 1 or isinstance(state, StagedState):
            trained = set(self._exports.trained_names())
            saved.trained = [name for name in saved.trained if name in trained]
            saved.matrices &= trained
        return saved
