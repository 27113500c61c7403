"""ReadWatch-rate schedules with DeepSpeed's arithmetic, as runtime/config/lr_schedule.h has it.

They are pure functions of the number of updates. Update k (from 0) runs with what DeepSpeed's scheduler sets in its
iteration k - 1, and the first one with what its constructor sets. Updates that fp16 skips do not count.
"""

import math


class Schedule:
    """`settings` are scheduler.params of a configuration, with every default filled in."""

    def __init__(self, kind, settings, base_lr):
        self.kind = kind
        self.base_lr = base_lr
        self.settings = settings
        self.warmup = max(2, settings.get("warmup_num_steps") or 0)
        self.total = settings.get("total_num_steps")

    def lr(self, update, group=0, base_lr=None):
        """The rate of a parameter group, whose own rate is `base_lr`, in an update (from 0)."""
        base = self.base_lr if base_lr is None else base_lr
        iteration = update - 1
        if self.kind == "linear":
            return base * max(0.0, 1.0 - (iteration + 1.0) / self.total)
        if self.kind in ("WarmupLR", "WarmupDecayLR"):
            lowest = self._of_group("warmup_min_lr", group)
            highest = base if self.settings["warmup_max_lr"] is None else self._of_group("warmup_max_lr", group)
            factor = self._rise(iteration) if iteration < self.warmup else self._decay(iteration)
            return lowest + (highest - lowest) * factor
        if self.kind == "WarmupCosineLR":
            return base * self._cosine(iteration)
        if self.kind == "LRRangeTest":
            return self._of_group("lr_range_test_min_lr", group) * self._range(iteration)
        return self._cycle_lr(iteration, group)

    def betas(self, update, group=0):
        """Adam's betas, where OneCycle cycles the momentum; else None."""
        if self.kind != "OneCycle" or not self.settings["cycle_momentum"]:
            return None
        return self._cycle_momentum(update - 1, group), 0.99

    def _of_group(self, name, group):
        value = self.settings[name]
        if isinstance(value, (int, float)):
            return value
        return value[0] if len(value) == 1 else value[group]

    def _rise(self, iteration):
        if iteration < 0:
            return 0.0
        if self.settings["warmup_type"] == "linear":
            return iteration / self.warmup
        return 1.0 / math.log(self.warmup) * math.log(iteration + 1.0)

    def _decay(self, iteration):
        if self.kind == "WarmupLR":
            return 1.0
        return max(0.0, (self.total - iteration) / max(1.0, self.total - self.warmup))

    def _cosine(self, iteration):
        if iteration < 0:
            return 0.0
        if iteration < self.warmup:
            lowest = self.settings["warmup_min_ratio"]
            return lowest + self._rise(iteration) * (1.0 - lowest)
        progress = min(1.0, (iteration - self.warmup + 1) / max(1.0, self.total - self.warmup))
        lowest = self.settings["cos_min_ratio"]
        return max(0.0, lowest + (1.0 - lowest) * (1.0 + math.cos(math.pi * progress)) / 2.0)

    def _range(self, iteration):
        interval = (iteration + 1.0) / self.settings["lr_range_test_step_size"]
        if self.settings["lr_range_test_staircase"]:
            interval = math.floor(interval)
        return 1.0 + self.settings["lr_range_test_step_rate"] * interval

    # --- OneCycle ---

    def _halves(self):
        first = self.settings["cycle_first_step_size"]
        second = self.settings["cycle_second_step_size"]
        return float(first), float(first if second is None else second)

    def _scale(self, iteration):
        """How far the cycle has come from its minimum to its maximum. Stairs are counted in whole steps: the
        continuous scale may lie a rounding below a stair."""
        first, second = self._halves()
        size = first + second
        done = iteration + 1.0
        x = 1.0 + done / size - math.floor(1.0 + done / size)
        rises = x <= first / size
        stairs = self.settings["cycle_first_stair_count"]
        if not rises and self.settings["cycle_second_stair_count"] is not None:
            stairs = self.settings["cycle_second_stair_count"]
        if stairs == 0:
            return x / (first / size) if rises else (x - 1.0) / (first / size - 1.0)
        step = math.fmod(done, size)
        return math.floor(step * stairs / first if step <= first else (size - step) * stairs / second) / stairs

    def _steps_after(self, iteration):
        return (iteration - sum(self._halves()) + 1.0) / self.settings["decay_step_size"]

    def _cycle_lr(self, iteration, group):
        lowest = self._of_group("cycle_min_lr", group)
        if iteration < sum(self._halves()):
            return lowest + (self._of_group("cycle_max_lr", group) - lowest) * self._scale(iteration)
        rate = self.settings["decay_lr_rate"]
        if self.settings["decay_step_size"] == 0 or rate == 0:
            return lowest
        return lowest / (1.0 + rate * self._steps_after(iteration))

    def _cycle_momentum(self, iteration, group):
        lowest, highest = self._of_group("cycle_min_mom", group), self._of_group("cycle_max_mom", group)
        if iteration < 0:
            return lowest
        if iteration < sum(self._halves()):
            return highest - (highest - lowest) * self._scale(iteration)
        rate = self.settings["decay_mom_rate"]
        if self.settings["decay_step_size"] == 0 or rate == 0:
            return highest
        return highest * (1.0 + rate * self._steps_after(iteration))
