"""The configuration's learning rate schedule as an object with torch's and DeepSpeed's methods."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...errors import ConfigError

if TYPE_CHECKING:
    import torch

    from ..._types import Named
    from ...schedule import Schedule


class EngineSchedule:
    """Sets the rates of the next update, once when it is made and with every step()."""

    def __init__(self, optimizer: torch.optim.Optimizer, schedule: Schedule, is_of_muon: bool = False) -> None:
        """`is_of_muon`: the configuration is, whose lists by group have matrices as number 2."""
        self.optimizer = optimizer
        self._places = list(range(len(optimizer.param_groups)))
        if is_of_muon:
            self._places = [2 if group.get("use_muon", True) else 0 for group in optimizer.param_groups]
        self._schedule = schedule
        self._base_rates = [group["lr"] for group in optimizer.param_groups]
        self.last_epoch = 0
        self._set()

    def step(self, epoch: int | None = None) -> None:
        """Goes on by an update, or to update `epoch`, as torch's do."""
        self.last_epoch = self.last_epoch + 1 if epoch is None else int(epoch)
        self._set()

    def _set(self) -> None:
        for number, group in enumerate(self.optimizer.param_groups):
            place = self._places[number]
            group["lr"] = self._schedule.lr(self.last_epoch, place, self._base_rates[number])
            betas = self._schedule.betas(self.last_epoch, place)
            if betas is not None and "betas" not in group and "momentum" in group:
                group["momentum"] = betas[0]
            elif betas is not None:
                group["betas"] = betas

    def get_last_lr(self) -> list[float]:
        return [group["lr"] for group in self.optimizer.param_groups]

    get_lr = get_last_lr

    def state_dict(self) -> Named:
        return {"last_epoch": self.last_epoch, "base_rates": list(self._base_rates)}

    def require_own(self, state: Any, place: str) -> None:
        """Raises where another schedule has made the state."""
        if set(state) != set(self.state_dict()):
            raise ConfigError(
                "cannot load a learning rate schedule",
                place,
                "another scheduler has saved it",
                "load it with load_lr_scheduler_states=False",
            )

    def load_state_dict(self, state_dict: Named) -> None:
        self.last_epoch = state_dict["last_epoch"]
        self._base_rates = list(state_dict["base_rates"])
        self._set()
