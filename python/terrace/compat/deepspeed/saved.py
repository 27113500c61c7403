"""DeepSpeed's zero_to_fp32 for checkpoints of Terrace's engine: weights in fp32, without an engine."""

from __future__ import annotations

import functools
import os
from typing import TYPE_CHECKING, Any

import torch

from ... import safetensors
from ...saved_state import StateReader
from ...torch.engine.saved.checkpoint_folder import refuse_deepspeed
from ...torch.engine.saved.export import Entries, folder_of
from ...torch.engine.saved.saved_checkpoint import weights_in

if TYPE_CHECKING:
    from torch import nn

    from ..._types import Path

_WHAT = "cannot take the weights out of a checkpoint"


def get_fp32_state_dict_from_zero_checkpoint(
    checkpoint_dir: Path, tag: str | None = None, exclude_frozen_parameters: bool = False, lazy_mode: bool = False
) -> dict[str, torch.Tensor]:
    """What engine.save_checkpoint(checkpoint_dir) has of the model, as fp32. A tied parameter is there once, under its
    first name. `lazy_mode` has no effect: tensors are read whole."""
    folder = folder_of(checkpoint_dir, _WHAT)
    refuse_deepspeed(folder, tag)
    with StateReader(folder, tag, (), is_checkpoint=True) as state:
        state.verify()
        weights, trained = weights_in(state)
        found = {}
        for name, one in weights.items():
            if not exclude_frozen_parameters or name in trained:
                values = one.read(0, torch.Size(one.shape).numel()).view(one.shape)
                found[name] = values.float() if values.is_floating_point() else values
    return found


def load_state_dict_from_zero_checkpoint(model: nn.Module, checkpoint_dir: Path, tag: str | None = None) -> nn.Module:
    """The model, on the processor, with the weights of a checkpoint."""
    model = model.cpu()
    model.load_state_dict(get_fp32_state_dict_from_zero_checkpoint(checkpoint_dir, tag), strict=False)
    return model


def convert_zero_checkpoint_to_fp32_state_dict(
    checkpoint_dir: Path,
    output_dir: Path,
    max_shard_size: object = "5GB",
    safe_serialization: bool = False,
    tag: str | None = None,
    exclude_frozen_parameters: bool = False,
) -> None:
    """Writes output_dir/pytorch_model.bin, or with `safe_serialization` model.safetensors in shards of at most 5 GB.
    engine.save_safetensors does so without reading all into memory."""
    found: dict[str, Any] = get_fp32_state_dict_from_zero_checkpoint(checkpoint_dir, tag, exclude_frozen_parameters)
    os.makedirs(output_dir, exist_ok=True)
    if not safe_serialization:
        torch.save(found, os.path.join(output_dir, "pytorch_model.bin"))
        return
    entries = Entries()
    for name, value in found.items():
        entries.add(name, value.dtype, value.shape, functools.partial(_alone, value))
    safetensors.write_sharded(output_dir, entries.tensors, entries.values, metadata={"format": "pt"})


def _alone(value: torch.Tensor) -> list[torch.Tensor]:
    return [value.contiguous()]
