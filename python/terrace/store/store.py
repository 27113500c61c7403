"""Store: the parameters, gradients and optimizer states of a training, in device memory, host memory and on nvme.

    store = Store(tensors, SimulatedDevice(1 << 20), parameters="nvme", states="nvme", nvme_paths=["/mnt/nvme"],
                  host_bytes=64 << 20)
    store.fill_with(fill)
    every step: begin_step; every micro-batch { leases, end_micro_batch }; update

One call at a time, from any thread. Tensors are named by their names or by their places in the list. A
KeyboardInterrupt leaves the store as it is after the call that it came in, and abandon_step() or end_evaluation()
ends what is open.
"""

from __future__ import annotations

import array
import ctypes
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, SupportsIndex

from .. import _declarations as c
from .._lib import check, error_of, library, new, raw_of, text_of, undeclared, value_of, word_of
from ..errors import Error, MisuseError
from .interruptible import call_elsewhere
from .lease import Lease
from .memory import DlpackTensor, Memory, memory_for, numbers_of, type_in, type_of_values, view_of
from .request import Request, plan_of, update_settings
from .saved import saved_use, with_saved
from .spec import CudaDevice, UpdateResult

if TYPE_CHECKING:
    from .._types import Path, Source, TensorKey
    from ..ranks import Ranks
    from .spec import Device, Groups, Plan, Tensor

KINDS = c.ENUMS["terrace_use_kind"]


def plan(
    tensors: Iterable[Any], device: Device | None = None, uses: Iterable[Any] | None = None, **options: Any
) -> Plan:
    """What a store would take, as a Plan. Nothing is allocated.

    Raises CapacityError with .plan and the least budgets where the given ones are too small.
    """
    return Request(tensors, device, uses, options).plan()


class Store:
    def __init__(
        self, tensors: Iterable[Any], device: Device | None = None, uses: Iterable[Any] | None = None, **options: Any
    ) -> None:
        """`options` are the members of terrace_options (capi/terrace.h); their words are in lower case.

        `log` is called with a level ("info", "warning", "error") and a line, from any thread.
        """
        self._request = Request(tensors, device, uses, options)
        self._lib = library()
        handle = self._request.create()
        # It also runs at the end of the interpreter, and does nothing in a forked child.
        self._end = weakref.finalize(self, _destroy, self._lib, handle, self._request)
        self._handle = ctypes.c_void_p(handle)
        self.tensors = self._request.tensors
        ranks = options.get("ranks")
        self.ranks: Ranks | None = ranks if ranks is not None and ranks.count > 1 else None
        # Passes of the ranks may differ.
        self.pulls = self.ranks is not None and options.get("rank_exchange") == "pulled"
        self.tells: Callable[..., object] | None = None  # of each read before it, where others have to take part
        self._cuda_ordinal = device.ordinal if isinstance(device, CudaDevice) else None
        self.takes_from_gpu = options.get("gradients") == "handed_over_on_device"
        self._c_lease, self._c_release = undeclared("terrace_lease"), undeclared("terrace_release")
        self._number = ctypes.c_uint64()
        self._number_at = ctypes.byref(self._number)
        self._closed = ctypes.c_uint64()
        self._open: set[int] = set()
        # With gradients="borrowed": what is read until the update has returned.
        self._borrowed: list[Memory | None] | None = [] if options.get("gradients") == "borrowed" else None
        self._ids: dict[tuple[TensorKey, ...], ctypes.Array[ctypes.c_uint32]] = {}
        self._parameters: dict[int, Any] = {}
        self._gradients: dict[int, Any] = {}

    # --- The store itself ---

    def close(self) -> None:
        """Ends whatever is open. Files stay where there is a commit. A second close does nothing, and one in a forked
        child neither. A store that another thread is in cannot be closed."""
        try:
            self._asked(self._lib.terrace_has_whole_state, ctypes.c_uint32)
        except MisuseError as error:
            if error.cause == "store_busy":
                raise
        except Error:
            pass  # a store that has failed is closed all the same
        self._handle.value = None
        self._end()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise MisuseError(
            "cannot copy or pickle a store",
            "terrace.Store",
            "it holds memory, files and threads of this process",
            "save its values (read_values, terrace.safetensors) or commit, and create a store where it is wanted",
        )

    def index(self, tensor: TensorKey) -> int:
        """The place of a tensor in the list."""
        return self._request.number_of(tensor, "cannot find a tensor")

    @property
    def plan(self) -> Plan:
        result = new(c.terrace_plan_result)
        check(self._lib.terrace_plan_of(self._handle, result))
        return with_saved(plan_of(result), saved_use(self))

    # --- Values ---

    def fill_arrays(self, arrays: Mapping[TensorKey, Source | tuple[Source, str]]) -> None:
        """Fills all tensors from {tensor: buffer, (buffer, type) or (address, type)}."""
        parts, kept = [], []
        for tensor, source in arrays.items():
            spec = self._spec(tensor)
            source, type_ = source if isinstance(source, tuple) else (source, None)
            if type_ is None:
                type_ = type_in(source, "cannot fill a tensor") or spec.type
            address, memory = memory_for(source, type_, spec.elements, "cannot fill a tensor", spec.name)
            kept.append(memory)
            parts.append(
                new(
                    c.terrace_array,
                    tensor=self.index(tensor),
                    data=address,
                    type=value_of("terrace_type", type_, spec.name),
                )
            )
        check(self._lib.terrace_fill_arrays(self._handle, (c.terrace_array * len(parts))(*parts), len(parts)))

    def fill_files(self, parts: Iterable[tuple[TensorKey, Path, int, str]]) -> None:
        """Fills all tensors from [(tensor, path, offset in bytes, type)]."""
        found = [
            new(
                c.terrace_file_part,
                tensor=self.index(tensor),
                path=raw_of(path, "path"),
                offset=offset,
                type=value_of("terrace_type", type_, f"type of {tensor}"),
            )
            for tensor, path, offset, type_ in parts
        ]
        check(self._lib.terrace_fill_files(self._handle, (c.terrace_file_part * len(found))(*found), len(found)))

    def fill_with(self, fill: Callable[[Tensor, int, memoryview[Any]], object]) -> None:
        """Fills all tensors by fill(tensor, first, values): values are to be written, fp32 or words, from `first` on.

        It is called in no order, from threads of the library. What it raises is raised here. Ctrl-C ends the fill.
        """
        failures: list[BaseException] = []

        @c.terrace_fill_fn
        def fill_part(_: object, number: int, first: int, count: int, address: int) -> int:
            try:
                if not failures:
                    part = (ctypes.c_float * count).from_address(address)
                    fill(self.tensors[number], first, numbers_of(part, self.tensors[number]))
            except BaseException as error:
                failures.append(error)
            return 1 if failures else 0

        answer = call_elsewhere(
            lambda: self._lib.terrace_fill_with(self._handle, fill_part, None),
            lambda interrupt: failures.insert(0, interrupt),
        )
        failure = error_of(answer) if answer is not None else None
        if failures:
            raise failures[0] from failure
        if failure is not None:
            raise failure

    def read_values(
        self,
        tensor: TensorKey,
        what: str = "parameter",
        first: int = 0,
        count: int | None = None,
        out: Source | None = None,
    ) -> Any:
        """Values as fp32, or words: in a new array.array of "f" or "I", or in `out`, a buffer or an address. `what` is
        parameter, master, first_moment, second_moment, or gradient between a step's last micro-batch and its update."""
        spec = self._spec(tensor)
        count = spec.elements - first if count is None else count
        type_, code = type_of_values(spec)
        out = array.array(code, bytes(4 * max(count, 0))) if out is None else out
        address, _kept = memory_for(out, type_, count, "cannot read values", spec.name, writable=True)
        which = value_of("terrace_what", what, spec.name)
        if self.tells is not None:
            self.tells(self.index(tensor), which, first, count)
        check(self._lib.terrace_read_values(self._handle, self.index(tensor), which, first, count, address))
        return out

    def write_values(
        self, tensor: TensorKey, values: Any, what: str = "parameter", first: int = 0, count: int | None = None
    ) -> None:
        """Writes fp32 values, or words: a buffer or a list, or an address with a count."""
        spec = self._spec(tensor)
        type_, code = type_of_values(spec)
        values = array.array(code, values) if isinstance(values, (list, tuple)) else values
        if count is None:
            is_address = isinstance(values, int)
            count = spec.elements - first if is_address else Memory(values, "cannot write values").bytes // 4
        address, _kept = memory_for(values, type_, count, "cannot write values", spec.name)
        which = value_of("terrace_what", what, spec.name)
        check(self._lib.terrace_write_values(self._handle, self.index(tensor), which, first, count, address))

    @property
    def tensor_steps(self) -> list[int]:
        """With unused_gradients="skip": the updates that each tensor has had."""
        steps = (ctypes.c_uint64 * len(self.tensors))()
        check(self._lib.terrace_tensor_steps(self._handle, steps, len(steps)))
        return list(steps)

    def set_tensor_steps(self, steps: Sequence[int]) -> None:
        check(self._lib.terrace_set_tensor_steps(self._handle, (ctypes.c_uint64 * len(steps))(*steps), len(steps)))

    @property
    def has_whole_state(self) -> bool:
        return bool(self._asked(self._lib.terrace_has_whole_state, ctypes.c_uint32))

    # --- Addresses, which never change ---

    def parameter_address(self, tensor: TensorKey) -> int:
        return self._asked(self._lib.terrace_parameter_address, ctypes.c_void_p, self.index(tensor))

    def gradient_address(self, tensor: TensorKey) -> int:
        return self._asked(self._lib.terrace_gradient_address, ctypes.c_void_p, self.index(tensor))

    def move_tensor(self, tensor: TensorKey, address: int) -> None:
        """Between steps: the values of a tensor of home "caller" have been copied to another address."""
        check(self._lib.terrace_move_tensor(self._handle, self.index(tensor), address))

    def dlpack(self, tensor: TensorKey, gradient: bool = False) -> DlpackTensor:
        """An object with __dlpack__ over the parameter or the gradient, which may be touched in leases only."""
        number = self.index(tensor)

        def make() -> int:
            return self._asked(self._lib.terrace_dlpack, ctypes.c_void_p, number, int(gradient))

        return DlpackTensor(make, self._cuda_ordinal)

    @property
    def work_memory(self) -> tuple[int | None, int]:
        """(address, bytes) of the device memory for activations."""
        address, size = ctypes.c_void_p(), ctypes.c_uint64()
        check(self._lib.terrace_work_memory(self._handle, ctypes.byref(address), ctypes.byref(size)))
        return address.value, size.value

    @property
    def compute_stream(self) -> int | None:
        """The CUstream that kernels belong on; None on the simulated device."""
        return self._asked(self._lib.terrace_compute_stream, ctypes.c_void_p)

    def use_stream(self, stream: int | None) -> None:
        """Kernels belong on this CUstream from now on, behind those on the one before; 0 or None is the default
        stream."""
        check(self._lib.terrace_use_stream(self._handle, ctypes.c_void_p(stream)))

    @property
    def cuda_ordinal(self) -> int | None:
        """The number of the GPU; None on the simulated device."""
        return self._cuda_ordinal

    # --- A step ---

    def begin_step(self) -> None:
        check(self._lib.terrace_begin_step(self._handle))

    def select_micro_batch(self, micro_batch: int) -> None:
        check(self._lib.terrace_select_micro_batch(self._handle, micro_batch))

    def end_micro_batch(self) -> None:
        check(self._lib.terrace_end_micro_batch(self._handle))

    def abandon_step(self) -> None:
        """Ends a step before its update, with the leases that are open: its gradients are dropped."""
        self.release_all()
        check(self._lib.terrace_abandon_step(self._handle))
        self._return_gradients()

    def begin_evaluation(self) -> None:
        check(self._lib.terrace_begin_evaluation(self._handle))

    def end_evaluation(self) -> None:
        """Ends an evaluation, with the leases that are open."""
        self.release_all()
        check(self._lib.terrace_end_evaluation(self._handle))

    def lease(self, key: str, tensors: Iterable[TensorKey], kind: str = "forward") -> Lease:
        """`with store.lease(key, tensors) as parameters:` makes tensors readable, and with "backward" their
        gradients writable, until the end of the block. `key` is the same in every step, and different for every
        lease within one."""
        return Lease(self, key, tensors, kind)

    def ids(self, tensors: Iterable[TensorKey]) -> ctypes.Array[ctypes.c_uint32]:
        """The tensors as open_lease wants them; made once for the same tensors."""
        key = tuple(tensors)
        if key not in self._ids:
            numbers = [self.index(tensor) for tensor in key]
            self._ids[key] = (ctypes.c_uint32 * len(numbers))(*numbers)
        return self._ids[key]

    def open_lease(self, key: bytes, kind: int, ids: ctypes.Array[ctypes.c_uint32], count: int) -> int:
        """A lease without its block, for callers in a hurry: key in bytes, kind of KINDS, ids() and how many."""
        failure = self._c_lease(self._handle, key, kind, ids, count, self._number_at)
        if failure is not None:
            raise error_of(failure)
        number = self._number.value
        self._open.add(number)
        return number

    def close_lease(self, number: int) -> None:
        self._closed.value = number
        failure = self._c_release(self._handle, self._closed)
        if failure is not None:
            raise error_of(failure)
        self._open.discard(number)

    def release_all(self) -> None:
        """Releases every lease that is open, those too whose opening or closing an interrupt has cut short."""
        for number in sorted(self._open | {self._number.value}, reverse=True):
            try:
                self.close_lease(number)
            except MisuseError:
                self._open.discard(number)

    def parameter(self, tensor: TensorKey) -> Any:
        """The leased parameter, to be read: an array of numpy, else a memoryview. bf16 is uint16."""
        self._asked(self._lib.terrace_parameter, ctypes.c_void_p, self.index(tensor))
        return self.leased_view(tensor)

    def leased_view(self, tensor: TensorKey) -> Any:
        """parameter() where it is known that the tensor is leased."""
        number = self.index(tensor)
        if number not in self._parameters:
            self._parameters[number] = self._view(number, self.parameter_address(number), False)
        return self._parameters[number]

    def gradient(self, tensor: TensorKey) -> Any:
        """The gradient of a tensor that a lease has for backward, to be written; see gradient_accumulates()."""
        number = self.index(tensor)
        address = self._gradient_view(number).data
        if number not in self._gradients:
            self._gradients[number] = self._view(number, address, True)
        return self._gradients[number]

    def gradient_accumulates(self, tensor: TensorKey) -> bool:
        """True: an earlier lease of this micro-batch has written the gradient; add to it. Else overwrite."""
        return bool(self._gradient_view(self.index(tensor)).accumulate)

    def hand_over(self, tensor: TensorKey, gradient: Source, type: str | None = None, flags: int = 0) -> None:
        """The complete gradient of a tensor in this micro-batch, a buffer or an address, in the tensor's type. With
        gradients="handed_over_on_device" it is an address on the GPU, and what was asked for on the stream before the
        call has made it."""
        spec = self._spec(tensor)
        type_ = type or spec.type
        address, memory = memory_for(gradient, type_, spec.elements, "cannot hand over a gradient", spec.name)
        number, type_number = self.index(tensor), value_of("terrace_type", type_, spec.name)
        check(self._lib.terrace_hand_over(self._handle, number, address, type_number, flags))
        if self._borrowed is not None:
            self._borrowed.append(memory)

    # --- Updates ---

    def update(self, groups: Groups, step: int, clip_norm: float = 0.0, loss_scale: float = 1.0) -> UpdateResult:
        """After the last micro-batch: one Optimizer, or one per group. `step` counts from 1."""
        result = new(c.terrace_update_result)
        check(self._lib.terrace_update(self._handle, update_settings(groups, step, clip_norm, loss_scale), result))
        self._return_gradients()
        return UpdateResult(bool(result.applied), result.gradient_norm, bool(result.partly_applied))

    def announce_update(self, groups: Groups, step: int, clip_norm: float = 0.0, loss_scale: float = 1.0) -> None:
        """With update_when="during_backward": what update() will be given, before the last backward pass begins."""
        check(self._lib.terrace_announce_update(self._handle, update_settings(groups, step, clip_norm, loss_scale)))

    def finish_update(self) -> None:
        check(self._lib.terrace_finish_update(self._handle))

    @property
    def update_pending(self) -> bool:
        return bool(self._asked(self._lib.terrace_update_pending, ctypes.c_uint32))

    @property
    def update_when(self) -> str:
        return word_of("terrace_update_when", self._asked(self._lib.terrace_get_update_when, ctypes.c_uint32))

    @update_when.setter
    def update_when(self, word: str) -> None:
        check(self._lib.terrace_set_update_when(self._handle, value_of("terrace_update_when", word, "update_when")))

    # --- Commits ---

    def begin_commit(self, text: str = "", retain: bool = False) -> None:
        """Between steps: begins a commit, which becomes durable while training goes on."""
        check(self._lib.terrace_begin_commit(self._handle, raw_of(text, "text of a commit"), int(retain)))

    def finish_commit(self) -> int:
        """Waits until the last commit is durable, and returns its number; 0: there is none."""
        return self._asked(self._lib.terrace_finish_commit, ctypes.c_uint64)

    @property
    def commit_in_progress(self) -> bool:
        return bool(self._asked(self._lib.terrace_commit_in_progress, ctypes.c_uint32))

    @property
    def last_commit(self) -> int:
        return self._asked(self._lib.terrace_last_commit, ctypes.c_uint64)

    @property
    def taken_up_text(self) -> str:
        """The text of the commit that the store goes on from; "" without."""
        return text_of(self._asked(self._lib.terrace_taken_up_text, ctypes.c_char_p))

    @property
    def why_no_commits(self) -> str:
        """Why the store keeps no commits; "" where it does."""
        return text_of(self._asked(self._lib.terrace_why_no_commits, ctypes.c_char_p))

    def keep_tier(self, keep: bool) -> None:
        """Whether the files of a store with a commit stay when it is closed."""
        check(self._lib.terrace_keep_tier(self._handle, int(keep)))

    # --- Host memory and figures ---

    @property
    def host_budget(self) -> tuple[int, int]:
        """(bytes, the least that would do)"""
        size, least = ctypes.c_uint64(), ctypes.c_uint64()
        check(self._lib.terrace_host_budget(self._handle, ctypes.byref(size), ctypes.byref(least)))
        return size.value, least.value

    def set_host_budget(self, size: int) -> None:
        check(self._lib.terrace_set_host_budget(self._handle, size))

    def counters(self) -> dict[str, int]:
        """Bytes moved, waits and times since the store was created, by key."""
        return self._counters(self._lib.terrace_counters)

    def step_counters(self) -> dict[str, int]:
        """The same since the last begin_step()."""
        return self._counters(self._lib.terrace_step_counters)

    # --- Within ---

    def _return_gradients(self) -> None:
        if self._borrowed:
            self._borrowed.clear()

    def _asked(self, function: Callable[..., int | None], kind: Callable[[], Any], *arguments: Any) -> Any:
        """What a function gives as its last argument."""
        value = kind()
        check(function(self._handle, *arguments, ctypes.byref(value)))
        return value.value

    def _spec(self, tensor: TensorKey) -> Tensor:
        number = self.index(tensor)
        if 0 <= number < len(self.tensors):
            return self.tensors[number]
        raise MisuseError("cannot find a tensor", str(number), f"there are {len(self.tensors)}", "count from 0")

    def _view(self, number: int, address: int, writable: bool) -> Any:
        if self._cuda_ordinal is not None:
            raise MisuseError(
                "cannot show a tensor",
                self.tensors[number].name,
                "it is in the memory of a GPU",
                "take store.dlpack(tensor), or its address",
            )
        return view_of(address, self.tensors[number], writable)

    def _gradient_view(self, number: int) -> c.terrace_gradient_view:
        view = new(c.terrace_gradient_view)
        check(self._lib.terrace_gradient(self._handle, number, view))
        return view

    def _counters(self, function: Callable[..., int | None]) -> dict[str, int]:
        values = (ctypes.c_uint64 * self._lib.terrace_counter_count())()
        check(function(self._handle, values, len(values)))
        counter, found = new(c.terrace_counter), {}
        for number, value in enumerate(values):
            check(self._lib.terrace_counter_get(number, counter))
            found[text_of(counter.key)] = value
        return found


def _destroy(lib: ctypes.CDLL, handle: int | None, _request: Request) -> None:
    """The request holds the log, which lives until nothing can write to it."""
    lib.terrace_destroy(handle)
