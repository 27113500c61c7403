"""What of a model is in no store: buffers, batch norms in 16 bits, quantised weights. And what users do to a model whose
parameters are in one."""

import copy
import tempfile
import warnings

from support_torch import (
    EngineTest,
    Mlp,
    batch_of,
    config_of,
    engine_of,
    isolated,
    masters,
    nn,
    seeded,
    terrace,
    torch,
    train,
)


class Rotary(nn.Module):
    """Angles of a table that is not saved, as RoPE has them, and a bias that is saved and not trained."""

    def __init__(self, width=64):
        super().__init__()
        self.first, self.last = nn.Linear(width, width), nn.Linear(width, 8)
        self.register_buffer("inverse", 1e4 ** -torch.linspace(0, 1, width), persistent=False)
        self.register_buffer("bias", torch.linspace(5, 20, width))

    def forward(self, x):
        angles = torch.arange(len(x), dtype=torch.float32)[:, None] * 997 * self.inverse.float() + self.bias.float()
        return self.last(self.first(x) * angles.cos().to(x.dtype))


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(32, 96), nn.BatchNorm1d(96, momentum=0.01), nn.Linear(96, 8)

    def forward(self, x):
        return self.last(torch.relu(self.norm(self.first(x))))


def halves(precision):
    config = config_of(precision="bf16" if precision == "bf16" else "fp32")
    return dict(config, fp16={"enabled": True}) if precision == "fp16" else config


def rounded(model, dtype):
    """Parameters alone, as from_pretrained(dtype=...) leaves a model."""
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    return model


class Buffers(EngineTest):
    @isolated
    def test_tables_keep_what_16_bits_do_not_hold(self):
        for precision, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
            engine, plain = engine_of(seeded(Rotary), halves(precision)), rounded(seeded(Rotary), dtype)
            x = torch.randn(16, 64).to(dtype)
            with torch.no_grad():
                self.assertTrue(torch.equal(engine(x), plain(x)), precision)
            self.assertEqual({one.dtype for one in engine.module.buffers()}, {torch.float32})

    @isolated
    def test_a_key_gives_them_another_type(self):
        config = dict(halves("bf16"), data_types={"buffer_dtype": "bf16"})
        engine = engine_of(seeded(Rotary), config)
        self.assertEqual({one.dtype for one in engine.module.buffers()}, {torch.bfloat16})
        norm = engine_of(seeded(Normed), config).module.norm
        self.assertEqual((norm.weight.dtype, norm.running_mean.dtype), (torch.bfloat16, torch.bfloat16))

    @isolated
    def test_a_batch_norm_stays_fp32_as_a_whole_wherever_parameters_are(self):
        """Its statistics are those of torch's fp32 layer over the same 16-bit inputs."""
        for precision, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
            told = []
            for places, threshold in ((("cpu", "cpu"), 1 << 16), (("cpu", "cpu"), 0), (("device", "cpu"), 0)):
                config = dict(halves(precision), zero_optimization=config_of(*places)["zero_optimization"])
                engine = engine_of(seeded(Normed), config, persistence_threshold=threshold)
                plain = rounded(seeded(Normed), dtype)
                plain.norm.float()
                norm = engine.module.norm
                with torch.no_grad():
                    x = torch.randn(64, 32, generator=torch.Generator().manual_seed(1)).to(dtype)
                    self.assertTrue(torch.equal(engine(x), plain(x)))
                self.assertEqual({one.dtype for one in norm.parameters()}, {torch.float32})
                self.assertEqual({one.dtype for one in (norm.running_mean, norm.running_var)}, {torch.float32})
                self.assertTrue(torch.equal(norm.running_mean, plain.norm.running_mean))
                told.append((train(engine, 4), masters(engine), norm.running_mean.tolist()))
                self.assertTrue(all(engine.was_step_applied() for _ in told))
            self.assertEqual(told[1:], told[:1] * 2)


class Codes(nn.Module):
    """A layer over codes of 8 bits, and an adapter."""

    def __init__(self, width=512, dtype=torch.uint8):
        super().__init__()
        codes = torch.randint(0, 255, (width, width), dtype=torch.uint8).to(dtype)
        self.weight = nn.Parameter(codes, requires_grad=False)
        self.a, self.b = nn.Linear(width, 4, bias=False), nn.Linear(4, width, bias=False)

    def forward(self, x):
        return x + x @ ((self.weight.to(x.dtype) - 128) * 1e-5).t() + self.b(self.a(x))


class Quantised(EngineTest):
    def noted(self, model, config=None):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            engine = engine_of(model, config)
        return engine, [str(one.message) for one in caught]

    @isolated
    def test_frozen_ones_of_an_unknown_class_stay_outside_and_are_said_with_their_bytes(self):
        class Odd(torch.Tensor):
            """It says not what it is made of."""

        model = nn.Sequential(Codes(), Codes(dtype=torch.int8), Codes())
        for layer in model[1:]:
            layer.weight = nn.Parameter(layer.weight.detach().as_subclass(Odd), requires_grad=False)
        engine, lines = self.noted(model)
        self.assertEqual(len(lines), 1, lines)
        for word in ("0.5 MiB", "2 of type Odd", "1.weight to 2.weight", "offload_param"):
            self.assertIn(word, lines[0])
        engine.backward(engine(torch.randn(2, 512)).square().mean())
        engine.step()
        self.assertEqual(self.noted(nn.Sequential(Codes(8)))[1], [])  # small parameters stay in any case

    @isolated
    def test_codes_of_floating_point_are_not_converted(self):
        """16 bits are the type of what is computed with, and not that of codes."""
        model = Codes(dtype=torch.float8_e4m3fn)
        engine, _ = self.noted(model, halves("bf16"))
        self.assertEqual(model.weight.dtype, torch.float8_e4m3fn)
        engine.close()
        wide = nn.Sequential(nn.Linear(8, 8).double().requires_grad_(False), nn.Linear(8, 8))
        engine_of(wide, config_of(precision="fp32"))
        self.assertEqual(wide[0].weight.dtype, torch.float64)

    @isolated
    def test_a_parameter_that_is_no_single_tensor_is_named(self):
        class Scaled(torch.Tensor):
            """As torchao's weights are: a tensor of others."""

            @staticmethod
            def __new__(cls, codes):
                return torch.Tensor._make_wrapper_subclass(cls, codes.shape, dtype=torch.float32)

            def __init__(self, codes):
                self.codes = codes

            @classmethod
            def __torch_dispatch__(cls, function, types, arguments=(), named=None):
                if function is torch.ops.aten.detach.default:
                    return cls(arguments[0].codes)
                raise NotImplementedError(function)

        model = Codes()
        model.weight = nn.Parameter(Scaled(torch.zeros(512, 512, dtype=torch.uint8)), requires_grad=True)
        self.assertIn("Scaled", self.raised(terrace.ConfigError, engine_of, model).reason)


class Surprises(EngineTest):
    @isolated
    def test_export_is_refused_in_words_and_a_copy_is_exported(self):
        if not hasattr(torch.compiler, "is_exporting"):
            self.skipTest("this torch does not say that it exports")
        engine = engine_of(seeded(Mlp), persistence_threshold=0)
        batch = batch_of(engine.module, 0)
        for _ in range(2):  # before the first step, which is watched, and after it
            error = self.raised(terrace.MisuseError, torch.export.export, engine.module, (batch,))
            self.assertIn("deepcopy", error.advice)
            engine.zero_grad()
            train(engine, 2)
        exported = torch.export.export(copy.deepcopy(engine.module), (batch,))
        self.assertFalse(any(value.isnan().any() for value in exported.state_dict.values()))

    @isolated
    def test_a_table_of_another_size_is_told_to_come_before(self):
        """As resize_token_embeddings leaves it."""
        engine = engine_of(seeded(Mlp), persistence_threshold=0)
        weight = engine.module.last.weight
        weight.data = torch.zeros(16, 96)
        error = self.raised(terrace.MisuseError, train, engine, 1)
        self.assertIn("before terrace.initialize", error.advice)
        self.assertIn("(8, 96)", error.reason)
        weight.data = torch.zeros(8, 96)
        self.assertIn("gathered", self.raised(terrace.MisuseError, train, engine, 1).advice)

    @isolated
    def test_hooks_of_before_see_gradients(self):
        model, seen = seeded(Mlp), []
        model.last.weight.register_post_accumulate_grad_hook(lambda one: seen.append(one.grad.norm().item()))
        train(engine_of(model, persistence_threshold=0), 2)
        self.assertEqual(len(seen), 2)
        self.assertTrue(all(seen))

    @isolated
    def test_an_engine_that_is_run_again_names_the_call(self):
        """As a cell of a notebook does."""
        with tempfile.TemporaryDirectory() as folder:
            config = config_of("nvme", "nvme", folder)
            first = engine_of(seeded(Mlp), config, persistence_threshold=0)
            error = self.raised(terrace.IoError, engine_of, seeded(Mlp), config, persistence_threshold=0)
            self.assertIn("close() of the earlier engine", error.advice)
            first.close()
            engine_of(seeded(Mlp), config, persistence_threshold=0)
