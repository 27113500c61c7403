"""What a TerraceTrainer tells the callbacks of `report_to`, and those of the program, beside the Trainer's own logs. What
is printed and kept of a log stays as the Trainer has it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback
from transformers.trainer_callback import CallbackHandler, PrinterCallback, ProgressCallback

if TYPE_CHECKING:
    from .torch.engine.engine import Engine

_PREFIX = "terrace/"
# Each is a sum of counters of the store, which count bytes and nanoseconds.
_BYTES = {
    "h2d_bytes": ("h2d",),
    "d2h_bytes": ("d2h",),
    "nvme_read_bytes": ("param_read", "record_read", "gradient_read"),
    "nvme_write_bytes": ("param_write", "record_write", "gradient_write", "commit_write", "manifest"),
}
_WAITS = ("device_copy_wait", "read_wait", "write_wait", "rank_wait")


def add_figures(handler: CallbackHandler, engine: Engine) -> None:
    """The figures are there from the first callback to the last before those that print."""
    printing = (PrinterCallback, ProgressCallback)
    callbacks = handler.callbacks
    first = next((place for place, one in enumerate(callbacks) if isinstance(one, printing)), len(callbacks))
    callbacks.insert(first, _Removed())
    callbacks.insert(0, _Added(engine))


class _Added(TrainerCallback):
    """Of a step, on average since the log before."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._before: dict[str, int] = {}
        self._steps_before = 0

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._before, self._steps_before = self._engine.store.counters(), state.global_step

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        steps = state.global_step - self._steps_before
        if steps <= 0 or "loss" not in (logs or ()):
            return
        now = self._engine.store.counters()
        moved = {name: now[name] - self._before[name] for name in now}
        self._before, self._steps_before = now, state.global_step
        for name, counters in _BYTES.items():
            logs[_PREFIX + name] = sum(moved[one] for one in counters) / steps
        logs[_PREFIX + "wait_seconds"] = sum(moved[one] for one in _WAITS) / steps * 1e-9


class _Removed(TrainerCallback):
    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        for name in [name for name in logs or () if name.startswith(_PREFIX)]:
            del logs[name]
