"""A trained model on its way out and in, and optimizer states in torch's layout: a part of a tensor at a time."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch

from .... import safetensors
from ....errors import ConfigError, MisuseError
from ....optimizer_kinds import optimizer_kinds
from ....system import failures
from ...inner import is_wrapper
from ...local import local_of
from ...mapped import MOST_IN_MEMORY, mapped_empty
from ...optimizer.settings import settings_of
from ...optimizer.state_view import parsed_state
from ..alike import agree, within
from ..replicas import sum_of

_PART_ELEMENTS = 4 << 20
_SAVE = "cannot save the weights"
_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
}
# Codes of quantised weights are none of these, also those of 8 bits with a point: no `dtype` converts them.
NUMBERS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
TORCH_TYPES = {name: dtype for dtype, name in _DTYPES.items()}


if TYPE_CHECKING:
    from torch import nn

    from ...._types import Buffer, Named, Path
    from ....store import Store
    from ...optimizer.state_store import Parsed
    from ..optimizer import EngineOptimizer
    from ..placeholders import Tracked
    from ..values import Values
    from .averages import Average
    from .saved_tensors import SavedTensor, SavedTensors

    FoundWeight = tuple[torch.Tensor, SavedTensor]
    FoundMoment = tuple[Tracked, str, SavedTensor]


class Entries:
    """What a file of safetensors is written from."""

    def __init__(self) -> None:
        self.tensors: list[safetensors.TensorInfo] = []
        self._parts: dict[str, Callable[[], Iterable[torch.Tensor]]] = {}

    def add(
        self, name: str, dtype: torch.dtype, shape: Iterable[int], parts: Callable[[], Iterable[torch.Tensor]]
    ) -> None:
        if dtype not in _DTYPES:
            raise ConfigError("cannot save a tensor", name, f"safetensors has no type for {dtype}", "convert it before")
        self.tensors.append((name, _DTYPES[dtype], tuple(shape)))
        self._parts[name] = parts

    def values(self, name: str) -> Iterator[Buffer]:
        for part in self._parts[name]():
            yield (ctypes.c_char * part.nbytes).from_address(part.data_ptr()) if part.numel() else b""


class Exports:
    def __init__(
        self, model: nn.Module, store: Store, values: Values, tracked: Sequence[Tracked], has_momentum: bool
    ) -> None:
        """`has_momentum`: of SGD a moment is kept."""
        self._model = model
        self._store = store
        self._values = values
        self._tracked = self.tracked = tracked
        self._has_momentum = has_momentum
        self.average: Average | None = None  # of the engine
        self._of = {id(one.parameter): one for one in tracked}

    # --- Weights ---

    def weights(
        self,
        dtype: torch.dtype | None = None,
        leave_out_frozen: bool = False,
        averaged: bool = False,
    ) -> Entries:
        """Parameters in their type or in `dtype`, trained ones that come in fp32 as masters or as the average has them, and
        the buffers of state dicts. A tied parameter is there once, under its first name."""
        entries, seen = Entries(), set()
        for name, tensor in named_tensors(self._model):
            one = self._of.get(id(tensor))
            if id(tensor) in seen or (
                leave_out_frozen
                and isinstance(tensor, torch.nn.Parameter)
                and not (one is not None and one.is_trainable)
            ):
                continue
            seen.add(id(tensor))
            require_one_tensor(tensor, name)
            if one is not None and one.words is not None:
                entries.add(name, tensor.dtype, tensor.shape, self._parts_of_words(one))
                continue
            wanted = dtype if dtype is not None and tensor.dtype in NUMBERS else tensor.dtype
            if one is None:
                entries.add(name, wanted, tensor.shape, _parts_of_tensor(tensor, wanted))
                continue
            is_master = one.is_trainable and wanted == torch.float32
            wanted = torch.float32 if is_master else wanted
            what = "average" if averaged and one.is_trainable else "master" if is_master else "parameter"
            entries.add(name, wanted, tensor.shape, self._parts(one, what, wanted))
        return entries

    def _parts(self, one: Tracked, what: str, dtype: torch.dtype) -> Callable[[], Iterator[torch.Tensor]]:
        def read() -> Iterator[torch.Tensor]:
            for first in range(0, one.elements, _PART_ELEMENTS):
                count = min(_PART_ELEMENTS, one.elements - first)
                part = torch.empty(count, dtype=torch.float32)
                if what == "average":
                    cast("Average", self.average).read_part(one, first, count, part)
                else:
                    self._store.read_values(one.number, what, first, count, part.data_ptr())
                yield part.to(dtype)

        return read

    def _parts_of_words(self, one: Tracked) -> Callable[[], Iterator[torch.Tensor]]:
        def read() -> Iterator[torch.Tensor]:
            yield self._values.read(one).contiguous()

        return read

    def save_safetensors(
        self, folder: Path, dtype: torch.dtype | str | None = None, shard_bytes: int = 5 << 30, averaged: bool = False
    ) -> None:
        folder = folder_of(folder, _SAVE)
        self._values.come_to_rest("save the weights")
        if averaged:
            self._require_average()
        entries = self.weights(_dtype_of(dtype), averaged=averaged)
        safetensors.write_sharded(folder, entries.tensors, entries.values, shard_bytes, {"format": "pt"})
        for name in ("config", "generation_config"):
            config: Any = getattr(self._model, name, None)
            if hasattr(config, "save_pretrained"):
                with failures("cannot save the model's configuration", folder):
                    config.save_pretrained(folder)

    def _require_average(self) -> None:
        if self.average is None:
            raise MisuseError(
                "cannot save the average", "the engine", "it has none", "call engine.averaged(decay) before training"
            )
        self.average.require_values("save the average")

    def save_16bit(self, folder: Path, name: object, leave_out_frozen: bool) -> bool:
        folder = folder_of(folder, _SAVE)
        if not isinstance(name, str) or not name:
            raise ConfigError(_SAVE, "save_filename", f"it is {name!r}", "give a name for the file")
        self._values.come_to_rest("save the weights")
        half = {"bf16": torch.bfloat16, "fp16": torch.float16}
        types = {one.type for one in self._tracked if one.is_managed} & set(half)
        entries = self.weights(
            half[types.pop()] if len(types) == 1 else torch.bfloat16, leave_out_frozen=leave_out_frozen
        )
        safetensors.write(os.path.join(folder, name), entries.tensors, entries.values, {"format": "pt"})
        return True

    # --- Optimizer states ---

    def moment_whats(self, kind: str) -> tuple[str, ...]:
        return ("first_moment", "second_moment")[: self.moment_count(kind)]

    def moment_count(self, kind: str) -> int:
        row = optimizer_kinds()[kind]
        return len(row.moments) if not row.has_momentum or self._has_momentum else 0

    def optimizer_state_dict(self, optimizer: EngineOptimizer) -> Named:
        groups, state, number = [], {}, 0
        steps = self._steps()
        trained = [one for one in self._tracked if one.is_trainable]
        size = 4 * sum(one.elements * self.moment_count(optimizer.kinds[one.group]) for one in trained)
        for kind, group in zip(optimizer.kinds, optimizer.param_groups):
            first, row = number, optimizer_kinds()[kind]
            for parameter in group["params"]:
                one = self._of[id(parameter)]
                if steps[one.number]:
                    state[number] = {"step": torch.tensor(float(steps[one.number]))} if row.counts_steps else {}
                    for name, what in zip(row.moments, self.moment_whats(kind)):
                        out = (
                            mapped_empty(parameter.shape, torch.float32, self._values.folder)
                            if size > MOST_IN_MEMORY
                            else None
                        )
                        state[number][name] = self._values.read(one, what, out=out)
                number += 1
            groups.append(
                {
                    **{name: value for name, value in group.items() if name != "params"},
                    "params": list(range(first, number)),
                }
            )
        return {"state": state, "param_groups": groups}

    def load_optimizer_state_dict(self, optimizer: EngineOptimizer, state: Any) -> None:
        what = "cannot load an optimizer state"
        is_state = isinstance(state, dict) and isinstance(state.get("state"), dict)
        groups = state.get("param_groups", []) if is_state else []
        if not is_state or not all(isinstance(group, dict) and "params" in group for group in groups):
            raise ConfigError(
                what, "state", "it has no states and groups of an optimizer", "load what state_dict() of one gave"
            )
        sizes = [len(group["params"]) for group in groups], [len(group["params"]) for group in optimizer.param_groups]
        if sizes[0] != sizes[1]:
            raise ConfigError(
                what,
                "param_groups",
                f"its groups have {sizes[0]} parameters, and those here {sizes[1]}",
                "load the state of an optimizer with the same parameters in the same groups",
            )
        parsed = {}
        together = [{**group, **saved} for group, saved in zip(optimizer.param_groups, groups)]
        optimizer.require_kinds(together, what, "load the state of an optimizer with the same groups")
        for kind, group, saved in zip(optimizer.kinds, optimizer.param_groups, groups):
            settings_of(optimizer.kind, {**group, **saved})
            row = optimizer_kinds()[kind]
            for parameter, key in zip(group["params"], saved["params"]):
                one, found = self._of[id(parameter)], state["state"].get(key, {})
                parsed[one] = parsed_state(row.moments, row.counts_steps, parameter, found, one.name)
        self._values.come_to_rest("load an optimizer state")
        with within(self._store.ranks, "load an optimizer state"):
            agree(self._store.ranks, _facts_of(parsed, groups), what, "let all ranks load the same state")
        steps = self._steps()
        with self._values.replaced_or_lost("a load of an optimizer state"):
            for one, found in parsed.items():
                if found is not None or steps[one.number]:
                    steps[one.number] = self._load_states(one, found, self.moment_whats(optimizer.kinds[one.group]))
            for group, saved in zip(optimizer.param_groups, groups):
                group.update({name: value for name, value in saved.items() if name != "params"})
            self._store.set_tensor_steps(steps)

    def _load_states(self, one: Tracked, found: Parsed | None, whats: Sequence[str]) -> int:
        """Moments, and of a 16-bit parameter what a master adds to it. Returns the number of updates."""
        steps, moments, master = found or (0, [torch.zeros(one.shape)] * len(whats), None)
        for what, values in zip(whats, moments):
            self._values.write(one, values, what)
        if master is not None:
            held = self._values.read(one)
            master = master.detach().to("cpu", torch.float32)
            values = torch.where(master.to(held.dtype) == held, master, held.float())
            self._values.write(one, values)
        return steps

    def _steps(self) -> list[int]:
        """Before the first update this is asked for as well, and costs nothing then."""
        return list(self._store.tensor_steps)

    # --- Checkpoints ---

    def beside(self) -> Entries:
        """Tensors of a state dict that are in no store: buffers, and parameters too small for it that are frozen."""
        entries, seen = Entries(), set()
        for name, tensor in named_tensors(self._model):
            if id(tensor) not in self._of and id(tensor) not in seen:
                seen.add(id(tensor))
                require_one_tensor(tensor, name)
                entries.add(name, tensor.dtype, tensor.shape, _parts_of_tensor(tensor, tensor.dtype))
        return entries

    def names(self) -> list[str]:
        """Of all that a checkpoint has."""
        return [name for name, tensor in named_tensors(self._model) if id(tensor) not in self._of or
                name == self._of[id(tensor)].name]  # fmt: skip

    def trained_names(self) -> list[str]:
        return [one.name for one in self._tracked if one.is_trainable]

    def matrix_names(self) -> list[str]:
        return [one.name for one in self._tracked if one.is_matrix]

    def weights_of(self, saved: SavedTensors, may_lack_beside: bool) -> list[FoundWeight]:
        """[(tensor of the model, the saved one)]; raises where one does not fit, or where one is not there. Those that
        are in no store may lack in a checkpoint of another program."""
        found = []
        for name, tensor in named_tensors(self._model):
            one = self._of.get(id(tensor))
            if one is None and may_lack_beside and name not in saved:
                continue
            if one is None or name == one.name:
                found.append((tensor, self._found(saved, name, tensor)))
        return found

    def moments_of(self, saved: SavedTensors, kinds: Sequence[str]) -> list[FoundMoment]:
        """[(tracked parameter, which moment, the saved one)]; raises where one does not fit. `kinds` are the groups'."""
        return [
            (one, what, self._found(saved, f"{one.name}.{what}", one.parameter))
            for one in self._tracked
            for what in (self.moment_whats(kinds[one.group]) if one.is_trainable else ())
        ]

    def load_weights(self, weights: Iterable[FoundWeight]) -> None:
        for tensor, saved in weights:
            one = self._of.get(id(tensor))
            if one is None:
                tensor.data.copy_(saved.read(0, tensor.numel()).view(tensor.shape))
            else:
                self._load(one, None, saved)

    def load_moments(self, moments: Iterable[FoundMoment], steps: Mapping[str, int]) -> None:
        for one, what, saved in moments:
            self._load(one, what, saved)
        counts = self._steps()
        for one in self._tracked:
            counts[one.number] = steps.get(one.name, 0)
        self._store.set_tensor_steps(counts)

    def _load(self, one: Tracked, what: str | None, saved: SavedTensor) -> None:
        """A part at a time, where the store holds all of it."""
        count = one.elements if one.words is None else one.words.count
        if not one.is_managed:
            values = saved.read(0, count).view(one.shape)
            return self._values.write(one, values, what)
        what = what or ("master" if one.is_trainable else "parameter")
        for first in range(0, count, _PART_ELEMENTS):
            part = saved.read(first, min(_PART_ELEMENTS, count - first)).float()
            self._store.write_values(one.number, part.data_ptr(), what=what, first=first, count=part.numel())

    def _found(self, saved: SavedTensors, name: str, tensor: torch.Tensor) -> SavedTensor:
        one = saved.get(name)
        here = self._of.get(id(tensor))
        words = here.words if here is not None else None
        shape, reason = tuple(local_of(tensor).shape), ""
        if one is None:
            reason = "it is not there"
        elif words is not None:
            if one.dtype != "F32" or one.shape != (words.count,):
                reason = f"it has {one.dtype} {one.shape}, and the model {words.count} words of bytes"
        elif (one.shape or (1,)) != (shape or (1,)):  # a store has no tensors without dimensions
            reason = f"its shape is {one.shape}, and that of the model {shape}"
        else:
            dtype = TORCH_TYPES.get(one.dtype)
            fits = dtype is not None and (
                dtype.is_floating_point if tensor.is_floating_point() else dtype == tensor.dtype
            )
            reason = "" if fits else f"its type is {one.dtype}, and that of the model {tensor.dtype}"
        if reason or one is None:
            raise ConfigError("cannot load a checkpoint", name, reason, "load a checkpoint of the same model")
        return one


def _facts_of(parsed: Mapping[Tracked, Parsed | None], groups: Iterable[Named]) -> Named:
    """Of an optimizer state, by name: all that is loaded."""
    facts: Named = {}
    for one, found in parsed.items():
        steps, moments, master = found or (0, [], None)
        values = [tensor for tensor in (*moments, master) if tensor is not None]
        facts[f"the state of {one.name}"] = f"{steps} steps, values {sum_of(values)}" if found else "none"
    for number, group in enumerate(groups):
        facts[f"group {number}"] = {name: value for name, value in sorted(group.items()) if name != "params"}
    return facts


def folder_of(folder: object, what: str) -> str:
    """A folder that a caller names, as a text. "" would be the current folder, which nobody has named then."""
    if isinstance(folder, (str, os.PathLike)) and isinstance(os.fspath(folder), str) and os.fspath(folder):
        return os.fspath(folder)
    raise ConfigError(what, "the folder", f"it is {folder!r}", 'name a folder; "." is the current one')


def require_one_tensor(tensor: torch.Tensor, name: str) -> None:
    if is_wrapper(tensor):
        raise ConfigError(
            _SAVE,
            name,
            f"it is a {type(tensor).__name__}, which is made of several tensors",
            "save what is trained, as PEFT's save_pretrained does, or dequantise the model before",
        )


def named_tensors(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    for prefix, module in model.named_modules(remove_duplicate=False):
        prefix = f"{prefix}." if prefix else ""
        for name, tensor in module._parameters.items():
            if tensor is not None:
                yield prefix + name, tensor
        for name, tensor in module._buffers.items():
            if tensor is not None and name not in module._non_persistent_buffers_set:
                yield prefix + name, tensor


def _parts_of_tensor(tensor: torch.Tensor, dtype: torch.dtype) -> Callable[[], Iterable[torch.Tensor]]:
    return lambda: [tensor.detach().to(dtype).contiguous().cpu()]


def _dtype_of(dtype: torch.dtype | str | None) -> torch.dtype | None:
    if isinstance(dtype, str):
        words = {
            "fp32": torch.float32,
            "float32": torch.float32,
            "bf16": torch.bfloat16,
            "bfloat16": torch.bfloat16,
            "fp16": torch.float16,
            "float16": torch.float16,
        }
        if dtype not in words:
            raise ConfigError(
                "cannot save the weights",
                f"dtype {dtype!r}",
                "there is no such type",
                f"give one of torch's, or one of {', '.join(words)}",
            )
        return words[dtype]
    return dtype
