"""Where a model computes: the one place that tells the simulated device, which is this machine's memory, from a
GPU."""

import ctypes

import torch

from ..errors import ConfigError
from ..spec import CudaDevice, SimulatedDevice
from ..store import plan


def choose_device(config, device):
    """The device of a store, or None where its useful size is still to be found. `device` may be one, or torch's
    name."""
    if isinstance(device, (SimulatedDevice, CudaDevice)):
        return device
    kind = config.device_kind
    if device is not None:
        kind = {"cpu": "simulated", "cuda": "cuda"}.get(torch.device(device).type)
        if kind is None:
            raise ConfigError(
                "cannot use a device",
                str(device),
                "it is neither a processor nor a GPU of CUDA",
                'give "cpu", "cuda", or a terrace.SimulatedDevice with its budget',
            )
    if kind == "cuda":
        return CudaDevice(config.device_memory or _free_bytes_of_gpu(), strict=config.strict)
    return SimulatedDevice(config.device_memory, strict=config.strict) if config.device_memory else None


def device_that_holds_all(config, tensors, uses, options):
    """A simulated device of the size beyond which more would stay unused."""
    needed = plan(tensors, SimulatedDevice(1 << 46), uses, **options)
    return SimulatedDevice(max(needed.device_useful_bytes, needed.device_bytes, 1), strict=config.strict)


def has_small_parameters(device):
    """True where parameters in torch's own memory can be updated there: it has to be host memory."""
    return not isinstance(device, CudaDevice)


def tensor_at(store, number, shape, dtype, device):
    """The tensor of a store at its address, for life. Its memory stays while any view of it does."""
    if isinstance(device, CudaDevice):
        return torch.from_dlpack(store.dlpack(number))
    size = dtype.itemsize
    for extent in shape:
        size *= extent
    memory = (ctypes.c_char * size).from_address(store.parameter_address(number))
    memory.store = store
    return torch.frombuffer(memory, dtype=dtype).view(shape)


def _free_bytes_of_gpu():
    if not torch.cuda.is_available():
        raise ConfigError("cannot use a device", "cuda", "torch sees no GPU here", 'give device="cpu"')
    return torch.cuda.mem_get_info()[0] * 19 // 20
