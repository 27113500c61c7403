"""Values of a model whose parameters are in a store: state dicts, loading, weight surgery and copies."""

from __future__ import annotations

import contextlib
import copy
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, SupportsIndex, cast

import torch
from torch import nn

from ...errors import CancelledError, ConfigError, CorruptError, Error, MisuseError, did_you_mean
from ..emptied import UNWRITTEN
from ..inner import version_of
from ..local import as_spread, local_of, local_values
from ..mapped import MOST_IN_MEMORY, mapped_empty
from .alike import within
from .away import AwayParameter
from .layout import OWN_ATTRIBUTES
from .passes.hooks import refuse_to_pickle
from .passes.read_watch import Watched
from .placeholders import acquire, inner_of, release
from .replicas import require_rank, require_same_values, settle_values

if TYPE_CHECKING:
    from ..._types import Named
    from ...store import Store
    from .passes.hooks import Hooks
    from .passes.passes import Passes
    from .placeholders import Tracked
    from .words import Words


class Values:
    """Reads and writes parameters, masters and moments, one tensor at a time."""

    def __init__(
        self,
        model: nn.Module,
        store: Store,
        passes: Passes,
        tracked: Sequence[Tracked],
        hooks: Hooks,
        folder: str | None,
    ) -> None:
        self._store = store
        self._passes = passes
        self._hooks = hooks
        self.folder = folder
        self._exports: dict[Tracked, tuple[weakref.ref[Any], weakref.ref[torch.Tensor]]] = {}
        self._own: dict[
            int, dict[str, Tracked]
        ] = {}  # by the id of a module, its tracked parameters by their names there
        self._of = {id(one.parameter): one for one in tracked}
        self._by_name = {name: one for one in tracked for name in one.names}
        self._small = _by_type([one for one in tracked if not one.is_managed])
        self._known = self._small_values()  # as the store knows them
        managed = sum(one.elements * one.parameter.element_size() for one in tracked if one.is_managed)
        self._export_to_files = managed > MOST_IN_MEMORY
        self.lost: Error | None = None  # an error: a load has left parts of two states
        self._attach(model)

    @contextlib.contextmanager
    def replaced_or_lost(self, what: str) -> Iterator[None]:
        """What fails within the block leaves a part of one state and a part of another."""
        self.lost = CancelledError(
            "cannot go on",
            "the engine",
            f"{what} did not end, and a part of the state is that of before",
            "load a whole checkpoint, with its optimizer states, or make another engine",
        )
        try:
            yield
        except Error:
            raise
        except Exception as error:
            raise CorruptError(
                f"{what} did not end",
                "the engine",
                f"{type(error).__name__}: {error}",
                "it has no whole state now: load another checkpoint",
            ) from error
        self.lost = None

    def require_whole(self) -> None:
        if self.lost is not None:
            raise self.lost

    def come_to_rest(self, what: str, is_load: bool = False) -> None:
        """Between steps, as reading and writing states wants it; see Passes. The store has all that was written to
        small parameters then. With `is_load` the whole state is about to be replaced."""
        if not is_load:
            self.require_whole()
        self._passes.come_to_rest(what)
        self.take_small(is_between_steps=True)

    # --- Single tensors ---

    def read(
        self, one: Tracked, what: str = "parameter", dtype: torch.dtype | None = None, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The values as a new tensor, of the parameter's type unless `dtype` says another."""
        if one.words is not None:
            return self._read_words(one, one.words)
        dtype = dtype or (one.parameter.dtype if what == "parameter" else torch.float32)
        out = torch.empty(one.shape, dtype=dtype) if out is None else out
        if what == "parameter" and not one.is_managed:
            return out.copy_(local_of(one.parameter.detach()))
        if what == "parameter" and self._passes.step.has_gradients:
            return self._read_in_step(one, out)
        self._passes.come_to_rest("read values")
        if not one.is_managed:
            self._take_one(one)
        values = out if out.dtype == torch.float32 else torch.empty(out.shape, dtype=torch.float32)
        self._store.read_values(one.number, what, out=values.data_ptr(), count=values.numel())
        return values if values is out else out.copy_(values)

    def _read_words(self, one: Tracked, words: Words) -> torch.Tensor:
        if self._passes.step.has_gradients:
            with self._leased_in_step(one):
                return words.over(one.memory.to("cpu", copy=True), one.parameter)
        self._passes.come_to_rest("read values")
        out = torch.empty(words.bytes, dtype=torch.uint8)
        if words.bytes > MOST_IN_MEMORY and self._export_to_files:
            out = mapped_empty(out.shape, out.dtype, self.folder)
        self._store.read_values(one.number, out=out.data_ptr(), count=words.count)
        return words.over(out, one.parameter)

    def _read_in_step(self, one: Tracked, out: torch.Tensor) -> torch.Tensor:
        with self._leased_in_step(one):
            return out.copy_(local_of(one.parameter.detach()))

    @contextlib.contextmanager
    def _leased_in_step(self, one: Tracked) -> Iterator[None]:
        self._passes.turn.require("read values")
        key = f"{one.name}/read{self._passes.tick()}".encode()
        lease = self._store.open_lease(key, self._passes.step.reading_kind, self._store.ids([one.number]), 1)
        acquire([one])
        try:
            yield
        finally:
            release([one])
            self._store.close_lease(lease)

    def write(self, one: Tracked, values: torch.Tensor, what: str | None = None) -> None:
        """Writes a tensor's values: those of its parameter and master, or of a moment. All ranks write the same
        values, and the caller has compared them."""
        self._passes.come_to_rest("write values")
        if one.words is not None:
            packed = one.words.packed(values, one.name)
            self._store.write_values(one.number, packed.data_ptr(), count=one.words.count)
            return
        values = values.detach().to(device="cpu", dtype=torch.float32).contiguous()
        if not one.is_managed:
            self._take_one(one)
            if what is None:
                one.parameter.data.copy_(values)
        what = what or ("master" if one.is_trainable else "parameter")
        self._store.write_values(one.number, values.data_ptr(), what=what, count=values.numel())
        if not one.is_managed:
            self._note_known(one)

    def read_gradient(self, one: Tracked) -> torch.Tensor:
        """In fp32 the sum over all micro-batches of the step and all ranks, of the scaled loss. All ranks call it."""
        self._passes.end_gradients("read gradients")
        out = torch.empty(one.shape)
        self._store.read_values(one.number, "gradient", out=out.data_ptr(), count=out.numel())
        return out

    def write_gradient(self, one: Tracked, values: torch.Tensor) -> None:
        """Takes the place of that. All ranks write the same values, and the caller has compared them."""
        self._passes.end_gradients("write gradients")
        values = values.detach().to(device="cpu", dtype=torch.float32).contiguous()
        self._store.write_values(one.number, values.data_ptr(), "gradient", count=values.numel())

    # --- Small parameters, which lie in torch's memory, where anyone may write them ---

    def small_were_updated(self) -> None:
        self._known = self._small_values()

    def _small_values(self) -> list[torch.Tensor]:
        """The bits of all small parameters, by type."""
        return [torch.cat(values) for _, values in self._small.values()]

    def take_small(self, is_between_steps: bool) -> None:
        """What has been written to small parameters becomes their masters' value."""
        for ones, _ in self._small.values():
            for one in ones:
                self._follow(one)
        found = self._small_values()
        for (ones, _), values, known in zip(self._small.values(), found, self._known):
            if not torch.equal(values, known):
                self._take_written(ones, values, known, is_between_steps)
        self._known = found

    def _take_written(
        self, ones: list[Tracked], values: torch.Tensor, known: torch.Tensor, is_between_steps: bool
    ) -> None:
        sizes = [one.elements for one in ones]
        for one, new, old in zip(ones, values.split(sizes), known.split(sizes)):
            if not torch.equal(new, old):
                if not is_between_steps:
                    raise MisuseError(
                        "cannot update",
                        one.name,
                        "it was written within the step",
                        "change parameters between optimizer.step() and the next forward pass",
                    )
                self._hand_on(one)

    def _take_one(self, one: Tracked) -> None:
        """take_small() between steps, for one alone."""
        self._follow(one)
        place, first, count = self._place_of(one)
        if not torch.equal(_bits(one.real), self._known[place][first : first + count]):
            self._hand_on(one)
            self._note_known(one)

    def _hand_on(self, one: Tracked) -> None:
        master = one.real.float().contiguous()
        self._store.write_values(one.number, master.data_ptr(), what="master", count=master.numel())

    def _note_known(self, one: Tracked) -> None:
        place, first, count = self._place_of(one)
        self._known[place][first : first + count] = _bits(one.real)

    def _place_of(self, one: Tracked) -> tuple[int, int, int]:
        """(which of the types, the first element there, how many)"""
        return list(self._small).index(one.type), one.first_small, one.real.numel()

    def _follow(self, one: Tracked) -> None:
        """share_memory_() moves what a tensor has in memory, and frees where it was; parameter.data = ... sets
        another tensor."""
        address = one.real.data_ptr()
        if address != one.address:
            self._store.move_tensor(one.number, address)
            one.address = address
        if one.parameter.data_ptr() != address:
            self._take_home(one)

    def _take_home(self, one: Tracked) -> None:
        moved = one.parameter.data
        if moved.dtype != one.real.dtype or moved.shape != one.real.shape:
            raise MisuseError(
                "cannot go on with a model",
                one.name,
                f"it has become {moved.dtype} of shape {tuple(moved.shape)}",
                "convert models before terrace.initialize",
            )
        one.real.copy_(moved)
        one.parameter.data = one.real

    # --- Several at a time ---

    def find(self, parameters: Any) -> list[Tracked]:
        """The tracked ones of a parameter, a name, a module, or of a list of these."""
        found = []
        for one in _listed(parameters):
            if isinstance(one, str) and one not in self._by_name:
                raise ConfigError(
                    "cannot find a parameter", one, "there is none of this name", did_you_mean(one, self._by_name)
                )
            tracked = self._by_name[one] if isinstance(one, str) else self._of.get(id(one))
            if tracked is not None and tracked not in found:
                found.append(tracked)
        return found

    @contextlib.contextmanager
    def gathered(self, parameters: Any, write: bool = False, modifier_rank: int | None = None) -> Iterator[None]:
        """Within the block parameters have their values; with `write` what they have at its end is kept: what they have
        on `modifier_rank`, or what they have on all ranks alike."""
        ranks = self._store.ranks
        if modifier_rank is not None:
            require_rank(ranks, modifier_rank)
        self._passes.come_to_rest("gather parameters")
        found = sorted(self.find(parameters), key=lambda one: one.number)
        chosen = [one for one in found if one.is_managed]
        try:
            with within(ranks, "gather parameters"):
                for one in chosen:
                    one.show(self.read(one))
                    one.is_gathered = True
                    one.leases += 1
            yield
            values = [
                one.parameter.detach() if one.words is not None else inner_of(one.parameter).data for one in chosen
            ]
        finally:
            for one in chosen:
                if one.is_gathered:
                    one.is_gathered = False
                    one.version = version_of(one.parameter)  # it may be written to here
                    release([one])
        if not write:
            return
        written = dict(zip(chosen, values))
        replicas = {name: one.data for name, one in self._replicas_of(parameters)}
        settle_values(
            ranks,
            {**{one.name: written.get(one, inner_of(one.parameter).data) for one in found}, **replicas},
            modifier_rank,
        )
        for one, value in written.items():
            self.write(one, value)

    def _replicas_of(self, parameters: Any) -> Iterator[tuple[str, torch.Tensor]]:
        """Those that are in no store, and whole on every rank."""
        for number, one in enumerate(_listed(parameters)):
            if isinstance(one, torch.Tensor) and id(one) not in self._of:
                yield f"number {number} of those, of shape {tuple(one.shape)}", one

    # --- Hooks ---

    def _attach(self, model: nn.Module) -> None:
        for module in model.modules():
            module.__dict__["__deepcopy__"] = Copier(self, weakref.ref(module))
            if self._store.ranks is not None:
                self._hooks.add(module._register_load_state_dict_pre_hook(self._require_alike, with_module=True))
            own = {name: self._of[id(one)] for name, one in module._parameters.items() if id(one) in self._of}
            if own:
                self._own[id(module)] = own
                self._hooks.add(module._register_state_dict_hook(self._export))
                self._hooks.add(module._register_load_state_dict_pre_hook(self._before_load, with_module=True))
                self._hooks.add(module.register_load_state_dict_post_hook(self._after_load))

    def detach(self, model: nn.Module) -> None:
        for module in model.modules():
            module.__dict__.pop("__deepcopy__", None)

    def _export(self, module: nn.Module, state: Named, prefix: str, metadata: object) -> None:
        """Values for a state dict; a tied parameter's are the same tensor under all of its names."""
        for name, one in self._own[id(module)].items():
            if one.is_managed and prefix + name in state:
                made = self._exports.get(one)
                value = made[1]() if made is not None and made[0]() is state else None
                if value is None:
                    out = None
                    if self._export_to_files and one.words is None:
                        out = mapped_empty(one.shape, one.parameter.dtype, self.folder)
                    value = self.read(one, out=out)
                    self._exports[one] = (weakref.ref(state), weakref.ref(value))
                state[prefix + name] = as_spread(one.parameter, value)

    def _require_alike(self, module: nn.Module, state: Named, prefix: str, *_: object) -> None:
        """Before anything is loaded: the module that is asked to has all of it. All ranks load the same."""
        if prefix:
            return
        self._passes.come_to_rest("load a state dict")
        with within(self._store.ranks, "load a state dict"):
            tensors = {name: one for name, one in state.items() if isinstance(one, torch.Tensor)}
            require_same_values(self._store.ranks, tensors, "cannot load a state dict")

    def _before_load(
        self,
        module: nn.Module,
        state: Named,
        prefix: str,
        metadata: object,
        strict: bool,
        missing: list[str],
        unexpected: list[str],
        errors: list[str],
    ) -> None:
        """A managed parameter gets memory that torch can load into."""
        self._passes.come_to_rest("load a state dict")
        for name, one in self._own[id(module)].items():
            if one.is_managed and prefix + name in state:
                one.show(_room_for(one))
                one.values = version_of(one.parameter)

    def _after_load(self, module: nn.Module, incompatible: object) -> None:
        for name, one in self._own[id(module)].items():
            parameter, expected = cast(nn.Parameter, module._parameters[name]), one.values
            one.values = None
            if parameter is not one.parameter:  # assign=True
                module._parameters[name] = one.parameter
                self._finish_load(one, parameter)
            elif expected is not None and version_of(parameter) != expected:
                self._finish_load(one, parameter.data if one.words is None else parameter.detach())
            elif expected is not None:
                one.put_away()

    def _finish_load(self, one: Tracked, values: torch.Tensor) -> None:
        if one.is_managed:
            one.put_away()
        self.write(one, local_values(one.parameter, values))

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        refuse_to_pickle()


def _listed(parameters: Any) -> list[Any]:
    """Parameters and names."""
    if isinstance(parameters, nn.Module):
        return list(parameters.parameters())
    if isinstance(parameters, (str, torch.Tensor)):
        return [parameters]
    if isinstance(parameters, Iterable):
        return [item for one in parameters for item in _listed(one)]
    raise ConfigError(
        "cannot find a parameter",
        repr(parameters),
        f"it is of type {type(parameters).__name__}",
        "give a parameter, a name, a module, or a list of these",
    )


def _by_type(small: Iterable[Tracked]) -> dict[str, tuple[list[Tracked], list[torch.Tensor]]]:
    """{type: (parameters, their bits as flat integers)}"""
    found: dict[str, tuple[list[Tracked], list[torch.Tensor]]] = {}
    counts: dict[str, int] = {}
    for one in small:
        one.address = one.real.data_ptr()
        ones, values = found.setdefault(one.type, ([], []))
        one.first_small = counts.get(one.type, 0)
        counts[one.type] = one.first_small + one.real.numel()
        ones.append(one)
        values.append(_bits(one.real))
    return found


def _room_for(one: Tracked) -> torch.Tensor:
    """Memory of its own, to be loaded into."""
    if one.words is None:
        return torch.full(one.shape, float("nan"), dtype=one.parameter.dtype)
    return one.words.over(torch.full((one.words.bytes,), UNWRITTEN, dtype=torch.uint8), one.parameter)


def _bits(values: torch.Tensor) -> torch.Tensor:
    return values.view(-1).view(torch.int32 if values.element_size() == 4 else torch.int16)


def has_engine(model: nn.Module) -> bool:
    return any(isinstance(module.__dict__.get("__deepcopy__"), Copier) for module in model.modules())


class Copier:
    """Makes copy.deepcopy of a module give a plain one with real values."""

    def __init__(self, values: Values, module: Callable[[], nn.Module | None]) -> None:
        self._values = values
        self._module = module

    def __call__(self, memo: dict[int, Any]) -> nn.Module:
        module = cast(nn.Module, self._module())  # which has this
        values = self._values
        for parameter in module.parameters():
            one = values._of.get(id(parameter))
            if one is not None and id(parameter) not in memo:
                memo[id(parameter)] = self._copied(one, memo)
        made = module.__class__.__new__(module.__class__)
        memo[id(module)] = made
        for name, value in module.__dict__.items():
            if isinstance(value, Watched):
                value = value.stands_for
            if name in OWN_ATTRIBUTES or value is None and name == "forward":
                continue
            made.__dict__[name] = copy.deepcopy(self._plain(value) if "hooks" in name else value, memo)
        return made

    def _copied(self, one: Tracked, memo: dict[int, Any]) -> nn.Parameter:
        found = self._values.read(one)
        if one.words is None or type(one.parameter) is AwayParameter:
            return nn.Parameter(found, one.parameter.requires_grad)
        one.show(found)  # a class of its own copies itself
        try:
            made: nn.Parameter = copy.deepcopy(one.parameter, memo)
            if one.alias is not None:
                memo[id(one.alias)] = made.data
            return made
        finally:
            one.show(one.real) if one.leases else one.put_away()

    def _plain(self, hooks: Any) -> Any:
        if not isinstance(hooks, dict):
            return hooks
        return type(hooks)((key, hook) for key, hook in hooks.items() if not self._values._hooks.are_own(key))
