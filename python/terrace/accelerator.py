"""DeepSpeed's accelerator: where the engine computes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


class Accelerator:
    """The device of the engine that is there, else the processor."""

    def device_name(self, device_index: int | None = None) -> str:
        """ "cpu" or "cuda:0", for tensor.to(...). There is one device, whatever the index."""
        return str(self._device())

    current_device_name = device_name

    def current_device(self) -> int:
        return self._device().index or 0

    def device_count(self) -> int:
        return 1

    def is_available(self) -> bool:
        return True

    def set_device(self, device_index: object) -> None:
        """The engine has chosen, by `device` of initialize or terrace.device."""

    def synchronize(self, device_index: int | None = None) -> None:
        import torch

        if self._device().type == "cuda":
            torch.cuda.synchronize(self._device())

    def device(self, device_index: int | None = None) -> torch.device:
        return self._device()

    def communication_backend_name(self) -> str:
        """For torch.distributed, where a script has groups of its own."""
        return "nccl" if self._device().type == "cuda" else "gloo"

    def on_accelerator(self, tensor: torch.Tensor) -> bool:
        return tensor.device == self._device()

    def is_bf16_supported(self) -> bool:
        return True

    def is_fp16_supported(self) -> bool:
        return True

    def empty_cache(self) -> None:
        self._asked("empty_cache", None)

    def memory_allocated(self, device_index: int | None = None) -> int:
        """What torch has of the GPU, without the device memory of the engine; 0 on the processor."""
        return int(self._asked("memory_allocated", 0))

    def max_memory_allocated(self, device_index: int | None = None) -> int:
        return int(self._asked("max_memory_allocated", 0))

    def reset_peak_memory_stats(self, device_index: int | None = None) -> None:
        self._asked("reset_peak_memory_stats", None)

    def manual_seed(self, seed: int) -> None:
        import torch

        torch.manual_seed(seed)

    manual_seed_all = manual_seed

    def _asked(self, function: str, on_processor: object) -> Any:
        """Of torch.cuda."""
        import torch

        return getattr(torch.cuda, function)() if self._device().type == "cuda" else on_processor

    @staticmethod
    def _device() -> torch.device:
        import torch

        from .torch.engine.deepspeed_names import ENGINES

        for engine in list(ENGINES):
            return engine.device
        return torch.device("cpu")


def get_accelerator() -> Accelerator:
    return Accelerator()
