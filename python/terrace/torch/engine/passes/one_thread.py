"""One thread at a time goes through a model."""

from __future__ import annotations

import contextlib
import threading

from ....errors import MisuseError

_LEFT_SECONDS = 0.5  # after which an entry that is held was left so


class Turn:
    """Whose pass is open: a pass of another thread would close what this one opens, and the other way round."""

    def __init__(self) -> None:
        self.thread: int | None = None
        self._entry = threading.Lock()

    def take(self, what: str) -> None:
        # Nobody holds the entry for long. An interrupt between its last line and its release leaves it held.
        self._entry.acquire(timeout=_LEFT_SECONDS)
        try:
            self.require(what)
            self.thread = threading.get_ident()
        finally:
            with contextlib.suppress(RuntimeError):
                self._entry.release()

    def require(self, what: str) -> None:
        """Raises where another thread's pass is open. A thread that has ended left its pass, and loses it."""
        if self.thread in (None, threading.get_ident()):
            return
        if self.thread in {one.ident for one in threading.enumerate()}:
            raise MisuseError(
                f"cannot {what}",
                "the model",
                "a pass of another thread is running",
                "let one thread at a time use the model, its engine and its optimizer, by a lock",
            )
