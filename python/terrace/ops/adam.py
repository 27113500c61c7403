"""DeepSpeed's Adam by its names. Each makes torch's AdamW or Adam, of which terrace.initialize takes the settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .refusals import FP32_STATES, refuse

if TYPE_CHECKING:
    import torch


def DeepSpeedCPUAdam(
    model_params: Any,
    lr: float = 0.001,
    bias_correction: bool = True,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-08,
    weight_decay: float = 0,
    amsgrad: bool = False,
    adamw_mode: bool = True,
    fp32_optimizer_states: bool = True,
) -> torch.optim.Optimizer:
    """An optimizer of torch for terrace.initialize, which updates on the processor; by itself it is torch's."""
    lacks = "torch's Adam does not have it"
    set_false = "set optimizer.params.bias_correction to false in the configuration"
    refuse("bias_correction", set_false, lacks, not bias_correction)
    refuse("amsgrad", "leave it out, as DeepSpeed asks", lacks, amsgrad)
    refuse(*FP32_STATES, lacks, not fp32_optimizer_states)
    import torch

    kind = torch.optim.AdamW if adamw_mode else torch.optim.Adam
    return kind(model_params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)


def FusedAdam(
    params: Any,
    lr: float = 0.001,
    bias_correction: bool = True,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-08,
    adam_w_mode: bool = True,
    weight_decay: float = 0.0,
    amsgrad: bool = False,
    set_grad_none: bool = True,
) -> torch.optim.Optimizer:
    """DeepSpeedCPUAdam, which see; `set_grad_none` has no effect."""
    return DeepSpeedCPUAdam(params, lr, bias_correction, betas, eps, weight_decay, amsgrad, adam_w_mode)
