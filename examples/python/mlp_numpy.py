"""A network learns to add, with numpy alone: its optimizer states live in files, and the device memory that it computes
in is smaller than its parameters.

    python3 examples/python/mlp_numpy.py [FOLDER ON A DRIVE]
"""

import sys
import tempfile

import numpy
import terrace

WIDTH, BATCH, STEPS = 128, 64, 200
SHAPES = {
    "first": (2, WIDTH),
    "second": (WIDTH, WIDTH),
    "third": (WIDTH, WIDTH),
    "fourth": (WIDTH, WIDTH),
    "last": (WIDTH, 1),
}
TENSORS = [terrace.Tensor(*item) for item in SHAPES.items()]
LAYERS = list(SHAPES)


def train_step(store, step, random):
    x = random.random((BATCH, 2), numpy.float32)
    target, inputs = x.sum(axis=1, keepdims=True), []
    store.begin_step()
    for layer in LAYERS:
        inputs.append(x)
        with store.lease(f"{layer}/forward", [layer]) as (weight,):
            x = x @ weight if layer == LAYERS[-1] else numpy.tanh(x @ weight)
    loss = float(((x - target) ** 2).mean())
    slope = 2 * (x - target) / BATCH
    for layer in reversed(LAYERS):
        x = inputs.pop()
        with store.lease(f"{layer}/backward", [layer], "backward") as (weight,):
            store.gradient(layer)[:] = x.T @ slope
            slope = slope @ weight.T * (1 - x * x)
    store.end_micro_batch()
    store.update(terrace.Optimizer("adamw", lr=3e-3, weight_decay=0.01), step, clip_norm=1.0)
    return loss


def main(folder):
    random = numpy.random.default_rng(1)
    values = {
        tensor.name: random.normal(0, tensor.shape[0] ** -0.5, tensor.shape).astype("float32") for tensor in TENSORS
    }
    units = [terrace.Use(layer, [layer]) for layer in LAYERS]
    budgets = {"states": "nvme", "nvme_paths": [folder], "host_bytes": 4 << 20, "chunk_elements": 4096}
    with terrace.Store(TENSORS, terrace.SimulatedDevice(160 << 10), units, **budgets) as store:
        store.fill_arrays(values)
        losses = [train_step(store, step, random) for step in range(1, STEPS + 1)]
    print(f"loss {losses[0]:.4f} -> {losses[-1]:.6f}")
    return losses


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        found = main(sys.argv[1] if len(sys.argv) > 1 else temporary)
    sys.exit(0 if found[-1] < 0.01 * found[0] else 1)
