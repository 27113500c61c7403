"""What the tests of the package share: a small store, steps with made-up gradients, and processes of their own."""

import pathlib
import subprocess
import sys
import textwrap

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))

import terrace

MIB = 1 << 20
# Seconds that a test waits for another process or thread. How fast a machine is and what else it does decides nothing.
PATIENCE = 900
# Of a process of its own, which sees the package and this folder.
PREAMBLE = f"import sys; sys.path[:0] = [{str(ROOT / 'python')!r}, {str(ROOT / 'tests/python')!r}]\n"


def tensors():
    return [
        terrace.Tensor("weight", (48, 32)),
        terrace.Tensor("bias", (32,)),
        terrace.Tensor("kept", (8,), trainable=False),
    ]


def fill(tensor, first, values):
    """Values that differ from place to place."""
    for at in range(len(values)):
        values[at] = (hash_of(len(tensor.name) * 7919 + first + at) - 0.5) / 4


def hash_of(seed):
    """In [0, 1), the same for the same seed."""
    seed = (seed ^ (seed >> 31)) * 0x9E3779B97F4A7C15 & (2**64 - 1)
    return (seed >> 40) / float(1 << 24)


def make_store(described=None, device_bytes=MIB, **options):
    return terrace.Store(
        described or tensors(),
        terrace.SimulatedDevice(device_bytes),
        **{"host_bytes": 8 * MIB, "threads": 2, **options},
    )


def train(store, step, gradient=lambda name, at: hash_of(len(name) + at) - 0.5, optimizer=None):
    """A step whose gradients are made up, without numpy."""
    store.begin_step()
    trained = [tensor for tensor in store.tensors if tensor.trainable]
    with store.lease("all/backward", [tensor.name for tensor in trained], "backward"):
        for tensor in trained:
            view = memoryview(store.gradient(tensor.name)).cast("B").cast("f")
            for at in range(len(view)):
                view[at] = gradient(tensor.name, at + step)
    store.end_micro_batch()
    return store.update(optimizer or terrace.Optimizer(lr=0.01, weight_decay=0.1), step)


def state_of(store):
    """Every value that the store holds, as bytes."""
    found = {}
    for tensor in store.tensors:
        kinds = ["parameter"] + (["master", "first_moment", "second_moment"] if tensor.trainable else [])
        for what in kinds:
            found[tensor.name, what] = store.read_values(tensor.name, what).tobytes()
    return found


def run_python(code, *arguments, **options):
    """Runs a program of Python to its end. It warns of a fork beside threads, which some tests are about."""
    program = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", PREAMBLE + textwrap.dedent(code)]
    return subprocess.run(
        [*program, *arguments], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=PATIENCE, **options
    )


def parts_of(error):
    return error.what, error.subject, error.reason, error.advice
