"""A lease as a block of a program."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from .._lib import raw_of, value_of

if TYPE_CHECKING:
    from .._types import TensorKey
    from . import Store


class Lease:
    """A lease around a block. It may be opened again after its end."""

    __slots__ = ("_store", "_tensors", "_arguments", "_number")

    def __init__(self, store: Store, key: str, tensors: Iterable[TensorKey], kind: str) -> None:
        self._store = store
        self._tensors = list(tensors)
        ids = store.ids(self._tensors)
        self._arguments = (
            raw_of(key, "key of a lease"),
            value_of("terrace_use_kind", kind, "kind of a lease"),
            ids,
            len(ids),
        )

    def __enter__(self) -> list[Any]:
        self._number = self._store.open_lease(*self._arguments)
        try:
            return [self._store.leased_view(tensor) for tensor in self._tensors]
        except BaseException:
            self._store.close_lease(self._number)
            raise

    def __exit__(self, *_: object) -> None:
        self._store.close_lease(self._number)
