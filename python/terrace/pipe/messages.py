"""What goes from one stage to another: tensors in tuples, lists and dicts, with numbers and texts beside them.

A message is a head, which says what there is, and the bytes of each tensor. A head goes with every message, so shapes may
differ from micro-batch to micro-batch. A tensor arrives with the strides that it had: what computes with it takes the
same way as in one process, and gives the same bits. One that is there several times goes once.
"""

from __future__ import annotations

import marshal
from typing import Any, NamedTuple

import torch

from ..errors import ConfigError

_PLAIN = (type(None), bool, int, float, str, bytes)
# Of a tensor: type, shape, strides, whether its bytes lie close together, whether a gradient comes back, whether it is on a GPU.
Facts = tuple[str, tuple[int, ...], tuple[int, ...], bool, bool, bool]


class Head(NamedTuple):
    """`layout`: what Python objects there are, with the number of a tensor in the place of each. `tensors`: the facts of each."""

    layout: Any
    tensors: list[Facts]

    def packed(self) -> bytes:
        return marshal.dumps(tuple(self))

    @property
    def carries(self) -> list[bool]:
        """Of each tensor whether a gradient comes back."""
        return [one[4] for one in self.tensors]


def unpacked(data: bytes) -> Head:
    return Head(*marshal.loads(data))


class Message:
    """`tensors` in the order of its head."""

    def __init__(self, head: Head, tensors: list[torch.Tensor]) -> None:
        self.head, self.tensors = head, tensors

    @property
    def value(self) -> Any:
        return value_of(self.head.layout, self.tensors)


def message_of(value: Any) -> Message:
    tensors: list[torch.Tensor] = []
    layout = _layout(value, tensors)
    return Message(Head(layout, [_facts(one) for one in tensors]), tensors)


def _layout(value: Any, tensors: list[torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        for number, one in enumerate(tensors):
            if one is value:
                return ("tensor", number)
        if value.layout != torch.strided:
            raise _refused("a tensor of the layout", value.layout)
        if hasattr(value, "placements"):  # so that torch's DTensor need not be loaded
            raise _refused("a tensor that is divided,", type(value).__name__)
        tensors.append(value)
        return ("tensor", len(tensors) - 1)
    if type(value) in (tuple, list):
        return (type(value).__name__, [_layout(one, tensors) for one in value])
    if type(value) is dict:
        keys = list(value)
        for key in keys:
            if type(key) not in _PLAIN:
                raise _refused("a key of the type", type(key).__name__)
        return ("dict", [(key, _layout(value[key], tensors)) for key in keys])
    if type(value) in _PLAIN:
        return ("value", value)
    raise _refused("a value of the type", type(value).__name__)


def _refused(what: str, which: object) -> ConfigError:
    return ConfigError(
        "cannot send what a stage has computed",
        str(which),
        f"a layer at the end of a stage has returned {what} {which}",
        "let layers return tensors, in tuples, lists or dicts, with numbers and texts",
    )


def value_of(layout: Any, tensors: list[Any]) -> Any:
    """What message_of was given, of tensors that have arrived."""
    kind, inner = layout
    if kind == "tensor":
        return tensors[inner]
    if kind == "tuple":
        return tuple(value_of(one, tensors) for one in inner)
    if kind == "list":
        return [value_of(one, tensors) for one in inner]
    if kind == "dict":
        return {key: value_of(one, tensors) for key, one in inner}
    return inner


def _facts(tensor: torch.Tensor) -> Facts:
    carries = tensor.requires_grad and (tensor.is_floating_point() or tensor.is_complex())
    name = str(tensor.dtype).removeprefix("torch.")
    is_on_gpu = tensor.device.type != "cpu"
    return name, tuple(tensor.shape), tuple(tensor.stride()), _is_dense(_once(tensor)), carries, is_on_gpu


def _once(tensor: torch.Tensor) -> torch.Tensor:
    """Without the repetitions of an expanded tensor."""
    for dimension, (size, stride) in enumerate(zip(tensor.shape, tensor.stride())):
        if stride == 0 and size > 1:
            tensor = tensor.narrow(dimension, 0, 1)
    return tensor


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether its elements lie one behind the other, in whatever order."""
    wanted = 1
    for stride, size in sorted((stride, size) for stride, size in zip(tensor.stride(), tensor.shape) if size > 1):
        if stride != wanted:
            return False
        wanted *= size
    return True


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes to send, as they lie in memory where that can be."""
    flat = _once(tensor.detach())
    if _is_dense(flat):
        flat = flat.as_strided((flat.numel(),), (1,))
    else:
        flat = flat.contiguous().view(-1)
    if flat.is_conj() or flat.is_neg():
        flat = flat.resolve_conj().resolve_neg()
    return flat.view(torch.uint8)


class Arriving:
    """A tensor on its way: .bytes are to be filled."""

    def __init__(self, facts: Facts, device: torch.device) -> None:
        name, self._shape, stride, self._is_dense, _, is_on_gpu = facts
        device = device if is_on_gpu else torch.device("cpu")
        dtype = getattr(torch, name)
        shape = tuple(1 if step == 0 and size > 1 else size for size, step in zip(self._shape, stride))
        self._once = torch.empty_strided(shape, stride, dtype=dtype, device=device)
        count = self._once.numel()
        flat = (
            self._once.as_strided((count,), (1,)) if self._is_dense else torch.empty(count, dtype=dtype, device=device)
        )
        self.bytes = flat.view(torch.uint8)

    def tensor(self) -> torch.Tensor:
        """When the bytes have come."""
        if not self._is_dense:
            self._once.copy_(self.bytes.view(self._once.dtype).view(self._once.shape))
        return self._once.expand(self._shape) if self._once.shape != self._shape else self._once
