"""Landing: the way of gradients to the store, which takes them from host memory or, where ranks exchange them there, from
the GPU.

On the way to host memory a gradient is copied from the GPU to page-locked memory on a stream of its own, behind the operation
that made it, and handed over when its copy has ended: with one that comes later, or with finish(). Backward passes do not wait
for copies."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import torch

_LEAST_BYTES = 64 << 20
_ALIGNED_BYTES = 512


if TYPE_CHECKING:
    from ....store import Store
    from ..placeholders import Tracked

    HandOver = Callable[[Tracked, int], None]


def landing_for(store: Store, tracked: Sequence[Tracked], hand_over: HandOver) -> DirectLanding | Landing:
    if store.cuda_ordinal is None:
        return DirectLanding(hand_over)
    if store.takes_from_gpu:
        return LandingOnGpu(GpuStreams(store), hand_over)
    return Landing(tracked, GpuCopies(store.cuda_ordinal), hand_over)


class DirectLanding:
    """Of gradients that are in host memory. Members as of Landing."""

    def __init__(self, hand_over: HandOver) -> None:
        self._hand_over = hand_over

    def take(self, one: Tracked, gradient: torch.Tensor) -> None:
        self._hand_over(one, gradient.data_ptr())

    def finish(self) -> None:
        pass

    def drop(self) -> None:
        pass


class GpuStreams:
    """The store's operations on a GPU, and those of torch."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @contextlib.contextmanager
    def behind(self, gradient: torch.Tensor) -> Iterator[None]:
        """What the store reads within is behind the operation that made the gradient, whose memory is not used again
        before. torch may have made it on another stream than the store's."""
        current = torch.cuda.current_stream(gradient.device)
        before = self._store.compute_stream
        self._store.use_stream(current.cuda_stream)
        try:
            yield
        finally:
            gradient.record_stream(current)
            self._store.use_stream(before)


class LandingOnGpu(DirectLanding):
    """Of gradients that the store takes from the GPU, each at once: ranks hand them over in one order with their
    leases."""

    def __init__(self, streams: GpuStreams, hand_over: HandOver) -> None:
        super().__init__(hand_over)
        self._streams = streams

    def take(self, one: Tracked, gradient: torch.Tensor) -> None:
        with self._streams.behind(gradient):
            super().take(one, gradient)


class GpuCopies:
    """Copies from a GPU to page-locked memory, on a stream of their own."""

    def __init__(self, device: int) -> None:
        self._stream = torch.cuda.Stream(device)

    def memory(self, size: int) -> torch.Tensor:
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)

    def begin(self, to: torch.Tensor, gradient: torch.Tensor) -> torch.cuda.Event:
        """The event of the copy's end. The gradient's memory is not used again before."""
        self._stream.wait_stream(torch.cuda.current_stream(gradient.device))
        with torch.cuda.stream(self._stream):
            to.copy_(gradient, non_blocking=True)
        gradient.record_stream(self._stream)
        return self._stream.record_event()

    def finish(self) -> None:
        self._stream.synchronize()


class Landing:
    """`hand_over` is called with a tracked parameter and the host address of its gradient."""

    def __init__(
        self, tracked: Sequence[Tracked], copies: GpuCopies, hand_over: HandOver, least_bytes: int = _LEAST_BYTES
    ) -> None:
        self._copies, self._hand_over = copies, hand_over
        sizes = [_size_of(one.parameter) for one in tracked]
        # So that one gradient can come while the one before it is handed over.
        self._memory = copies.memory(min(sum(sizes), max(2 * max(sizes, default=0), least_bytes)))
        self._coming: deque[tuple[Tracked, int, int, torch.cuda.Event]] = (
            deque()
        )  # (tracked, first byte, byte behind, event), in a ring
        self._next = 0

    def take(self, one: Tracked, gradient: torch.Tensor) -> None:
        first = self._room_for(_size_of(gradient))
        to = self._memory[first : first + gradient.nbytes].view(gradient.dtype).view(gradient.shape)
        self._next = first + _size_of(gradient)
        self._coming.append((one, first, self._next, self._copies.begin(to, gradient)))
        while self._coming and self._coming[0][3].query():
            self._hand_over_oldest()

    def finish(self) -> None:
        while self._coming:
            self._hand_over_oldest()

    def drop(self) -> None:
        """Of a step that is given up."""
        if self._coming:
            self._copies.finish()
            self._coming.clear()

    def _room_for(self, size: int) -> int:
        first = self._next
        if first + size > self._memory.numel():
            while self._coming and self._coming[0][1] >= first:  # of the lap before
                self._hand_over_oldest()
            first = 0
        while self._coming and self._coming[0][1] < first + size and self._coming[0][2] > first:
            self._hand_over_oldest()
        return first

    def _hand_over_oldest(self) -> None:
        one, first, _, copied = self._coming.popleft()
        copied.synchronize()
        self._hand_over(one, self._memory.data_ptr() + first)


def _size_of(tensor: torch.Tensor) -> int:
    return -(-tensor.nbytes // _ALIGNED_BYTES) * _ALIGNED_BYTES
