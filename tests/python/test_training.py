"""A network of numpy gives the same bits wherever its bytes live."""

import tempfile
import unittest

import numpy
import terrace
from support import MIB

WIDTH, BATCH, STEPS = 64, 16, 5
LAYERS = ["in", "hidden", "out"]
SHAPES = {"in": (8, WIDTH), "hidden": (WIDTH, WIDTH), "out": (WIDTH, 4)}


def values_of_random(seed, shape):
    return numpy.random.default_rng(seed).standard_normal(shape).astype("float32")


def forward_and_backward(store, step, micro_batch):
    x = values_of_random(1000 * step + micro_batch, (BATCH, 8))
    target, inputs = numpy.tanh(x[:, :4]), []
    for layer in LAYERS:
        inputs.append(x)
        with store.lease(f"{layer}/forward", [layer]) as (weight,):
            x = numpy.tanh(x @ weight.astype("float32"))
    loss = ((x - target) ** 2).mean(dtype="float64")
    slope = 2 * (x - target) / x.size
    for layer in reversed(LAYERS):
        slope = slope * (1 - x * x)
        x = inputs.pop()
        with store.lease(f"{layer}/backward", [layer], "backward") as (weight,):
            gradient = store.gradient(layer)
            gradient[:] = (x.T @ slope).astype(gradient.dtype)
            slope = slope @ weight.astype("float32").T
    store.end_micro_batch()
    return loss


def run(type_="fp32", announced=False, device_bytes=2 * MIB, micro_batches=1, optimizer="adamw", **options):
    """Losses, norms, and all values in the end."""
    tensors = [terrace.Tensor(name, shape, type_) for name, shape in SHAPES.items()]
    units = [terrace.Use(layer, [layer]) for layer in LAYERS] if announced else None
    settings = {
        "host_bytes": 8 * MIB,
        "threads": 2,
        "chunk_elements": 4096,
        "optimizer": optimizer,
        "accumulation_steps": micro_batches,
        **options,
    }
    found = []
    with terrace.Store(tensors, terrace.SimulatedDevice(device_bytes), units, **settings) as store:
        store.fill_arrays({name: values_of_random(len(name), shape) / 8 for name, shape in SHAPES.items()})
        group = terrace.Optimizer(optimizer, lr=0.01, weight_decay=0.1)
        for step in range(1, STEPS + 1):
            store.begin_step()
            if store.update_when == "during_backward":
                store.announce_update(group, step, clip_norm=0.0)
            found += [forward_and_backward(store, step, micro_batch) for micro_batch in range(micro_batches)]
            found.append(store.update(group, step).gradient_norm)
        for name in LAYERS:
            for what in ("parameter", "master", "first_moment"):
                found.append(store.read_values(name, what).tobytes())
    return found


class Placements(unittest.TestCase):
    def test_every_placement_gives_the_same_bits(self):
        wanted = run(parameters="device", states="device")
        losses = wanted[0 : 2 * STEPS : 2]
        self.assertLess(losses[-1], losses[0])  # it learns
        # Nothing is the same by mistake; an fp32 parameter is its master.
        self.assertEqual(len(set(map(str, wanted))), len(wanted) - len(LAYERS))
        for parameters in ("device", "cpu", "nvme"):
            for states in ("device", "cpu", "nvme"):
                for device_bytes, announced in ((2 * MIB, False), (96 << 10, True)):
                    if device_bytes < MIB and "device" in (parameters, states):
                        continue  # everything would have to be there
                    case = f"{parameters} {states} {device_bytes}"
                    with self.subTest(case), tempfile.TemporaryDirectory() as folder:
                        options = {"nvme_paths": [folder]} if "nvme" in case else {}
                        found = run(
                            parameters=parameters,
                            states=states,
                            device_bytes=device_bytes,
                            announced=announced,
                            **options,
                        )
                        self.assertEqual(found, wanted)

    def test_host_budgets_strictness_and_the_time_of_the_update_change_no_bit(self):
        wanted = run(micro_batches=3)
        units = [terrace.Use(layer, [layer]) for layer in LAYERS]
        for options in (
            {"threads": 1},
            {"update_when": "next_forward"},
            {"update_when": "during_backward"},
            {"io_engine": "threads"},
            {"durable": True},
            {"no_checksums": True},
        ):
            with self.subTest(str(options)), tempfile.TemporaryDirectory() as folder:
                placed = {
                    "parameters": "nvme",
                    "states": "nvme",
                    "nvme_paths": [folder],
                    "accumulation_steps": 3,
                    "chunk_elements": 4096,
                    **options,
                }
                tensors = [terrace.Tensor(name, shape) for name, shape in SHAPES.items()]
                with self.assertRaises(terrace.CapacityError) as caught:
                    terrace.plan(tensors, terrace.SimulatedDevice(2 * MIB), units, host_bytes=1, **placed)
                del placed["accumulation_steps"]
                placed["host_bytes"] = caught.exception.least_host_bytes
                found = run(micro_batches=3, announced=True, **placed)
                self.assertEqual(found, wanted)

    def test_types_and_optimizers_do_not_depend_on_the_placement_either(self):
        with self.subTest("fp16"), tempfile.TemporaryDirectory() as folder:
            self.assertEqual(run("fp16", states="nvme", nvme_paths=[folder]), run("fp16", states="cpu"))
        for optimizer in ("adam", "lion", "adagrad"):
            with self.subTest(optimizer), tempfile.TemporaryDirectory() as folder:
                found = run(optimizer=optimizer, states="nvme", nvme_paths=[folder])
                self.assertEqual(found, run(optimizer=optimizer, parameters="device", states="device"))
                self.assertNotEqual(found, run(states="cpu"))


class Views(unittest.TestCase):
    def setUp(self):
        self.tensors = [terrace.Tensor("a", (2, 3)), terrace.Tensor("b", (4,))]
        self.store = terrace.Store(self.tensors, terrace.SimulatedDevice(MIB), host_bytes=8 * MIB)
        self.addCleanup(self.store.close)
        self.store.fill_arrays(
            {"a": numpy.arange(6, dtype="float32").reshape(2, 3), "b": (numpy.arange(4, dtype="float16"), "fp16")}
        )
        self.store.begin_evaluation()

    def test_dlpack_is_the_memory_itself_and_outlives_nothing(self):
        with self.store.lease("look", ["a", "b"], "inference") as (a, b):
            for view, name in ((a, "a"), (b, "b")):
                taken = numpy.from_dlpack(self.store.dlpack(name))
                self.assertEqual(taken.__array_interface__["data"][0], self.store.parameter_address(name))
                self.assertEqual(taken.shape, view.shape)
                numpy.testing.assert_array_equal(taken, view)
            self.assertEqual(self.store.dlpack("a").__dlpack_device__(), (1, 0))
            capsule = self.store.dlpack("a", gradient=True).__dlpack__()
            self.assertIn("dltensor", repr(capsule))
            del capsule  # nobody took it

    def test_arrays_in_fortran_order_and_of_other_types_are_refused(self):
        with self.assertRaises(terrace.ConfigError):
            self.store.write_values("a", numpy.zeros((3, 2), "float32").T)
        with self.assertRaises(terrace.ConfigError):
            self.store.write_values("a", numpy.zeros(6))

    def test_bf16_and_fp16_have_their_bits(self):
        tensors = [terrace.Tensor("b", (3,), "bf16")]
        with terrace.Store(tensors, terrace.SimulatedDevice(MIB), host_bytes=8 * MIB) as store:
            store.fill_arrays({"b": numpy.array([0x3F80, 0x4000, 0xC040], "uint16")})
            self.assertEqual(store.read_values("b").tolist(), [1.0, 2.0, -3.0])
            store.begin_evaluation()
            with store.lease("look", ["b"], "inference") as (b,):
                self.assertEqual(b.tolist(), [0x3F80, 0x4000, 0xC040])
                self.assertFalse(b.flags.writeable)


if __name__ == "__main__":
    unittest.main()
