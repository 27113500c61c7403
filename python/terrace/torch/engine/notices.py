"""What an engine says of a model that does what it does not expect, some of it once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..._types import Log
    from .placeholders import Tracked


class Notices:
    def __init__(self, say: Log) -> None:
        self._say = say
        self._has_told_of_autocast = self._has_told_of_nan = False

    def of_skipped_step(self) -> None:
        self._say(
            "warning",
            "a gradient was infinite or NaN: nothing was updated, and the next step is watched for "
            "parameters that are used outside of their modules",
        )

    def of_nan(self) -> None:
        if not self._has_told_of_nan:
            self._has_told_of_nan = True
            self._say(
                "warning",
                "an evaluation gave NaN: the next one is watched for parameters that are used outside of their "
                "modules; where it gives numbers, repeat this one",
            )

    def of_autocast(self, tracked: Sequence[Tracked]) -> None:
        if not self._has_told_of_autocast:
            self._has_told_of_autocast = True
            if any(one.type == "fp32" and one.is_managed for one in tracked):
                self._say(
                    "warning",
                    "autocast over fp32 parameters keeps a copy of each in 16 bits until its backward pass, "
                    "all of the model at once; set bf16.enabled in the configuration instead",
                )
