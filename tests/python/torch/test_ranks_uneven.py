"""Ranks whose drives and reads of memory are not equally fast have the numbers of one rank: what a rank reads of another one is
of the step that it is at, however far that one is. The ranks are forked below slow_at.c."""

import ctypes
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

from ranks_torch import RanksTest, config_of, engine_of, in_order, masters, seeded, together, train_ranks
from support_torch import Mlp

HERE = pathlib.Path(__file__).resolve().parent
MICRO_BATCHES = 6  # of a step, over all ranks
STEPS = 4
# (parameters, update); states lie on nvme
CASES = [("cpu", "after_backward"), ("nvme", "after_backward"), ("cpu", "next_forward"), ("nvme", "next_forward")]
# (microseconds of the drive, of a read of memory) that rank r of 3 waits beside what these take
SLOW = {"drives": [(0, 0), (3000, 0), (0, 0)], "memory": [(0, 4000), (0, 0), (0, 1000)]}


def trained(case, count, slow):
    def on(rank):
        shim = ctypes.CDLL(None)
        with tempfile.TemporaryDirectory() as folder:
            parameters, update = case
            config = config_of(
                parameters,
                "nvme",
                folder,
                MICRO_BATCHES // count,
                update=update,
                engine="threads",
                chunk_elements=12288,
            )
            engine = engine_of(seeded(Mlp, 192), config, persistence_threshold=0)
            shim.slow_at(*slow[rank])
            told = train_ranks(engine, STEPS)
            shim.slow_at(0, 0)
            ends = masters(engine)
            engine.close()
            return told, ends

    ends = together(count, on)
    return [end.value or (end.text or f"signal {end.signal_number}") for end in ends]


def difference(case, name):
    """What the ranks tell otherwise than one rank; empty: nothing."""
    (one,) = trained(case, 1, [(0, 0)])
    found = trained(case, 3, SLOW[name])
    failed = [rank for rank in found if isinstance(rank, str)]
    if failed:
        return failed[0]
    if in_order([told for told, _ in found]) != one[0]:
        return "losses or norms"
    return "" if all(ends == one[1] for _, ends in found) else "masters"


class Uneven(RanksTest):
    def test_no_bit_depends_on_who_is_slow(self):
        with tempfile.TemporaryDirectory() as folder:
            shim = os.path.join(folder, "slow_at.so")
            compiler = os.environ.get("CC", "cc")
            subprocess.run([compiler, "-shared", "-fPIC", HERE / "slow_at.c", "-o", shim, "-ldl"], check=True)
            command = [sys.executable, "-W", "ignore", __file__, "serve"]
            done = subprocess.run(command, env=dict(os.environ, LD_PRELOAD=shim), stdout=subprocess.PIPE, check=True)
        for case, name, told in json.loads(done.stdout):
            with self.subTest(case=case, slow=name):
                self.assertEqual(told, "")


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        print(json.dumps([(case, name, difference(case, name)) for case in CASES for name in SLOW]))
    else:
        unittest.main()
