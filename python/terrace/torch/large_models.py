"""Models that are larger than memory: parameters go to unlinked files as they are made, or are read where a file
has them."""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from .. import safetensors
from ..errors import ConfigError, CorruptError, IoError, MisuseError
from .engine.values import has_engine
from .mapped import mapped_copy, mapped_empty

if TYPE_CHECKING:
    from .._types import Path

_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


@contextlib.contextmanager
def init(folder: Path | None = None, meta: bool = False) -> Iterator[None]:
    """Within the block parameters of new modules lie in unlinked files in `folder`, where the model's own
    initialisers fill them; terrace.initialize takes them from there. With `meta` they have no memory at all, for
    terrace.torch.load."""
    kind: Any = nn.Module
    register = kind.register_parameter

    def register_elsewhere(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        register(module, name, parameter)
        if parameter is not None and parameter.device.type == "cpu":
            if meta:
                moved = nn.Parameter(parameter.detach().to("meta"), parameter.requires_grad)
                module._parameters[name] = moved
            else:
                parameter.data = mapped_copy(parameter.detach(), folder)

    kind.register_parameter = register_elsewhere
    try:
        yield
    finally:
        kind.register_parameter = register


def load(model: nn.Module, path: Path, strict: bool = True) -> list[str]:
    """Gives parameters and buffers the values of a file of safetensors, of a folder, or of an index. Nothing is
    read yet: pages come from the files when they are used, and what is written to them stays in this process.

    A tied parameter may be there under any of its names. Returns the names that no tensor of the model has.
    """
    if has_engine(model):
        raise MisuseError(
            "cannot load a model",
            type(model).__name__,
            "its parameters are in the store of an engine",
            "load before terrace.initialize; engine.load_state_dict and engine.load_checkpoint load after it",
        )
    entries = safetensors.find(path)
    used: set[str] = set()
    maps: dict[str, mmap.mmap] = {}
    done: dict[int, torch.Tensor] = {}
    for _, _, full_name, tensor in _slots(model):
        entry = entries.get(full_name)
        if entry is not None:
            used.add(full_name)
            _require_same_shape(full_name, entry, tensor)
            values = value_of_entry(entry, maps)
            if isinstance(tensor, nn.Parameter):
                values = nn.Parameter(values, tensor.requires_grad)
                values.__dict__.update(tensor.__dict__)  # what a script has said of it, use_muon for example
            done.setdefault(id(tensor), values)
    missing = []
    for owner, name, full_name, tensor in _slots(model):
        if id(tensor) in done:
            owner[name] = done[id(tensor)]
        else:
            missing.append(full_name)
    meta = [name for name, tensor in [*model.named_parameters(), *model.named_buffers()] if tensor.is_meta]
    if meta or (strict and missing):
        raise ConfigError(
            "cannot load a model",
            str(path),
            f"it has no tensor for {', '.join((meta or missing)[:5])}",
            (
                "load the weights of the same model, or give strict=False"
                if not meta
                else "load the weights of the same model; buffers that are in no file have to be made off the "
                "meta device, as "
                "in `with terrace.torch.init(meta=True):`"
            ),
        )
    return sorted(set(entries) - used)


def _slots(model: nn.Module) -> Iterator[tuple[dict[str, Any], str, str, torch.Tensor]]:
    """Every place of a parameter or of a buffer that a state dict has: (dict, name there, full name, tensor)."""
    for prefix, module in model.named_modules(remove_duplicate=False):
        prefix = f"{prefix}." if prefix else ""
        for name, tensor in list(module._parameters.items()):
            if tensor is not None:
                yield module._parameters, name, prefix + name, tensor
        for name, tensor in list(module._buffers.items()):
            if tensor is not None and name not in module._non_persistent_buffers_set:
                yield module._buffers, name, prefix + name, tensor


def _require_same_shape(name: str, entry: safetensors.Entry, tensor: torch.Tensor) -> None:
    if tuple(entry.shape) != tuple(tensor.shape):
        raise ConfigError(
            "cannot load a model",
            name,
            f"its shape in {entry.path} is {tuple(entry.shape)}, and that of the model {tuple(tensor.shape)}",
            "load the weights of the same model",
        )
    if entry.dtype not in _DTYPES:
        raise ConfigError("cannot load a model", name, f"torch reads no {entry.dtype} here", "convert the file")


def value_of_entry(entry: safetensors.Entry, maps: dict[str, mmap.mmap] | None = None) -> torch.Tensor:
    """A tensor over the mapped file of a tensor of safetensors. `maps` keeps maps for the next one of the same
    file."""
    maps = {} if maps is None else maps
    if entry.path not in maps:
        maps[entry.path] = _map_of(entry.path)
    if entry.offset + entry.bytes > len(maps[entry.path]):
        raise CorruptError(
            "cannot load a model", entry.path, "it became shorter meanwhile", "fetch or save the file again"
        )
    dtype = _DTYPES[entry.dtype]
    count = entry.bytes // dtype.itemsize
    if not count:
        return torch.empty(entry.shape, dtype=dtype)
    if entry.offset % dtype.itemsize:
        values = mapped_empty(entry.shape, dtype)
        raw = torch.frombuffer(maps[entry.path], dtype=torch.uint8, count=entry.bytes, offset=entry.offset)
        values.view(-1).view(torch.uint8).copy_(raw)
        return values
    return torch.frombuffer(maps[entry.path], dtype=dtype, count=count, offset=entry.offset).view(entry.shape)


def _map_of(path: str) -> mmap.mmap:
    try:
        with open(path, "rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    except (OSError, ValueError) as error:  # an empty file is a ValueError
        raise IoError(
            "cannot load a model",
            path,
            getattr(error, "strerror", None) or str(error),
            "see that the file is there, whole, and that you may read it",
        ) from error
