"""What an optimizer of DeepSpeed takes and one here does not."""

from __future__ import annotations

from ..errors import ConfigError

# (name of the argument, what to do instead of it)
FP32_STATES = ("fp32_optimizer_states", "set bf16.bf16_optimizer_states in the configuration")


def refuse(name: str, advice: str, reason: str, is_asked: bool) -> None:
    """Raises where it is asked for."""
    if is_asked:
        raise ConfigError("cannot make an optimizer", name, reason, advice)
