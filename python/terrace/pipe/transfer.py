"""Messages between the stages of a pipeline, one way of each kind from one stage to another.

On the processor gloo of torch.distributed carries them, and on GPUs NCCL does, with heads by gloo. Threads wait for what is on
its way, so that a stage computes meanwhile, and hears within a second of a process that has died. At most one message is
received before it is asked for.
"""

from __future__ import annotations

import datetime
import queue
import struct
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed

from ..errors import Error, PeerError
from ..torch.engine.launched import free_place
from .failing import raise_told
from .messages import Arriving, Head, Message, bytes_of, message_of, unpacked

if TYPE_CHECKING:
    from ..ranks import Ranks
    from .topology import PipelineParallelGrid

_HEAD_BYTES = 4096
_LENGTH = struct.Struct("=Q")
_TOLD = "told"  # in the place of what message_of makes: why there is no message
_TELL_SECONDS = 0.5  # that a stage which fails waits until it has told why
_LOOK_SECONDS = 0.2  # after which a wait looks whether all processes live
_NEVER = datetime.timedelta(days=365)  # who waits too long is found by the ranks
_kept: list[Any] = []  # groups in which a thread may still wait


class Line:
    """The stages that one part of the data goes through; where tensors are divided, the processes with one number among those
    that divide them. Every process of the run makes it at the same time.

    `is_patient(seconds)` is told now and then how long a wait lasts, and raises where that is too long."""

    def __init__(
        self, ranks: Ranks, grid: PipelineParallelGrid, device: torch.device, is_patient: Callable[[str, float], None]
    ) -> None:
        self.stage, self._device = grid.stage_id, device
        self._ranks, self._is_patient = ranks, is_patient
        hosts = [host.decode() for host in ranks.texts_of_all(ranks.host.encode())]
        place = ranks.of_first(free_place(hosts).encode()).decode()
        host, _, port = place.rpartition(":")
        names: Any = torch.distributed  # which does not say all that it has
        self._store = names.TCPStore(
            host, int(port), is_master=ranks.is_first, wait_for_workers=False, timeout=datetime.timedelta(seconds=300)
        )
        store = names.PrefixStore(f"line {grid.data_parallel_id}.{grid.slice_parallel_id}", self._store)
        count = self._count = grid.pipe_parallel_size
        self._heads = names.ProcessGroupGloo(names.PrefixStore("gloo", store), self.stage, count, _NEVER)
        self._bodies = self._heads
        self._is_on_gpu = device.type == "cuda"
        if self._is_on_gpu:
            self._bodies = names.ProcessGroupNCCL(names.PrefixStore("nccl", store), self.stage, count)
        self._senders: dict[tuple[int, int], _Sender] = {}
        self._receivers: dict[tuple[int, int], _Receiver] = {}

    def send(self, to: int, way: int, value: Any) -> Message:
        """Returns at once. Nobody may write to the tensors after that. `way` keeps messages of several kinds apart."""
        if (to, way) not in self._senders:
            self._senders[to, way] = _Sender(self._heads, to, way)
        message = message_of(value)
        head = message.head
        sender = self._senders[to, way]
        if sender.failure is not None:
            self._raise(to, sender.failure)
        bodies = [bytes_of(one) for one in message.tensors]
        if self._is_on_gpu:
            sender.put(head, [one for one in bodies if one.device.type == "cpu"])
            for body in bodies:
                if body.numel() and body.device.type == "cuda":
                    sender.on_gpu.append((body, self._bodies.send([body], to, way)))
            sender.forget_sent()
        else:
            sender.put(head, bodies)
        return message

    def tell(self, told: list[str], forward: int, backward: int) -> None:
        """In place of what the stages beside this one wait for, on these ways, they get why it does not come."""
        sent = []
        for to, way in ((self.stage + 1, forward), (self.stage - 1, backward)):
            if 0 <= to < self._count:
                if (to, way) not in self._senders:
                    self._senders[to, way] = _Sender(self._heads, to, way)
                self._senders[to, way].put(Head((_TOLD, told), []), [])
                sent.append(self._senders[to, way].when_sent())
        until = time.monotonic() + _TELL_SECONDS
        while time.monotonic() < until and not all(one.wait(0.02) for one in sent):
            self._ranks.check()  # who knows it already need not be told

    def expect(self, source: int, way: int, count: int) -> None:
        """So many messages will come, and are received ahead."""
        if (source, way) not in self._receivers:
            self._receivers[source, way] = _Receiver(self._heads, source, way, self._device)
        self._receivers[source, way].expect(count)

    def receive(self, source: int, way: int) -> Message:
        """The next message. Raises PeerError where it cannot come any more."""
        receiver = self._receivers[source, way]
        began = time.monotonic()
        while True:
            try:
                found = receiver.arrived.get(timeout=_LOOK_SECONDS)
                break
            except queue.Empty:
                self._ranks.check()
                self._is_patient(f"stage {source}", time.monotonic() - began)
        receiver.permits.release()
        if isinstance(found, BaseException):
            self._raise(source, found)
        head, coming = found
        if head.layout[0] == _TOLD:
            raise_told(head.layout[1])
        if self._is_on_gpu:
            for one in coming:
                if one.bytes.numel() and one.bytes.device.type == "cuda":
                    self._bodies.recv([one.bytes], source, way).wait()
        return Message(head, [one.tensor() for one in coming])

    def _raise(self, stage: int, failure: BaseException) -> None:
        """A connection that ends says less than the ranks, who learn within two seconds who has died."""
        until = time.monotonic() + 5
        while time.monotonic() < until:
            self._ranks.check()
            time.sleep(0.05)
        if isinstance(failure, Error):
            raise failure
        raise PeerError(
            "cannot go on with a pipeline",
            f"stage {stage}",
            str(failure).partition("\n")[0],
            "look there for why it has ended; go on from the last checkpoint",
        ) from failure

    def close(self) -> None:
        """Between two steps nothing is on its way."""
        threads: list[_Sender | _Receiver] = [*self._senders.values(), *self._receivers.values()]
        for one in threads:
            one.end()
        if any(one.is_waiting() for one in threads):
            _kept.append((self._heads, self._bodies, self._store))


class _Sender:
    """A thread that sends one message after the other."""

    def __init__(self, group: Any, to: int, way: int) -> None:
        self._group, self._to, self._way = group, to, way
        self._todo: queue.SimpleQueue[tuple[Head, list[torch.Tensor]] | threading.Event | None] = queue.SimpleQueue()
        self.failure: BaseException | None = None
        self.on_gpu: list[tuple[torch.Tensor, Any]] = []  # what NCCL reads, in the order of its operations
        self._thread = threading.Thread(target=self._run, name=f"to stage {to}", daemon=True)
        self._thread.start()

    def put(self, head: Head, bodies: list[torch.Tensor]) -> None:
        self._todo.put((head, bodies))

    def when_sent(self) -> threading.Event:
        """It is set when everything before is sent."""
        sent = threading.Event()
        self._todo.put(sent)
        return sent

    def forget_sent(self) -> None:
        self.on_gpu = [(body, work) for body, work in self.on_gpu if not work.is_completed()]

    def _run(self) -> None:
        while (todo := self._todo.get()) is not None:
            if isinstance(todo, threading.Event):
                todo.set()
                continue
            try:
                head, bodies = todo
                packed = head.packed()
                data = _LENGTH.pack(len(packed)) + packed
                first = torch.frombuffer(bytearray(data[:_HEAD_BYTES].ljust(_HEAD_BYTES, b"\0")), dtype=torch.uint8)
                parts = [first]
                if len(data) > _HEAD_BYTES:
                    parts.append(torch.frombuffer(bytearray(data[_HEAD_BYTES:]), dtype=torch.uint8))
                parts += [one for one in bodies if one.numel()]
                for work in [self._group.send([one], self._to, self._way) for one in parts]:
                    work.wait()
                del todo, bodies, parts
            except BaseException as error:
                self.failure = error
                return

    def end(self) -> None:
        self._todo.put(None)
        self._thread.join(0.5)

    def is_waiting(self) -> bool:
        return self._thread.is_alive()


class _Receiver:
    """A thread that receives the messages that are expected, one ahead of who asks for them."""

    def __init__(self, group: Any, source: int, way: int, device: torch.device) -> None:
        self._group, self._source, self._way, self._device = group, source, way, device
        self.arrived: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.permits = threading.Semaphore(1)
        self._expected: queue.SimpleQueue[int | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"from stage {source}", daemon=True)
        self._thread.start()

    def expect(self, count: int) -> None:
        self._expected.put(count)

    def _run(self) -> None:
        while (count := self._expected.get()) is not None:
            for _ in range(count):
                self.permits.acquire()
                try:
                    self.arrived.put(self._next())
                except BaseException as error:
                    self.arrived.put(error)
                    return

    def _next(self) -> tuple[Head, list[Arriving]]:
        data = self._bytes(_HEAD_BYTES)
        (length,) = _LENGTH.unpack_from(data)
        missing = _LENGTH.size + length - _HEAD_BYTES
        if missing > 0:
            data += self._bytes(missing)
        head = unpacked(data[_LENGTH.size : _LENGTH.size + length])
        coming = [Arriving(one, self._device) for one in head.tensors]
        works = [
            self._group.recv([one.bytes], self._source, self._way)
            for one in coming
            if one.bytes.numel() and one.bytes.device.type == "cpu"
        ]
        for work in works:
            work.wait()
        return head, coming

    def _bytes(self, count: int) -> bytes:
        room = torch.empty(count, dtype=torch.uint8)
        self._group.recv([room], self._source, self._way).wait()
        return room.numpy().tobytes()

    def end(self) -> None:
        self._expected.put(None)
        self._thread.join(0.5)

    def is_waiting(self) -> bool:
        return self._thread.is_alive()
