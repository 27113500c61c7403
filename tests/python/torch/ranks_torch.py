"""Ranks as processes of a test, forked from it, so that torch is imported once for all of them."""

import os
import pickle
import signal
import sys
import tempfile
import time
import traceback

from support_torch import EngineTest, batch_of, config_of, engine_of, loss_of, masters, seeded, terrace, torch
from terrace.torch.engine import launched
from terrace.torch.engine.deepspeed_names import ENGINES

# Seconds that a test waits for its ranks. How fast a machine is and what else it does decides nothing.
PATIENCE = 900


class Ended:
    """How a rank came to its end: what it returned, what it raised, or the signal that ended it; the status where it ended
    without either."""

    def __init__(self, value=None, error=None, text="", signal_number=0, status=0):
        self.value, self.error, self.text, self.signal_number = value, error, text, signal_number
        self.status = status


def together(count, body, variables=None):
    """body(rank) on every rank at once: an Ended of each, in their order."""
    with tempfile.TemporaryDirectory() as folder:
        known = variables or (lambda rank: {"TERRACE_RANK": str(rank), "TERRACE_RANKS": str(count)})
        meet = {"TERRACE_MEET": os.path.join(folder, "meet")} if count > 1 else {}  # where sockets of any launcher meet
        reports = [os.path.join(folder, f"report {rank}") for rank in range(count)]
        children = [
            _child(lambda rank=rank: body(rank), {**meet, **(known(rank) if count > 1 else {})}, reports[rank])
            for rank in range(count)
        ]
        return [_end_of(child, report) for child, report in zip(children, reports)]


def _child(body, variables, report):
    child = os.fork()
    if child:
        return child
    os.environ.update(variables)
    ended, status = Ended(), 0
    try:
        ended.value = body()
    except BaseException as error:
        ended.text, status = traceback.format_exc(), 1
        ended.error = error if isinstance(error, terrace.Error) else RuntimeError(repr(error))
        if sys.excepthook is not sys.__excepthook__:
            with open(os.devnull, "w") as sys.stderr:
                sys.excepthook(type(error), error, error.__traceback__)
    for engine in list(ENGINES):
        engine.store.close()
    if launched._joined is not None:
        launched._joined.close()
    with open(report, "wb") as file:
        pickle.dump(ended, file)
    os._exit(status)


def _end_of(child, report):
    patience = time.monotonic() + PATIENCE
    found, status = os.waitpid(child, os.WNOHANG)
    while not found:
        if time.monotonic() > patience:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.01)
        found, status = os.waitpid(child, os.WNOHANG)
    if os.WIFSIGNALED(status):
        return Ended(signal_number=os.WTERMSIG(status))
    if not os.path.exists(report):
        return Ended(text="it ended without a word", status=os.WEXITSTATUS(status))
    with open(report, "rb") as file:
        return pickle.load(file)


def train_ranks(engine, steps, first=0):
    """[(losses of this rank's micro-batches, norm)]; micro-batch k of rank r is number k N + r."""
    model, told = engine.module, []
    for step in range(first, first + steps):
        losses = []
        for k in range(engine.gradient_accumulation_steps()):
            loss = loss_of(model, batch_of(model, step, k * engine.world_size + engine.global_rank), engine)
            engine.backward(loss)
            engine.step()
            losses.append(loss.item())
        told.append((losses, engine.get_global_grad_norm()))
    return told


def in_order(told):
    """[(losses of all micro-batches, norm)] of what train_ranks gave on each rank."""
    steps = []
    for of_step in zip(*told):
        assert len({norm for _, norm in of_step}) == 1, of_step
        steps.append(
            ([loss for of_round in zip(*(losses for losses, _ in of_step)) for loss in of_round], of_step[0][1])
        )
    return steps


class RanksTest(EngineTest):
    def on_ranks(self, count, body):
        """What body(rank) returned on each rank."""
        ends = together(count, body)
        for rank, end in enumerate(ends):
            if end.text or end.signal_number:
                self.fail(f"rank {rank} of {count}: {end.text or signal.Signals(end.signal_number).name}")
        return [end.value for end in ends]


__all__ = [
    "RanksTest",
    "batch_of",
    "config_of",
    "engine_of",
    "in_order",
    "loss_of",
    "masters",
    "seeded",
    "terrace",
    "together",
    "torch",
    "train_ranks",
]
