"""A call that Ctrl-C must not cut short: of C that calls Python back, or an import.

Python raises a KeyboardInterrupt on the main thread, at the first line of a function that C has called there too, where
it would be printed and lost. On another thread there is none, and the main one waits where it can be interrupted.
"""

from __future__ import annotations

from _thread import allocate_lock, start_new_thread
from collections.abc import Callable
from typing import Any, TypeVar

_Result = TypeVar("_Result")
# A signal that comes just before a thread begins to wait does not wake it, nor one that another thread takes.
_GLANCE_SECONDS = 0.1


def call_elsewhere(function: Callable[[], _Result], interrupted: Callable[[BaseException], object]) -> _Result:
    """Runs function() on another thread and returns its result. What is raised here meanwhile is given to
    interrupted(), and the call goes on until it ends by itself."""
    result: list[tuple[Any, BaseException | None]] = []
    cancelled: list[bool] = []
    may_begin, has_ended = allocate_lock(), allocate_lock()
    may_begin.acquire()
    has_ended.acquire()

    def run() -> None:
        may_begin.acquire()
        if not cancelled:
            try:
                result.append((function(), None))
            except BaseException as error:
                result.append((None, error))
        has_ended.release()

    try:
        start_new_thread(run, ())
    except BaseException:  # before or after the thread began: it must not call any more
        cancelled.append(True)
        may_begin.release()
        raise
    caught: list[BaseException] = []  # so that another one while interrupted() is called is caught as well
    while not result or caught:
        try:
            if may_begin.locked():
                may_begin.release()
            if caught:
                interrupted(caught.pop())
            if not result:
                has_ended.acquire(timeout=_GLANCE_SECONDS)
        except BaseException as interrupt:
            caught = [interrupt]
    value, error = result[0]
    if error is not None:
        raise error
    return value
