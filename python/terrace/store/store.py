"""Store: the parameters, gradients and optimizer states of a training, in device memory, host memory and on nvme.

    store = Store(tensors, SimulatedDevice(1 << 20), parameters="nvme", states="nvme", nvme_paths=["/mnt/nvme"],
                  host_bytes=64 << 20)
    store.fill_with(fill)
    every step: begin_step; every micro-batch { leases, end_micro_batch }; update

One call at a time, from any thread. Tensors are named by their names or by their places in the list. A
KeyboardInterrupt leaves the store as it is after the call that it came in, and abandon_step() or end_evaluation()
ends what is open.
"""

import array
import ctypes
import weakref

from .. import _declarations as c
from .._lib import check, error_of, library, new, raw_of, text_of, undeclared, value_of, word_of
from ..errors import Error, MisuseError
from .interruptible import call_elsewhere
from .memory import DlpackTensor, Memory, memory_for, type_in, view_of
from .request import Request, plan_of, update_settings
from .spec import CudaDevice, UpdateResult

KINDS = c.ENUMS["terrace_use_kind"]


def plan(tensors, device=None, uses=None, **options):
    """What a store would take, as a Plan. Nothing is allocated.

    Raises CapacityError with .plan and the least budgets where the given ones are too small.
    """
    return Request(tensors, device, uses, options).plan()


class Store:
    def __init__(self, tensors, device=None, uses=None, **options):
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
        self._cuda_ordinal = device.ordinal if isinstance(device, CudaDevice) else None
        self._c_lease, self._c_release = undeclared("terrace_lease"), undeclared("terrace_release")
        self._number = ctypes.c_uint64()
        self._number_at = ctypes.byref(self._number)
        self._closed = ctypes.c_uint64()
        self._open = set()
        # With gradients="borrowed": what is read until the update has returned.
        self._borrowed = [] if options.get("gradients") == "borrowed" else None
        self._ids = {}
        self._parameters, self._gradients = {}, {}

    # --- The store itself ---

    def close(self):
        """Ends whatever is open. Files stay where there is a commit. A second close does nothing, and one in a forked
        child neither. A store that another thread is in cannot be closed."""
        try:
            self._asked(self._lib.terrace_has_whole_state, ctypes.c_uint32)
        except MisuseError as error:
            if error.reason.startswith("another call"):
                raise
        except Error:
            pass  # a store that has failed is closed all the same
        self._handle.value = None
        self._end()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __reduce_ex__(self, protocol):
        raise MisuseError(
            "cannot copy or pickle a store",
            "terrace.Store",
            "it holds memory, files and threads of this process",
            "save its values (read_values, terrace.safetensors) or commit, and create a store where it is wanted",
        )

    def index(self, tensor):
        """The place of a tensor in the list."""
        return self._request.number_of(tensor, "cannot find a tensor")

    @property
    def plan(self):
        result = new(c.terrace_plan_result)
        check(self._lib.terrace_plan_of(self._handle, result))
        return plan_of(result)

    # --- Values ---

    def fill_arrays(self, arrays):
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

    def fill_files(self, parts):
        """Fills all tensors from [(tensor, path, offset in bytes, type)]."""
        parts = [
            new(
                c.terrace_file_part,
                tensor=self.index(tensor),
                path=raw_of(path, "path"),
                offset=offset,
                type=value_of("terrace_type", type_, f"type of {tensor}"),
            )
            for tensor, path, offset, type_ in parts
        ]
        check(self._lib.terrace_fill_files(self._handle, (c.terrace_file_part * len(parts))(*parts), len(parts)))

    def fill_with(self, fill):
        """Fills all tensors by fill(tensor, first, values): values are to be written, from element `first` on.

        It is called in no order, from threads of the library. What it raises is raised here. Ctrl-C ends the fill.
        """
        failures = []

        @c.terrace_fill_fn
        def fill_part(_, number, first, count, address):
            try:
                if not failures:
                    part = (ctypes.c_float * count).from_address(address)
                    fill(self.tensors[number], first, memoryview(part).cast("B").cast("f"))
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

    def read_values(self, tensor, what="parameter", first=0, count=None, out=None):
        """Values as fp32: in a new array.array("f"), or in `out`, a buffer or an address. `what` is parameter,
        master, first_moment or second_moment."""
        spec = self._spec(tensor)
        count = spec.elements - first if count is None else count
        if out is None:
            out = array.array("f", bytes(4 * max(count, 0)))
        address, _kept = memory_for(out, "fp32", count, "cannot read values", spec.name, writable=True)
        what = value_of("terrace_what", what, spec.name)
        check(self._lib.terrace_read_values(self._handle, self.index(tensor), what, first, count, address))
        return out

    def write_values(self, tensor, values, what="parameter", first=0, count=None):
        """Writes fp32 values: a buffer or a list, or an address with a count."""
        spec = self._spec(tensor)
        if isinstance(values, (list, tuple)):
            values = array.array("f", values)
        if count is None:
            is_address = isinstance(values, int)
            count = spec.elements - first if is_address else Memory(values, "cannot write values").bytes // 4
        address, _kept = memory_for(values, "fp32", count, "cannot write values", spec.name)
        what = value_of("terrace_what", what, spec.name)
        check(self._lib.terrace_write_values(self._handle, self.index(tensor), what, first, count, address))

    @property
    def tensor_steps(self):
        """With unused_gradients="skip": the updates that each tensor has had."""
        steps = (ctypes.c_uint64 * len(self.tensors))()
        check(self._lib.terrace_tensor_steps(self._handle, steps, len(steps)))
        return list(steps)

    def set_tensor_steps(self, steps):
        check(self._lib.terrace_set_tensor_steps(self._handle, (ctypes.c_uint64 * len(steps))(*steps), len(steps)))

    @property
    def has_whole_state(self):
        return bool(self._asked(self._lib.terrace_has_whole_state, ctypes.c_uint32))

    # --- Addresses, which never change ---

    def parameter_address(self, tensor):
        return self._asked(self._lib.terrace_parameter_address, ctypes.c_void_p, self.index(tensor))

    def gradient_address(self, tensor):
        return self._asked(self._lib.terrace_gradient_address, ctypes.c_void_p, self.index(tensor))

    def move_tensor(self, tensor, address):
        """Between steps: the values of a tensor of home "caller" have been copied to another address."""
        check(self._lib.terrace_move_tensor(self._handle, self.index(tensor), address))

    def dlpack(self, tensor, gradient=False):
        """An object with __dlpack__ over the parameter or the gradient, which may be touched in leases only."""
        number = self.index(tensor)

        def make():
            return self._asked(self._lib.terrace_dlpack, ctypes.c_void_p, number, int(gradient))

        return DlpackTensor(make, self._cuda_ordinal)

    @property
    def work_memory(self):
        """(address, bytes) of the device memory for activations."""
        address, size = ctypes.c_void_p(), ctypes.c_uint64()
        check(self._lib.terrace_work_memory(self._handle, ctypes.byref(address), ctypes.byref(size)))
        return address.value, size.value

    @property
    def compute_stream(self):
        """The CUstream that kernels belong on; None on the simulated device."""
        return self._asked(self._lib.terrace_compute_stream, ctypes.c_void_p)

    def use_stream(self, stream):
        """Kernels belong on this CUstream from now on, behind those on the one before; 0 or None is the default
        stream."""
        check(self._lib.terrace_use_stream(self._handle, ctypes.c_void_p(stream)))

    @property
    def cuda_ordinal(self):
        """The number of the GPU; None on the simulated device."""
        return self._cuda_ordinal

    # --- A step ---

    def begin_step(self):
        check(self._lib.terrace_begin_step(self._handle))

    def select_micro_batch(self, micro_batch):
        check(self._lib.terrace_select_micro_batch(self._handle, micro_batch))

    def end_micro_batch(self):
        check(self._lib.terrace_end_micro_batch(self._handle))

    def abandon_step(self):
        """Ends a step before its update, with the leases that are open: its gradients are dropped."""
        self.release_all()
        check(self._lib.terrace_abandon_step(self._handle))
        self._return_gradients()

    def begin_evaluation(self):
        check(self._lib.terrace_begin_evaluation(self._handle))

    def end_evaluation(self):
        """Ends an evaluation, with the leases that are open."""
        self.release_all()
        check(self._lib.terrace_end_evaluation(self._handle))

    def lease(self, key, tensors, kind="forward"):
        """`with store.lease(key, tensors) as parameters:` makes tensors readable, and with "backward" their
        gradients writable, until the end of the block. `key` is the same in every step, and different for every
        lease within one."""
        return _Lease(self, key, tensors, kind)

    def ids(self, tensors):
        """The tensors as open_lease wants them; made once for the same tensors."""
        key = tuple(tensors)
        if key not in self._ids:
            numbers = [self.index(tensor) for tensor in key]
            self._ids[key] = (ctypes.c_uint32 * len(numbers))(*numbers)
        return self._ids[key]

    def open_lease(self, key, kind, ids, count):
        """A lease without its block, for callers in a hurry: key in bytes, kind of KINDS, ids() and how many."""
        failure = self._c_lease(self._handle, key, kind, ids, count, self._number_at)
        if failure is not None:
            raise error_of(failure)
        number = self._number.value
        self._open.add(number)
        return number

    def close_lease(self, number):
        self._closed.value = number
        failure = self._c_release(self._handle, self._closed)
        if failure is not None:
            raise error_of(failure)
        self._open.discard(number)

    def release_all(self):
        """Releases every lease that is open, those too whose opening or closing an interrupt has cut short."""
        for number in sorted(self._open | {self._number.value}, reverse=True):
            try:
                self.close_lease(number)
            except MisuseError:
                self._open.discard(number)

    def parameter(self, tensor):
        """The leased parameter, to be read: an array of numpy, else a memoryview. bf16 is uint16."""
        self._asked(self._lib.terrace_parameter, ctypes.c_void_p, self.index(tensor))
        return self.leased_view(tensor)

    def leased_view(self, tensor):
        """parameter() where it is known that the tensor is leased."""
        number = self.index(tensor)
        if number not in self._parameters:
            self._parameters[number] = self._view(number, self.parameter_address(number), False)
        return self._parameters[number]

    def gradient(self, tensor):
        """The gradient of a tensor that a lease has for backward, to be written; see gradient_accumulates()."""
        number = self.index(tensor)
        address = self._gradient_view(number).data
        if number not in self._gradients:
            self._gradients[number] = self._view(number, address, True)
        return self._gradients[number]

    def gradient_accumulates(self, tensor):
        """True: an earlier lease of this micro-batch has written the gradient; add to it. Else overwrite."""
        return bool(self._gradient_view(self.index(tensor)).accumulate)

    def hand_over(self, tensor, gradient, type=None, flags=0):
        """The complete gradient of a tensor in this micro-batch, a buffer or an address, in the tensor's type."""
        spec = self._spec(tensor)
        type_ = type or spec.type
        address, memory = memory_for(gradient, type_, spec.elements, "cannot hand over a gradient", spec.name)
        check(
            self._lib.terrace_hand_over(
                self._handle, self.index(tensor), address, value_of("terrace_type", type_, spec.name), flags
            )
        )
        if self._borrowed is not None:
            self._borrowed.append(memory)

    # --- Updates ---

    def update(self, groups, step, clip_norm=0.0, loss_scale=1.0):
        """After the last micro-batch: one Optimizer, or one per group. `step` counts from 1."""
        result = new(c.terrace_update_result)
        check(self._lib.terrace_update(self._handle, update_settings(groups, step, clip_norm, loss_scale), result))
        self._return_gradients()
        return UpdateResult(bool(result.applied), result.gradient_norm, bool(result.partly_applied))

    def announce_update(self, groups, step, clip_norm=0.0, loss_scale=1.0):
        """With update_when="during_backward": what update() will be given, before the last backward pass begins."""
        check(self._lib.terrace_announce_update(self._handle, update_settings(groups, step, clip_norm, loss_scale)))

    def finish_update(self):
        check(self._lib.terrace_finish_update(self._handle))

    @property
    def update_pending(self):
        return bool(self._asked(self._lib.terrace_update_pending, ctypes.c_uint32))

    @property
    def update_when(self):
        return word_of("terrace_update_when", self._asked(self._lib.terrace_get_update_when, ctypes.c_uint32))

    @update_when.setter
    def update_when(self, word):
        check(self._lib.terrace_set_update_when(self._handle, value_of("terrace_update_when", word, "update_when")))

    # --- Commits ---

    def begin_commit(self, text="", retain=False):
        """Between steps: begins a commit, which becomes durable while training goes on."""
        check(self._lib.terrace_begin_commit(self._handle, raw_of(text, "text of a commit"), int(retain)))

    def finish_commit(self):
        """Waits until the last commit is durable, and returns its number; 0: there is none."""
        return self._asked(self._lib.terrace_finish_commit, ctypes.c_uint64)

    @property
    def commit_in_progress(self):
        return bool(self._asked(self._lib.terrace_commit_in_progress, ctypes.c_uint32))

    @property
    def last_commit(self):
        return self._asked(self._lib.terrace_last_commit, ctypes.c_uint64)

    @property
    def taken_up_text(self):
        """The text of the commit that the store goes on from; "" without."""
        return text_of(self._asked(self._lib.terrace_taken_up_text, ctypes.c_char_p))

    @property
    def why_no_commits(self):
        """Why the store keeps no commits; "" where it does."""
        return text_of(self._asked(self._lib.terrace_why_no_commits, ctypes.c_char_p))

    def keep_tier(self, keep):
        """Whether the files of a store with a commit stay when it is closed."""
        check(self._lib.terrace_keep_tier(self._handle, int(keep)))

    # --- Host memory and figures ---

    @property
    def host_budget(self):
        """(bytes, the least that would do)"""
        size, least = ctypes.c_uint64(), ctypes.c_uint64()
        check(self._lib.terrace_host_budget(self._handle, ctypes.byref(size), ctypes.byref(least)))
        return size.value, least.value

    def set_host_budget(self, size):
        check(self._lib.terrace_set_host_budget(self._handle, size))

    def counters(self):
        """Bytes moved, waits and times since the store was created, by key."""
        return self._counters(self._lib.terrace_counters)

    def step_counters(self):
        """The same since the last begin_step()."""
        return self._counters(self._lib.terrace_step_counters)

    # --- Within ---

    def _return_gradients(self):
        if self._borrowed:
            self._borrowed.clear()

    def _asked(self, function, kind, *arguments):
        """What a function gives as its last argument."""
        value = kind()
        check(function(self._handle, *arguments, ctypes.byref(value)))
        return value.value

    def _spec(self, tensor):
        number = self.index(tensor)
        if 0 <= number < len(self.tensors):
            return self.tensors[number]
        raise MisuseError("cannot find a tensor", str(number), f"there are {len(self.tensors)}", "count from 0")

    def _view(self, number, address, writable):
        if self._cuda_ordinal is not None:
            raise MisuseError(
                "cannot show a tensor",
                self.tensors[number].name,
                "it is in the memory of a GPU",
                "take store.dlpack(tensor), or its address",
            )
        return view_of(address, self.tensors[number], writable)

    def _gradient_view(self, number):
        view = new(c.terrace_gradient_view)
        check(self._lib.terrace_gradient(self._handle, number, view))
        return view

    def _counters(self, function):
        values = (ctypes.c_uint64 * self._lib.terrace_counter_count())()
        check(function(self._handle, values, len(values)))
        counter, found = new(c.terrace_counter), {}
        for number, value in enumerate(values):
            check(self._lib.terrace_counter_get(number, counter))
            found[text_of(counter.key)] = value
        return found


class _Lease:
    """A lease around a block. It may be opened again after its end."""

    __slots__ = ("_store", "_tensors", "_arguments", "_number")

    def __init__(self, store, key, tensors, kind):
        self._store = store
        self._tensors = list(tensors)
        ids = store.ids(self._tensors)
        kind = value_of("terrace_use_kind", kind, "kind of a lease")
        self._arguments = (raw_of(key, "key of a lease"), kind, ids, len(ids))

    def __enter__(self):
        self._number = self._store.open_lease(*self._arguments)
        try:
            return [self._store.leased_view(tensor) for tensor in self._tensors]
        except BaseException:
            self._store.close_lease(self._number)
            raise

    def __exit__(self, *_):
        self._store.close_lease(self._number)


def _destroy(lib, handle, _request):
    """The request holds the log, which lives until nothing can write to it."""
    lib.terrace_destroy(handle)
