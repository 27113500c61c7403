"""`terrace train` and an engine save in one format: each goes on from what the other has saved, with every bit of it."""

import json
import math
import os
import pathlib
import subprocess
import tempfile
import unittest

from support_torch import EngineTest, F, isolated, seeded, terrace, torch
from terrace import safetensors

try:
    from transformers import AutoConfig, AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel
except ImportError:
    raise unittest.SkipTest("transformers is not installed") from None

CONTEXT, WIDTH = 32, 24
TEXT = "the water of a river runs down to".ljust(CONTEXT, ".")[:CONTEXT]
TILE, ALIGNMENT = 4096, 64


def config_for(precision):
    return {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": precision == "bf16"},
        "fp16": {"enabled": precision == "fp16", "initial_scale_power": 22, "hysteresis": 1},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "weight_decay": 0.0}},
    }


def make_model():
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=256,
            n_positions=CONTEXT,
            n_embd=WIDTH,
            n_layer=2,
            n_head=2,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            bos_token_id=None,
            eos_token_id=None,
        )
    )


def model_of(family):
    """Of the bytes of a text, so that the program needs no tokenizer."""
    if family == "gpt2":
        return make_model()
    config = AutoConfig.for_model(
        family,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        intermediate_size=64,
        vocab_size=256,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=family == "qwen2",
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    return AutoModelForCausalLM.from_config(config)


def tensors_in(folder):
    """{name: (type, shape, bytes)} of the files of weights."""
    return {
        name: (entry.dtype, entry.shape, pathlib.Path(entry.path).read_bytes()[entry.offset :][: entry.bytes])
        for name, entry in safetensors.find(folder).items()
    }


def facts_in(place):
    return json.loads(json.loads((place / "manifest.json").read_text())["facts"])


def values_in(place):
    """{name: [master, first moment, second moment]} of a checkpoint, read as docs/checkpoint_format.md says."""
    facts = facts_in(place)
    assert (facts["moments"], facts["moment_type"]) == (2, "fp32")
    sections, tensors = {}, []
    for tensor in facts["tensors"]:
        elements = math.prod(tensor["shape"])
        key = tensor["type"], tensor.get("apart", False)
        first = -(-sections.get(key, 0) // ALIGNMENT) * ALIGNMENT
        sections[key] = first + elements
        tensors.append((tensor["name"], key, first, elements, tensor["shape"]))
    begins, at = {}, 0
    for key, elements in sections.items():
        begins[key] = at
        at += -(-elements // TILE)
    raw = torch.frombuffer(bytearray((place / "states.bin").read_bytes()), dtype=torch.float32).view(at, 3, TILE)
    found = {}
    for name, key, first, elements, shape in tensors:
        if name.startswith("."):
            continue
        section = raw[begins[key] :].transpose(0, 1).reshape(3, -1)
        found[name] = [part[first : first + elements].view(shape) for part in section]
    return found


class TwoDoors(EngineTest):
    def setUp(self):
        self.program = os.environ.get("TERRACE_PROGRAM")
        if not self.program:
            self.skipTest("TERRACE_PROGRAM does not name the program terrace")
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        # Every sample is the same, in whatever order they come.
        (self.folder / "text.txt").write_text(TEXT * 200)

    def run_program(self, *arguments):
        environment = {**os.environ, "XDG_CACHE_HOME": str(self.folder), "XDG_RUNTIME_DIR": str(self.folder)}
        pipes = {"capture_output": True, "text": True, "errors": "replace"}
        return subprocess.run([self.program, *map(str, arguments)], cwd=self.folder, env=environment, **pipes)

    def told(self, *arguments):
        """What the program prints."""
        done = self.run_program(*arguments)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.said = done.stderr
        return done.stdout

    def train(self, precision, steps, *more):
        """Losses by step of `terrace train`."""
        (self.folder / "ds.json").write_text(json.dumps(config_for(precision)))
        log = self.folder / "log.jsonl"
        log.unlink(missing_ok=True)
        model = ["--layers", "2", "--width", str(WIDTH), "--heads", "2", "--context", str(CONTEXT)]
        data = ["--data", "text.txt", "--config", "ds.json", "--log", "log.jsonl"]
        self.told("train", *model, *data, "--steps", steps, *more)
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        return {line["step"]: line["loss"] for line in lines if "loss" in line and "step" in line}

    def engine(self, precision, model=None):
        model = model or seeded(make_model)
        if precision != "fp32":
            model = model.to(torch.bfloat16 if precision == "bf16" else torch.float16)
        return terrace.initialize(
            model=model, config=config_for(precision), persistence_threshold=128, log=lambda *_: None
        )[0]

    def steps(self, engine, count):
        tokens = torch.tensor([list((TEXT + TEXT[0]).encode())] * 2)
        losses = []
        for _ in range(count):
            logits = engine(tokens[:, :-1]).logits
            loss = F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
            engine.backward(loss)
            engine.step()
            losses.append(loss.item())
        return losses

    def assert_holds(self, engine, place):
        values = values_in(place)
        names = {one.name for one in engine._tracked}
        self.assertEqual(names, set(values))
        moments = {name: [] for name in names}
        for one, state in zip(engine._tracked, self.states_of(engine)):
            moments[one.name] = [state["exp_avg"], state["exp_avg_sq"]]
        for name, (master, *saved) in values.items():
            for held, value in zip([engine.master(name), *moments[name]], [master, *saved]):
                self.assertTrue(torch.equal(held, value), name)

    @staticmethod
    def states_of(engine):
        """In the order of the engine's tracked parameters."""
        by_parameter = {}
        state = engine.optimizer_state_dict()
        for group, saved in zip(engine.optimizer.param_groups, state["param_groups"]):
            for parameter, number in zip(group["params"], saved["params"]):
                by_parameter[id(parameter)] = state["state"][number]
        return [by_parameter[id(one.parameter)] for one in engine._tracked]

    @isolated
    def test_what_goes_through_an_engine_is_gone_on_from_bit_for_bit(self):
        for precision in ("fp32", "bf16", "fp16"):
            with self.subTest(precision):
                unbroken = self.train(precision, 11, "--save", f"whole-{precision}")
                self.train(precision, 9, "--save", f"first-{precision}")
                engine = self.engine(precision)
                place = self.folder / f"first-{precision}/step-00000009"
                self.assertEqual(engine.load_checkpoint(str(place.parent)), (str(place), {}))
                scaler = facts_in(place).get("loss_scaler", {"skipped_steps": 0})
                updates = 9 - scaler["skipped_steps"]
                self.assertEqual(updates < 9, precision == "fp16")
                self.assertEqual((engine.global_steps, engine.skipped_steps), (updates, 9 - updates))
                self.assert_holds(engine, place)
                steps = engine.store.tensor_steps
                self.assertEqual([steps[one.number] for one in engine._tracked], [updates] * len(engine._tracked))
                through = self.folder / f"through-{precision}"
                engine.save_checkpoint(str(through))
                engine.close()
                self.assertEqual((through / "latest").read_text(), f"global_step{updates}\n")
                saved = facts_in(through / f"global_step{updates}").get("loss_scaler", {"skipped_steps": 0})
                self.assertEqual(saved, scaler)
                told = self.train(precision, 11, "--resume", through.name, "--save", f"end-{precision}")
                self.assertIn("does not say which data it was trained on: this run goes on at sample 18", self.said)
                self.assertEqual(told, {step: loss for step, loss in unbroken.items() if step > 9})
                whole, end = self.folder / f"whole-{precision}", self.folder / f"end-{precision}"
                self.assertEqual(
                    (end / "step-00000011/states.bin").read_bytes(), (whole / "step-00000011/states.bin").read_bytes()
                )

    @isolated
    def test_an_engine_trains_on_as_the_program_does(self):
        for precision, tolerance in (("fp32", 1e-5), ("bf16", 2e-2)):
            with self.subTest(precision):
                unbroken = self.train(precision, 6, "--save", f"first-{precision}", "--save-every", "3")
                engine = self.engine(precision)
                engine.load_checkpoint(str(self.folder / f"first-{precision}"), "step-00000003")
                for step, loss in enumerate(self.steps(engine, 3), 4):
                    self.assertLessEqual(abs(loss - unbroken[step]), tolerance * unbroken[step], step)
                engine.save_checkpoint(str(self.folder / f"second-{precision}"))
                place = self.folder / f"second-{precision}/global_step6"
                self.assert_holds(engine, place)
                theirs = values_in(self.folder / f"first-{precision}/step-00000006")
                for name, values in values_in(place).items():
                    for mine, other in zip(values, theirs[name]):
                        self.assertLessEqual((mine - other).norm(), 20 * tolerance * (other.norm() + 1e-3), name)
                goes_on = self.train(precision, 8, "--resume", f"second-{precision}")
                here = self.steps(engine, 2)
                for step, loss in zip((7, 8), here):
                    self.assertLessEqual(abs(loss - goes_on[step]), tolerance * loss, step)

    @isolated
    def test_a_model_with_other_tensors_is_refused_by_either(self):
        self.train("fp32", 1, "--save", "saved")
        model = seeded(make_model)
        model.more = torch.nn.Linear(40, 40)
        engine = terrace.initialize(model=model, config=config_for("fp32"), log=lambda *_: None)[0]
        error = self.raised(terrace.ConfigError, engine.load_checkpoint, str(self.folder / "saved"))
        self.assertIn("more.", error.subject)
        engine.save_checkpoint(str(self.folder / "other"), "t")
        shape = ["--layers", "2", "--width", WIDTH, "--heads", "2", "--context", CONTEXT]
        done = self.run_program(
            "train", *shape, "--data", "text.txt", "--config", "ds.json", "--steps", "2", "--resume", "other"
        )
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("names, shapes, data types, order or trainability of their tensors differ", done.stderr)
        self.told("checkpoint", "verify", "other")

    @isolated
    def test_the_program_exports_what_an_engine_has_saved_and_goes_on_with_a_text(self):
        for family, precision in (
            ("gpt2", "fp32"),
            ("gpt2", "bf16"),
            ("llama", "bf16"),
            ("mistral", "fp32"),
            ("qwen2", "fp32"),
            ("qwen3", "bf16"),
        ):
            with self.subTest(f"{family}, {precision}"):
                saved, out, theirs = (self.folder / f"{word}-{family}-{precision}" for word in ("s", "o", "t"))
                model = seeded(lambda: model_of(family))
                frozen = "transformer.wpe.weight" if family == "gpt2" else "model.embed_tokens.weight"
                model.get_parameter(frozen).requires_grad_(False)
                engine = self.engine(precision, model)
                self.steps(engine, 2)
                engine.save_checkpoint(str(saved))
                for dtype in ("fp32", precision):
                    engine.save_safetensors(str(theirs), dtype=dtype)
                    self.told("export", saved, "--out", out, "--dtype", dtype, "--force")
                    exported, expected = tensors_in(out), tensors_in(theirs)
                    self.assertEqual(exported, {name: expected[name] for name in exported})
                    self.assertEqual(len(exported), len(list(model.parameters())))
                words = ["--prompt", "the", "--max-new-tokens", "9", "--temperature", "0"]
                text = self.told("generate", "--checkpoint", saved, *words)
                self.assertEqual(text, self.told("generate", "--model", out, "--dtype", precision, *words))
                engine.close()

    @isolated
    def test_an_export_is_the_same_through_an_engine(self):
        self.train("bf16", 2, "--save", "first")
        engine = self.engine("bf16")
        engine.load_checkpoint(str(self.folder / "first"))
        engine.save_checkpoint(str(self.folder / "through"))
        for name in ("first", "through"):
            self.told("export", name, "--out", f"{name}-out", "--dtype", "fp32")
        first, through = (tensors_in(self.folder / f"{name}-out") for name in ("first", "through"))
        self.assertEqual(first, through)

    @isolated
    def test_what_the_program_cannot_export_it_leaves_to_pytorch(self):
        class Own(GPT2LMHeadModel):
            pass

        def with_small_frozen(model):
            model.transformer.ln_f.requires_grad_(False)  # too small for a store
            return model

        def with_another_activation(model):
            model.config.activation_function = "relu"
            return model

        for name, make in {
            "own": lambda: Own(make_model().config),
            "small": lambda: with_small_frozen(make_model()),
            "relu": lambda: with_another_activation(make_model()),
        }.items():
            with self.subTest(name):
                engine = self.engine("fp32", seeded(make))
                engine.save_checkpoint(str(self.folder / name))
                for command in (["export", name, "--out", "out"], ["generate", "--checkpoint", name, "--prompt", "a"]):
                    done = self.run_program(*command)
                    self.assertIn(done.returncode, (1, 2), done.stderr)
                    self.assertIn("engine.save_safetensors", done.stderr)
                engine.close()


if __name__ == "__main__":
    unittest.main()
