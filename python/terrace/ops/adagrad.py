"""DeepSpeed's Adagrad by its name: torch's, of which terrace.initialize takes the settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .refusals import FP32_STATES, refuse

if TYPE_CHECKING:
    import torch


def DeepSpeedCPUAdagrad(
    model_params: Any,
    lr: float = 1e-2,
    eps: float = 1e-10,
    weight_decay: float = 0,
    amsgrad: bool = False,
    fp32_optimizer_states: bool = True,
) -> torch.optim.Optimizer:
    """An optimizer of torch for terrace.initialize, which updates on the processor; by itself it is torch's."""
    lacks = "torch's Adagrad does not have it"
    refuse("amsgrad", "leave it out", lacks, amsgrad)
    refuse(*FP32_STATES, lacks, not fp32_optimizer_states)
    import torch

    return torch.optim.Adagrad(model_params, lr=lr, eps=eps, weight_decay=weight_decay)
