"""Which parameters of a model a store gets, and as what; which stay torch's."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import torch

from ...errors import ConfigError
from ...store.spec import Tensor
from ..inner import inner_tensors, is_wrapper
from ..local import local_of
from ..mapped import MOST_IN_MEMORY, mapped_copy
from ..optimizer.settings import kind_of_group
from .matrices import require_matrix
from .others import kept_in_fp32
from .parts import Parts
from .placeholders import (
    TORCH_TYPES,
    TYPES,
    Tracked,
    kind_of_parameter,
    named_once,
    require_storage_of_its_own,
)

if TYPE_CHECKING:
    from torch import nn

    from ..._types import Named
    from ...config import Config
    from ...store import Store

# Of the flat space (base/record_layout.h): sums of squares are taken by tile, and tensors are aligned.
_TILE_ELEMENTS, _ALIGNED_ELEMENTS = 4096, 64


class Parameters:
    """.tracked: those of a store, and small ones beside it. .managed_of:
    of these by the ids of their parameters, those that the store has. .outside: large frozen ones that no store can have. A
    parameter of at most `threshold` elements is small; where the engine computes on the processor, `device`, and this
    process is alone, small ones stay in torch's own memory and are updated there. `kind` is the optimizer's."""

    def __init__(
        self,
        model: nn.Module,
        config: Config,
        groups: list[Named],
        threshold: int,
        device: torch.device,
        parts: Parts | None = None,
        kind: str = "adamw",
    ) -> None:
        self.model = model
        self.config = config
        self.parts = parts or Parts(None, None)
        self.device = device
        self.group_count = len(groups)
        # Of what is no matrix of Muon.
        self._group_of_rest = next((n for n, group in enumerate(groups) if kind_of_group(kind, group) != "muon"), 0)
        self._kept_in_fp32 = kept_in_fp32(model, config)
        states_below = config.store_options["states"] != "device" and config.store_options["masters"] == "whole"
        has_small = states_below and device.type == "cpu" and self.parts.is_whole
        group_of = {id(parameter): number for number, group in enumerate(groups) for parameter in group["params"]}
        found = named_once(model)
        strange = set(group_of) - {id(parameter) for parameter, _ in found}
        if strange:
            raise ConfigError(
                "cannot train a parameter",
                "optimizer",
                f"{len(strange)} of its parameters are not the model's",
                "give parameters of the model",
            )
        kinds = {id(parameter): kind_of_parameter(parameter, names[0]) for parameter, names in found}
        outside = [one for one in found if kinds[id(one[0])] == "outside"]
        self.outside = [(parameter, names[0]) for parameter, names in outside if parameter.numel() > threshold]
        self._are_words = {key for key, kind in kinds.items() if kind == "words"}
        found = [one for one in found if kinds[id(one[0])] != "outside"]
        require_storage_of_its_own(found, model)
        self.tracked: list[Tracked] = []
        for parameter, names in found:
            is_trained = parameter.requires_grad and id(parameter) in group_of
            if not parameter.numel():
                continue
            one = Tracked(parameter, names, self.type_of(parameter), is_trained, group_of.get(id(parameter), 0))
            one.is_small = one.elements <= threshold
            one.is_managed = not one.is_small or not has_small
            one.is_matrix = is_trained and kind_of_group(kind, groups[one.group]) == "muon"
            if one.is_matrix:
                require_matrix(parameter, one.name)
            if not one.is_small or is_trained:
                self.tracked.append(one)
        # The same places in a commit wherever small ones are, so that any number of ranks goes on from it.
        types = list(dict.fromkeys(one.type for one in self.tracked))
        self.tracked.sort(key=lambda one: (types.index(one.type), one.is_matrix, one.is_small))
        self.train_nothing = not any(one.is_trainable for one in self.tracked)  # as a part of a model may
        self.managed_of = {id(one.parameter): one for one in self.tracked if one.is_managed}

    def type_of(self, parameter: nn.Parameter) -> str:
        """The type that it has in the store, or beside it."""
        precision = self.config.precision
        is_wide = parameter.dtype == torch.float64 and not is_wrapper(parameter)
        if id(parameter) in self._are_words and not (is_wide and precision != "fp32"):
            return "word"
        is_kept = precision == "fp32" or id(parameter) in self._kept_in_fp32
        return TYPES[parameter.dtype] if is_kept else precision

    def copy_small(self) -> None:
        """Small ones get memory of their type, which the store is given."""
        for one in self.tracked:
            if not one.is_managed:
                dtype = TORCH_TYPES[one.type]
                one.values = one.parameter.detach().to(dtype, memory_format=torch.contiguous_format, copy=True)

    def specs(self) -> list[Tensor]:
        """The tensors of a store, which are numbered by this."""
        specs: list[Tensor] = []
        # By section of the store: what is at its end, which is there.
        end_of: dict[tuple[str, bool, bool], tuple[object, int]] = {}
        for one in self.tracked:
            is_copy = one.name in self.parts.copies
            if one.is_trainable:
                section = one.type, one.is_matrix, is_copy
                # Small ones begin with a tile of their own where they are in the store's memory, as they do beside it.
                block = one.is_small, self.parts.block_of(one.name) if self.parts.block_of else ""
                before, end = end_of.get(section, (block, 0))
                padding = -end % _TILE_ELEMENTS if before != block else 0
                if padding:
                    specs.append(_padding(one, padding, is_copy, block[1]))
                end_of[section] = block, _aligned(end + padding + one.elements)
            one.number = len(specs)
            memory = {} if one.is_managed else {"home": "caller", "address": one.values.data_ptr()}
            shape = one.shape or (1,) if one.words is None else (one.words.count,)
            specs.append(
                Tensor(
                    one.name,
                    shape,
                    one.type,
                    one.is_trainable,
                    one.group,
                    rounding_place=self._rounding_place(one.name),
                    by_matrix=one.is_matrix,
                    counted_elsewhere=is_copy,
                    **memory,
                )
            )
        if self.train_nothing:
            specs.append(Tensor(".idle", (1,), self.config.precision, group=self._group_of_rest))
        return specs

    def _rounding_place(self, name: str) -> int:
        """The same in whatever part of the model a tensor is."""
        return 0 if self.parts.block_of is None else (zlib.crc32(name.encode()) >> 9) + 1 << 40

    def fill(self, store: Store) -> None:
        """Fills a store of specs() from the parameters, in their own type: masters keep what a smaller type would lose."""
        sources: dict[int, tuple[torch.Tensor, str]] = {}
        copied = 0  # bytes of words that had to be brought together
        for one in self.tracked:
            if one.words is not None:
                packed = one.words.packed(one.parameter, one.name)
                if packed.data_ptr() != inner_tensors(one.parameter)[0].data_ptr():
                    copied += packed.nbytes
                    packed = packed if copied <= MOST_IN_MEMORY else mapped_copy(packed, self._folder())
                sources[one.number] = (packed, "word")
                continue
            source = local_of(one.parameter.detach()).cpu()
            source = source if source.dtype in TYPES else source.to(TORCH_TYPES[one.type])
            source = source.contiguous()
            sources[one.number] = (source, TYPES[source.dtype])
        for number, spec in enumerate(store.tensors):
            if number not in sources:
                sources[number] = (torch.zeros(spec.elements), "fp32")
        store.fill_arrays({number: (source.data_ptr(), type_) for number, (source, type_) in sources.items()})

    def _folder(self) -> str | None:
        paths = self.config.store_options.get("nvme_paths")
        return paths[0] if paths else None


def _padding(one: Tracked, elements: int, is_copy: bool, block: str) -> Tensor:
    """Before `one`, the first of a block, in the same section. It has no gradient, so that no update touches it."""
    name = f".padding.{one.type}" + ".matrices" * one.is_matrix + (f".{one.name}" if block else "")
    shape = (1, elements) if one.is_matrix else (elements,)
    return Tensor(name, shape, one.type, group=one.group, by_matrix=one.is_matrix, counted_elsewhere=is_copy)


def _aligned(elements: int) -> int:
    return -(-elements // _ALIGNED_ELEMENTS) * _ALIGNED_ELEMENTS
