"""Where a model computes: the one place that tells the simulated device, which is this machine's memory, from a
GPU."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Union

import torch

from ...errors import ConfigError
from ...store import plan
from ...store.spec import CudaDevice, SimulatedDevice, Use

if TYPE_CHECKING:
    from ..._types import Named
    from ...config import Config
    from ...store import Store
    from ...store.spec import Device, Tensor

_PLANNED_BYTES = 1 << 46  # more than any model takes


DeviceKind = Union[type[SimulatedDevice], type[CudaDevice]]


def choose_device(config: Config, device: object) -> Device | DeviceKind:
    """The device of a store, or its class where its useful size is still to be found. `device` may be one, or
    torch's name."""
    if isinstance(device, (SimulatedDevice, CudaDevice)):
        return device
    kind: str | None = config.device_kind
    if device is not None:
        kind = {"cpu": "simulated", "cuda": "cuda"}.get(_torch_kind_of(device) or "")
        if kind is None:
            raise ConfigError(
                "cannot use a device",
                str(device) or "device",
                "it is neither a processor nor a GPU of CUDA",
                'give "cpu", "cuda", or a terrace.SimulatedDevice with its budget',
            )
    if kind == "cuda" and not torch.cuda.is_available():
        raise ConfigError("cannot use a device", "cuda", "torch sees no GPU here", 'give device="cpu"')
    of_kind = CudaDevice if kind == "cuda" else SimulatedDevice
    return of_kind(config.device_memory, strict=config.strict) if config.device_memory else of_kind


def _torch_kind_of(device: Any) -> str | None:
    """None of what torch knows no device for."""
    try:
        return torch.device(device).type
    except (RuntimeError, TypeError, ValueError):
        return None


def device_that_holds_all(
    of_kind: DeviceKind, config: Config, tensors: Sequence[Tensor], uses: Sequence[Use], options: Named
) -> Device:
    """A device of the size beyond which more would stay unused; of a GPU at most half of what is free, since
    activations need room as well."""
    needed = plan(tensors, of_kind(_PLANNED_BYTES), uses, **options)
    budget = max(needed.device_useful_bytes, needed.device_bytes, 1)
    if of_kind is CudaDevice:
        budget = min(budget, torch.cuda.mem_get_info()[0] // 2)
    return of_kind(budget, strict=config.strict)


def torch_device_of(device: object) -> torch.device:
    """Where torch computes with the parameters of a device, or of a class of devices."""
    if device is CudaDevice:
        return torch.device("cuda", 0)
    return torch.device("cuda", device.ordinal) if isinstance(device, CudaDevice) else torch.device("cpu")


def tensor_at(store: Store, number: int, shape: Sequence[int], dtype: torch.dtype, device: object) -> torch.Tensor:
    """The tensor of a store at its address, for life. Its memory stays while any view of it does."""
    if isinstance(device, CudaDevice):
        return torch.utils.dlpack.from_dlpack(store.dlpack(number)).view(shape)
    size = dtype.itemsize
    for extent in shape:
        size *= extent
    memory = (ctypes.c_char * size).from_address(store.parameter_address(number))
    memory.store = store  # type: ignore[attr-defined]
    return torch.frombuffer(memory, dtype=dtype).view(shape)
