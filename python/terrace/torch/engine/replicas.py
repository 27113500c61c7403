"""What each rank has whole for itself, since it is in no store: buffers, and parameters that are neither trained nor large.
They begin as the first rank's. Nothing keeps them alike after that; a strict engine looks whether they are."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import torch

from ...errors import ConfigError, MisuseError
from ..inner import inner_tensors
from .alike import agree

if TYPE_CHECKING:
    from torch import nn

    from ...ranks import Ranks

# Of a tensor's values so many at its beginning and its end are compared.
_COMPARED_ELEMENTS = 16 << 10
_PART_BYTES = 1 << 20


def sum_of_ends(tensor: torch.Tensor) -> str:
    """Of its values, or of those at both of its ends."""
    parts = inner_tensors(tensor)
    if len(parts) != 1 or parts[0] is not tensor:
        return " ".join(map(sum_of_ends, parts))
    if tensor.device.type == "meta":
        return "none, on meta"
    flat = tensor.detach().reshape(-1) if tensor.is_contiguous() else tensor.detach().contiguous().reshape(-1)
    if flat.numel() <= 2 * _COMPARED_ELEMENTS:
        return sum_of([flat])
    return sum_of([flat[:_COMPARED_ELEMENTS], flat[-_COMPARED_ELEMENTS:]])


def sum_of(parts: Iterable[torch.Tensor]) -> str:
    """A checksum of the values of tensors."""
    found = 0
    for part in parts:
        flat = part.detach().contiguous().reshape(-1)
        found = zlib.crc32(flat.cpu().view(torch.uint8).numpy().tobytes(), found)
    return f"{found:08x}"


def share_replicas(ranks: Ranks, model: nn.Module, known: set[int]) -> None:
    """Gives all ranks the first one's values. `known`: the ids of the parameters in the store."""
    for _, tensor in _replicas(model, known):
        broadcast(ranks, tensor, 0)


def broadcast(ranks: Ranks, tensor: torch.Tensor, source: int) -> None:
    """Gives `tensor` the values that it has on rank `source`. Every rank calls it."""
    values = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    for first in range(0, values.numel(), _PART_BYTES):
        part = values[first : first + _PART_BYTES]
        mine = bytes(part.numpy()) if ranks.rank == source else b""
        part.copy_(torch.frombuffer(bytearray(ranks.texts_of_all(mine)[source]), dtype=torch.uint8))
    tensor.data.copy_(values.view(tensor.dtype).view(tensor.shape))


def require_rank(ranks: Ranks | None, number: object, name: str = "modifier_rank") -> None:
    count = 1 if ranks is None else ranks.count
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < count:
        advice = f"give one from 0 to {count - 1}"
        raise ConfigError("cannot take values from one rank", name, f"it is {number!r}", advice)


def settle_values(ranks: Ranks | None, values: Mapping[str, torch.Tensor], source: int | None) -> None:
    """All ranks have the values of rank `source` then, or have been found to have the same."""
    if ranks is None or source is None:
        return require_same_values(ranks, values, "cannot write values")
    for one in values.values():
        for inner in inner_tensors(one):
            broadcast(ranks, inner, source)


def require_same_values(ranks: Ranks | None, values: Mapping[str, torch.Tensor], what: str) -> None:
    """Every rank calls it. Raises ConfigError on all of them that names each tensor that has other values on some."""
    if ranks is None:
        return
    facts = {f"values for {name}": sum_of(inner_tensors(one)) for name, one in values.items()}
    advice = "write the same on all ranks, or on one whose values all get: engine.gathered(..., modifier_rank=0)"
    agree(ranks, facts, what, advice)


def require_alike(ranks: Ranks, model: nn.Module, known: set[int]) -> None:
    """Every rank calls it. Raises MisuseError on all of them that names each value that has become another one on some.
    Statistics of batches are those of each rank's own batches."""
    own = {id(buffer) for module in model.modules() for buffer in _statistics_of(module)}
    facts = {
        f"the values of {name}": sum_of([tensor]) for name, tensor in _replicas(model, known) if id(tensor) not in own
    }
    try:
        ranks.agree(facts)
    except ConfigError as error:
        raise MisuseError(
            "cannot go on, since terrace.strict compares what each rank has for itself",
            error.subject,
            error.reason,
            "change frozen parameters and buffers alike on all ranks, for example by terrace.comm.all_reduce",
        ) from None


def _statistics_of(module: nn.Module) -> Iterator[torch.Tensor]:
    if isinstance(module, torch.nn.modules.batchnorm._NormBase):
        yield from module.buffers(recurse=False)


def _replicas(model: nn.Module, known: set[int]) -> Iterator[tuple[str, torch.Tensor]]:
    for name, tensor in (*model.named_buffers(), *model.named_parameters()):
        if id(tensor) not in known:
            for inner in inner_tensors(tensor):
                if inner.numel() and inner.device.type != "meta":
                    yield name, inner
