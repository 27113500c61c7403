"""terrace.torch on a GPU: where bytes live changes no bit there either, and numbers are near those of torch alone.
Run by tools/gpu_check; skipped where torch sees no GPU."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "torch"))

import support_torch
from support_torch import MIB, EngineTest, Gpt, Mlp, config_of, isolated, masters, seeded, terrace, torch

# In a process of its own: this one must not begin to use the GPU, or its children could not.
if subprocess.run([sys.executable, "-c", "import sys, torch; sys.exit(not torch.cuda.is_available())"]).returncode:
    raise unittest.SkipTest("torch sees no GPU")


def large_gpt():
    """Of several chunks: a GPU's are at least 2 MiB."""
    return Gpt(width=512, layers=4)


def large_mlp():
    return Mlp(width=1024)


def batch_of(model, step, micro_batch=0, make=support_torch.batch_of):
    return make(model, step, micro_batch).cuda()


support_torch.batch_of = batch_of


def engine_of(model, config, **named):
    return terrace.initialize(model=model, config=config, device="cuda", **named)[0]


def config_on_gpu(*arguments, **named):
    named.setdefault("host_memory", "1GiB")
    return config_of(*arguments, **named)


# parameters, states, units, update, device memory, accumulation
SETTINGS = [
    ("device", "cpu", "auto", "after_backward", None),
    ("cpu", "cpu", "leaf", "after_backward", "tight"),
    ("cpu", "cpu", "auto", "during_backward", "tight"),
    ("cpu", "nvme", "Block", "next_forward", None),
    ("nvme", "nvme", "leaf", "next_forward", "tight"),
    ("nvme", "nvme", "auto", "during_backward", None),
]


class OnGpu(EngineTest):
    def setUp(self):
        torch.use_deterministic_algorithms(True, warn_only=True)

    @isolated
    def test_losses_and_weights_are_near_those_of_torch_alone(self):
        for make in (large_gpt, large_mlp):
            for accumulation in (1, 2):
                model, plain = seeded(make), seeded(make).cuda()
                engine = engine_of(model, config_on_gpu(accumulation=accumulation))
                told = support_torch.train(engine, 4)
                self.assert_near_plain(told, support_torch.train_plain(plain, 4, accumulation))
                for (name, value), (_, other) in zip(model.state_dict().items(), plain.state_dict().items()):
                    self.assertLessEqual((value.cpu() - other.cpu()).abs().max().item(), 1e-5, name)

    def outcome(self, make, precision, accumulation, parameters, states, units, update, memory):
        if make is large_mlp and units == "Block":
            units = "leaf"
        with tempfile.TemporaryDirectory() as folder:
            config = config_on_gpu(parameters, states, folder, accumulation, precision=precision, update=update)
            if memory == "tight":
                config["terrace"]["device_memory"] = 4096
                error = self.raised(terrace.CapacityError, engine_of, seeded(make), config, units=units)
                config["terrace"]["device_memory"] = error.least_device_bytes
                self.assertLess(error.least_device_bytes, 256 * MIB)
            engine = engine_of(seeded(make), config, units=units)
            told = support_torch.train(engine, 3)
            result = told, masters(engine)
            engine.close()
            return result

    def check_placements(self, precision):
        for make in (large_gpt, large_mlp):
            for accumulation in (1, 2):
                outcomes = [self.outcome(make, precision, accumulation, *setting) for setting in SETTINGS]
                for setting, outcome in zip(SETTINGS, outcomes):
                    self.assertEqual(outcome, outcomes[0], (make, setting))

    @isolated
    def test_placement_changes_no_bit_in_fp32(self):
        self.check_placements("fp32")

    @isolated
    def test_placement_changes_no_bit_in_bf16(self):
        self.check_placements("bf16")

    @isolated
    def test_a_stream_of_the_program_and_checkpointing_change_no_bit(self):
        def run_checkpointed(model):
            def run(tokens):
                x = model.table(tokens) + model.places[: tokens.shape[1]]
                for block in model.blocks:
                    x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)
                return model.head(model.norm(x))

            model.forward = run

        def outcome(stream=None, prepare=None):
            model = seeded(large_gpt)
            if prepare:
                prepare(model)
            engine = engine_of(model, config_on_gpu(device_memory="24MiB"))
            if stream is None:
                return support_torch.train(engine, 3), masters(engine)
            with torch.cuda.stream(stream):
                return support_torch.train(engine, 3), masters(engine)

        expected = outcome()
        self.assertEqual(outcome(torch.cuda.Stream()), expected)
        self.assertEqual(outcome(prepare=run_checkpointed), expected)

    @isolated
    def test_goes_on_from_a_commit_to_the_same_bits(self):
        with tempfile.TemporaryDirectory() as folder:
            config = config_on_gpu("cpu", "nvme", folder, durable=True)
            engine = engine_of(seeded(large_gpt), config)
            support_torch.train(engine, 2)
            engine.commit()
            engine.finish_commit()
            expected = support_torch.train(engine, 2, first=2), masters(engine)
            engine.close()
            engine = engine_of(seeded(large_gpt), config, resume=True)
            self.assertEqual(engine.global_steps, 2)
            self.assertEqual((support_torch.train(engine, 2, first=2), masters(engine)), expected)

    @isolated
    def test_evaluates_between_steps_and_loads_what_it_gave(self):
        engine = engine_of(seeded(large_gpt), config_on_gpu())
        support_torch.train(engine, 2)
        batch = batch_of(engine.module, 7)
        with torch.no_grad():
            expected = engine(batch)
        self.assertFalse(expected.isnan().any())
        state = {name: value.clone() for name, value in engine.module.state_dict().items()}
        other = engine_of(large_gpt(), config_on_gpu())
        other.module.load_state_dict(state)
        with torch.no_grad():
            self.assertTrue(torch.equal(other(batch), expected))

    @isolated
    def test_states_of_parameters_on_the_gpu(self):
        """The drop-in optimizer: parameters stay torch's."""
        for precision in (torch.float32, torch.bfloat16):
            first_told = None
            for states in ("cpu", "nvme"):
                with tempfile.TemporaryDirectory() as folder:
                    model = seeded(large_gpt).cuda().to(precision)
                    where = {"states": states, **({"path": folder} if states == "nvme" else {})}
                    told = support_torch.train_plain(
                        model,
                        4,
                        optimizer=terrace.torch.OffloadAdamW(
                            model.parameters(), lr=1e-2, weight_decay=0.1, eps=1e-3, **where
                        ),
                    )
                    if precision is torch.float32:
                        self.assert_near_plain(told, support_torch.train_plain(seeded(large_gpt).cuda(), 4))
                    first_told = first_told or told
                    self.assertEqual(told, first_told)


if __name__ == "__main__":
    unittest.main()
