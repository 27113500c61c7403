"""DeepSpeed's Adam by its names. Each makes torch's AdamW or Adam, of which terrace.initialize takes the settings."""

from ..errors import ConfigError


def DeepSpeedCPUAdam(
    model_params,
    lr=1e-3,
    bias_correction=True,
    betas=(0.9, 0.999),
    eps=1e-8,
    weight_decay=0,
    amsgrad=False,
    adamw_mode=True,
    fp32_optimizer_states=True,
):
    """An optimizer of torch for terrace.initialize, which updates on the processor; by itself it is torch's."""
    for name, value, advice in (
        ("bias_correction", not bias_correction, "set optimizer.params.bias_correction to false in the configuration"),
        ("amsgrad", amsgrad, "leave it out, as DeepSpeed asks"),
        ("fp32_optimizer_states", not fp32_optimizer_states, "set bf16.bf16_optimizer_states in the configuration"),
    ):
        if value:
            raise ConfigError("cannot make an optimizer", name, "torch's Adam does not have it", advice)
    import torch

    kind = torch.optim.AdamW if adamw_mode else torch.optim.Adam
    return kind(model_params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)


def FusedAdam(
    params,
    lr=1e-3,
    bias_correction=True,
    betas=(0.9, 0.999),
    eps=1e-8,
    adam_w_mode=True,
    weight_decay=0.0,
    amsgrad=False,
    set_grad_none=True,
):
    """DeepSpeedCPUAdam, which see; `set_grad_none` has no effect."""
    return DeepSpeedCPUAdam(params, lr, bias_correction, betas, eps, weight_decay, amsgrad, adam_w_mode)
