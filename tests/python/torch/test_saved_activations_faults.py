"""Whatever a drive does to inputs that wait on it, at whichever of its requests: an error of four parts names file and
reason, or nobody needed the request; nothing of the state is lost, and the step can be made again with the same bits. The
runs are forked children of one process below fail_at.c."""

import ctypes
import errno
import json
import os
import pathlib
import subprocess
import sys
import unittest

from support_torch import batch_of, engine_of, loss_of, masters, seeded, terrace, train
from terrace.torch.engine.passes import saved_inputs
from test_killed_saves import run_in_child
from test_saved_activations import _PLAIN, _REENTRANT, Checkpointed, Saving, activations_config

READS, WRITES, ROOM = range(3)  # of fail_at.c
KINDS = {"read": READS, "write": WRITES, "room": ROOM}
# What fails, how, whether all that follow do too, and what the error may be. A file system that is full says so when a file
# is made, or where it has given a file its room and has none.
FAULTS = [
    ("read", errno.EIO, False, ["IoError"]),
    ("write", errno.EIO, False, ["IoError"]),
    ("write", errno.EIO, True, ["IoError"]),
    ("write", errno.ENOSPC, True, ["CapacityError", "IoError"]),
    ("room", errno.ENOSPC, False, []),  # a smaller file has room
    ("room", errno.ENOSPC, True, ["CapacityError"]),
]


class Run:
    """What a process below the shim does: two steps, of which the first or the second meets a fault."""

    def __init__(self, kind, host_memory, folder):
        saved_inputs.LEAST_BYTES = 1
        self.kind, self.folder = kind, folder
        self.config = activations_config("nvme", folder, engine="threads", host_memory=host_memory)
        self.shim = ctypes.CDLL(None)
        self.shim.fail_at.argtypes = [ctypes.c_int, ctypes.c_long, ctypes.c_int, ctypes.c_int]
        self.shim.calls_of.argtypes, self.shim.calls_of.restype = [ctypes.c_int], ctypes.c_long

    def engine(self):
        return engine_of(seeded(Checkpointed, self.kind), self.config, log=lambda *_: None)

    def calm(self):
        """(what two steps tell, the requests of each kind in each of them)"""
        engine = self.engine()
        told, counts = [], []
        for step in range(2):
            self.shim.fail_at(0, 0, 0, 0)
            told += train(engine, 1, first=step)
            counts.append([self.shim.calls_of(kind) for kind in KINDS.values()])
        return [told, masters(engine)], counts

    def faulty(self, step, request, number, error, goes_on):
        """What two steps tell where one met a fault and was made again, and [kind, parts] of its error."""
        engine = self.engine()
        told = train(engine, step)
        self.shim.fail_at(KINDS[request], number, error, int(goes_on))
        failure = None
        try:
            loss = loss_of(engine.module, batch_of(engine.module, step))
            engine.backward(loss)
        except terrace.Error as raised:
            failure = [type(raised).__name__, raised.what, raised.subject, raised.reason, raised.advice]
        self.shim.fail_at(0, 0, 0, 0)
        loss = None
        engine.zero_grad()
        left = engine.saved_activations
        told += train(engine, 2 - step, first=step)
        return [told, masters(engine)], failure, [left.saved_count, left.host_bytes, left.nvme_bytes]

    def campaign(self):
        calm, counts = run_in_child(self.calm)[1]
        told = []
        for step in (0, 1) if self.kind == _PLAIN else (1,):
            for request, error, goes_on, _ in FAULTS:
                for number in range(1, counts[step][KINDS[request]] + 1):
                    case = [step, request, number, error, goes_on]
                    status, seen = run_in_child(lambda: self.faulty(*case))
                    told.append([case, status, seen])
        return {"calm": calm, "counts": counts, "told": told}


def serve(kind, host_memory, folder):
    print(json.dumps(Run(kind == "reentrant", int(host_memory), folder).campaign()))


class Faults(Saving):
    def told(self, kind):
        model = seeded(Checkpointed, kind)
        config = activations_config("nvme", self.folder, engine="threads")
        host_memory = self.least_host(config, model) + 2 * 256 * 1024  # for two of the inputs
        shim = os.path.join(self.folder, "fail_at.so")
        source = pathlib.Path(__file__).resolve().parent / "fail_at.c"
        subprocess.run([os.environ.get("CC", "cc"), "-shared", "-fPIC", source, "-o", shim, "-ldl"], check=True)
        words = ["serve", "reentrant" if kind == _REENTRANT else "plain", str(host_memory), self.folder]
        environment = dict(os.environ, LD_PRELOAD=shim)
        done = subprocess.run(
            [sys.executable, "-B", __file__, *words], env=environment, stdout=subprocess.PIPE, check=True
        )
        return json.loads(done.stdout)

    def check(self, case, seen, calm):
        end, failure, left = seen
        _, request, _, error, goes_on = case
        self.assertEqual(end, calm)
        self.assertEqual(left, [0, 0, 0])
        if failure is None:
            return None
        name, *parts = failure
        for part in parts:
            self.assertTrue(part)
        self.assertIn("saved", " ".join(parts))
        self.assertIn(errno.errorcode[error], " ".join(parts))
        self.assertIn(name, next(fault[3] for fault in FAULTS if fault[:3] == (request, error, goes_on)))
        return request, error, goes_on

    def test_each_request_that_fails_is_named_and_the_step_is_made_again(self):
        for kind in (_PLAIN, _REENTRANT):
            found = self.told(kind)
            named = set()
            for case, status, seen in found["told"]:
                with self.subTest(case=case, kind=kind):
                    self.assertEqual(status, 0)
                    named.add(self.check(case, seen, found["calm"]))
            # Each kind of failure came to the program at some request.
            expected = {fault[:3] for fault in FAULTS if fault[3] and (fault[0] != "room" or kind == _PLAIN)}
            self.assertEqual(named - {None}, expected)
            self.assertGreater(len(found["told"]), 10)


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        serve(*sys.argv[2:])
    else:
        unittest.main()
