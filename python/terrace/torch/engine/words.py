"""Frozen parameters that a store keeps as words, which it moves and never converts: those of a type that nothing trains,
such as the codes of quantised weights, and those that are made of several tensors, whose class is made again over the
store's memory. Their bytes stay what they are, NaN of any pattern too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ...errors import ConfigError
from ..inner import inner_tensors, is_wrapper, made_over

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

# Each inner tensor begins at a multiple of this, so that every kernel may read it.
_ALIGNMENT = 64
_WORD_BYTES = 4


class _Place(NamedTuple):
    """Where an inner tensor lies. `order` are its dimensions as they lie in memory, the outermost first."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    order: tuple[int, ...]
    first_byte: int
    bytes: int

    def over(self, memory: torch.Tensor) -> torch.Tensor:
        if not self.bytes:
            return torch.empty(self.shape, dtype=self.dtype, device=memory.device)
        raw = memory[self.first_byte : self.first_byte + self.bytes].view(self.dtype)
        laid = raw.view([self.shape[dimension] for dimension in self.order])
        return laid.permute([self.order.index(dimension) for dimension in range(len(self.order))])


class Words:
    """How the bytes of a parameter lie in a tensor of words. `count`: how many words these are."""

    def __init__(self, parameter: torch.Tensor) -> None:
        self._is_wrapper = is_wrapper(parameter)
        self.places: list[_Place] = []
        end = 0
        for one in inner_tensors(parameter):
            first = -(-end // _ALIGNMENT) * _ALIGNMENT
            size = one.numel() * one.element_size()
            self.places.append(_Place(one.dtype, tuple(one.shape), _order_of(one), first, size))
            end = first + size
        self.count = max(1, -(-end // _WORD_BYTES))

    @property
    def bytes(self) -> int:
        return self.count * _WORD_BYTES

    def over(self, memory: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        """The tensor in `memory`, of so many bytes. `like` is the parameter, whose class it gets."""
        return made_over(_plain(like), [place.over(memory) for place in self.places])

    def made_of(self, like: torch.Tensor, make: Callable[[torch.dtype, tuple[int, ...]], torch.Tensor]) -> torch.Tensor:
        """One whose inner tensors `make` makes, of these types and shapes."""
        return made_over(_plain(like), [make(place.dtype, place.shape) for place in self.places])

    def packed(self, tensor: torch.Tensor, name: str) -> torch.Tensor:
        """Its bytes as they lie in the words; where they lie so already, they are not copied."""
        parts = inner_tensors(tensor)
        found = [(one.dtype, tuple(one.shape)) for one in parts]
        wanted = [(place.dtype, place.shape) for place in self.places]
        if found != wanted:
            raise ConfigError(
                "cannot take the values of a frozen parameter",
                name,
                f"they are {_text_of(found)}, and the parameter is {_text_of(wanted)}",
                "give values of the same kind: they are kept as bytes, and not converted",
            )
        laid = [one.detach().cpu().permute(place.order).contiguous() for one, place in zip(parts, self.places)]
        if len(laid) == 1 and laid[0].nbytes == self.bytes:
            return laid[0].view(-1).view(torch.uint8)
        memory = torch.zeros(self.bytes, dtype=torch.uint8)
        for one, place in zip(laid, self.places):
            if place.bytes:
                memory[place.first_byte : place.first_byte + place.bytes] = one.reshape(-1).view(torch.uint8)
        return memory


def _order_of(tensor: torch.Tensor) -> tuple[int, ...]:
    """Of a tensor without gaps in memory that of its strides; any other is laid down row by row."""
    plain, strides = tuple(range(tensor.dim())), tensor.stride()
    order = tuple(sorted(plain, key=lambda dimension: (-strides[dimension], dimension)))
    return order if tensor.permute(order).is_contiguous() else plain


def _plain(like: torch.Tensor) -> torch.Tensor:
    """So that the class of a parameter, which knows that it is one, is not asked for what its values' class does."""
    return like.detach() if is_wrapper(like) else like


def _text_of(kinds: Sequence[tuple[torch.dtype, tuple[int, ...]]]) -> str:
    return ", ".join(f"{str(dtype).rpartition('.')[2]} {shape}" for dtype, shape in kinds)


# --- What a module that dequantises itself keeps beside its codes ---

_DEPTH = 3


def settle_beside(owners: Sequence[Any], old: torch.Tensor, device: torch.device) -> torch.Tensor | None:
    """Tensors that are neither parameters nor buffers, such as the scales in the quant_state of bitsandbytes and the
    state of its 8-bit layers: they go to `device`. What is another name for the codes `old` becomes one tensor, which is
    returned, so that it has their values while the parameter has them."""
    alias = torch.empty(0, dtype=old.dtype, device=device)
    seen: set[int] = set()
    is_used = [_settle(owner, old, alias, seen, _DEPTH) for owner in owners]
    return alias if any(is_used) else None


def _settle(owner: Any, old: torch.Tensor, alias: torch.Tensor, seen: set[int], depth: int) -> bool:
    if id(owner) in seen or not depth:
        return False
    seen.add(id(owner))
    is_used = False
    items: Any = owner if isinstance(owner, dict) else getattr(owner, "__dict__", {})
    for name, value in list(items.items()):
        if isinstance(value, torch.Tensor):
            if isinstance(value, torch.nn.Parameter) or value.layout != torch.strided or value.is_meta:
                continue
            is_same = _is_same(value, old)
            items[name] = alias if is_same else value.to(alias.device)
            is_used |= is_same
        elif isinstance(value, dict) or _is_state(value):
            is_used |= _settle(value, old, alias, seen, depth - 1)
    return is_used


def _is_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return (one.data_ptr(), one.shape, one.dtype) == (other.data_ptr(), other.shape, other.dtype) and one.numel() > 0


def _is_state(value: Any) -> bool:
    kind = type(value)
    return kind.__module__.partition(".")[0] in ("bitsandbytes", "hqq") and not isinstance(value, torch.nn.Module)


def keeps_state(parameter: torch.Tensor) -> bool:
    """Whether a parameter is codes that it says itself how to dequantise, whatever type they have."""
    own = parameter.__dict__
    return own.get("quant_state") is not None or own.get("SCB") is not None


def owners_of(parameter: torch.Tensor, model: torch.nn.Module) -> list[torch.nn.Module]:
    return [module for module in model.modules() if any(own is parameter for own in module._parameters.values())]


def beside_of(parameter: torch.Tensor, modules: Sequence[torch.nn.Module]) -> list[Any]:
    """What settle_beside() looks through: the parameter's own attributes, and those of the modules that have it."""
    states = [
        value
        for module in modules
        for name, value in module.__dict__.items()
        if not name.startswith("_") and (isinstance(value, dict) or _is_state(value))
    ]
    return [parameter.__dict__, *states]
