"""DeepSpeed's Adagrad by its name: torch's, of which terrace.initialize takes the settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import ConfigError

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
    for name, is_asked, advice in (
        ("amsgrad", amsgrad, "leave it out"),
        ("fp32_optimizer_states", not fp32_optimizer_states, "set bf16.bf16_optimizer_states in the configuration"),
    ):
        if is_asked:
            raise ConfigError("cannot make an optimizer", name, "torch's Adagrad does not have it", advice)
    import torch

    return torch.optim.Adagrad(model_params, lr=lr, eps=eps, weight_decay=weight_decay)
