"""A call of C that calls Python back, so that Ctrl-C ends it.

Python raises a KeyboardInterrupt on the main thread, at the first line of a function that C has called there too, where
it would be printed and lost. On another thread there is none, and the main one waits where it can be interrupted.
"""

from _thread import allocate_lock, start_new_thread

# A signal that comes just before a thread begins to wait does not wake it, nor one that another thread takes.
_GLANCE_SECONDS = 0.1


def call_elsewhere(function, interrupted):
    """Runs function() on another thread and returns its result. What is raised here meanwhile is given to
    interrupted(), and the call goes on until it ends by itself."""
    result, cancelled = [], []
    may_begin, has_ended = allocate_lock(), allocate_lock()
    may_begin.acquire()
    has_ended.acquire()

    def run():
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
    while not result:
        try:
            if may_begin.locked():
                may_begin.release()
            has_ended.acquire(timeout=_GLANCE_SECONDS)
        except BaseException as interrupt:
            interrupted(interrupt)
    value, error = result[0]
    if error is not None:
        raise error
    return value
