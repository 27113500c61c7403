"""The inputs of what torch.utils.checkpoint computes again: from forward to backward they are in the store.

Nothing else is taken. The two functions of torch in which a checkpoint saves its inputs are wrapped, for the checkpoints
of a model that an engine has, and torch's hooks for saved tensors are in force within them alone: so all other tensors
are saved as ever, with torch's check that nobody changes them in place. A checkpoint within another one, or within hooks
of the program's, is left alone, and so is what is computed again.

A tensor leaves with a copy that runs beside the next unit, and comes back ahead of the unit before it. Its block in the
store lives as long as the graph has it, and goes with it, whatever has become of the pass.
"""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, cast

import torch
from torch.utils import checkpoint as of_torch

from ...._lib import in_words_of_the_configuration
from ....store.saved import SavedActivations
from .open_step import STEP

if TYPE_CHECKING:
    from ....store import Store
    from .passes import Passes

# What is smaller is not worth a copy: masks, positions and sizes.
LEAST_BYTES = 1 << 20

_task = torch._C._current_graph_task_id
_top_hooks = torch._C._autograd._top_saved_tensors_default_hooks


class Saved:
    """A tensor in the store. It is held by the graph that saved it."""

    __slots__ = ("_home", "number", "group", "size", "stride", "dtype", "device", "version", "origin", "tensor", "ahead",
                 "is_taken", "__weakref__")  # fmt: skip

    def __init__(self, home: SavedInputs, tensor: torch.Tensor, number: int, group: int) -> None:
        self._home = home
        self.number = number
        self.group = group
        self.size, self.stride = tensor.size(), tensor.stride()
        self.dtype, self.device = tensor.dtype, tensor.device
        self.version = tensor._version
        self.origin = weakref.ref(tensor)
        self.tensor: torch.Tensor | None = tensor.detach()  # until its copy has ended; the graph holds this object
        self.ahead: torch.Tensor | None = None  # on its way back
        self.is_taken = False

    def __del__(self) -> None:
        # The store may be in another call. What a copy still reads or writes stays until it has been dropped.
        self._home.released.append((self.number, self.tensor, self.ahead))

    def is_of(self, tensor: torch.Tensor) -> bool:
        return self.origin() is tensor and self.version == tensor._version

    def require_unchanged(self) -> None:
        origin = self.origin()
        if origin is not None:
            _require_version(origin, self.version)


class Untaken:
    """A tensor that stays where it is, with torch's check."""

    __slots__ = ("tensor", "version")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor, self.version = tensor, tensor._version


class SavedInputs:
    """Those of the passes over one model. `close()` ends the wrapping."""

    def __init__(self, store: Store, passes: Passes) -> None:
        self._saved = SavedActivations(store)
        self._passes = weakref.ref(passes)
        self._device = "cpu" if store.cuda_ordinal is None else f"cuda:{store.cuda_ordinal}"
        self.released: deque[tuple[int, torch.Tensor | None, torch.Tensor | None]] = deque()
        self._groups: dict[int, list[weakref.ref[Saved]]] = {}  # what each checkpoint has saved
        self._group = 0
        self._latest: Callable[[], Saved | None] = lambda: None  # whose copy has not been waited for
        _wrap(self)

    def close(self) -> None:
        _unwrap(self)

    def is_here(self) -> bool:
        """Whether a checkpoint that begins now is of this model's forward pass in a step."""
        passes = self._passes()
        return (
            passes is not None
            and bool(passes.leases.forward)
            and passes.step.phase is STEP
            and passes.turn.thread == threading.get_ident()
        )

    def hooks(self) -> torch.autograd.graph.saved_tensors_hooks:
        """For the inputs of one checkpoint."""
        self._group += 1
        return torch.autograd.graph.saved_tensors_hooks(self.pack, self.unpack)

    def tidy(self) -> None:
        """Drops from the store what no graph has any more."""
        if not self.released:
            return
        while self.released:
            gone = [self.released.popleft() for _ in range(len(self.released))]
            self._saved.drop([number for number, *_ in gone])
        for group in [group for group, members in self._groups.items() if not any(one() for one in members)]:
            del self._groups[group]

    # --- Away ---

    def pack(self, tensor: torch.Tensor) -> Saved | Untaken:
        if sys._getframe(1).f_code is _APPLY.__code__ and sys._getframe(2).f_code is not _apply_taken.__code__:
            return Untaken(tensor)  # of a function that the checkpoint's forward pass goes through
        if not self._is_worth_it(tensor):
            return Untaken(tensor)
        return self._known(tensor) or self._save(tensor)

    def _is_worth_it(self, tensor: torch.Tensor) -> bool:
        return (
            type(tensor) is torch.Tensor
            and tensor.layout is torch.strided
            and (tensor.is_floating_point() or tensor.is_complex())
            and str(tensor.device) == self._device
            and not (tensor.is_conj() or tensor.is_neg() or tensor.is_inference())
            and tensor.nbytes >= LEAST_BYTES
            and LEAST_BYTES <= _span_bytes(tensor) <= tensor.nbytes
        )

    def _known(self, tensor: torch.Tensor) -> Saved | None:
        """One that several checkpoints are given, as a mask, is saved once."""
        for members in self._groups.values():
            for member in members:
                one = member()
                if one is not None and one.is_of(tensor):
                    return one
        return None

    def _save(self, tensor: torch.Tensor) -> Saved:
        self.tidy()
        self._end_copy()
        with in_words_of_the_configuration():
            number = self._saved.start_save(tensor.data_ptr(), _span_bytes(tensor))
        saved = Saved(self, tensor, number, self._group)
        self._groups.setdefault(self._group, []).append(weakref.ref(saved))
        self._latest = weakref.ref(saved)
        return saved

    def _end_copy(self) -> None:
        latest = self._latest()
        if latest is None or latest.tensor is None:
            return
        self._saved.finish_save(latest.number)
        latest.require_unchanged()
        latest.tensor = None

    # --- Back ---

    def unpack(self, packed: Saved | Untaken) -> torch.Tensor:
        if isinstance(packed, Untaken):
            _require_version(packed.tensor, packed.version)
            return packed.tensor
        self.tidy()
        packed.require_unchanged()
        packed.is_taken = True
        tensor = packed.tensor  # it has not left
        if tensor is None:
            tensor = self._load(packed)
        for one in self._next_ones(packed.group):
            if not self._begin(one, is_ahead=True):
                break
        return tensor

    def _load(self, saved: Saved) -> torch.Tensor:
        if saved.ahead is None:
            self._begin(saved, is_ahead=False)
        self._saved.finish_load(saved.number)
        tensor, saved.ahead = saved.ahead, None
        return cast(torch.Tensor, tensor)

    def _begin(self, saved: Saved, is_ahead: bool) -> bool:
        tensor = torch.empty_strided(saved.size, saved.stride, dtype=saved.dtype, device=saved.device)
        has_begun = self._saved.start_load(saved.number, tensor.data_ptr(), is_ahead)
        if has_begun:
            saved.ahead = tensor
        return has_begun

    def _next_ones(self, group: int) -> Iterator[Saved]:
        """What is asked for next: what is left of this checkpoint, and of the one before it."""
        before = max((one for one in self._groups if one < group), default=0)
        for chosen in (group, before):
            for member in self._groups.get(chosen, ()):
                one = member()
                if one is not None and not one.is_taken and one.tensor is None and one.ahead is None:
                    yield one


def _span_bytes(tensor: torch.Tensor) -> int:
    """From the first to the last element in memory: what is expanded has less than its size, and what has gaps more."""
    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.size(), tensor.stride()))
    return span * tensor.element_size()


def _require_version(tensor: torch.Tensor, version: int) -> None:
    if tensor._version != version:
        raise RuntimeError(
            "one of the variables needed for gradient computation has been modified by an inplace operation: "
            f"[{tensor.dtype} {list(tensor.shape)}] is at version {tensor._version}; expected version {version} "
            "instead. It is an input of torch.utils.checkpoint"
        )


# --- The wrapped functions of torch ---

_homes: weakref.WeakSet[SavedInputs] = weakref.WeakSet()
_APPLY: Any = torch.autograd.Function.apply.__func__  # type: ignore[attr-defined]
# The class and the function of it: of the kind that does not go through autograd again, in torch from 2.13 on and
# before, and of the other kind.
_places: list[tuple[type, str]] = [
    (getattr(of_torch, owner), name)
    for owner, name in (
        ("_CheckpointFrame", "save_inputs"),
        ("_NoopSaveInputs", "apply"),
        ("CheckpointFunction", "apply"),
    )
    if hasattr(getattr(of_torch, owner, None), name)
]
_originals: dict[type, Any] = {}  # own members of a class before it was wrapped; None: it inherited


def _home() -> SavedInputs | None:
    if _task() != -1 or not torch.is_grad_enabled() or _top_hooks(True) is not None:
        return None
    return next((home for home in _homes if home.is_here()), None)


def _wrap(home: SavedInputs) -> None:
    if not _homes:
        for owner, name in _places:
            _originals[owner] = owner.__dict__.get(name)
            setattr(owner, name, _saving(owner, name))
    _homes.add(home)


def _unwrap(home: SavedInputs) -> None:
    _homes.discard(home)
    if _homes:
        return
    for owner, name in _places:
        original = _originals.pop(owner, None)
        if original is not None:
            setattr(owner, name, original)
        elif name in owner.__dict__:
            delattr(owner, name)


def _saving(owner: type, name: str) -> Any:
    if name == "save_inputs":
        original = owner.__dict__[name]

        def save_inputs(frame: Any, *arguments: Any) -> None:
            home = _home()
            if home is None:
                original(frame, *arguments)
                return
            with home.hooks():
                original(frame, *arguments)

        return save_inputs

    def apply(*arguments: Any, **named: Any) -> Any:
        home = _home()
        inherited = functools.partial(_APPLY, owner)
        if home is None:
            return inherited(*arguments, **named)
        with home.hooks():
            return _apply_taken(inherited, arguments, named)

    return staticmethod(apply)


def _apply_taken(apply: Callable[..., Any], arguments: Any, named: Any) -> Any:
    """Its frame says that what is packed belongs to this call."""
    return apply(*arguments, **named)
