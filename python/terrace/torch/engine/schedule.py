"""The configuration's learning rate schedule as an object with torch's and DeepSpeed's methods."""

from ...errors import ConfigError


class EngineSchedule:
    """Sets the rates of the next update, once when it is made and with every step()."""

    def __init__(self, optimizer, schedule):
        self.optimizer = optimizer
        self._schedule = schedule
        self._base_rates = [group["lr"] for group in optimizer.param_groups]
        self.last_epoch = 0
        self._set()

    def step(self, epoch=None):
        """Goes on by an update, or to update `epoch`, as torch's do."""
        self.last_epoch = self.last_epoch + 1 if epoch is None else int(epoch)
        self._set()

    def _set(self):
        for number, group in enumerate(self.optimizer.param_groups):
            group["lr"] = self._schedule.lr(self.last_epoch, number, self._base_rates[number])
            betas = self._schedule.betas(self.last_epoch, number)
            if betas is not None:
                group["betas"] = betas

    def get_last_lr(self):
        return [group["lr"] for group in self.optimizer.param_groups]

    get_lr = get_last_lr

    def state_dict(self):
        return {"last_epoch": self.last_epoch, "base_rates": list(self._base_rates)}

    def require_own(self, state, place):
        """Raises where another schedule has made the state."""
        if set(state) != set(self.state_dict()):
            raise ConfigError(
                "cannot load a learning rate schedule",
                place,
                "another scheduler has saved it",
                "load it with load_lr_scheduler_states=False",
            )

    def load_state_dict(self, state_dict):
        self.last_epoch = state_dict["last_epoch"]
        self._base_rates = list(state_dict["base_rates"])
        self._set()
