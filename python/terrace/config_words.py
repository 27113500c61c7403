"""Words of a store in errors become those of a configuration."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from .errors import Error

_KEYS = (
    ("budget_bytes of the device", "terrace.device_memory"),
    ("host_bytes", "terrace.host_memory"),
    ("chunk_elements", "terrace.chunk_elements"),
    ("nvme_paths", "nvme_path"),
    ("retained_commits", "terrace.retained_checkpoints"),
    ("destroy the earlier Offloader", "call close() of the earlier engine"),
)


@contextlib.contextmanager
def in_words_of_the_configuration() -> Iterator[None]:
    try:
        yield
    except Error as error:
        for part in ("subject", "reason", "advice"):
            for option, key in _KEYS:
                setattr(error, part, re.sub(rf"\b{option}\b", key, getattr(error, part)))
        raise
