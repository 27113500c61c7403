"""Memory that C and Python both see: buffers of the caller's, tensors of a store, and DLPack between them.

numpy is used where it is there; nothing needs it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from ..errors import ConfigError
from .interruptible import call_elsewhere

if TYPE_CHECKING:
    from .._types import Buffer, Source
    from .spec import Tensor

ELEMENT_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "word": 4}
# What buffers say of their elements. Python has no word for bf16: its bits are those of an unsigned integer.
BUFFER_TYPES = {"f": "fp32", "e": "fp16", "H": "bf16", "I": "word"}
_NUMPY_TYPES = {"fp32": "float32", "bf16": "uint16", "fp16": "float16", "word": "uint32"}
_VIEW_FORMATS = {"fp32": "f", "bf16": "H", "fp16": "H", "word": "I"}


class _Buffer(ctypes.Structure):
    """Py_buffer, which the stable ABI of CPython fixes."""

    _fields_ = [
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.c_void_p),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    ]


_WRITABLE = 1


class Memory:
    """The bytes of a buffer: .address, .bytes, and .type where the buffer says one. They stay while this lives."""

    def __init__(self, buffer: Buffer, what: str, writable: bool = False) -> None:
        self._buffer = _Buffer()
        self._is_held = False
        try:
            ctypes.pythonapi.PyObject_GetBuffer(
                ctypes.py_object(buffer), ctypes.byref(self._buffer), _WRITABLE if writable else 0
            )
        except (BufferError, TypeError, ValueError) as error:
            raise ConfigError(
                what,
                f"an object of type {type(buffer).__name__}",
                str(error),
                "give a contiguous buffer" + (" that can be written" if writable else "") + ", or an address",
            ) from None
        self._is_held = True
        self.address = self._buffer.buf
        self.bytes = self._buffer.len
        with memoryview(buffer) as view:
            self.format = view.format
            self.type = BUFFER_TYPES.get(view.format.lstrip("@="))
            self.is_raw = view.format in ("B", "b", "c")

    def __del__(self) -> None:
        if self._is_held:
            ctypes.pythonapi.PyBuffer_Release(ctypes.byref(self._buffer))


def type_of_values(tensor: Tensor) -> tuple[str, str]:
    """(type, code of array.array) in which values of a tensor are read and written."""
    return ("word", "I") if tensor.type == "word" else ("fp32", "f")


def numbers_of(part: ctypes.Array[Any], tensor: Tensor) -> memoryview[Any]:
    """Memory of C as such values."""
    raw = memoryview(part).cast("B")
    return raw.cast("I") if tensor.type == "word" else raw.cast("f")


def type_in(source: Source, what: str) -> str | None:
    """The type that a buffer says; None of an address, and of a buffer of bytes."""
    return None if isinstance(source, int) else Memory(source, what).type


def memory_for(
    source: Source, type_: str, elements: int, what: str, subject: str, writable: bool = False
) -> tuple[int, Memory | None]:
    """(address, what keeps it alive) of `elements` values of a type, from a buffer or an address."""
    if isinstance(source, int):
        return source, None
    memory = Memory(source, what, writable)
    if not memory.is_raw and memory.type != type_:
        raise ConfigError(
            what,
            subject,
            f"the buffer's elements are of format {memory.format!r}, and {type_} is wanted",
            f"convert them to {type_}, or give the raw bytes",
        )
    if memory.bytes != elements * ELEMENT_BYTES[type_]:
        raise ConfigError(
            what,
            subject,
            f"the buffer has {memory.bytes} bytes, and {elements} elements of {type_} have "
            f"{elements * ELEMENT_BYTES[type_]}",
            "give exactly these elements",
        )
    return memory.address, memory


_found_numpy: list[Any] = []  # what _numpy() returns, once it is known


def _numpy() -> Any:
    """numpy, or None where there is none. It is imported on another thread, where no Ctrl-C comes: Python cannot import
    numpy again after an import that was cut short."""
    if not _found_numpy:
        interrupts: list[BaseException] = []
        call_elsewhere(_find_numpy, interrupts.append)
        if interrupts:
            raise interrupts[0]
    return _found_numpy[0]


def _find_numpy() -> None:
    try:
        import numpy
    except ImportError:
        _found_numpy.append(None)
    else:
        _found_numpy.append(numpy)


def view_of(address: int, tensor: Tensor, writable: bool) -> Any:
    """The tensor at an address: an array of numpy, or a memoryview where there is no numpy. bf16 is uint16."""
    memory = (ctypes.c_char * (tensor.elements * ELEMENT_BYTES[tensor.type])).from_address(address)
    numpy = _numpy()
    if numpy is None:
        raw: Any = memoryview(memory).cast("B")  # whose second cast has no type for a format that is not literal
        view = raw.cast(_VIEW_FORMATS[tensor.type], list(tensor.shape))
        return view if writable else view.toreadonly()
    array = numpy.ndarray(tensor.shape, _NUMPY_TYPES[tensor.type], memory)
    array.flags.writeable = writable
    return array


# --- DLPack ---

_CPU, _CUDA = 1, 2
_UNUSED = b"dltensor"  # the name of a capsule that nobody has taken over
_DELETER = 56  # where DLManagedTensor of DLPack 0.8 has its deleter
_deleter_type = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype, _pointer_of.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_char_p]
_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


@ctypes.PYFUNCTYPE(None, ctypes.c_void_p)
def _end_capsule(capsule: int) -> None:
    """Of a capsule that was taken over the taker ends the tensor."""
    if _is_valid(capsule, _UNUSED):
        managed = _pointer_of(capsule, _UNUSED)
        deleter = ctypes.c_void_p.from_address(managed + _DELETER).value
        _deleter_type(cast(int, deleter))(managed)


class DlpackTensor:
    """Memory of a tensor for torch.from_dlpack, numpy.from_dlpack and others, as often as they like."""

    def __init__(self, make: Callable[[], int], cuda_ordinal: int | None) -> None:
        self._make = make
        self._device = (_CPU, 0) if cuda_ordinal is None else (_CUDA, cuda_ordinal)

    def __dlpack__(self, **_: object) -> Any:
        return _new_capsule(self._make(), _UNUSED, ctypes.cast(_end_capsule, ctypes.c_void_p))

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device
