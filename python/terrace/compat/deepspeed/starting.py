"""initialize, and the classes of what it returns."""

from __future__ import annotations

from typing import Any

from ... import initialize as initialize_terrace
from ...errors import ConfigError
from ...torch.engine.engine import Engine
from ...torch.engine.optimizer import EngineOptimizer
from .words import ZeroParamStatus

DeepSpeedEngine = Engine
DeepSpeedOptimizer = ZeROOptimizer = EngineOptimizer
DeepSpeedConfigError = ConfigError


def initialize(*arguments: Any, **named: Any) -> tuple[Engine, EngineOptimizer, Any, Any]:
    """terrace.initialize. Parameters in the store have what scripts know those of ZeRO-3 by: they gather one with a
    `ds_id` before they read it."""
    made = initialize_terrace(*arguments, **named)
    for one in made[0]._tracked:
        if one.is_managed:
            parameter: Any = one.parameter
            parameter.ds_id, parameter.ds_status = one.number, ZeroParamStatus.NOT_AVAILABLE
            parameter.ds_shape, parameter.ds_numel = parameter.shape, parameter.numel()
    return made
