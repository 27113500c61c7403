"""The scale of an fp16 loss, with the rules of runtime/train/setup/loss_scaler.h, which are DeepSpeed's."""

from ..errors import CancelledError

_SKIPPED_IN_A_ROW = 10  # with a static scale, until the run ends
_LARGEST = 3.4028234663852886e38  # that fp32 holds


class LossScaler:
    def __init__(self, settings):
        """`settings`: a terrace.config.LossScale, or None for a scale of 1."""
        self._settings = settings
        self._is_static = settings is None or settings.loss_scale > 0
        self.scale = 1.0 if settings is None else settings.loss_scale or 2.0**settings.initial_scale_power
        self._hysteresis = 1 if settings is None else max(settings.hysteresis, 1)
        self._good_steps = self._skipped_in_a_row = 0

    @property
    def may_skip(self):
        return self._settings is not None

    def note(self, has_overflowed):
        """After an update."""
        if self._settings is None:
            return
        if has_overflowed:
            self._note_overflow()
            return
        settings = self._settings
        grows = self._good_steps > 0 and self._good_steps % max(settings.loss_scale_window, 1) == 0
        if settings.consecutive_hysteresis or grows:
            self._hysteresis = max(settings.hysteresis, 1)
        if grows and not self._is_static and self.scale * 2.0 <= _LARGEST:
            self.scale *= 2.0
        self._good_steps += 1
        self._skipped_in_a_row = 0

    def _note_overflow(self):
        least = self._settings.min_loss_scale
        if self._is_static and self._skipped_in_a_row + 1 == _SKIPPED_IN_A_ROW:
            raise CancelledError(
                f"gradients overflow in fp16 in {_SKIPPED_IN_A_ROW} steps in a row",
                f"loss scale {self.scale} (fp16.loss_scale)",
                "the scale is static",
                "lower fp16.loss_scale, set it to 0 for a dynamic scale, or train in bf16",
            )
        if not self._is_static and self._hysteresis == 1:
            if self.scale == least:
                raise CancelledError(
                    "gradients overflow in fp16 even at the smallest loss scale",
                    f"loss scale {self.scale} (fp16.min_loss_scale)",
                    "no smaller scale is allowed",
                    "lower the learning rate or clip gradients, lower fp16.min_loss_scale, or train in bf16",
                )
            self.scale = max(self.scale / 2.0, least)
        elif self._hysteresis > 1:
            self._hysteresis -= 1
        self._good_steps = 0
        self._skipped_in_a_row += 1

    def state(self):
        return [self.scale, self._hysteresis, self._good_steps, self._skipped_in_a_row]

    def restore(self, state):
        self.scale, self._hysteresis, self._good_steps, self._skipped_in_a_row = state
