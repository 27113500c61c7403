"""DeepSpeed's learning rate schedules by their names: those of the configuration, over an optimizer of the loop."""

from __future__ import annotations

from typing import Any

from ...config import read_config
from ...errors import ConfigError
from ...torch.engine.schedule import EngineSchedule

VALID_LR_SCHEDULES = ["LRRangeTest", "OneCycle", "WarmupLR", "WarmupDecayLR", "WarmupCosineLR"]


def _made(kind: str, optimizer: Any, params: dict[str, Any]) -> EngineSchedule:
    """`params` are the arguments of a schedule, which the configuration calls alike."""
    last = params.pop("last_batch_iteration", -1)
    if last != -1:
        raise ConfigError(
            "cannot make a learning rate schedule",
            "last_batch_iteration",
            f"it is {last}",
            "leave it out, and call load_state_dict of the schedule, or engine.load_checkpoint",
        )
    config = read_config(
        {
            "optimizer": {"type": "AdamW", "params": {"lr": optimizer.param_groups[0]["lr"]}},
            "scheduler": {"type": kind, "params": {name: one for name, one in params.items() if one is not None}},
        }
    )
    assert config.schedule is not None
    return EngineSchedule(optimizer, config.schedule)


def LRRangeTest(
    optimizer: Any,
    lr_range_test_min_lr: Any = 1e-3,
    lr_range_test_step_size: int = 2000,
    lr_range_test_step_rate: float = 1.0,
    lr_range_test_staircase: bool = False,
    last_batch_iteration: int = -1,
) -> EngineSchedule:
    given = dict(locals())
    return _made("LRRangeTest", given.pop("optimizer"), given)


def OneCycle(
    optimizer: Any,
    cycle_min_lr: float,
    cycle_max_lr: float,
    decay_lr_rate: float = 0.0,
    cycle_first_step_size: int = 2000,
    cycle_second_step_size: int | None = None,
    cycle_first_stair_count: int = 0,
    cycle_second_stair_count: int | None = None,
    decay_step_size: int = 0,
    cycle_momentum: bool = True,
    cycle_min_mom: float = 0.8,
    cycle_max_mom: float = 0.9,
    decay_mom_rate: float = 0.0,
    last_batch_iteration: int = -1,
) -> EngineSchedule:
    given = dict(locals())
    return _made("OneCycle", given.pop("optimizer"), given)


def WarmupLR(
    optimizer: Any,
    warmup_min_lr: Any = 0.0,
    warmup_max_lr: Any = None,
    warmup_num_steps: int = 1000,
    warmup_type: str = "log",
    last_batch_iteration: int = -1,
) -> EngineSchedule:
    given = dict(locals())
    return _made("WarmupLR", given.pop("optimizer"), given)


def WarmupDecayLR(
    optimizer: Any,
    total_num_steps: int,
    warmup_min_lr: Any = 0.0,
    warmup_max_lr: Any = 0.001,
    warmup_num_steps: int = 1000,
    warmup_type: str = "log",
    last_batch_iteration: int = -1,
) -> EngineSchedule:
    given = dict(locals())
    return _made("WarmupDecayLR", given.pop("optimizer"), given)


def WarmupCosineLR(
    optimizer: Any,
    total_num_steps: int,
    warmup_min_ratio: float = 0.0,
    warmup_num_steps: int = 1000,
    cos_min_ratio: float = 0.0001,
    warmup_type: str = "log",
    last_batch_iteration: int = -1,
) -> EngineSchedule:
    given = dict(locals())
    return _made("WarmupCosineLR", given.pop("optimizer"), given)
