"""DeepSpeed's accelerator: where the engine computes."""

from __future__ import annotations

from typing import TYPE_CHECKING

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

    @staticmethod
    def _device() -> torch.device:
        import torch

        from .torch.engine.deepspeed_names import ENGINES

        for engine in list(ENGINES):
            return engine.device
        return torch.device("cpu")


def get_accelerator() -> Accelerator:
    return Accelerator()
