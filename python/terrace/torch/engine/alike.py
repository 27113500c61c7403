"""What has to be the same on all ranks, held against each other before anything rests on it."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from ...errors import ConfigError

if TYPE_CHECKING:
    from ..._types import Named
    from ...ranks import Ranks


def within(ranks: Ranks | None, call: str) -> contextlib.AbstractContextManager[None]:
    """Within the block all ranks are in this call (Ranks.within)."""
    return contextlib.nullcontext() if ranks is None else ranks.within(f"the call to {call}")


def agree(
    ranks: Ranks | None,
    facts: Named,
    what: str = "cannot train one model on several ranks",
    advice: str = "start all of them with the same program, files and seed (torch.manual_seed before the model is made)",
) -> None:
    """Raises ConfigError on all ranks where a fact is not the same on all, with each difference."""
    if ranks is None:
        return
    try:
        ranks.agree(facts)
    except ConfigError as error:
        raise ConfigError(what, error.subject, error.reason, advice) from None
