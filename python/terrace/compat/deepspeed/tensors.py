"""DeepSpeed's look at single parameters: their fp32 values and optimizer states, whole, between steps.

All ranks call these functions alike. Of a parameter that no engine trains they return None, as DeepSpeed's do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ...errors import ConfigError, did_you_mean
from ...optimizer_kinds import optimizer_kinds
from ...torch.engine.alike import within
from ...torch.engine.deepspeed_names import ENGINES
from ...torch.engine.replicas import settle_values

if TYPE_CHECKING:
    from ...torch.engine.engine import Engine
    from ...torch.engine.placeholders import Tracked


def _engine_of(param: Any) -> tuple[Engine, Tracked] | None:
    for engine in list(ENGINES):
        for one in engine._values.find([param]):
            if one.is_trainable:
                return engine, one
    return None


def _kept_as(engine: Engine, one: Tracked, key: str) -> str:
    """What the store calls an optimizer state of a parameter that torch calls `key`."""
    kind = engine.optimizer.kinds[one.group]
    names = dict(zip(optimizer_kinds()[kind].moments, engine._exports.moment_whats(kind)))
    if key not in names:
        raise ConfigError(
            "cannot find an optimizer state",
            key,
            f"{kind} has {', '.join(names) or 'none'}",
            did_you_mean(key, names),
        )
    return names[key]


def _read(param: Any, key: str | None) -> torch.Tensor | None:
    found = _engine_of(param)
    if found is None:
        return None
    engine, one = found
    with within(engine.store.ranks, f"read {key or 'the fp32 values'} of {one.name}"):
        if key is not None:
            return engine._values.read(one, _kept_as(engine, one, key))
        # A parameter in fp32 is its own master, which can be read within a step as well.
        return engine._values.read(one, "parameter" if one.parameter.dtype == torch.float32 else "master")


def _write(param: Any, value: torch.Tensor, key: str | None) -> None:
    found = _engine_of(param)
    if found is None:
        return
    engine, one = found
    what = _kept_as(engine, one, key) if key is not None else None
    _require_all(one, value)
    with within(engine.store.ranks, f"write {key or 'the fp32 values'} of {one.name}"):
        settle_values(engine.store.ranks, {one.name: value}, None)
        engine._values.write(one, value.reshape(one.shape), what)


def _require_all(one: Tracked, value: torch.Tensor) -> None:
    if value.numel() != one.elements:
        raise ConfigError(
            "cannot write a parameter",
            one.name,
            f"the values have shape {tuple(value.shape)}, and it has {one.shape} in this part of the model",
            "give all values of the parameter, or of this process's shard",
        )


def safe_get_full_fp32_param(param: Any) -> torch.Tensor | None:
    """A copy of the fp32 values that a parameter is rounded from."""
    return _read(param, None)


def safe_set_full_fp32_param(param: Any, value: torch.Tensor) -> None:
    """All ranks give the same values."""
    _write(param, value, None)


def safe_get_full_optimizer_state(param: Any, optim_state_key: str) -> torch.Tensor | None:
    """A copy of "exp_avg", "exp_avg_sq" or what else torch calls a state of this optimizer."""
    return _read(param, optim_state_key)


def safe_set_full_optimizer_state(param: Any, value: torch.Tensor, optim_state_key: str) -> None:
    """All ranks give the same values."""
    _write(param, value, optim_state_key)


# --- Gradients, between the last backward pass of a step and its update ---


def safe_get_full_grad(param: Any) -> torch.Tensor | None:
    """In fp32 the mean over all micro-batches and ranks, without the loss scale."""
    found = _engine_of(param)
    if found is None:
        gradient: torch.Tensor | None = param.grad
        return gradient
    engine, one = found
    with within(engine.store.ranks, f"read the gradient of {one.name}"):
        return engine._values.read_gradient(one) / _factor(engine)


def safe_set_full_grad(param: Any, value: torch.Tensor) -> None:
    """All ranks give the same values."""
    found = _engine_of(param)
    if found is None:
        if param.grad is not None:
            param.grad.copy_(value)
        return
    engine, one = found
    _require_all(one, value)
    with within(engine.store.ranks, f"write the gradient of {one.name}"):
        settle_values(engine.store.ranks, {one.name: value}, None)
        engine._values.write_gradient(one, value.reshape(one.shape).float() * _factor(engine))


def _factor(engine: Engine) -> float:
    """How many times the mean the store has."""
    return engine.scaler.scale * engine._passes.backward.sums_of_losses(engine.world_size)


def safe_update_full_grad_vectorized(param_list: list[Any], update_func: Any) -> None:
    for param in param_list:
        safe_set_full_grad(param, update_func(safe_get_full_grad(param), param))


# --- The part of this rank ---


def _require_whole(param: Any) -> None:
    """Raises where this rank's part is not all of a parameter."""
    found = _engine_of(param)
    if found is not None and found[0].world_size > 1:
        raise ConfigError(
            "cannot give out a part of a parameter",
            found[1].name,
            f"the store divides it among {found[0].world_size} ranks as memory asks, and not as ZeRO-3 does",
            "use safe_get_full_fp32_param, safe_get_full_optimizer_state, or those that set",
        )


def _flat(value: torch.Tensor | None) -> torch.Tensor | None:
    return None if value is None else value.reshape(-1)


def safe_get_local_fp32_param(param: Any) -> torch.Tensor | None:
    """In one process all values, flat."""
    _require_whole(param)
    return _flat(_read(param, None))


def safe_set_local_fp32_param(param: Any, value: torch.Tensor) -> None:
    _require_whole(param)
    _write(param, value, None)


def safe_get_local_optimizer_state(param: Any, optim_state_key: str) -> torch.Tensor | None:
    """In one process all values, flat."""
    _require_whole(param)
    return _flat(_read(param, optim_state_key))


def safe_set_local_optimizer_state(param: Any, value: torch.Tensor, optim_state_key: str) -> None:
    _require_whole(param)
    _write(param, value, optim_state_key)


safe_get_local_grad, safe_set_local_grad = safe_get_full_grad, safe_set_full_grad
