"""Frozen bases of few bits: the store keeps, moves and hands out their bytes as they are, wherever they lie, and no bit of
what is trained above them depends on where that is."""

import copy
import os
import pathlib
import signal
import tempfile

from ranks_torch import together
from support_torch import (
    Coded,
    EngineTest,
    Mlp,
    batch_of,
    config_of,
    engine_of,
    isolated,
    loss_of,
    masters,
    nn,
    seeded,
    terrace,
    torch,
    train,
)
from terrace import safetensors
from terrace.torch import QuantizedLinear, quantize_base
from terrace.torch.emptied import require_values
from terrace.torch.quantized import BLOCK, NF4
from torch.nn import functional as F

PLACES = ("device", "cpu", "nvme")
WIDTH = 300  # of bytes that are no whole words for some of the types
TYPES = [
    torch.uint8, torch.int8, torch.int16, torch.uint16, torch.int32, torch.int64, torch.bool, torch.float64,
    torch.complex64, torch.float8_e4m3fn, torch.float8_e5m2,
]  # fmt: skip


def noise(dtype, *shape, seed=0):
    """Bytes of any pattern, NaN too; of bool what it may hold."""
    generator = torch.Generator().manual_seed(seed)
    most = 2 if dtype is torch.bool else 256
    raw = torch.randint(0, most, (*shape, dtype.itemsize), generator=generator, dtype=torch.uint8)
    return raw.view(dtype).view(shape)


def raw_of(tensor):
    return bytes(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy())


class Keeper(nn.Module):
    """Notes the bytes of what it has when it runs, and when the gradient passes."""

    def __init__(self, dtype, seed):
        super().__init__()
        self.held = nn.Parameter(noise(dtype, 7, WIDTH + 1, seed=seed), requires_grad=False)
        self.turned = nn.Parameter(noise(dtype, WIDTH, 9, seed=seed + 1).t(), requires_grad=False)
        self.scale = nn.Linear(1, 1)
        self.seen = []

    def note(self):
        self.seen.append(raw_of(self.held) + raw_of(self.turned))

    def forward(self, x):
        return _Noted.apply(self.scale(x), self)


class _Noted(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, keeper):
        ctx.keeper = keeper
        keeper.note()
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        ctx.keeper.note()
        return gradient, None


def keepers():
    return nn.Sequential(*[Keeper(dtype, 10 * number) for number, dtype in enumerate(TYPES)])


class Types(EngineTest):
    def opened(self, place, folder, **section):
        model = keepers()
        states = "nvme" if place == "nvme" else "cpu"
        config = config_of(place, states, folder, chunk_elements=4096, **section)
        return model, engine_of(model, config, persistence_threshold=64)

    def wanted(self):
        return [raw_of(one.held) + raw_of(one.turned) for one in keepers()]

    @isolated
    def test_every_type_keeps_its_bytes_in_passes_and_out_of_them(self):
        for place in PLACES:
            for precision in ("fp32", "bf16"):
                with self.subTest(place=place, precision=precision), tempfile.TemporaryDirectory() as folder:
                    self.check(place, folder, precision)

    def check(self, place, folder, precision):
        model, engine = self.opened(place, folder, precision=precision)
        wanted = self.wanted()
        if precision == "bf16":  # those of 64 bits are numbers too, and are rounded
            wanted[TYPES.index(torch.float64)] = None
        dtype = torch.bfloat16 if precision == "bf16" else torch.float32
        for _ in range(2):
            engine.backward(engine(torch.ones(1, 1, dtype=dtype)).sum())
            engine.step()
        for one, bytes_of_it in zip(model, wanted):
            if bytes_of_it is not None:
                self.assertEqual(one.seen, [bytes_of_it] * 4)
        for made in (copy.deepcopy(model), model):
            state = made.state_dict()
            for number, bytes_of_it in enumerate(wanted):
                if bytes_of_it is not None:
                    self.assertEqual(raw_of(state[f"{number}.held"]) + raw_of(state[f"{number}.turned"]), bytes_of_it)
        engine.close(keep_values=True)
        for one, bytes_of_it in zip(model, wanted):
            if bytes_of_it is not None:
                self.assertEqual(raw_of(one.held) + raw_of(one.turned), bytes_of_it)

    @isolated
    def test_files_and_checkpoints_have_them(self):
        with tempfile.TemporaryDirectory() as folder:
            model, engine = self.opened("nvme", folder)
            held = [raw_of(model.state_dict()[f"{number}.held"]) for number in range(len(TYPES))]
            engine.save_checkpoint(pathlib.Path(folder, "saved"))
            with engine.gathered(model, write=True):
                for one in model:
                    one.held.view(torch.uint8).fill_(1)
            self.assertEqual(set(raw_of(model.state_dict()["1.held"])), {1})
            engine.load_checkpoint(pathlib.Path(folder, "saved"))
            self.assertEqual([raw_of(model.state_dict()[f"{number}.held"]) for number in range(len(TYPES))], held)
            state = model.state_dict()
            state["2.held"] = torch.zeros_like(state["2.held"])
            model.load_state_dict(state)
            self.assertEqual(set(raw_of(model.state_dict()["2.held"])), {0})
            self.assertEqual(raw_of(model.state_dict()["3.held"]), held[3])

    @isolated
    def test_weights_are_written_in_their_own_types(self):
        with tempfile.TemporaryDirectory() as folder:
            engine = engine_of(seeded(Coded), config_of("cpu", "cpu"))
            engine.save_safetensors(pathlib.Path(folder, "saved"), dtype="bf16")
            codes = safetensors.find(pathlib.Path(folder, "saved"))
            self.assertEqual({codes[name].dtype for name in ("codes", "layers.0.weight", "layers.0.scales")}, {"U8"})
            other = seeded(Coded)
            for parameter in other.parameters():
                parameter.data.zero_()
            terrace.torch.load(other, pathlib.Path(folder, "saved"))
            self.assertEqual(raw_of(other.codes), raw_of(seeded(Coded).codes))

    @isolated
    def test_the_device_gives_bytes_that_were_never_there(self):
        engine = engine_of(seeded(Coded), config_of("cpu", "cpu"))
        self.assertEqual(set(engine.module.codes.flatten().tolist()), {255})
        self.assertEqual(engine.module.codes.shape, (96, 96))
        engine.close()
        error = self.raised(terrace.MisuseError, engine_of, engine.module)
        self.assertIn("no values", error.reason)
        self.raised(terrace.MisuseError, require_values, engine.module.codes, "codes", "cannot go on")

    @isolated
    def test_what_was_written_to_one_outside_of_a_pass_is_found(self):
        engine = engine_of(seeded(Coded), config_of("cpu", "cpu"))
        train(engine, 1)
        engine.module.codes.data.untyped_storage().fill_(7)
        self.raised(terrace.MisuseError, train, engine, 1, 1)

    @isolated
    def test_codes_are_not_trained(self):
        model = seeded(Mlp)
        model.codes = nn.Parameter(torch.zeros(512).to(torch.float8_e4m3fn), requires_grad=True)
        self.assertIn("float8_e4m3fn", self.raised(terrace.ConfigError, engine_of, model).reason)
        with self.assertRaises(terrace.ConfigError) as caught:
            terrace.Store([terrace.Tensor("codes", (64,), "word")], terrace.SimulatedDevice(1 << 20))
        self.assert_four_parts(caught.exception)
        self.assertIn("frozen", caught.exception.advice.replace("freeze it", "frozen"))


class Quantised(EngineTest):
    def test_codes_are_those_of_a_plain_loop(self):
        weight = torch.randn(24, 40, generator=torch.Generator().manual_seed(3)) * 0.02
        weight[3] = 0  # a block of zeros and more
        layer = nn.Linear(40, 24)
        layer.weight.data = weight
        made = QuantizedLinear.of(layer.requires_grad_(False), "nf4")
        flat, values = weight.flatten(), torch.tensor(NF4)
        codes = []
        for first in range(0, flat.numel(), BLOCK):
            block = flat[first : first + BLOCK]
            largest = block.abs().max()
            for value in block:
                distances = ((value / largest if largest else value) - values).abs()
                codes.append(int(distances.argmin()))
            self.assertEqual(made.scales.view(torch.float32)[first // BLOCK], largest)
        packed = [(one << 4) | other for one, other in zip(codes[::2], codes[1::2])]
        self.assertEqual(made.weight.flatten().tolist(), packed)
        expected = torch.tensor([NF4[code] for code in codes]).view(-1, BLOCK)
        expected = (expected * made.scales.view(torch.float32)[:, None]).view(24, 40)
        self.assertTrue(torch.equal(made.dequantized(), expected))

    def test_each_kind_is_near_what_it_stands_for(self):
        layer = nn.Linear(200, 77).requires_grad_(False)
        largest = layer.weight.abs().max().item()
        for kind, double, most in (
            ("nf4", False, 0.16),
            ("int8", False, 0.004),
            ("nf4", True, 0.17),
            ("int8", True, 0.02),
        ):
            made = QuantizedLinear.of(layer, kind, double)
            error = (made.dequantized() - layer.weight).abs().max().item()
            self.assertLess(error, most * largest, (kind, double))
            x = torch.randn(5, 200, requires_grad=True)
            made(x).square().sum().backward()
            got, x.grad = x.grad, None
            F.linear(x, made.dequantized(), layer.bias).square().sum().backward()
            self.assertTrue(torch.equal(got, x.grad))

    def test_nothing_is_kept_for_the_backward_pass_but_codes(self):
        made = QuantizedLinear.of(nn.Linear(256, 256).requires_grad_(False), "nf4")
        kept = []
        x = torch.randn(2, 256, requires_grad=True)
        with torch.autograd.graph.saved_tensors_hooks(lambda one: kept.append(one.nbytes) or one, lambda one: one):
            made(x).sum().backward()
        self.assertEqual(sum(kept), made.weight.nbytes + made.scales.nbytes)

    def test_layers_that_are_trained_shared_or_skipped_stay(self):
        model = nn.ModuleDict({name: nn.Linear(64, 64) for name in ("a", "b", "lm_head", "trained", "tied")})
        model["other"] = nn.Linear(64, 64)
        model.requires_grad_(False)
        model["other"].weight = model["tied"].weight
        model["trained"].weight.requires_grad_(True)
        self.assertEqual(quantize_base(model, "int8", skip=("lm_head", "b*")), ["a"])
        self.assertIs(type(model["lm_head"]), nn.Linear)
        self.raised(terrace.ConfigError, quantize_base, model, "int8", skip=("lm_head", "b*"))
        self.raised(terrace.ConfigError, quantize_base, model, "fp4")

    @isolated
    def test_a_model_that_is_larger_than_memory_is_read_a_layer_at_a_time(self):
        """What is mapped from files is read when a layer is its turn, and its codes go to files."""
        with tempfile.TemporaryDirectory() as folder:
            plain = seeded(Mlp, 256).requires_grad_(False)
            safetensors.write(
                os.path.join(folder, "model.safetensors"),
                [(name, "F32", tuple(one.shape)) for name, one in plain.state_dict().items()],
                lambda name: plain.state_dict()[name].contiguous().numpy().tobytes(),
            )
            with terrace.torch.init(meta=True):
                model = Mlp(256)
            model.requires_grad_(False)
            terrace.torch.load(model, os.path.join(folder, "model.safetensors"))
            quantize_base(model, "nf4", folder=folder)
            quantize_base(plain, "nf4")
            for (name, one), (_, other) in zip(model.state_dict().items(), plain.state_dict().items()):
                self.assertTrue(torch.equal(one, other), name)

    @isolated
    def test_training_is_that_of_torch_with_the_same_layers(self):
        self.train_and_compare(Coded, config=config_of("nvme", "cpu", tempfile.mkdtemp(), strict=True))


class Laws(EngineTest):
    def config(self, folder, **section):
        return config_of("nvme", "nvme", folder, chunk_elements=4096, **section)

    @isolated
    def test_nothing_frozen_is_written_and_every_step_moves_what_the_one_before_did(self):
        with tempfile.TemporaryDirectory() as folder:
            config = self.config(folder, host_memory=1, device_memory=1)
            error = self.raised(
                terrace.CapacityError, engine_of, seeded(Coded, 256), config, persistence_threshold=4096
            )
            config["terrace"].update(host_memory=error.least_host_bytes, device_memory=error.least_device_bytes)
            engine = engine_of(seeded(Coded, 256), config, persistence_threshold=4096, units="leaf")
            chunk, moved = 4 * 4096, []
            managed = [spec for spec in engine.store.tensors if spec.trainable and spec.home == "managed"]
            trained = sum(-(-spec.elements // 64) * 64 for spec in managed)
            for step in range(4):
                train(engine, 1, step)
                found = engine.store.step_counters()
                moved.append({name: found[name] for name in ("h2d", "param_read", "param_write", "fetches")})
                self.assertEqual(found["h2d"], chunk * found["fetches"])
                self.assertEqual(found["param_write"], -(-trained // 4096) * chunk)
            self.assertEqual(moved[1:], moved[1:2] * 3)
            frozen = sum(4 * spec.elements for spec in engine.store.tensors if not spec.trainable)
            self.assertLessEqual(frozen, moved[1]["h2d"])
            self.assertEqual(engine.store.plan.device_bytes, config["terrace"]["device_memory"])

    @isolated
    def test_a_plan_knows_their_bytes_before_anything_has_memory(self):
        with tempfile.TemporaryDirectory() as folder:
            config = self.config(folder, device_memory="2MiB")
            engine = engine_of(seeded(Coded, 256), config, persistence_threshold=64)
            with torch.device("meta"):
                model = Coded(256)
            planned = terrace.torch.plan_model(model, config, persistence_threshold=64)
            plan = engine.store.plan
            self.assertEqual(
                (planned.device_bytes, planned.host_bytes, planned.nvme_bytes),
                (plan.device_bytes, plan.host_bytes, plan.file_bytes),
            )
            words = {spec.name: 4 * spec.elements for spec in engine.store.tensors if spec.type == "word"}
            self.assertEqual(words["layers.0.weight"], 256 * 256 // 2)
            self.assertEqual(words["layers.0.scales"], 256 * 256 // 64 * 4)
            self.assertEqual(words["layers.1.weight"], 256 * 256)

    @isolated
    def test_a_damaged_byte_on_the_drive_is_named(self):
        with tempfile.TemporaryDirectory() as folder:
            config = self.config(folder, host_memory=1, device_memory=1)
            error = self.raised(
                terrace.CapacityError, engine_of, seeded(Coded, 256), config, persistence_threshold=4096
            )
            config["terrace"].update(host_memory=error.least_host_bytes, device_memory=error.least_device_bytes)
            engine = engine_of(seeded(Coded, 256), config, persistence_threshold=4096, units="leaf")
            train(engine, 1)
            path = next(pathlib.Path(folder).rglob("params.tier"))
            whole = path.read_bytes()
            bytes_of_codes = raw_of(seeded(Coded, 256).layers[1].weight)
            place = whole.index(bytes_of_codes[:64])
            with open(path, "r+b") as file:
                file.seek(place + 5)
                file.write(bytes([whole[place + 5] ^ 4]))
            error = self.raised(terrace.CorruptError, train, engine, 2, 1)
            self.assertIn("params.tier", str(error))

    def test_a_run_that_was_killed_goes_on_with_the_same_bits(self):
        with tempfile.TemporaryDirectory() as folder:
            config = self.config(folder, durable=True, commit_every_steps=1)

            def live(steps, dies_at=None):
                def body(rank):
                    engine = engine_of(seeded(Coded), config, resume="auto")
                    told = []
                    while engine.global_steps < steps:
                        step = engine.global_steps
                        loss = loss_of(engine.module, batch_of(engine.module, step))
                        if step == dies_at:
                            engine.finish_commit()
                            os.kill(os.getpid(), signal.SIGKILL)
                        engine.backward(loss)
                        engine.step()
                        told.append((step, loss.item()))
                    engine.finish_commit()
                    return told, masters(engine), raw_of(engine.module.state_dict()["codes"])

                return together(1, body)[0]

            self.assertEqual(live(6, dies_at=4).signal_number, signal.SIGKILL)
            after = live(6)
            self.assertEqual(after.text, "")
            told, ends, codes = after.value
            self.assertEqual([step for step, _ in told], [4, 5])
        with tempfile.TemporaryDirectory() as folder:
            config = self.config(folder)
            whole, whole_ends, whole_codes = live(6).value
            self.assertEqual((told, ends, codes), (whole[4:], whole_ends, whole_codes))


if __name__ == "__main__":
    import unittest

    unittest.main()
