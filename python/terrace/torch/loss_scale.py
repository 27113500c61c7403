"""The scale of an fp16 loss, with DeepSpeed's rules: it falls where gradients overflow, and rises after a while without."""


class LossScaler:
    def __init__(self, settings):
        """`settings`: a terrace.config.LossScale, or None for a scale of 1."""
        self._settings = settings
        self._is_dynamic = settings is not None and not settings.loss_scale
        self.scale = 1.0 if settings is None else settings.loss_scale or 2.0 ** settings.initial_scale_power
        self._hysteresis = settings.hysteresis if self._is_dynamic else 0
        self._updates = 0
        self._last_overflow = -1

    @property
    def may_skip(self):
        return self._settings is not None

    def note(self, has_overflowed):
        """After an update. The rule is that of DeepSpeed's DynamicLossScaler."""
        if not self._is_dynamic:
            return
        settings = self._settings
        if has_overflowed:
            if self._hysteresis <= 1:
                self.scale = max(self.scale / 2.0, settings.min_loss_scale)
            else:
                self._hysteresis -= 1
            self._last_overflow = self._updates
        else:
            if settings.consecutive_hysteresis:
                self._hysteresis = settings.hysteresis
            if (self._updates - self._last_overflow) % settings.loss_scale_window == 0:
                if not settings.consecutive_hysteresis:
                    self._hysteresis = settings.hysteresis
                self.scale *= 2.0
        self._updates += 1

    def state(self):
        return [self.scale, self._hysteresis, self._updates, self._last_overflow]

    def restore(self, state):
        self.scale, self._hysteresis, self._updates, self._last_overflow = state
