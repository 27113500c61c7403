"""safetensors: headers are read strictly, and files are written as a stream, one tensor at a time.

A file appears whole or not at all: it is written beside its place, made durable, and renamed. Sharded checkpoints
have the names and the index of Hugging Face; while their files are renamed there is no index. Files are for others to
read: they have the permissions of any new file of the user.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import stat
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import prod
from typing import IO, TYPE_CHECKING, Any, NamedTuple, NoReturn, cast

from ._lib import check, library, raw_of
from .errors import ConfigError, CorruptError, IoError
from .system import failures, is_folder, is_there, reason_of

# What a tensor's dtype is called: in the file, its bytes, and in Terrace where Terrace has it.
DTYPE_BYTES = {
    "F64": 8,
    "F32": 4,
    "F16": 2,
    "BF16": 2,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "I64": 8,
    "I32": 4,
    "I16": 2,
    "I8": 1,
    "U64": 8,
    "U32": 4,
    "U16": 2,
    "U8": 1,
    "BOOL": 1,
}
TYPES = {"F32": "fp32", "BF16": "bf16", "F16": "fp16"}
DTYPES = {type_: dtype for dtype, type_ in TYPES.items()}
_MOST_HEADER_BYTES = 100_000_000
INDEX = "model.safetensors.index.json"
# What files of Terrace have in their metadata, and an index too.
_WRITER = {"writer": "terrace"}
# What transformers reads as the weights of a model, and what a checkpoint has.
_WEIGHTS = re.compile(r"(pytorch_)?model(-\d+-of-\d+)?\.(safetensors|bin)(\.index\.json)?|states\.bin")


class Entry(NamedTuple):
    """A tensor in a file: .offset counts from the file's beginning; .type is None for what Terrace does not train."""

    path: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    bytes: int
    type: str | None


# (name, dtype, shape) of a tensor to be written, and what gives the bytes of a name: a buffer, or several in turn.
TensorInfo = tuple[str, str, Sequence[int]]
if TYPE_CHECKING:
    from ._types import Buffer, Path

    ValuesOf = Callable[[str], "Buffer | Iterable[Buffer]"]


# --- Reading ---


def read_header(path: Path) -> tuple[dict[str, Entry], dict[str, str]]:
    """({name: Entry}, {metadata}) of a file. What breaks a rule of the format is a CorruptError."""
    path = os.fspath(path)
    with failures("cannot read the weights", path), open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        return entries_of(path, size, lambda offset, count: os.pread(file.fileno(), count, offset))


def entries_of(path: str, size: int, read: Callable[[int, int], bytes]) -> tuple[dict[str, Entry], dict[str, str]]:
    """read_header() of a file of `size` bytes, of which read(offset, count) gives some."""
    head = bytes(read(0, min(8, size)))
    begin = 8 + int.from_bytes(head, "little")
    if begin <= min(8 + _MOST_HEADER_BYTES, size):
        head += read(8, begin - 8)
    check(library().terrace_safetensors_check(head, len(head), size, raw_of(path, "path")))
    header = json.loads(head[8:])
    metadata = header.pop("__metadata__", {})
    return {name: _entry(path, name, value, begin) for name, value in header.items()}, metadata


def find(path: Path) -> dict[str, Entry]:
    """{name: Entry} of a file, of a folder, or of all files that an index names."""
    path = os.fspath(path)
    if is_folder(path):
        index = os.path.join(path, INDEX)
        path = index if is_there(index) else os.path.join(path, "model.safetensors")
    if not path.endswith(".json"):
        return read_header(path)[0]
    with failures("cannot read the weights", path), open(path, "rb") as file:
        weights = _parsed(path, file.read()).get("weight_map")
    if not isinstance(weights, dict) or not all(isinstance(shard, str) for shard in weights.values()):
        _corrupt(path, "it has no weight_map of texts")
    found, headers = {}, {}
    for name, shard in weights.items():
        if os.path.basename(shard) != shard or shard in ("", ".", ".."):
            _corrupt(path, f'"{shard}" is no name of a file beside it')
        if shard not in headers:
            headers[shard] = read_header(os.path.join(os.path.dirname(path), shard))[0]
        if name not in headers[shard]:
            _corrupt(path, f'the tensor "{name}" is not in {shard}')
        found[name] = headers[shard][name]
    return found


def _parsed(path: str, raw: bytes) -> dict[str, Any]:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise ValueError("a name is there twice")
        return found

    try:
        found = json.loads(raw.decode("utf-8"), object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        _corrupt(path, f"its header is no JSON: {error}")
    if not isinstance(found, dict):
        _corrupt(path, "its header is no map")
    return found


def _entry(path: str, name: str, value: Any, begin: int) -> Entry:
    dtype, (first, end) = value["dtype"], value["data_offsets"]
    if dtype not in DTYPE_BYTES:
        _corrupt(path, f'the tensor "{name}" has the unknown dtype {dtype!r}')
    return Entry(path, dtype, tuple(value["shape"]), begin + first, end - first, TYPES.get(dtype))


def _corrupt(path: str, reason: str) -> NoReturn:
    raise CorruptError("cannot read the weights", path, reason, "fetch or save the file again")


# --- Writing ---


def write(path: Path, tensors: Iterable[TensorInfo], values: ValuesOf, metadata: dict[str, str] | None = None) -> None:
    """Writes a file of [(name, dtype, shape)]; values(name) returns a buffer of its bytes, or several in turn."""
    path = os.fspath(path)
    with _Asides(os.path.dirname(path)) as asides:
        _write_aside(asides.add(path), _checked(tensors), values, metadata)


def write_sharded(
    folder: Path,
    tensors: Iterable[TensorInfo],
    values: ValuesOf,
    shard_bytes: int = 5 * 10**9,
    metadata: dict[str, str] | None = None,
) -> None:
    """Writes model.safetensors, or where that would be larger shards of at most `shard_bytes`, with an index. A folder
    with weights that Terrace has not written is refused."""
    tensors = _checked(tensors)
    _require_replaceable(folder)
    shards = _divided(tensors, shard_bytes)
    earlier = _shards_of_index(folder)
    names = ["model.safetensors"]
    if len(shards) > 1:
        names = [f"model-{n:05d}-of-{len(shards):05d}.safetensors" for n in range(1, len(shards) + 1)]
    with _Asides(folder) as asides:
        for name, shard in zip(names, shards):
            _write_aside(asides.add(os.path.join(folder, name)), shard, values, metadata)
        if len(shards) > 1:
            weight_map = {tensor[0]: name for name, shard in zip(names, shards) for tensor in shard}
            total = sum(_bytes(tensor) for tensor in tensors)
            index = {"metadata": {"total_size": total, **_WRITER}, "weight_map": weight_map}
            names.append(INDEX)
            _write_durably(asides.add(os.path.join(folder, INDEX)), [json.dumps(index, indent=2).encode()])
            asides.remove_first(os.path.join(folder, INDEX))
        _require_replaceable(folder)  # nobody put anything there meanwhile
    _remove_others(folder, names, earlier)


def parts(tensors: Sequence[TensorInfo], values: ValuesOf, metadata: dict[str, str] | None = None) -> Iterator[Buffer]:
    """The buffers of a file in turn."""
    return _parts(_header(_checked(tensors), metadata), tensors, values)


class _Asides:
    """Files that are written beside their places and take them, in their order, at the end of the block. One that a
    killed process left is written anew; one that another process writes is refused."""

    def __init__(self, folder: Path) -> None:
        self._folder = os.fspath(folder) or "."
        self._asides: dict[str, tuple[str, IO[bytes]]] = {}
        self._removed: list[str] = []

    def add(self, path: str) -> IO[bytes]:
        """A new file for this path, to be written."""
        folder, name = os.path.split(path)
        aside = os.path.join(folder, f".{name}.terrace-new")
        with failures("cannot save the weights", aside):
            file = _new_file(aside)
        self._asides[path] = aside, file
        return file

    def remove_first(self, path: str) -> None:
        """Before anything takes its place: so that old and new files are never read together."""
        self._removed.append(path)

    def __enter__(self) -> _Asides:
        with failures("cannot save the weights", self._folder):
            os.makedirs(self._folder, exist_ok=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._take_places()
        finally:
            for aside, file in self._asides.values():
                if not file.closed:  # its lock is held, so it is ours
                    with contextlib.suppress(FileNotFoundError):
                        os.remove(aside)
                    with contextlib.suppress(OSError):  # on a full drive, of what the file still has to write
                        file.close()

    def _take_places(self) -> None:
        with failures("cannot save the weights", self._folder):
            for path in self._removed:
                with contextlib.suppress(FileNotFoundError):
                    os.remove(path)
            for path, (aside, file) in self._asides.items():
                os.replace(aside, path)
                file.close()
            folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)


def _new_file(path: str) -> IO[bytes]:
    """An empty locked file that no other name leads to."""
    if is_there(path):
        _remove_left_over(path)
    new = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    # With an opener the file's name is its path, which errors give, and not the number of a descriptor.
    file = open(path, "wb", opener=lambda name, _: os.open(name, new, 0o666))
    with contextlib.suppress(OSError):  # some file systems have no locks
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return file


def _remove_left_over(path: str) -> None:
    """What a killed process has left under a name that only a save gives."""
    if not stat.S_ISREG(os.lstat(path).st_mode):
        raise IoError("cannot save the weights", path, "it is there, and is no file of a save", "move it away")
    number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.remove(path)
    except BlockingIOError:
        raise IoError(
            "cannot save the weights",
            path,
            "another process writes that file now",
            "let one process save into a folder at a time",
        ) from None
    finally:
        os.close(number)


def _checked(tensors: Iterable[TensorInfo]) -> list[TensorInfo]:
    tensors, names = list(tensors), set()
    for name, dtype, _ in tensors:
        if name in names or dtype not in DTYPE_BYTES:
            raise ConfigError(
                "cannot save the weights",
                name,
                f"its name is there twice, or {dtype!r} is no dtype",
                f"give each tensor once, with one of {', '.join(DTYPE_BYTES)}",
            )
        names.add(name)
    return tensors


def _divided(tensors: Iterable[TensorInfo], shard_bytes: int) -> list[list[TensorInfo]]:
    shards: list[list[TensorInfo]] = [[]]
    room = shard_bytes
    for tensor in tensors:
        if shards[-1] and _bytes(tensor) > room:
            shards.append([])
            room = shard_bytes
        shards[-1].append(tensor)
        room -= _bytes(tensor)
    return shards


def _bytes(tensor: TensorInfo) -> int:
    return prod(tensor[2]) * DTYPE_BYTES[tensor[1]]


def _header(tensors: Iterable[TensorInfo], metadata: dict[str, str] | None) -> bytes:
    header: dict[str, Any] = {}
    at = 0
    if metadata:
        header["__metadata__"] = metadata
    for tensor in tensors:
        name, dtype, shape = tensor
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + _bytes(tensor)]}
        at += _bytes(tensor)
    raw = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    raw += b" " * (-len(raw) % 8)
    return struct.pack("<Q", len(raw)) + raw


def _write_aside(
    file: IO[bytes], tensors: Iterable[TensorInfo], values: ValuesOf, metadata: dict[str, str] | None
) -> None:
    _write_durably(file, _parts(_header(tensors, {**(metadata or {}), **_WRITER}), tensors, values))


def _write_durably(file: IO[bytes], parts: Iterable[Buffer]) -> None:
    with failures("cannot save the weights", file.name):
        for part in parts:
            file.write(part)
        file.flush()
        os.fsync(file.fileno())


def _parts(header: bytes, tensors: Iterable[TensorInfo], values: ValuesOf) -> Iterator[Buffer]:
    yield header
    for tensor in tensors:
        yield from _values_of(tensor, values(tensor[0]))


def _values_of(tensor: TensorInfo, parts: Buffer | Iterable[Buffer]) -> Iterator[memoryview]:
    try:
        found: Iterable[Buffer] = [memoryview(cast("Buffer", parts))]
    except TypeError:
        found = cast("Iterable[Buffer]", parts)
    written = 0
    for part in found:
        with memoryview(part) as view, view.cast("B") as raw:
            written += raw.nbytes
            yield raw
    if written != _bytes(tensor):
        raise ConfigError(
            "cannot save the weights",
            tensor[0],
            f"it has {written} bytes, not {_bytes(tensor)}",
            "give the values of its shape and dtype",
        )


def _require_replaceable(folder: Path) -> None:
    """The rule of ExportFolder (reference/model/weights), with marks in the files: a save that is killed leaves no list
    that differs from what is there."""
    try:
        names = sorted(os.listdir(folder))
    except FileNotFoundError:
        return
    except OSError as error:
        raise IoError("cannot save the weights", os.fspath(folder), reason_of(error), "name a folder") from error
    for name in filter(_WEIGHTS.fullmatch, names):
        if not _is_own(os.path.join(folder, name)):
            raise ConfigError(
                "cannot save the weights",
                os.fspath(folder),
                f"it holds {json.dumps(name)}, which no export wrote",
                "move that away, or name another folder",
            )


def _is_own(path: str) -> bool:
    """Whether Terrace has written a file of weights, or an index."""
    try:
        if not path.endswith(".json"):
            return read_header(path)[1].get("writer") == _WRITER["writer"]
        with failures("cannot read the weights", path), open(path, "rb") as file:
            return json.loads(file.read())["metadata"]["writer"] == _WRITER["writer"]
    except (CorruptError, ValueError, KeyError, TypeError):
        return False


def _shards_of_index(folder: Path) -> set[str]:
    """The files that the index of an earlier save names: they are its own."""
    index = os.path.join(folder, INDEX)
    if not is_there(index):
        return set()
    try:
        with failures("cannot read the weights", index), open(index, "rb") as file:
            named = set(json.loads(file.read())["weight_map"].values())
    except (ValueError, KeyError, AttributeError, TypeError):
        return set()
    return {name for name in named if isinstance(name, str) and os.path.basename(name) == name}


def _remove_others(folder: Path, names: Iterable[str], earlier: set[str]) -> None:
    """What an earlier save left would be loaded beside the new files, or instead of them. Of other files only those
    that its index names are its own."""
    with failures("cannot save the weights", folder):
        for name in sorted(({INDEX, "model.safetensors"} | earlier) - set(names)):
            is_shard = name.startswith("model-") and "-of-" in name and name.endswith(".safetensors")
            if is_shard or name in (INDEX, "model.safetensors"):
                with contextlib.suppress(FileNotFoundError):
                    os.remove(os.path.join(folder, name))
