"""The uses of units that are open, and the leases that they hold on the device.

In a forward pass uses nest as modules do. In a backward pass a use is over when autograd comes to operations that
were made before it began: it runs them in the order opposite to that of their making. A part of the backward pass
that runs within an operation (torch.utils.checkpoint with use_reentrant=True) has an order of its own, since what it
goes through was made within the backward pass; at its end all of its uses are over, and when it begins all of those
around it are over that do not enclose what was checkpointed.

While something is computed again, the operation whose backward pass asked for it stands still and reads nothing.
Where device memory is short, its lease is given up meanwhile, so that recomputation needs no more than a forward
pass does."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, cast

import torch

from ....errors import CapacityError, Error
from ..placeholders import acquire, release

if TYPE_CHECKING:
    import ctypes

    from ....store import Store
    from ..placeholders import Tracked
    from ..units import Unit
    from .hooks import Use
    from .needs import Shortage

_task = torch._C._current_graph_task_id


class Leases:
    """`shortage` makes a Shortage, where the device has no room for a lease and nothing can be given up for it."""

    def __init__(self, store: Store, shortage: Callable[..., Shortage], is_strict: bool) -> None:
        self._store = store
        self._shortage = shortage
        self._lack: Shortage | None = None  # with which a pass goes on
        self.may_lack = False  # a pass may go on so
        self._is_strict = is_strict  # what is not there cannot be read, not even as NaN
        self.forward: list[Use] = []  # uses that are open, outermost first
        self.backward: list[Use] = []
        self._is_short = False  # some uses are suspended

    def __bool__(self) -> bool:
        return bool(self.forward or self.backward)

    # --- One use ---

    def open(self, use: Use, key: bytes, kind: int) -> None:
        unit = use.unit
        ids = unit.ids if unit.ids is not None else unit.settle(self._store)
        lease = self._lease(use, key, kind, ids, unit.count)
        if lease is None:
            use.wanted = unit.tracked
            self._lacking().add(self.forward)
            return
        use.leases = (lease,)
        use.tracked = unit.tracked
        acquire(use.tracked)

    def extend(self, use: Use, one: Tracked, kind: int) -> None:
        """An open use reads a parameter more."""
        key = use.keys[0] + b"+" + str(one.number).encode()
        lease = self._lease(use, key, kind, self._store.ids([one.number]), 1, one)
        if lease is None:
            use.wanted += (one,)
            self._lacking().add(self.forward)
            return
        use.leases += (lease,)
        acquire([one])
        use.tracked += (one,)

    def _lacking(self) -> Shortage:
        return cast("Shortage", self._lack)  # of a pass that goes on without a lease

    def is_wanted(self, one: Tracked) -> bool:
        return self._lack is not None and any(one in use.wanted for use in self.forward)

    def owner_of(self, tensor: object) -> Tracked | None:
        """The parameter that is leased at the memory of a tensor, which may be a view of it; None where none is."""
        if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.strided:
            return None
        address = tensor.data_ptr()
        for use in self.forward:
            for one in use.tracked:
                first = one.memory.data_ptr()
                if not one.is_gathered and first <= address < first + one.memory.nbytes:
                    return one
        return None

    def close(self, use: Use) -> None:
        tracked, use.tracked = use.tracked, ()
        release(tracked)
        leases, use.leases = use.leases, ()
        for lease in leases[::-1]:
            self._store.close_lease(lease)

    def leave(self, use: Use, is_failing: bool) -> None:
        """close() at the end of a forward. Where that has failed already, its failure is the one to be seen: torch
        would print what a hook raises then. A store that has failed says so at the next call."""
        try:
            self.close(use)
        except Error:
            if not is_failing:
                raise

    def _lease(
        self,
        use: Use,
        key: bytes,
        kind: int,
        ids: ctypes.Array[ctypes.c_uint32],
        count: int,
        one: Tracked | None = None,
    ) -> int | None:
        """The number of a lease; None where the pass goes on without."""
        if self._lack is not None:
            return None
        try:
            return self._store.open_lease(key, kind, ids, count)
        except CapacityError as error:
            if not error.least_device_bytes:  # of another budget than the device's
                raise
            failure = error
        while self._give_one_up(use.unit):
            try:
                return self._store.open_lease(key, kind, ids, count)
            except CapacityError as error:
                failure = error
        is_dry = self.may_lack and _task() == -1 and not self._is_strict
        lack = self._shortage(failure, use, one, is_dry)
        if is_dry:
            self._lack = lack
            return None
        use.wanted += use.unit.tracked if one is None else (one,)
        lack.add({*self.forward, *self.backward, use})
        raise lack.error() from failure

    def begin_watched(self) -> None:
        """A forward pass that goes on, until its end, where the device has no room."""
        self.may_lack = True

    def end_watched(self, is_whole: bool) -> None:
        """Raises the error for want of device memory, if that was met."""
        self.may_lack = False
        lack, self._lack = self._lack, None
        if lack is not None:
            lack.end_pass(is_whole)
            raise lack.error()

    # --- Going backward ---

    def close_before(self, use: Use) -> None:
        """Closes what is over when a use begins to go backward."""
        task = use.task = _task()
        over = [
            one for one in self.backward if one.entered > use.left or one.task != task and not _encloses(one, use.unit)
        ]
        for one in over:
            self.close_backward(one)

    def close_backward(self, use: Use) -> None:
        self.backward.remove(use)
        use.is_backward = use.is_suspended = False
        self.close(use)

    def close_task(self, task: int | None) -> None:
        """A part of the backward pass is over, or all of it where `task` is None."""
        for use in [one for one in self.backward if task is None or one.task == task][::-1]:
            self.close_backward(use)

    def _give_one_up(self, unit: Unit) -> bool:
        """Gives up one lease that nothing reads while the unit is entered, the youngest first. False: there is
        none."""
        task = _task()
        is_recomputed = task != -1 and self.forward
        for one in self.backward[::-1]:
            if not one.leases or _encloses(one, unit):
                continue
            if one.task != task:
                self.close_backward(one)
                return True
            if is_recomputed:
                self.close(one)
                one.is_suspended = self._is_short = True
                return True
        return False

    def resume(self, kind: int, stamp: int) -> None:
        """Nothing is being computed again any more: operations go on that stood still. They do not read parameters
        whose gradient of the micro-batch is complete, and which may be being updated; `stamp` is theirs."""
        if not self._is_short:
            return
        self._is_short = False
        for use in self.backward:
            if not use.is_suspended:
                continue
            use.is_suspended = False
            use.resumed += 1
            left = tuple(one for one in use.unit.tracked if not one.is_trainable or one.stamp != stamp)
            if left:
                ids = self._store.ids([one.number for one in left])
                lease = self._lease(use, use.keys[1] + b"~%d" % use.resumed, kind, ids, len(left))
                use.leases = (cast(int, lease),)  # no pass goes backward without
                use.tracked = left
                acquire(left)

    # --- After a failure ---

    def forget(self) -> None:
        """The store releases all leases by itself."""
        for use in self.forward + self.backward:
            use.is_backward = use.is_suspended = False
            use.tracked = use.leases = use.wanted = ()
        self._lack = None
        self.may_lack = False
        self.forward, self.backward = [], []
        self._is_short = False


def _encloses(use: Use, unit: Unit) -> bool:
    """Whether the unit was entered within the use: then the use may still be read. True where that is not known."""
    within = unit.intervals
    if not within or use.entered < unit.known_from:
        return True
    return any(use.entered < entered and left < use.left for entered, left in within)
