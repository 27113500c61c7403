"""What the first rank writes of a store that is divided over ranks. No rank ever holds the model: before each read the first
one says which values it wants, and the others bring their part of them."""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from ...._lib import check, library, word_of
from ....errors import PeerError

if TYPE_CHECKING:
    from ....ranks import Ranks
    from ....store import Store

_Made = TypeVar("_Made")
_DONE, _FAILED, _READ, _CHECKPOINT = range(4)
_WORDS = struct.Struct("=5Q")  # what is wanted; a tensor, what of it, its first element, how many


def by_first(store: Store, what: str, write: Callable[[], _Made]) -> _Made | None:
    """What `write` returns on the first rank, and None on the others. All ranks call it, between two steps."""
    ranks = store.ranks
    if ranks is None:
        return write()
    with ranks.within(f"the call to {what}"):
        if ranks.is_first:
            return _lead(store, ranks, write)
        _follow(store, ranks, what)
        return None


def _lead(store: Store, ranks: Ranks, write: Callable[[], _Made]) -> _Made:
    store.tells = functools.partial(_tell, ranks, _READ)
    try:
        made = write()
    except BaseException as error:
        store.tells = None
        if not isinstance(error, PeerError):
            _tell(ranks, _FAILED)
            ranks.of_first(str(error).encode())
        raise
    store.tells = None
    _tell(ranks, _DONE)
    return made


def tell_of_checkpoint(store: Store) -> None:
    """The next call of the first rank is terrace_state_checkpoint, in which all take part."""
    if store.ranks is not None:
        _tell(store.ranks, _CHECKPOINT)


def _tell(ranks: Ranks, wanted: int, *more: int) -> bytes:
    return ranks._ballot(_WORDS.pack(wanted, *more, *[0] * (4 - len(more))))[0]


def _follow(store: Store, ranks: Ranks, what: str) -> None:
    while True:
        wanted, tensor, kind, first, count = _WORDS.unpack(_tell(ranks, 0))
        if wanted == _DONE:
            return
        if wanted == _FAILED:
            text = ranks.of_first(b"").decode(errors="replace").partition("\n")[0]
            raise PeerError(f"cannot {what}", f"rank 0 of {ranks.count}", text, "do there what its own error says")
        if wanted == _READ:
            store.read_values(tensor, word_of("terrace_what", kind), first, count)
        else:
            _take_part(store, ranks)


def _take_part(store: Store, ranks: Ranks) -> None:
    """What the first rank fails with there it says itself."""
    try:
        check(library().terrace_state_checkpoint(None, store._handle, None))
    except PeerError:
        ranks.check()
