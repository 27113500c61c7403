"""Values go out of an engine and into it: state dicts, copies, files, checkpoints and commits, bit for bit."""

import copy
import os
import pathlib
import signal
import tempfile
import time
import unittest

from support_torch import (
    MIB,
    EngineTest,
    Gpt,
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
    train_plain,
)
from terrace import safetensors


class State(EngineTest):
    def assert_same(self, state, other):
        self.assertEqual(list(state), list(other))
        for name in state:
            self.assertTrue(torch.equal(state[name], other[name]), name)

    @isolated
    def test_state_dicts_have_values_at_any_time(self):
        expected = seeded(Gpt).state_dict()
        for strict in (False, True):
            engine = engine_of(seeded(Gpt), config_of(accumulation=2, strict=strict))
            self.assert_same(engine.module.state_dict(), expected)
            state = engine.state_dict()
            self.assertEqual(state["head.weight"].data_ptr(), state["table.weight"].data_ptr())
            self.assert_same(
                engine.module.blocks[1].state_dict(),
                {name[len("blocks.1.") :]: value for name, value in expected.items() if name.startswith("blocks.1.")},
            )
            loss = loss_of(engine.module, batch_of(engine.module, 0))
            self.assert_same(engine.state_dict(), expected)  # between forward and backward
            engine.backward(loss)
            self.assert_same(engine.state_dict(), expected)  # between two micro-batches
            self.raised(terrace.MisuseError, engine.master, "table.weight")
            engine.optimizer.zero_grad()
            with torch.no_grad():
                engine(batch_of(engine.module, 1))
            self.assert_same(engine.state_dict(), expected)

    @isolated
    def test_loading_writes_through(self):
        for assign in (False, True):
            source = Gpt()
            engine = engine_of(seeded(Gpt), config_of(strict=True))
            parameters = list(engine.module.parameters())
            engine.load_state_dict(source.state_dict(), assign=assign)
            self.assertTrue(all(one is other for one, other in zip(engine.module.parameters(), parameters)))
            self.assert_same(engine.state_dict(), source.state_dict())
            other = engine_of(source, config_of())
            self.assertEqual((train(engine, 2), masters(engine)), (train(other, 2), masters(other)))
        with self.assertRaises(RuntimeError):
            engine.load_state_dict({**source.state_dict(), "places": torch.zeros(3)})
        with self.assertRaises(RuntimeError):
            engine.load_state_dict({"places": torch.zeros(16, 32)})

    @isolated
    def test_copies_are_plain_models(self):
        for strict in (False, True):
            engine = engine_of(seeded(Gpt), config_of(strict=strict))
            train(engine, 2)
            made = copy.deepcopy(engine.module)
            self.assertIs(made.head.weight, made.table.weight)
            self.assert_same(made.state_dict(), engine.state_dict())
            self.assertEqual(set(vars(made)), set(vars(Gpt())))
            part = copy.deepcopy(engine.module.blocks[0])
            self.assert_same(part.state_dict(), engine.module.blocks[0].state_dict())
            expected = train(engine_of(made, config_of()), 1)
            self.assertEqual(len(expected), 1)
            train_plain(copy.deepcopy(engine.module), 1)

    @isolated
    def test_weight_surgery(self):
        engine, plain = engine_of(seeded(Gpt)), seeded(Gpt)
        with engine.gathered(engine.module.blocks[0]):
            self.assertTrue(torch.equal(engine.module.blocks[0].up.weight, plain.blocks[0].up.weight))
            batch = batch_of(plain, 0)
            self.assertTrue(torch.equal(engine(batch), plain(batch)))
        self.assertTrue(engine.module.blocks[0].up.weight.isnan().all())
        engine.optimizer.zero_grad()
        for model, gathered in (
            (engine.module, engine.gathered(["table.weight"], write=True)),
            (plain, torch.no_grad()),
        ):
            with gathered, torch.no_grad():
                model.table.weight[3] = 0.5
        other = engine_of(plain)
        self.assertEqual((train(engine, 2), masters(engine)), (train(other, 2), masters(other)))
        with self.assertRaises(ValueError), engine.gathered(engine.module, write=True):
            for block in engine.module.blocks:
                block.up.weight.data = torch.zeros(64, 32)
            raise ValueError
        self.assertEqual((train(engine, 2), masters(engine)), (train(other, 2), masters(other)))

    @isolated
    def test_weights_in_files(self):
        for precision in ("fp32", "bf16"):
            engine = engine_of(seeded(Gpt), config_of(precision=precision))
            train(engine, 2)
            with tempfile.TemporaryDirectory() as folder:
                engine.save_safetensors(folder, dtype="fp32", shard_bytes=16 << 10)
                self.assertTrue((pathlib.Path(folder) / safetensors.INDEX).exists())
                loaded = Gpt()
                terrace.torch.load(loaded, folder)
                for one in engine._tracked:
                    self.assertTrue(torch.equal(engine.master(one.parameter), loaded.get_parameter(one.name)), one.name)
                engine.save_16bit_model(folder, "half.safetensors")
                entries, _ = safetensors.read_header(os.path.join(folder, "half.safetensors"))
                self.assertEqual({entry.dtype for entry in entries.values()}, {"BF16"})

    @isolated
    def test_models_that_are_made_elsewhere(self):
        with tempfile.TemporaryDirectory() as folder:
            plain = seeded(Gpt)
            engine = engine_of(seeded(Gpt))
            engine.save_safetensors(folder)
            torch.manual_seed(7)
            with terrace.torch.init(folder):
                mapped = Gpt()
            self.assert_same(mapped.state_dict(), plain.state_dict())
            with terrace.torch.init(meta=True):
                empty = Gpt()
            self.assertTrue(all(parameter.is_meta for parameter in empty.parameters()))
            self.raised(terrace.ConfigError, engine_of, empty)
            empty.head.weight.use_muon = False
            terrace.torch.load(empty, folder)
            self.assertIs(empty.head.weight, empty.table.weight)
            self.assertIs(empty.head.weight.use_muon, False)
            self.assertEqual(nn.Module.register_parameter.__qualname__, "Module.register_parameter")
            outcomes = []
            for model in (plain, mapped, empty):
                engine = engine_of(model)
                outcomes.append((train(engine, 2), masters(engine)))
            self.assertEqual(outcomes[0], outcomes[1])
            self.assertEqual(outcomes[0], outcomes[2])
            self.raised(terrace.ConfigError, terrace.torch.load, Mlp(), folder)
            self.raised(terrace.IoError, terrace.torch.load, Mlp(), os.path.join(folder, "nothing"))

    @isolated
    def test_construction_and_export_do_not_fill_memory(self):
        def anonymous():
            with open("/proc/self/status", encoding="ascii") as file:
                return next(int(line.split()[1]) << 10 for line in file if line.startswith("RssAnon"))

        with tempfile.TemporaryDirectory() as folder:
            before = anonymous()
            with terrace.torch.init(folder):
                model = nn.Sequential(*(nn.Linear(1024, 1024, bias=False) for _ in range(24)))  # 96 MiB
            self.assertLess(anonymous() - before, 16 * MIB)
            config = config_of("nvme", "nvme", folder, device_memory="12MiB", host_memory="32MiB")
            engine = engine_of(model, config)
            self.assertLess(anonymous() - before, 64 * MIB)
            held = anonymous()
            engine.save_safetensors(os.path.join(folder, "saved"))
            self.assertLess(anonymous() - held, 64 * MIB)
            state = engine.state_dict()
            self.assertEqual(len(state), 24)
            self.assertLess(anonymous() - held, 48 * MIB)

    @isolated
    def test_optimizer_states_have_the_layout_of_torch(self):
        model, plain = seeded(Gpt), seeded(Gpt)
        engine = engine_of(model)
        optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-2, weight_decay=0.1, eps=1e-3)
        self.assertEqual(engine.optimizer.state_dict()["state"], {})
        train(engine, 3)
        train_plain(plain, 3, optimizer=optimizer)
        state, expected = engine.optimizer.state_dict(), optimizer.state_dict()
        self.assertEqual(state["state"].keys(), expected["state"].keys())
        for number, moments in expected["state"].items():
            self.assertEqual(moments.keys(), state["state"][number].keys())
            for name, value in moments.items():
                self.assertLessEqual((state["state"][number][name] - value).abs().max().item(), 1e-6)
        # Into torch's, and back into an engine of another placement.
        copied = copy.deepcopy(model)
        into = torch.optim.AdamW(copied.parameters(), lr=1e-2, weight_decay=0.1, eps=1e-3)
        into.load_state_dict(state)
        again = engine_of(copy.deepcopy(model), config_of(states="device", parameters="device"))
        again.optimizer.load_state_dict(into.state_dict())
        told = train(engine, 2, first=3)
        self.assert_near_plain(told, train_plain(copied, 2, first=3, optimizer=into))
        self.assertEqual((train(again, 2, first=3), masters(again)), (told, masters(engine)))
        self.raised(terrace.ConfigError, again.optimizer.load_state_dict, {"state": {}, "param_groups": []})

    @isolated
    def test_checkpoints(self):
        with tempfile.TemporaryDirectory() as folder:
            for precision in ("fp32", "bf16"):
                config = config_of(precision=precision)
                config["scheduler"] = {"type": "WarmupLR", "params": {"warmup_num_steps": 6, "warmup_max_lr": 1e-2}}
                engine = engine_of(seeded(Gpt), config)
                train(engine, 3)
                engine.save_checkpoint(folder, client_state={"seen": 3, "tensor": torch.arange(3)})
                told = train(engine, 3, first=3)
                other = engine_of(Gpt(), config)
                path, client = other.load_checkpoint(folder)
                self.assertTrue(path.endswith("global_step3"))
                self.assertEqual((client["seen"], client["tensor"].tolist()), (3, [0, 1, 2]))
                self.assertEqual((train(other, 3, first=3), masters(other)), (told, masters(engine)))
            self.assertEqual(sorted(os.listdir(folder)), ["global_step3", "latest"])
            self.raised(terrace.IoError, other.load_checkpoint, folder, "global_step9")
            self.assertEqual(other.load_checkpoint(os.path.join(folder, "none")), (None, {}))
            self.raised(terrace.ConfigError, engine_of(Mlp()).load_checkpoint, folder)

    @isolated
    def test_commits_and_kill(self):
        """A killed training goes on from its last commit with the same bits, random numbers among them."""

        class Dropped(Gpt):
            def forward(self, tokens):
                return super().forward(tokens) + 0 * torch.rand(1)

        with tempfile.TemporaryDirectory() as folder:
            config = config_of("nvme", "nvme", folder, durable=True, commit_every_steps=2, commit_every_seconds=0)
            config["scheduler"] = {"type": "WarmupLR", "params": {"warmup_num_steps": 6, "warmup_max_lr": 1e-2}}
            without = dict(config, terrace=dict(config["terrace"], durable=False))
            with engine_of(seeded(Dropped), without) as undisturbed:
                expected = train(undisturbed, 8)
            for _ in range(2):
                self.killed_run(Dropped, config)
            engine = engine_of(seeded(Dropped), config, resume="auto")
            first = engine.global_steps
            self.assertEqual(first, 4)
            self.assertEqual(engine.client_state, {"from": "the run"})
            self.assertEqual(train(engine, 8 - first, first=first), expected[first:])
            engine.close()
            error = self.raised(terrace.ConfigError, engine_of, seeded(Dropped), config)
            self.assertIn("discard_commits", error.advice)
            engine = engine_of(seeded(Dropped), config, discard_commits=True)
            self.assertEqual(engine.global_steps, 0)
            engine.store.keep_tier(False)
            engine.close()
            self.raised(terrace.ConfigError, engine_of, Gpt(), config, resume=True)
        self.assertEqual(engine_of(seeded(Dropped), config_of(), resume="auto").global_steps, 0)

    @isolated
    def test_training_goes_on_after_a_commit_that_failed(self):
        with tempfile.TemporaryDirectory() as folder:
            config = config_of("nvme", "nvme", folder, durable=True, commit_every_steps=0, commit_every_seconds=0)
            with engine_of(seeded(Gpt), dict(config, terrace=dict(config["terrace"], durable=False))) as undisturbed:
                expected = train(undisturbed, 4)
            engine = engine_of(seeded(Gpt), config)
            told = train(engine, 1)
            for number in (1, 2):  # where their files are to be
                os.mkdir(pathlib.Path(folder, "terrace-tier", f"commit-{number:016}.manifest.new"))
            engine.commit()
            self.raised(terrace.IoError, engine.finish_commit)
            told += train(engine, 1, first=1)
            engine.commit()
            while engine.store.commit_in_progress:
                time.sleep(0.01)
            self.raised(terrace.IoError, engine.module, batch_of(engine.module, 2))
            told += train(engine, 2, first=2)
            engine.commit()
            self.assertEqual(engine.finish_commit(), 3)
            engine.close()
            self.assertEqual(told, expected)

    def killed_run(self, model, config):
        child = os.fork()
        if not child:
            engine = engine_of(seeded(model), config, resume="auto")
            if not engine.global_steps:
                engine.commit({"from": "the run"})
                engine.finish_commit()
            train(engine, 2, first=engine.global_steps)
            engine.finish_commit()
            train(engine, 1, first=engine.global_steps)
            os.kill(os.getpid(), signal.SIGKILL)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), -signal.SIGKILL)

    @isolated
    def test_evaluation_between_and_within_steps(self):
        class Generates(Gpt):
            def generate(self, tokens, count):
                with torch.no_grad():
                    for _ in range(count):
                        tokens = torch.cat([tokens, self(tokens)[:, -1:].argmax(-1)], 1)
                return tokens

        engine, plain = engine_of(seeded(Generates), config_of(accumulation=2, strict=True)), seeded(Generates)
        other = engine_of(seeded(Generates), config_of(accumulation=2))
        expected = train(other, 3)
        told = []
        prompt = torch.zeros(1, 2, dtype=torch.long)
        self.assertTrue(torch.equal(engine.generate(prompt, 4), plain.generate(prompt, 4)))
        for step in range(3):
            losses = []
            for micro_batch in range(2):
                loss = loss_of(engine.module, batch_of(plain, step, micro_batch))
                before = engine.generate(prompt, 3)
                with torch.inference_mode():
                    engine.module.blocks[0](torch.zeros(1, 4, 32))
                engine.backward(loss)
                self.assertTrue(torch.equal(engine.generate(prompt, 3), before))
                engine.step()
                losses.append(loss.item())
            told.append((losses, engine.get_global_grad_norm()))
        self.assertEqual((told, masters(engine)), (expected, masters(other)))

    @isolated
    def test_compiled_blocks(self):
        def compiled(model):
            for block in model.blocks:
                block.compile(backend="aot_eager")
            model.head.compile(backend="aot_eager")
            return model

        expected = engine_of(seeded(Gpt))
        told = train(expected, 3), masters(expected)
        for units in ("auto", "leaf"):
            engine = engine_of(compiled(seeded(Gpt)), config_of(strict=True), units=units)
            self.assertEqual((train(engine, 3), masters(engine)), told)
        engine = engine_of(seeded(Gpt))
        run = torch.compile(engine.module, backend="aot_eager")
        self.assertEqual((train(engine, 3, run=run), masters(engine)), told)

    @isolated
    def test_memory_does_not_grow(self):
        import gc
        import statistics
        import tracemalloc

        engine = engine_of(seeded(Mlp))
        tracemalloc.start()
        seen = []
        for _ in range(7):
            for _ in range(10):
                train(engine, 10)
            gc.collect()
            seen.append(tracemalloc.get_traced_memory()[0])
        # What torch's threads have not freed yet comes and goes by some KiB; what a step leaves comes every time.
        self.assertLess(statistics.median(later - before for before, later in zip(seen[1:], seen[2:])), 4096)


if __name__ == "__main__":
    unittest.main()
