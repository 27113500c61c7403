"""Run: a training that is followed while it goes on (capi/terrace_run.h): the log of its steps, scalars for TensorBoard
and as CSV, a socket for `terrace ctl` and `terrace top`, warnings of waits that take too long."""

from __future__ import annotations

import ctypes
import math
import weakref
from typing import Any, Callable

from .. import _declarations as c
from .._lib import check, library, new, raw_of, text_of
from ..errors import ConfigError, did_you_mean
from .request import log_function
from .store import Store

KEPT = c.ENUMS["terrace_kept"]
_TEXTS = ("model", "config", "log_path", "tensorboard", "csv", "control_folder")
_OPTIONS = [
    field[0]
    for field in c.terrace_run_options._fields_
    if field[0] not in ("size", "save", "save_context", "log", "log_context", "scalars", "scalars_context")
]


class Run:
    """`with Run(store, steps=1000, log_path="steps.jsonl") as run:` tell it of every step. End it before the store.

    `options` are the members of terrace_run_options. `save` is called where somebody asks for a checkpoint, and returns
    the words of what it has begun, of "commit" and "checkpoint". `log` is given a level and a line, and `scalars` what
    the files of monitors get: the sequences so far, and the values by their tags. All calls come from the thread that
    trains, between two steps.
    """

    def __init__(
        self,
        store: Store,
        *,
        save: Callable[[], list[str]] | None = None,
        log: Callable[[str, str], None] | None = None,
        scalars: Callable[[int, dict[str, float]], None] | None = None,
        **options: Any,
    ) -> None:
        given = new(c.terrace_run_options)
        for name, value in options.items():
            if name not in _OPTIONS:
                raise ConfigError(
                    "cannot follow the run", name, "there is no such option", did_you_mean(name, _OPTIONS)
                )
            if value is not None:
                setattr(given, name, raw_of(value, name) if name in _TEXTS else int(value))
        self._failure: BaseException | None = None
        # What C calls has to live as long as the run.
        self._kept = [given]
        if save is not None:
            given.save = c.terrace_run_save_fn(lambda _: self._saved(save))
            self._kept.append(given.save)
        if log is not None:
            given.log = log_function(log)
            self._kept.append(given.log)
        if scalars is not None:
            given.scalars = c.terrace_run_scalars_fn(lambda _, *event: self._heard(scalars, *event))
            self._kept.append(given.scalars)
        self._lib = library()
        self._handle = ctypes.c_void_p()
        check(self._lib.terrace_run_begin(store._handle, given, ctypes.byref(self._handle)))
        self._end = weakref.finalize(self, self._lib.terrace_run_free, ctypes.c_void_p(self._handle.value))

    def _saved(self, save: Callable[[], list[str]]) -> int:
        try:
            return sum(KEPT[word] for word in save())
        except BaseException as error:  # step_done() raises it
            self._failure = error
            return 0

    def _heard(
        self, scalars: Callable[[int, dict[str, float]], None], samples: int, tags: int, values: int, count: int
    ) -> None:
        names = (ctypes.c_char_p * count).from_address(tags)
        numbers = (ctypes.c_double * count).from_address(values)
        try:
            scalars(samples, {text_of(name): value for name, value in zip(names, numbers)})
        except BaseException as error:  # the call that told of it raises it
            self._failure = error

    def step_done(
        self,
        step: int,
        *,
        loss: float = math.nan,
        learning_rate: float = math.nan,
        gradient_norm: float = math.nan,
        loss_scale: float = 1.0,
        next_loss_scale: float = 1.0,
        skipped: bool = False,
        tokens: int = 0,
        samples: int = 0,
        forward_ns: int = 0,
        update_ns: int = 0,
    ) -> bool:
        """Tells of a step whose update is done, and carries out what was asked for since. True: somebody has asked the
        run to end. NaN and 0 stand for what is not known."""
        told = new(
            c.terrace_run_step,
            skipped=skipped,
            step=step,
            tokens=tokens,
            samples=samples,
            loss=loss,
            learning_rate=learning_rate,
            gradient_norm=gradient_norm,
            loss_scale=loss_scale,
            next_loss_scale=next_loss_scale,
            forward_ns=forward_ns,
            update_ns=update_ns,
        )
        stops = ctypes.c_uint32()
        check(self._lib.terrace_run_step_done(self._handle, told, ctypes.byref(stops)))
        self._raise()
        return bool(stops.value)

    def _raise(self) -> None:
        """What has gone wrong in the program, which C called."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def evaluated(self, step: int, loss: float) -> None:
        """A held-out loss after so many steps."""
        check(self._lib.terrace_run_evaluated(self._handle, step, loss))
        self._raise()

    def kept(self, step: int, folder: Any = None) -> None:
        """A commit of that step is durable, or a checkpoint in `folder` is whole."""
        check(self._lib.terrace_run_kept(self._handle, step, None if folder is None else raw_of(folder, "folder")))

    def end(self, step: int, stopped_by: str | None = None, failure: str | None = None, survives: str = "") -> None:
        """The last line of the log. `failure` says what has failed, and `survives` which states are left then."""
        texts = [None if text is None else raw_of(text, "why the run ends") for text in (stopped_by, failure, survives)]
        check(self._lib.terrace_run_end(self._handle, step, *texts))

    def close(self) -> None:
        """Closes the files and the socket. A second close does nothing."""
        self._handle.value = None
        self._end()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
