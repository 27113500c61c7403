"""libterrace.so: where it is found, and calls that raise.

It is TERRACE_LIBRARY's, else the one of this package, else the system's. It is loaded when something first needs
it, so that `import terrace` needs nothing but Python.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from . import _declarations
from ._declarations import ABI, ENUMS, FUNCTIONS
from .errors import BY_KIND, ConfigError, IoError, MisuseError, did_you_mean
from .system import is_there

if TYPE_CHECKING:
    from .errors import Error

_Struct = TypeVar("_Struct", bound=ctypes.Structure)
SONAME = f"libterrace.so.{ABI}"
_library = None

# Where the library has none: its callers know the reason's remedy in general only.
_ADVICE = {
    "io": "see that it is there, that you may use it, and that its drive has room",
    "corrupt": "create the file again, or go on from an earlier commit",
    "device_failed": "see that the device is there and that its driver works",
}


def library() -> ctypes.CDLL:
    """The library, with the types of all its functions set."""
    global _library
    if _library is None:
        _library = _load()
    return _library


def library_path() -> str:
    """What a user names is meant; no other library steps in for it."""
    named = os.environ.get("TERRACE_LIBRARY")
    if named:
        return named
    ours = os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib", SONAME)
    return ours if is_there(ours) else SONAME


def _load() -> ctypes.CDLL:
    path = library_path()
    try:
        # Not PyDLL: a call may wait for threads that write to the log, and so for the interpreter's lock.
        loaded = ctypes.CDLL(path)
    except OSError as error:
        raise IoError(
            "cannot load the library of Terrace",
            path,
            str(error),
            "reinstall the package, or set TERRACE_LIBRARY to a built libterrace.so; it needs the shared libraries "
            "of TBB, fmt, liburing, libaio, highway, xxHash and OpenSSL (Debian: libtbb12 libfmt9 liburing2 libaio1 "
            "libhwy1 libxxhash0 libssl3), unless tools/wheel has made the wheel",
        ) from None
    return _declared(loaded, path)


def undeclared(name: str) -> Any:
    """A function that takes its arguments as they are, which saves half of the time of a short call: handles,
    addresses and numbers of 64 bits have to be objects of ctypes."""
    function = library()[name]
    function.restype = ctypes.c_void_p
    return function


def _declared(loaded: ctypes.CDLL, path: str) -> ctypes.CDLL:
    for name, (result, arguments) in FUNCTIONS.items():
        try:
            function = getattr(loaded, name)
            function.restype, function.argtypes = result, arguments
        except AttributeError:
            # An older library does all the rest.
            setattr(loaded, name, lambda *_, lacked=name: _refuse_without(lacked, path))
    if loaded.terrace_abi() != ABI:
        raise ConfigError(
            "cannot use the library of Terrace",
            path,
            f"its binary interface is number {loaded.terrace_abi()}, and this package knows number {ABI}",
            _matching_advice(),
        )
    return loaded


def _refuse_without(name: str, path: str) -> NoReturn:
    raise ConfigError("cannot use the library of Terrace", path, f"it has no {name}", _matching_advice())


def _matching_advice() -> str:
    return "install the package and the library from one source tree, or unset TERRACE_LIBRARY"


def check(failure: int | None) -> None:
    """Raises what a function of the library has returned, unless it is None."""
    if failure is not None:
        raise error_of(failure)


@contextlib.contextmanager
def in_words_of_the_configuration() -> Iterator[None]:
    """Within, errors of the library call options by the keys of a configuration."""
    token = _words.set("configuration")
    try:
        yield
    finally:
        _words.reset(token)


_words = ContextVar("words", default="python")


def error_of(failure: int) -> Error:
    """The exception for a terrace_error, which is freed."""
    lib = library()
    parts = new(_declarations.terrace_error_parts)
    try:
        lib.terrace_error_get_as(failure, ENUMS["terrace_words"][_words.get()], parts)
        texts = [text_of(text) for text in (parts.what_failed, parts.subject, parts.reason, parts.advice)]
        cause = word_of("terrace_error_cause", lib.terrace_error_cause_of(failure))
    finally:
        lib.terrace_error_free(failure)
    kind = word_of("terrace_error_kind", parts.kind)
    if cause == "no_store":
        texts[2:] = ["it is closed", "create another one"]
    texts[3] = texts[3] or _ADVICE.get(kind, "see docs/troubleshooting.md")
    error = BY_KIND[kind](*texts)
    error.cause = cause
    if kind == "capacity":
        for name in ("least_bytes", "least_device_bytes", "least_host_bytes", "least_nvme_bytes"):
            setattr(error, name, getattr(parts, name))
    return error


def new(struct: type[_Struct], **values: Any) -> _Struct:
    """A struct of C whose size is set."""
    return struct(size=ctypes.sizeof(struct), **values)


def text_of(raw: bytes | None) -> str:
    """Paths may hold bytes that are no text: they are kept, as Python does."""
    return (raw or b"").decode("utf-8", "surrogateescape")


def raw_of(text: object, what: str) -> bytes:
    """The bytes of a text for C, which ends at the first NUL."""
    raw = os.fsencode(text) if isinstance(text, os.PathLike) else text
    if isinstance(raw, str):
        raw = raw.encode("utf-8", "surrogateescape")
    if not isinstance(raw, bytes):
        raise MisuseError("cannot take a text", what, f"it is of type {type(text).__name__}", "give a str")
    if b"\0" in raw:
        raise ConfigError("cannot take a text", what, "it holds a NUL character", "leave that out")
    return raw


def value_of(enum: str, word: object, what: str) -> int:
    """The number of a word of an enum, "nvme" of "terrace_placement"."""
    words = ENUMS[enum]
    if isinstance(word, str) and word in words:
        return words[word]
    raise ConfigError(
        f"cannot use the value {word!r}", what, f"it is none of: {', '.join(words)}", did_you_mean(str(word), words)
    )


def word_of(enum: str, value: int) -> str:
    return next((word for word, number in ENUMS[enum].items() if number == value), "internal")
