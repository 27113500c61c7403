"""The average of commits: a saved state for each, in a folder beside the tier, which the text of the commit names.

A commit has the average that its text names, or none: the state is whole and durable before the commit begins, and is
removed when no commit is left that names it. Nothing but files of such states is ever removed."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections import deque
from typing import TYPE_CHECKING

from .... import safetensors
from ....errors import ConfigError
from ....saved_state import StateReader, StateWriter
from ....system import failures, is_folder, is_there
from .export import Entries
from .saved_tensors import tensors_in_file

if TYPE_CHECKING:
    from ...._types import Named
    from .averages import Average

_NAME = re.compile(r"average-\d{16}")
_FOLDER = "terrace-average"
_AVERAGE = "average.safetensors"
_FILES = (_AVERAGE,)
_LOAD = "cannot resume an average"


class Snapshots:
    def __init__(self, average: Average, options: Named, tier_name: str | None) -> None:
        self._average = average
        self._folder = os.path.join((options.get("nvme_paths") or [""])[0], tier_name or "", _FOLDER)
        self._begun: str | None = None  # the state of the last commit, which may not be durable yet
        self._durable: int | None = None  # the number of the last durable commit when that one began
        self._retains = False  # whether the commit of _begun is to be retained
        self._kept: deque[str] = deque(maxlen=1)  # of the last durable commit
        self._retained: deque[str] = deque(maxlen=options.get("retained_commits") or 0)

    def write(self, retain: bool, durable: int) -> Named:
        """Before a commit begins, when the one before has ended: makes a state that is durable and whole, and removes
        those that no commit names. `durable` is the number of the last durable commit; if the commit of the state
        before has failed, the number is what it was. Returns what the commit's text has."""
        if self._begun is not None and durable != self._durable:
            self._kept.append(self._begun)
            if self._retains:
                self._retained.append(self._begun)
        self._durable, self._retains = durable, retain
        self._remove_others()
        numbers = [int(name[len("average-") :]) for name in self._names()]
        name = f"average-{max(numbers, default=0) + 1:016d}"
        state = dict(self._average.state(), saved=name, run=self._average.run)
        entries = self._average.add_entries(Entries())
        with StateWriter(self._folder, name, _FILES) as saved:
            saved.file(_AVERAGE, safetensors.parts(entries.tensors, entries.values))
            saved.complete(_facts_of(state), set_latest=False)
        self._begun = name
        return state

    def _names(self) -> list[str]:
        if not is_there(self._folder):
            return []
        with failures("cannot list the averages of commits", self._folder):
            return [name for name in os.listdir(self._folder) if _NAME.fullmatch(name)]

    def _remove_others(self) -> None:
        for name in self._names():
            if name not in self._kept and name not in self._retained:
                self._remove(name)

    def _remove(self, name: str) -> None:
        """The manifest goes first, so that a rest of it is no state; a folder with anything else in it stays."""
        place = os.path.join(self._folder, name)
        with failures("cannot remove the average of an earlier commit", place):
            for file in ("manifest.json", *_FILES):
                with contextlib.suppress(FileNotFoundError):
                    os.remove(os.path.join(place, file))
        with contextlib.suppress(OSError):
            os.rmdir(place)

    def remove_all(self) -> None:
        """Of a run of which no commit is left."""
        self._begun = None
        self._kept.clear()
        self._retained.clear()
        self._remove_others()
        with contextlib.suppress(OSError):
            os.rmdir(self._folder)

    def load(self, state: Named) -> None:
        """Goes on from the state that a commit names. Every byte is compared before anything changes."""
        name = state.get("saved")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ConfigError(
                _LOAD,
                self._folder,
                "the commit names no saved state of an average, as that of an earlier Terrace",
                "resume without engine.averaged, or with the Terrace that made the commit",
            )
        path = os.path.join(self._folder, name)
        if not is_folder(path):
            raise ConfigError(
                _LOAD,
                path,
                "the commit names this saved state, and it is not there",
                "put it back, or resume without engine.averaged",
            )
        with StateReader(self._folder, name, _FILES) as saved:
            if saved.facts != _facts_of(state):
                raise ConfigError(
                    _LOAD,
                    os.path.join(path, "manifest.json"),
                    "it is the average of another commit",
                    "put back that of the commit, or resume without engine.averaged",
                )
            saved.verify()
            tensors = tensors_in_file(saved, _AVERAGE)
            self._average.require_tensors(tensors, os.path.join(path, _AVERAGE))
            self._average.load(tensors, state)
        self._begun, self._durable, self._retains = name, None, False


def _facts_of(state: Named) -> str:
    return json.dumps({"format": "terrace-torch-average", "version": 1, **state}, sort_keys=True, ensure_ascii=True)
