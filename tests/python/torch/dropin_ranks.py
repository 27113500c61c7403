"""Ranks for the tests of the drop-in optimizers: processes that are forked from the test, with torch.distributed over
gloo, so that torch is imported once. The test's own process makes no store and starts no thread before."""

import contextlib
import os
import pathlib
import pickle
import signal
import sys
import tempfile
import time
import traceback
import unittest
import warnings

import torch._dynamo  # which every first optimizer imports, and takes longer than the tests
import torch.distributed as dist
from dropin_training import bits, loss_of, network, torch
from torch.nn.parallel import DistributedDataParallel

_SECONDS = 100  # after which a rank hangs


def of_ranks(count, act, *arguments):
    """What act(rank, *arguments) returns on each rank. One that raises, dies or hangs is an AssertionError."""
    with tempfile.TemporaryDirectory() as folder:
        children = [_forked(pathlib.Path(folder), count, rank, act, arguments) for rank in range(count)]
        failures = _waited(children)
        results = []
        for rank in range(count):
            answer = pathlib.Path(folder, f"answer-{rank}")
            is_well, value = pickle.loads(answer.read_bytes()) if answer.exists() else (False, failures[rank])
            if not is_well:
                raise AssertionError(f"rank {rank} of {count}: {value}")
            results.append(value)
    return results


def _forked(folder, count, rank, act, arguments):
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child:
        return child
    try:
        # Where it hangs, its place is on stderr.
        signal.signal(signal.SIGALRM, lambda *_: (_ for _ in ()).throw(TimeoutError("it hangs")))
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        if count > 1:
            dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=count)
        answer = True, act(rank, *arguments)
    except BaseException:
        answer = False, traceback.format_exc()
    (folder / "partial").with_suffix(f".{rank}").write_bytes(pickle.dumps(answer))
    os.rename(folder / f"partial.{rank}", folder / f"answer-{rank}")
    sys.stderr.flush()
    os._exit(0)


def _waited(children):
    """Why each has ended, as far as it has not said so."""
    end, left, why = time.monotonic() + _SECONDS, list(children), {}
    while left:
        for child in list(left):
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                left.remove(child)
                why[child] = f"it has ended with {status}"
        if left and time.monotonic() > end:
            for child in left:
                os.kill(child, signal.SIGKILL)
                why[child] = "it hangs"
            end = float("inf")
        time.sleep(0.002)
    return [why[child] for child in children]


def rank_batch(step, rank, count, micro_batch=0):
    """Rank's batch of a step: others on every rank, the same whoever asks."""
    return (step * count + rank) * 8 + micro_batch


def train_ddp(model, optimizer, rank, count, steps, first=0, before_step=lambda: None):
    """The losses of this rank, and the norms of all steps."""
    losses, norms = [], []
    for step in range(first, first + steps):
        optimizer.zero_grad()
        loss = loss_of(model, rank_batch(step, rank, count))
        loss.backward()
        before_step()
        optimizer.step()
        losses.append(loss.item())
        norms.append(optimizer.last_update.gradient_norm if hasattr(optimizer, "last_update") else None)
    return losses, norms


def ddp_network(dtype=torch.float32, **options):
    return DistributedDataParallel(network(dtype), **options)


def barrier(count):
    if count > 1:
        dist.barrier()


def bits_of(model):
    return bits(model.parameters())


class RanksTestCase(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def assert_all_equal(self, values):
        for rank, value in enumerate(values):
            self.assertEqual(value, values[0], f"rank {rank}")


@contextlib.contextmanager
def warned():
    """The texts of warnings within the block."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        texts = []
        yield texts
        texts += [str(one.message) for one in caught]
