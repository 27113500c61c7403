"""One thread at a time goes through a model."""

import threading

from ..errors import MisuseError


class Turn:
    """Whose pass is open: a pass of another thread would close what this one opens, and the other way round."""

    def __init__(self):
        self.thread = None
        self._entry = threading.Lock()

    def take(self):
        with self._entry:
            if self.thread in {one.ident for one in threading.enumerate()}:
                raise MisuseError(
                    "cannot go forward",
                    "the model",
                    "a pass of another thread is running",
                    "let one thread at a time use it, by a lock",
                )
            self.thread = threading.get_ident()
