"""Where a model computes: the one place that tells the simulated device, which is this machine's memory, from a
GPU."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ...errors import ConfigError
from ...store import plan
from ...store.spec import CudaDevice, SimulatedDevice, Use

if TYPE_CHECKING:
    from ..._types import Named
    from ...config import Config
    from ...ranks import Ranks
    from ...store import Store
    from ...store.spec import Device, Tensor

_PLANNED_BYTES = 1 << 46  # more than any model takes


class DeviceKind(NamedTuple):
    """A device whose useful size is still to be found."""

    is_cuda: bool
    ordinal: int  # of a GPU
    strict: bool

    def of(self, budget_bytes: int) -> Device:
        if self.is_cuda:
            return CudaDevice(budget_bytes, self.ordinal, strict=self.strict)
        return SimulatedDevice(budget_bytes, strict=self.strict)


def choose_device(config: Config, device: object, ranks: Ranks | None) -> Device | DeviceKind:
    """The device of a store, or its kind where its useful size is still to be found. `device` may be one, or torch's
    name. Of several ranks each has a GPU of its own."""
    if isinstance(device, (SimulatedDevice, CudaDevice)):
        return device
    kind: str | None = config.device_kind
    named = _torch_device(device)
    if device is not None:
        kind = {"cpu": "simulated", "cuda": "cuda"}.get("" if named is None else named.type)
        if kind is None:
            raise ConfigError(
                "cannot use a device",
                str(device) or "device",
                "it is neither a processor nor a GPU of CUDA",
                'give "cpu", "cuda", or a terrace.SimulatedDevice with its budget',
            )
    if kind == "cuda" and not torch.cuda.is_available():
        raise ConfigError("cannot use a device", "cuda", "torch sees no GPU here", 'give device="cpu"')
    ordinal = _ordinal_of(named, ranks) if kind == "cuda" else 0
    chosen = DeviceKind(kind == "cuda", ordinal, config.strict)
    return chosen.of(config.device_memory) if config.device_memory else chosen


def _ordinal_of(named: torch.device | None, ranks: Ranks | None) -> int:
    """The number of a GPU as torch counts: the one that is named, or that the program has set, or that of this rank among
    the ranks of its host."""
    if named is not None and named.index is not None:
        return named.index
    current = torch.cuda.current_device()
    if ranks is None or current != 0:
        return current
    count = torch.cuda.device_count()
    if count >= ranks.local_count:
        return ranks.local_rank
    if count == 1:  # its launcher shows each rank another one
        return 0
    raise ConfigError(
        "cannot train on several ranks",
        f"the {count} GPUs of host {ranks.host}",
        f"{ranks.local_count} ranks are there, and each computes on a GPU of its own",
        "start as many ranks on a host as it has GPUs",
    )


def require_own_gpu(device: Device | DeviceKind, ranks: Ranks) -> None:
    """Every rank calls it. Raises ConfigError on all of them where two have the same GPU, or one has none. From here on
    "cuda" is the rank's GPU for torch."""
    ordinal = gpu_of(device)
    mine = b"" if ordinal is None else f"{ranks.host} {_id_of(ordinal)}".encode()
    every = ranks.texts_of_all(mine)
    for rank, one in enumerate(every):
        other = every.index(one)
        if (one == b"" and any(every)) or (one and other != rank):
            same = f"ranks {other} and {rank} have the same" if one else f"rank {rank} has none"
            raise ConfigError(
                "cannot train on several ranks",
                "cuda",
                f"each rank computes on a GPU of its own, and {same}",
                "let each rank see all GPUs of its host, or another one (CUDA_VISIBLE_DEVICES), and give all of them "
                'device="cuda"',
            )
    if ordinal is not None:
        torch.cuda.set_device(ordinal)


def _id_of(ordinal: int) -> str:
    """The same in every process, whatever CUDA_VISIBLE_DEVICES says."""
    known = torch.cuda.get_device_properties(ordinal)
    return str(known.uuid) if hasattr(known, "uuid") else f"{known.name} {ordinal}"


def _torch_device(device: Any) -> torch.device | None:
    """None of what torch knows no device for."""
    try:
        return torch.device(device)
    except (RuntimeError, TypeError, ValueError):
        return None


def device_that_holds_all(kind: DeviceKind, tensors: Sequence[Tensor], uses: Sequence[Use], options: Named) -> Device:
    """A device of the size beyond which more would stay unused; of a GPU at most half of what is free, since
    activations need room as well."""
    needed = plan(tensors, kind.of(_PLANNED_BYTES), uses, **options)
    budget = max(needed.device_useful_bytes, needed.device_bytes, 1)
    if kind.is_cuda:
        budget = min(budget, torch.cuda.mem_get_info(kind.ordinal)[0] // 2)
    return kind.of(budget)


def gpu_of(device: object) -> int | None:
    """Its number; None of what is no GPU."""
    if isinstance(device, CudaDevice) or (isinstance(device, DeviceKind) and device.is_cuda):
        return device.ordinal
    return None


def torch_device_of(device: object) -> torch.device:
    """Where torch computes with the parameters of a device, or of a kind of devices."""
    ordinal = gpu_of(device)
    return torch.device("cpu") if ordinal is None else torch.device("cuda", ordinal)


def tensor_at(store: Store, number: int, shape: Sequence[int], dtype: torch.dtype, device: object) -> torch.Tensor:
    """The tensor of a store at its address, for life. Its memory stays while any view of it does."""
    if isinstance(device, CudaDevice):
        return torch.utils.dlpack.from_dlpack(store.dlpack(number)).view(-1).view(dtype).view(shape)
    size = dtype.itemsize
    for extent in shape:
        size *= extent
    memory = (ctypes.c_char * size).from_address(store.parameter_address(number))
    memory.store = store  # type: ignore[attr-defined]
    return torch.frombuffer(memory, dtype=dtype).view(shape)
