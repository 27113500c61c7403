"""DeepSpeed's Lion by its names: settings that terrace.initialize takes. torch has no Lion that could step by itself."""

from __future__ import annotations

from typing import Any, NoReturn

import torch

from ..errors import ConfigError
from .refusals import FP32_STATES, refuse


class DeepSpeedCPULion(torch.optim.Optimizer):
    """For optimizer= of terrace.initialize, which computes with it."""

    terrace_kind = "lion"

    def __init__(
        self,
        model_params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        weight_decay: float = 0,
        fp32_optimizer_states: bool = True,
    ) -> None:
        refuse(*FP32_STATES, "its moment is fp32", not fp32_optimizer_states)
        super().__init__(model_params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    def step(self, closure: object = None) -> NoReturn:
        raise ConfigError(
            "cannot update",
            type(self).__name__,
            "it has the settings of an engine's optimizer alone",
            "step the optimizer that initialize returns; without an engine use terrace.torch.OffloadLion",
        )


class FusedLion(DeepSpeedCPULion):
    """DeepSpeedCPULion, which see; `set_grad_none` has no effect."""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        weight_decay: float = 0.0,
        set_grad_none: bool = True,
    ) -> None:
        super().__init__(params, lr, betas, weight_decay)
