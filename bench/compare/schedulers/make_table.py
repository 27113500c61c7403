"""Writes what DeepSpeed's schedulers set, update by update, as JSON lines: the fixture of
tests/runtime/config/lr_schedule_table_test.cpp. README.md beside this file says how it is run.

Update k runs with the values that the parameter groups hold before scheduler.step() was called for the k-th
time, as DeepSpeed's engine has it.
"""

import json
import logging
import sys

import torch
from deepspeed.runtime import lr_schedules

logging.disable(logging.WARNING)

WARMUP = {"warmup_min_lr": 1e-5, "warmup_max_lr": 3e-4, "warmup_num_steps": 10}
CYCLE = {"cycle_min_lr": 1e-4, "cycle_max_lr": 1e-3, "cycle_first_step_size": 7, "cycle_second_step_size": 5}

# type, params, rates of the optimizer's groups, number of updates
CASES = [
    ("WarmupLR", {}, [2e-3], 24),
    ("WarmupLR", WARMUP, [1e-3], 16),
    ("WarmupLR", {**WARMUP, "warmup_type": "linear"}, [1e-3], 16),
    ("WarmupLR", {"warmup_num_steps": 1}, [1e-3], 6),
    (
        "WarmupLR",
        {"warmup_num_steps": 6, "warmup_min_lr": [0.0, 1e-5], "warmup_max_lr": [1e-3, 2e-3]},
        [1e-3, 1e-3],
        10,
    ),
    ("WarmupLR", {"warmup_num_steps": 6}, [1e-3, 5e-3], 10),
    ("WarmupDecayLR", {"total_num_steps": 30, "warmup_num_steps": 10}, [5e-2], 40),
    ("WarmupDecayLR", {**WARMUP, "total_num_steps": 30, "warmup_type": "linear"}, [1e-3], 40),
    ("WarmupDecayLR", {**WARMUP, "total_num_steps": 5}, [1e-3], 16),
    ("WarmupCosineLR", {"total_num_steps": 30, "warmup_num_steps": 10}, [1e-3], 40),
    (
        "WarmupCosineLR",
        {
            "total_num_steps": 30,
            "warmup_num_steps": 7,
            "warmup_min_ratio": 0.1,
            "cos_min_ratio": 0.25,
            "warmup_type": "linear",
        },
        [1e-3, 4e-4],
        40,
    ),
    ("WarmupCosineLR", {"total_num_steps": 5, "warmup_num_steps": 8, "warmup_min_ratio": 0.5}, [1e-3], 14),
    ("OneCycle", CYCLE, [1e-3], 30),
    (
        "OneCycle",
        {"cycle_min_lr": 1e-4, "cycle_max_lr": 1e-3, "cycle_first_step_size": 6, "cycle_momentum": False},
        [1e-3],
        20,
    ),
    (
        "OneCycle",
        {
            **CYCLE,
            "cycle_first_stair_count": 3,
            "cycle_second_stair_count": 2,
            "cycle_min_mom": 0.75,
            "cycle_max_mom": 0.95,
        },
        [1e-3],
        20,
    ),
    (
        "OneCycle",
        {**CYCLE, "cycle_first_stair_count": 4, "decay_step_size": 3, "decay_lr_rate": 0.5, "decay_mom_rate": 0.001},
        [1e-3],
        30,
    ),
    ("OneCycle", {**CYCLE, "cycle_second_step_size": 0, "decay_step_size": 2, "decay_lr_rate": 0.1}, [1e-3], 20),
    (
        "OneCycle",
        {
            **CYCLE,
            "cycle_min_lr": [1e-4, 2e-4],
            "cycle_max_lr": [1e-3, 3e-3],
            "cycle_min_mom": [0.8, 0.7],
            "cycle_max_mom": [0.9, 0.95],
        },
        [1e-3, 1e-3],
        16,
    ),
    ("LRRangeTest", {"lr_range_test_step_size": 5}, [1e-1], 14),
    (
        "LRRangeTest",
        {
            "lr_range_test_min_lr": 1e-5,
            "lr_range_test_step_size": 4,
            "lr_range_test_step_rate": 2.5,
            "lr_range_test_staircase": True,
        },
        [1e-1],
        18,
    ),
    ("LRRangeTest", {"lr_range_test_min_lr": [1e-5, 1e-3], "lr_range_test_step_size": 3}, [1e-3, 1e-3], 8),
]


def table(kind, params, rates, updates):
    groups = [{"params": [torch.nn.Parameter(torch.zeros(1))], "lr": rate} for rate in rates]
    optimizer = torch.optim.AdamW(groups, betas=(0.85, 0.98))
    scheduler = getattr(lr_schedules, kind)(optimizer, **params)
    rows = []
    for _ in range(updates):
        rows.append([[group["lr"], *group["betas"]] for group in optimizer.param_groups])
        scheduler.step()
    return rows


with open(sys.argv[1], "w") as file:
    for kind, params, rates, updates in CASES:
        config = {
            "optimizer": {"type": "AdamW", "params": {"lr": rates[0], "betas": [0.85, 0.98]}},
            "scheduler": {"type": kind, "params": params},
        }
        row = {"config": config, "group_lr": rates, "updates": table(kind, params, rates, updates)}
        file.write(json.dumps(row) + "\n")
