"""DeepSpeed's accelerator: where the engine computes."""


class Accelerator:
    """The device of the engine that is there, else the processor."""

    def device_name(self, device_index=None):
        """ "cpu" or "cuda:0", for tensor.to(...). There is one device, whatever the index."""
        return str(self._device())

    current_device_name = device_name

    def current_device(self):
        return self._device().index or 0

    def device_count(self):
        return 1

    def is_available(self):
        return True

    def set_device(self, device_index):
        """The engine has chosen, by `device` of initialize or terrace.device."""

    def synchronize(self, device_index=None):
        import torch

        if self._device().type == "cuda":
            torch.cuda.synchronize(self._device())

    @staticmethod
    def _device():
        import torch

        from .torch.engine.deepspeed_names import ENGINES

        for engine in list(ENGINES):
            return engine.device
        return torch.device("cpu")


def get_accelerator():
    return Accelerator()
