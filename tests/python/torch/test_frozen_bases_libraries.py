"""Frozen bases that bitsandbytes and torchao have made, classes of the same protocol, and QLoRA scripts of PEFT: only the
line that wraps the model is another one."""

import copy
import importlib.util
import pathlib
import sys
import tempfile
import unittest

from support_torch import EngineTest, config_of, engine_of, isolated, nn, terrace, torch

sys.path.append(str(pathlib.Path(__file__).resolve().parents[3] / "build" / "python-quantizers"))
WIDTH = 256
HAS = {name: importlib.util.find_spec(name) is not None for name in ("bitsandbytes", "torchao", "peft", "transformers")}


class Adapted(nn.Module):
    def __init__(self, base):
        super().__init__()
        self.base = base
        self.down, self.up = nn.Linear(WIDTH, 4, bias=False), nn.Linear(4, WIDTH, bias=False)

    def forward(self, x):
        return x + torch.tanh(self.base(x) + self.up(self.down(x)))


def adapted(make_layer):
    torch.manual_seed(3)
    return nn.Sequential(*[Adapted(make_layer(nn.Linear(WIDTH, WIDTH)).requires_grad_(False)) for _ in range(3)])


def batch(step):
    return torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(step))


def bits_of(kind):
    """A layer of bitsandbytes: "4bit", "4bit in bf16", where codes look like numbers, or "8bit"."""
    import bitsandbytes

    def make(layer):
        if kind == "8bit":
            made = bitsandbytes.nn.Linear8bitLt(WIDTH, WIDTH, has_fp16_weights=False)
        else:
            storage = torch.bfloat16 if "bf16" in kind else torch.uint8
            made = bitsandbytes.nn.Linear4bit(
                WIDTH, WIDTH, compute_dtype=torch.float32, quant_type="nf4", quant_storage=storage
            )
        made.load_state_dict(layer.state_dict())
        return made.to("cpu")

    return make


def ao_of(kind):
    """A layer whose weight is a tensor of torchao, which is made of codes, scales and more."""
    import torchao.quantization as ao

    config = {
        "int8": ao.Int8WeightOnlyConfig,
        "int4": lambda: ao.IntxWeightOnlyConfig(weight_dtype=torch.int4),
        "float8": ao.Float8WeightOnlyConfig,
    }[kind]

    def make(layer):
        around = nn.Sequential(layer)
        ao.quantize_(around, config())
        return around[0]

    return make


class Scaled(torch.Tensor):
    """Codes and a scale, by torch's protocol and no package's; the codes may be such a tensor themselves."""

    @staticmethod
    def __new__(cls, codes, scale, _dtype=torch.float32):
        return torch.Tensor._make_wrapper_subclass(cls, codes.shape, dtype=torch.float32, device=codes.device)

    def __init__(self, codes, scale):
        self.codes, self.scale = codes, scale

    def __tensor_flatten__(self):
        return ["codes", "scale"], None

    @staticmethod
    def __tensor_unflatten__(inner, context, size, stride):
        return Scaled(inner["codes"], inner["scale"])

    def numbers(self):
        codes = self.codes.numbers() if isinstance(self.codes, Scaled) else self.codes.float()
        return codes * self.scale

    @classmethod
    def __torch_dispatch__(cls, function, types, arguments=(), named=None):
        if function in (torch.ops.aten.detach.default, torch.ops.aten.clone.default):
            codes = function(arguments[0].codes)
            return cls(codes, function(arguments[0].scale))
        plain = [one.numbers() if isinstance(one, Scaled) else one for one in arguments]
        return function(*plain, **(named or {}))


def scaled(layer):
    largest = layer.weight.detach().abs().max()
    codes = (layer.weight.detach() / largest * 127).round().to(torch.int8)
    inner = Scaled(codes, torch.full((1, 1), 1 / 127))
    layer.weight = nn.Parameter(Scaled(inner, largest.view(1, 1)), requires_grad=False)
    return layer


class Layers(EngineTest):
    def trained(self, make_layer, place, **section):
        """Losses and what evaluations give, of the engine, of a copy of its model, and of the model when it is closed."""
        model = adapted(make_layer)
        with tempfile.TemporaryDirectory() as folder:
            engine = engine_of(model, config_of(place, "cpu", folder, chunk_elements=4096, clip=0.0, **section))
            words = {spec.name for spec in engine.store.tensors if spec.type == "word"}
            self.assertEqual(words, {f"{number}.base.weight" for number in range(3)})
            told = []
            for step in range(5):
                if step == 3:  # the paths of evaluations are others, in bitsandbytes too
                    model.eval()
                    with torch.no_grad():
                        told.append(engine(batch(step)).sum().item())
                    model.train()
                loss = engine(batch(step)).square().mean()
                engine.backward(loss)
                engine.step()
                told.append(loss.item())
            told.append(copy.deepcopy(model)(batch(9)).sum().item())
            if (
                type(model[0].base).__name__ != "Linear8bitLt"
            ):  # it takes no state once it has run, also without an engine
                model.load_state_dict(model.state_dict(), strict=False)  # of 4 bits it gives more than it takes
            told.append(engine.eval()(batch(9)).sum().item())
            engine.close(keep_values=True)
            told.append(model(batch(9)).sum().item())
            return told

    def plain(self, make_layer):
        model = adapted(make_layer)
        trained = [one for one in model.parameters() if one.requires_grad]
        optimizer = torch.optim.AdamW(trained, lr=1e-2, weight_decay=0.1, eps=1e-3)
        losses = []
        for step in range(3):
            loss = model(batch(step)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return losses

    def check(self, make_layer):
        first = self.trained(make_layer, "device")
        self.assertEqual(self.trained(make_layer, "cpu", strict=True), first)
        self.assertEqual(self.trained(make_layer, "nvme"), first)
        for loss, expected in zip(first, self.plain(make_layer)):
            self.assertAlmostEqual(loss, expected, delta=2e-6 * expected)

    @unittest.skipUnless(HAS["bitsandbytes"], "bitsandbytes is not installed")
    @isolated
    def test_layers_of_bitsandbytes(self):
        for kind in ("4bit", "4bit in bf16", "8bit"):
            with self.subTest(kind):
                self.check(bits_of(kind))

    @unittest.skipUnless(HAS["bitsandbytes"], "bitsandbytes is not installed")
    @isolated
    def test_codes_are_those_of_bitsandbytes(self):
        import bitsandbytes
        from terrace.torch.quantized import dequantized, quantized

        weight = torch.randn(512, 256, generator=torch.Generator().manual_seed(1))
        codes, largest = quantized(weight, "nf4")
        expected, state = bitsandbytes.functional.quantize_4bit(weight, blocksize=64, quant_type="nf4")
        self.assertTrue(torch.equal(codes, expected.flatten()))
        self.assertTrue(torch.equal(largest, state.absmax))
        for dtype in (torch.float32, torch.bfloat16):
            state.dtype = dtype
            numbers = bitsandbytes.functional.dequantize_4bit(expected, state)
            self.assertTrue(torch.equal(dequantized(codes, largest, "nf4", dtype).view(512, 256), numbers))

    @unittest.skipUnless(HAS["torchao"], "torchao is not installed")
    @isolated
    def test_tensors_of_torchao(self):
        for kind in ("int8", "int4", "float8"):
            with self.subTest(kind):
                self.check(ao_of(kind))

    @isolated
    def test_a_class_of_the_same_protocol_within_another(self):
        class Summed(nn.Module):
            """Its weight is in a product of a function, so that torch keeps what it makes of it."""

            def __init__(self, layer):
                super().__init__()
                self.weight = scaled(layer).weight

            def forward(self, x):
                return _Product.apply(x, self.weight)

        first = None
        for place in ("device", "cpu", "nvme"):
            torch.manual_seed(3)
            model = nn.Sequential(*[Adapted(Summed(nn.Linear(WIDTH, WIDTH))) for _ in range(3)])
            with tempfile.TemporaryDirectory() as folder:
                engine = engine_of(model, config_of(place, "cpu", folder, chunk_elements=4096))
                told = []
                for step in range(3):
                    loss = engine(batch(step)).square().mean()
                    engine.backward(loss)
                    engine.step()
                    told.append(loss.item())
                first = first or told
                self.assertEqual(told, first)
                self.assertIsInstance(model[0].base.weight, Scaled)
                self.assertEqual(set(model[0].base.weight.codes.codes.flatten().tolist()), {-1})  # between passes
                state = model.state_dict()["0.base.weight"]
                self.assertEqual(state.codes.codes.dtype, torch.int8)
                error = self.raised(terrace.ConfigError, engine.save_safetensors, folder)
                self.assertIn("several tensors", error.reason)
                engine.close()
                self.raised(terrace.MisuseError, engine_of, model)

    @isolated
    def test_one_that_is_trained_is_refused(self):
        model = adapted(scaled)
        model[1].base.weight.requires_grad_(True)
        error = self.raised(terrace.ConfigError, engine_of, model)
        self.assertEqual(error.subject, "1.base.weight")
        self.assertIn("Scaled", error.reason)
        self.assertIn("freeze", error.advice)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(weight)
        return x @ weight.numbers().t()

    @staticmethod
    def backward(ctx, gradient):
        return gradient @ ctx.saved_tensors[0].numbers(), None


@unittest.skipUnless(HAS["peft"] and HAS["transformers"], "peft or transformers is not installed")
class Qlora(EngineTest):
    def losses(self, model, place, adapters=None):
        tokens = torch.arange(64).view(4, 16) % 61
        with tempfile.TemporaryDirectory() as folder:
            config = config_of(place, "cpu", folder, chunk_elements=4096)
            engine = engine_of(model, config)
            found = []
            for _ in range(3):
                loss = engine(input_ids=tokens, labels=tokens).loss
                loss.backward()
                engine.optimizer.step()
                found.append(loss.item())
            if adapters:
                model.save_pretrained(adapters)
            self.assertTrue(any(spec.type == "word" for spec in engine.store.tensors))
            self.assertTrue(all("lora" in spec.name for spec in engine.store.tensors if spec.trainable))
            engine.close(keep_values=True)
        return found

    def check(self, base_of):
        """`base_of()`: a model whose base is quantised. Adapters are trained, saved and loaded as PEFT does."""
        import peft

        lora = peft.LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
        first = None
        for place in ("device", "cpu", "nvme"):
            base = base_of()
            torch.manual_seed(5)
            model = peft.get_peft_model(base, lora)
            with tempfile.TemporaryDirectory() as folder:
                found = self.losses(model, place, folder)
                first = first or found
                self.assertEqual(found, first)
                loaded = peft.PeftModel.from_pretrained(base_of(), folder)
                expected = peft.get_peft_model_state_dict(model)
                for name, value in peft.get_peft_model_state_dict(loaded).items():
                    self.assertTrue(torch.equal(value, expected[name]), name)
                tokens = torch.arange(16).view(1, 16)
                model.eval(), loaded.eval()
                self.assertTrue(torch.equal(model(tokens).logits, loaded(tokens).logits))
        self.assertLess(first[-1], first[0])

    @isolated
    def test_over_layers_of_our_own(self):
        from hf_models import llama

        def base_of():
            torch.manual_seed(7)
            model = llama().requires_grad_(False)
            names = terrace.torch.quantize_base(model, "nf4", double=True)
            self.assertEqual(len(names), 2 * 7)
            return model

        self.check(base_of)

    @unittest.skipUnless(HAS["bitsandbytes"], "bitsandbytes is not installed")
    @isolated
    def test_over_layers_of_bitsandbytes(self):
        """As QLoRA scripts load a model."""
        import peft
        import transformers
        from hf_models import llama

        with tempfile.TemporaryDirectory() as folder:
            torch.manual_seed(7)
            llama().save_pretrained(folder)
            wanted = transformers.BitsAndBytesConfig(
                load_in_4bit=True,
                bnb_4bit_quant_type="nf4",
                bnb_4bit_use_double_quant=True,
                bnb_4bit_compute_dtype=torch.float32,
            )

            def base_of():
                model = transformers.AutoModelForCausalLM.from_pretrained(
                    folder, quantization_config=wanted, device_map={"": "cpu"}, dtype=torch.float32
                )
                return peft.prepare_model_for_kbit_training(model)

            self.check(base_of)


if __name__ == "__main__":
    unittest.main()
