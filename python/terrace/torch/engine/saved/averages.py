"""Averages of a model's weights over its steps, in a store of their own: what torch's AveragedModel computes.

    average = engine.averaged(decay=0.999)          # get_ema_multi_avg_fn; decay=None: the equal average of SWA
    with average.swapped():                         # evaluations see the average
        evaluate(engine)

The average is fp32 and is of the masters. It lies in host memory or on nvme, where optimizer states are, and never on
a device. It follows each applied step, a part of a tensor at a time, in two buffers of a few MiB. It is in checkpoints
and in commits. One call at a time, as of the engine."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from ....errors import CapacityError, ConfigError, Error, MisuseError
from ....store import Store, plan
from ....store.spec import SimulatedDevice, Tensor
from ..interrupts import uninterrupted
from .averages_of_commits import Snapshots

if TYPE_CHECKING:
    from ...._types import Named
    from ....store.spec import Plan
    from ..engine import Engine
    from ..placeholders import Tracked
    from .export import Entries
    from .saved_tensors import SavedTensors

    # What a checkpoint has of an average: its tensors, and what is in none.
    SavedAverage = tuple[SavedTensors, dict[str, Any]]

# A tensor lies in the store in parts of so many elements, so that the store needs little room for one.
PART_ELEMENTS = 1 << 20
# Of host memory, where the average is on nvme: what blocks pass through.
_LEAST_HOST_BYTES = 8 << 20


def begin_average(engine: Engine, decay: float | None, every: int, host_memory: int | None) -> Average:
    """Engine.averaged."""
    if engine.average is not None:
        raise MisuseError(
            "cannot average the weights", "the engine", "it has an average", "close it first: engine.average.close()"
        )
    if engine.store.ranks is not None:
        raise ConfigError(
            "cannot average the weights",
            "the engine",
            f"{engine.world_size} ranks train together, and an average is of one process",
            "average the weights of checkpoints, or train with one process",
        )
    engine._values.come_to_rest("average the weights")
    average = Average(engine, decay, every, host_memory, engine.tier_name)
    try:
        engine._checkpoints.take_up_average(average)
    except BaseException:
        average.discard()
        raise
    engine.average = engine._exports.average = average
    if engine._log is not None:
        engine._log("info", average.text())
    return average


class Average:
    """`n_averaged` counts the steps that it has followed."""

    def __init__(
        self, engine: Engine, decay: float | None, every: int, host_memory: int | None, tier_name: str | None
    ) -> None:
        _require_settings(decay, every)
        self._engine = engine
        self._values, self._main = engine._values, engine.store
        self.decay, self.every = decay, every
        self.n_averaged = 0
        self._steps = engine.global_steps  # of the engine, that have been looked at
        self._is_swapped = False
        self._failure: Error | None = None
        self._trained = [one for one in engine._tracked if one.is_trainable]
        self._first = {}  # by tracked parameter, its first part in the store
        tensors: list[Tensor] = []
        for one in self._trained:
            self._first[one] = len(tensors)
            for number, (_, count) in enumerate(_parts_of(one)):
                tensors.append(Tensor(f"{one.name}[{number}]", (count,), "fp32", False))
        self._store = _store_for(tensors, engine.config.store_options, host_memory, tier_name)
        zeros = torch.zeros(min(PART_ELEMENTS, max(tensor.elements for tensor in tensors)))
        self._store.fill_arrays({tensor.name: (zeros.data_ptr(), "fp32") for tensor in tensors})
        self._buffers = torch.empty(2, zeros.numel())
        self.snapshots = Snapshots(self, engine.config.store_options, tier_name)

    @property
    def plan(self) -> Plan:
        """What its store takes (terrace.Plan); the device is simulated and counts as host memory."""
        return self._store.plan

    # --- Following the engine ---

    def note_update(self) -> None:
        """After an applied step. A failure is told by what comes next: the step has been made."""
        try:
            self.catch_up()
        except Error as error:
            self._failure = error

    def catch_up(self) -> None:
        """Follows a step that was applied, if that has not been done."""
        if self._failure is not None:
            raise self._failure
        steps, self._steps = self._steps, self._engine.global_steps
        if self._steps == steps or not self.every or self._steps % self.every:
            return
        try:
            self._follow()
        except BaseException as error:
            self._failure = error if isinstance(error, Error) else self._failure
            raise

    def update_parameters(self, model: object = None) -> None:
        """Takes the weights of now into the average, as torch's AveragedModel does. With every=0 this is how."""
        self.require_at_home("update an average")
        self._values.come_to_rest("update an average")
        self.catch_up()
        self._follow()

    def _follow(self) -> None:
        weight = 1.0 if not self.n_averaged else self._weight()
        with uninterrupted(), torch.no_grad():
            for one in self._trained:
                for first, count in _parts_of(one):
                    average, now = self._buffers[0, :count], self._buffers[1, :count]
                    self._main.read_values(one.number, "master", first, count, now.data_ptr())
                    if self.n_averaged:
                        self.read_part(one, first, count, average)
                        torch._foreach_lerp_([average], [now], weight)
                    self._write_part(one, first, count, average if self.n_averaged else now)
            self.n_averaged += 1

    def _weight(self) -> float:
        """Of the newest weights, as torch computes it."""
        if self.decay is not None:
            return 1 - self.decay
        return (1 / (torch.tensor(self.n_averaged) + 1)).item()

    # --- Values ---

    def named_parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        """(name, a new fp32 tensor) of each trained parameter, one after the other."""
        self.require_values("read an average")
        self.catch_up()
        for one in self._trained:
            yield one.name, self.values(one)

    def values(self, one: Tracked) -> torch.Tensor:
        out = torch.empty(one.elements)
        for first, count in _parts_of(one):
            self.read_part(one, first, count, out[first:])
        return out.view(one.shape)

    def read_part(self, one: Tracked, first: int, count: int, out: torch.Tensor) -> None:
        number = self._first[one] + first // PART_ELEMENTS
        at, end = first % PART_ELEMENTS, first + count
        done = 0
        while first < end:  # a part of another length than the store's
            here = min(end - first, PART_ELEMENTS - at)
            self._store.read_values(number, "parameter", at, here, out[done:].data_ptr())
            number, at, done, first = number + 1, 0, done + here, first + here

    def _write_part(self, one: Tracked, first: int, count: int, values: torch.Tensor) -> None:
        number = self._first[one] + first // PART_ELEMENTS
        self._store.write_values(number, values.data_ptr(), count=count)

    @contextlib.contextmanager
    def swapped(self) -> Iterator[Engine]:
        """Within the block the model has the average's weights, for evaluations and generation; the trained weights
        wait in the average's place, and are back afterwards, bit for bit. Nothing is trained or saved meanwhile."""
        self.require_values("swap an average")
        self._values.come_to_rest("swap an average")
        self.catch_up()
        self._exchange()
        self._is_swapped = True
        try:
            yield self._engine
        finally:
            if not self._engine._passes.is_closed:
                self._values.come_to_rest("swap an average")
                self._exchange()
            self._is_swapped = False

    def _exchange(self) -> None:
        with uninterrupted(), torch.no_grad():
            for one in self._trained:
                if one.is_managed:
                    self._exchange_parts(one)
                else:
                    average = self.values(one)
                    trained = self._values.read(one, "master").flatten()
                    self._values.write(one, average)
                    for first, count in _parts_of(one):
                        self._write_part(one, first, count, trained[first:])
            self._values.small_were_updated()

    def _exchange_parts(self, one: Tracked) -> None:
        for first, count in _parts_of(one):
            average, trained = self._buffers[0, :count], self._buffers[1, :count]
            self._main.read_values(one.number, "master", first, count, trained.data_ptr())
            self.read_part(one, first, count, average)
            self._main.write_values(one.number, average.data_ptr(), "master", first, count)
            self._write_part(one, first, count, trained)

    def require_at_home(self, what: str) -> None:
        """Raises within swapped(): the model has other weights than those that are trained."""
        if self._is_swapped:
            raise MisuseError(
                f"cannot {what}",
                "the engine",
                "its model has the weights of an average",
                "do it after the block of `with average.swapped():`",
            )

    def require_values(self, what: str) -> None:
        self.require_at_home(what)
        if not self.n_averaged:
            raise MisuseError(
                f"cannot {what}", "the average", "it has followed no step yet", "train, or call update_parameters()"
            )

    # --- Saving ---

    @property
    def run(self) -> str:
        """Of the engine; docs/saved_state_format.md."""
        return self._engine._checkpoints.run

    def state(self) -> Named:
        """What is in no tensor, as plain values."""
        return {"decay": self.decay, "every": self.every, "n_averaged": self.n_averaged}

    def add_entries(self, entries: Entries) -> Entries:
        """To what a file of safetensors is written from: an fp32 tensor "<parameter>.average" each."""
        for one in self._trained:
            entries.add(f"{one.name}.average", torch.float32, one.shape, self._reader(one))
        return entries

    def _reader(self, one: Tracked) -> Callable[[], Iterator[torch.Tensor]]:
        def read() -> Iterator[torch.Tensor]:
            for first, count in _parts_of(one):
                part = torch.empty(count)
                self.read_part(one, first, count, part)
                yield part

        return read

    def require_tensors(self, saved: SavedTensors, path: str) -> None:
        """Raises where those of a file lack a parameter."""
        for one in self._trained:
            found = saved.get(f"{one.name}.average")
            if found is None or found.shape != one.shape or found.dtype != "F32":
                raise ConfigError(
                    "cannot load an average",
                    one.name,
                    f"{path} does not have it in fp32 and of shape {one.shape}",
                    "load the average of the same model",
                )

    def load(self, saved: SavedTensors, state: Named) -> None:
        """From a file that add_entries() has made."""
        for one in self._trained:
            for first, count in _parts_of(one):
                self._write_part(one, first, count, saved[f"{one.name}.average"].read(first, count))
        self.n_averaged = state["n_averaged"]
        self._steps, self._failure = self._engine.global_steps, None
        for name in ("decay", "every"):
            if getattr(self, name) != state[name]:
                here = f"{name}={getattr(self, name)} is in force"
                self._engine._say("warning", f"the average was saved with {name}={state[name]}, and {here}")

    def take(self, saved: SavedAverage | None) -> None:
        """What a checkpoint has that the engine has loaded: the arguments of load(). None: it begins anew."""
        if saved is not None:
            return self.load(*saved)
        self.n_averaged, self._steps, self._failure = 0, self._engine.global_steps, None
        return None

    def text(self) -> str:
        taken = self.plan
        return (
            f"the average of the weights takes {taken.host_bytes + taken.device_bytes} bytes of host memory beside "
            f"terrace.host_memory, and {taken.file_bytes} on nvme"
        )

    def close(self) -> None:
        """Ends its store. The engine trains on without it."""
        self.require_at_home("close an average")
        self._engine.average = self._engine._exports.average = None
        self._store.close()

    def discard(self) -> None:
        """Before the engine has it."""
        self._store.close()

    def end(self) -> None:
        """With the engine."""
        self._engine.average = self._engine._exports.average = None
        self._is_swapped = False
        with contextlib.suppress(Error):  # of a store that has failed, which says so itself
            if not self._main.last_commit:
                self.snapshots.remove_all()
        self._store.close()


def _parts_of(one: Tracked) -> list[tuple[int, int]]:
    """(first element, how many) of the parts that a parameter lies in."""
    elements = one.elements
    return [(first, min(PART_ELEMENTS, elements - first)) for first in range(0, elements, PART_ELEMENTS)]


def _store_for(tensors: list[Tensor], options: Named, host_memory: int | None, tier_name: str | None) -> Store:
    """Frozen tensors, which are read and written between steps and never leased."""
    place = "nvme" if options["states"] == "nvme" else "cpu"
    wanted: Named = {name: options[name] for name in ("threads", "io_engine", "no_checksums") if name in options}
    if place == "nvme":
        wanted.update(nvme_paths=options["nvme_paths"], tier_name=f"{tier_name}-average" if tier_name else "average")
    wanted.update(parameters=place, states=place)
    device, host = 4 * max(tensor.elements for tensor in tensors), host_memory or _LEAST_HOST_BYTES
    for _ in range(4):
        try:
            plan(tensors, SimulatedDevice(device), host_bytes=host, **wanted)
            break
        except CapacityError as error:
            if error.plan is None or (host_memory and error.plan.host_least_bytes > host):
                raise
            device = max(device, error.plan.device_least_bytes)
            host = max(host, error.plan.host_least_bytes)
    return Store(tensors, SimulatedDevice(device), host_bytes=host, **wanted)


def _require_settings(decay: float | None, every: int) -> None:
    what = "cannot average the weights"
    if decay is not None and not 0 <= decay <= 1:
        raise ConfigError(what, "decay", f"it is {decay}", "give a number from 0 to 1, or None for the equal average")
    if not isinstance(every, int) or every < 0:
        raise ConfigError(what, "every", f"it is {every!r}", "give a number of steps, or 0 for update_parameters()")
