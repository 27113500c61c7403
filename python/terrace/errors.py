"""Errors of four parts: what failed, on what, the reason, and what to do."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .store.spec import Plan


class Error(Exception):
    """What every failure of Terrace is raised as."""

    kind = "error"
    # What a program may do something about by itself: a word of terrace_error_cause.
    cause = "other"

    def __init__(
        self, what: str, subject: str = "", reason: str = "", advice: str = "", kind: str | None = None
    ) -> None:
        super().__init__(what, subject, reason, advice)
        self.what = what
        self.subject = subject
        self.reason = reason
        self.advice = advice
        if kind is not None:
            self.kind = kind

    def __str__(self) -> str:
        text = self.what
        if self.subject:
            quote = "" if '"' in self.subject else '"'  # quotes within quotes say nothing
            text += f" {quote}{self.subject}{quote}"
        if self.reason:
            text += f": {self.reason}"
        if self.advice:
            text += f"\n  {self.advice}"
        return text

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.what, self.subject, self.reason, self.advice, self.kind), self.__dict__


class ConfigError(Error):
    """A value that cannot be used. Nothing was changed."""

    kind = "config"


class CapacityError(Error):
    """A budget, drive or limit that is too small. least_bytes would do; 0: not known, or no matter."""

    kind = "capacity"
    least_bytes = 0
    least_device_bytes = 0
    least_host_bytes = 0
    least_nvme_bytes = 0
    # Of plan() and Store(): the Plan, as far as it goes.
    plan: Plan | None = None


class IoError(Error):
    """An operation on a file or drive failed."""

    kind = "io"


class DeviceError(Error):
    """The accelerator failed."""

    kind = "device_failed"


class CorruptError(Error):
    """Bytes on a drive differ from those written."""

    kind = "corrupt"


class CancelledError(Error):
    """A callback asked to stop, or no whole state is left."""

    kind = "cancelled"


class MisuseError(Error):
    """A call out of order, or on something that does not exist. Nothing was changed."""

    kind = "misuse"


class PeerError(Error):
    """Another rank has died, has left, or does something else."""

    kind = "peer"


class InternalError(Error):
    """A failure that the library has no name for."""

    kind = "internal"


BY_KIND = {error.kind: error for error in Error.__subclasses__()}


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """'did you mean "lr"?' where a known word is near, else "the known ones are ..."."""
    from .suggestions import suggestion_among

    return suggestion_among(word, known) or "known are: " + ", ".join(sorted(known))
