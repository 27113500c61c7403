"""The tensors of a saved state, wherever their bytes lie: in a file of safetensors, or among the states of a store."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import torch

from .... import safetensors
from .export import TORCH_TYPES

if TYPE_CHECKING:
    from ...._types import Named
    from ....saved_state import StateReader

MOMENT_WHATS = ("first_moment", "second_moment")
_PART = re.compile(r"(.+)\[(\d+)\]")


class SavedTensor(NamedTuple):
    """`dtype` is that of safetensors. read(first, count) gives elements as a flat tensor of some type."""

    dtype: str
    shape: tuple[int, ...]
    read: Callable[[int, int], torch.Tensor]


SavedTensors = dict[str, SavedTensor]


def tensors_in_file(state: StateReader, file: str) -> SavedTensors:
    """Of a file of safetensors."""
    entries, _ = safetensors.entries_of(
        os.path.join(state.path, file), state.size(file), lambda offset, count: bytes(state.read(file, offset, count))
    )

    def reader(entry: safetensors.Entry) -> Callable[[int, int], torch.Tensor]:
        def read(first: int, count: int) -> torch.Tensor:
            part = torch.empty(count, dtype=TORCH_TYPES[entry.dtype])
            size = part.element_size()
            if count:
                state.read_into(file, entry.offset + first * size, count * size, part.data_ptr())
            return part

        return read

    return {name: SavedTensor(entry.dtype, entry.shape, reader(entry)) for name, entry in entries.items()}


class StoredTensor:
    """One of the tensors that the facts of a checkpoint list, or several that are the rows of one."""

    def __init__(self, listed: Named) -> None:
        self.trained: bool = listed["trained"]
        self.is_matrix: bool = listed.get("matrix", False)  # which Muon has updated
        self.type: str = listed["type"]
        self.shape = tuple(listed["shape"])
        self.parts: list[tuple[int, int]] = []  # (number in the list, elements)

    def goes_on_with(self, listed: Named, number: int) -> bool:
        shape = tuple(listed["shape"])
        is_next = len(self.parts) == number and shape[1:] == self.shape[1:]
        return is_next and (listed["trained"], listed["type"]) == (self.trained, self.type)

    def saved(self, state: StateReader, what: str) -> SavedTensor:
        def read(first: int, count: int) -> torch.Tensor:
            out = torch.empty(count)
            done = 0
            for tensor, elements in self.parts:
                here = min(elements - first, count - done)
                if here > 0:
                    state.values(tensor, what, first, here, out[done:].data_ptr())
                    done, first = done + here, first + here
                first -= elements
            return out

        return SavedTensor("F32" if self.trained else safetensors.DTYPES[self.type], self.shape, read)


def stored_tensors(facts: Named) -> dict[str, StoredTensor]:
    """By name. Tensors NAME[0], NAME[1] and so on, which follow each other, are the rows of NAME. One whose name begins
    with a dot keeps a place, and means nothing."""
    found: dict[str, StoredTensor] = {}
    names = {listed["name"] for listed in facts["tensors"]}
    for tensor, listed in enumerate(facts["tensors"]):
        name = listed["name"]
        if name.startswith("."):
            continue
        part = _PART.fullmatch(name)
        whole = found.get(part[1]) if part else None
        elements = torch.Size(listed["shape"]).numel()
        if part and whole is not None and int(part[2]) and whole.goes_on_with(listed, int(part[2])):
            whole.shape = (whole.shape[0] + listed["shape"][0], *whole.shape[1:])
        else:
            is_first = part is not None and part[2] == "0" and whole is None and part[1] not in names
            whole = found[part[1] if part and is_first else name] = StoredTensor(listed)
        whole.parts.append((tensor, elements))
    return found


def stored_moments(
    state: StateReader, stored: dict[str, StoredTensor], count: int
) -> Iterator[tuple[str, SavedTensor]]:
    for name, one in stored.items():
        for what in MOMENT_WHATS[:count] if one.trained else ():
            yield f"{name}.{what}", one.saved(state, what)
