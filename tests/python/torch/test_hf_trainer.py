"""transformers' Trainer over a store. These tests are run with two versions of transformers (tools/test)."""

import copy
import json
import os
import tempfile
import types
import unittest

import terrace.hf
from hf_models import AutoModelForCausalLM, Words, gpt2, transformers
from support_torch import EngineTest, config_of, isolated, masters, seeded, terrace, torch
from terrace.hf import TerraceArguments, TerraceTrainer
from transformers import Trainer, TrainingArguments

# As the documents of DeepSpeed and of Hugging Face have it.
AUTO = {
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "bf16": {"enabled": "auto"},
    "fp16": {"enabled": "auto"},
    "optimizer": {"type": "AdamW", "params": dict.fromkeys(("lr", "betas", "eps", "weight_decay"), "auto")},
    "scheduler": {
        "type": "WarmupDecayLR",
        "params": dict.fromkeys(("warmup_min_lr", "warmup_max_lr", "warmup_num_steps", "total_num_steps"), "auto"),
    },
}


def placement(**more):
    """A configuration that says where bytes lie, and nothing of what the Trainer decides."""
    config = config_of(**more)
    return {name: config[name] for name in ("zero_optimization", "terrace")}


class Logged(transformers.TrainerCallback):
    def __init__(self):
        self.losses, self.norms, self.evaluations = [], [], []

    def on_log(self, arguments, state, control, logs=None, **_):
        if "loss" in logs:
            self.losses.append(float(logs["loss"]))
            self.norms.append(float(logs["grad_norm"]) if "grad_norm" in logs else None)
        if "eval_loss" in logs:
            self.evaluations.append(float(logs["eval_loss"]))


class TrainerOverAStore(EngineTest):
    def test_it_is_the_version_that_was_meant(self):
        """A folder before the others on the path may have been overlooked."""
        wanted = os.environ.get("TERRACE_TRANSFORMERS")
        if wanted is None:
            self.skipTest("no version is asked for")
        self.assertEqual(transformers.__version__, wanted)

    def trained(self, folder, is_plain, accumulation, config=(), clip=0.5, **more):
        model = seeded(gpt2)
        log = Logged()
        arguments = (TrainingArguments if is_plain or "deepspeed" not in more else TerraceArguments)(
            output_dir=folder,
            per_device_train_batch_size=2,
            gradient_accumulation_steps=accumulation,
            learning_rate=1e-3,
            max_steps=12,
            logging_steps=1,
            eval_strategy="steps",
            eval_steps=4,
            save_strategy="steps",
            save_steps=6,
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
            max_grad_norm=clip,
            weight_decay=0.1,
            adam_epsilon=1e-3,
            dataloader_num_workers=0,
            save_total_limit=2,
            **more,
        )
        shared = dict(model=model, args=arguments, train_dataset=Words(), eval_dataset=Words(), callbacks=[log])
        if is_plain:
            return Trainer(**shared), log
        config = None if "deepspeed" in more else dict(placement(strict=True), **dict(config))
        options = {"persistence_threshold": 128}
        return TerraceTrainer(**shared, terrace_config=config, terrace_options=options), log

    @isolated
    def test_trainer(self):
        for accumulation in (1, 2):
            logs, models = [], []
            for is_plain in (True, False):
                with tempfile.TemporaryDirectory() as folder:
                    trainer, log = self.trained(folder, is_plain, accumulation)
                    trainer.train()
                    trainer.save_model(folder)
                    models.append(AutoModelForCausalLM.from_pretrained(folder).state_dict())
                    logs.append(log)
                    if not is_plain:
                        self.resume(folder, accumulation, trainer, log)
            self.assert_same_log(*logs)
            for name, value in models[0].items():
                self.assertLessEqual((models[1][name] - value).abs().max().item(), 1e-5, name)

    def assert_same_log(self, log, expected):
        for name in ("losses", "norms", "evaluations"):
            found, wanted = getattr(log, name), getattr(expected, name)
            self.assertEqual(len(found), 3 if name == "evaluations" else 12)
            for value, other in zip(found, wanted):
                if other is not None:  # transformers 4 logs no norm where it does not clip
                    self.assertLessEqual(abs(value - other), 2e-6 * abs(other), name)

    def resume(self, folder, accumulation, trainer, log):
        again, told = self.trained(folder, False, accumulation)
        again.train(resume_from_checkpoint=f"{folder}/checkpoint-6")
        self.assertEqual(told.losses, log.losses[6:])
        self.assertEqual(masters(again.engine), masters(trainer.engine))

    @isolated
    def test_its_run_is_followed(self):
        with tempfile.TemporaryDirectory() as folder:
            trainer, log = self.trained(folder, False, 2)
            path = os.path.join(folder, "steps.jsonl")
            trainer._terrace_options = dict(trainer._terrace_options, step_log=path)

            class Stops(transformers.TrainerCallback):
                """As `terrace ctl stop` in the ninth step."""

                def on_step_begin(self, arguments, state, control, **_):
                    trainer.engine.following.stop_requested = state.global_step == 8

            trainer.add_callback(Stops())
            trainer.train()
            trainer.engine.close()
            with open(path) as file:
                lines = [json.loads(line) for line in file]
        steps = [line for line in lines if line["event"] == "step"]
        self.assertEqual([line["step"] for line in steps], list(range(1, 10)))
        for line, loss in zip(steps, log.losses):
            self.assertAlmostEqual(line["loss"], loss, delta=1e-4)  # the Trainer rounds what it logs
        evaluations = [(line["step"], line["validation_loss"]) for line in lines if line["event"] == "evaluation"]
        self.assertEqual([step for step, _ in evaluations], [4, 8])
        for (_, loss), logged in zip(evaluations, log.evaluations):
            self.assertAlmostEqual(loss, logged, delta=1e-4)
        self.assertEqual(lines[-1]["stopped_by"], "terrace ctl stop")

    @isolated
    def test_fp16_has_the_norms_of_fp32(self):
        norms = []
        for config in ({}, {"fp16": {"enabled": True, "loss_scale": 4096}}):
            with tempfile.TemporaryDirectory() as folder:
                trainer, log = self.trained(folder, False, 2, config)
                trainer.train()
                norms.append(log.norms)
        for norm, expected in zip(*norms):
            self.assertLessEqual(abs(norm - expected), 0.02 * expected)

    @isolated
    def test_a_norm_of_0_does_not_clip(self):
        logs = []
        for is_plain in (True, False):
            with tempfile.TemporaryDirectory() as folder:
                trainer, log = self.trained(folder, is_plain, 2, clip=0)
                trainer.train()
                logs.append(log)
        self.assert_same_log(*logs)

    @isolated
    def test_an_infinite_norm_only_measures(self):
        """torch's clip_grad_norm_ is given one by who wants the norm alone. The configuration would clip."""
        model = seeded(gpt2)
        optimizer = torch.optim.SGD(model.parameters(), 1.0)
        engine = terrace.initialize(model=model, config=dict(placement(), gradient_clipping=0.01), optimizer=optimizer)[
            0
        ]
        before = {one.name: engine.master(one.name) for one in engine._tracked}
        norm = engine.clip_grad_norm_(float("inf"))
        engine(input_ids=torch.arange(12)[None], labels=torch.arange(12)[None]).loss.backward()
        engine.optimizer.step()
        step = torch.cat([(before[name] - engine.master(name)).flatten() for name in before])
        self.assertAlmostEqual(step.norm().item(), engine.get_global_grad_norm(), 4)
        self.assertAlmostEqual(norm.item(), engine.get_global_grad_norm(), 6)

    @isolated
    def test_deepspeed_of_the_arguments_is_read(self):
        """Without the package deepspeed, as a dict and as a file with comments, and "auto" is what arguments say."""
        config = dict(AUTO, **placement())
        with tempfile.TemporaryDirectory() as folder:
            trainer, expected = self.trained(folder, True, 2)
            trainer.train()
            file = os.path.join(folder, "ds.json")
            with open(file, "w") as text:
                text.write(f"// A comment.\n{json.dumps(config)}")
            for given in (copy.deepcopy(config), file):
                trainer, log = self.trained(folder, False, 2, deepspeed=given)
                self.assertIsNone(trainer.args.deepspeed)
                trainer.train()
                self.assert_same_log(log, expected)
            self.assertEqual(trainer.engine.config.precision, "fp32")

    @isolated
    def test_bf16_of_the_arguments_is_the_type_of_parameters(self):
        with tempfile.TemporaryDirectory() as folder:
            trainer, _ = self.trained(folder, False, 1, deepspeed=dict(AUTO, **placement()), bf16=True)
            self.assertFalse(trainer.args.bf16)
            trainer.train()
            self.assertEqual(trainer.engine.config.precision, "bf16")
            self.assertEqual({one.dtype for one in trainer.model.parameters()}, {torch.bfloat16})

    @isolated
    def test_arguments_that_contradict_are_refused(self):
        for name, section in {
            "gradient_accumulation_steps": 3,
            "train_micro_batch_size_per_gpu": 4,
            "train_batch_size": 8,
            "gradient_clipping": 1.0,
            "optimizer.type": {"type": "Lion"},
            "optimizer.params.lr": {"type": "AdamW", "params": {"lr": 1e-2}},
            "optimizer.params.betas": {"type": "AdamW", "params": {"betas": [0.8, 0.9]}},
            "scheduler.type": {"type": "WarmupLR"},
        }.items():
            with self.subTest(name), tempfile.TemporaryDirectory() as folder:
                trainer, _ = self.trained(folder, False, 1, {name.partition(".")[0]: section})
                error = self.raised(terrace.ConfigError, trainer.train)
                self.assertEqual(error.subject, name)
                self.assertIn("TrainingArguments", f"{error.reason} {error.advice}")
        with tempfile.TemporaryDirectory() as folder:
            self.raised(terrace.ConfigError, self.trained, folder, False, 1, fp16=True)

    @isolated
    def test_what_is_missing_or_too_old_is_said_at_once(self):
        with tempfile.TemporaryDirectory() as folder:
            arguments = TrainingArguments(output_dir=folder, report_to=[], use_cpu=True)
            error = self.raised(terrace.ConfigError, TerraceTrainer, model=seeded(gpt2), args=arguments)
            self.assertEqual(error.subject, "terrace_config")
            for version in ("4.49.0", "6.0.0"):
                terrace.hf.transformers = types.SimpleNamespace(__version__=version)
                error = self.raised(terrace.ConfigError, TerraceTrainer, args=arguments, terrace_config=placement())
                self.assertEqual(error.subject, f"transformers {version}")

    @isolated
    def test_it_goes_before_a_trainer_that_is_derived(self):
        """As those of trl are: their own arguments, and a create_optimizer and a loss of their own."""

        class Derived(Trainer):
            def __init__(self, model, args, train_dataset, scale, callbacks):
                super().__init__(model=model, args=args, train_dataset=train_dataset, callbacks=callbacks)
                self.scale = scale

            def create_optimizer(self, *arguments, **named):
                if self.optimizer is None:
                    self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=self.args.learning_rate, eps=1e-3)
                return super().create_optimizer(*arguments, **named)

            def compute_loss(self, model, inputs, *arguments, **named):
                return self.scale * super().compute_loss(model, inputs, *arguments, **named)

        class Ours(TerraceTrainer, Derived):
            pass

        class Arguments(TerraceArguments, TrainingArguments):
            pass

        logs = []
        for kind, arguments, more in (
            (Derived, TrainingArguments, {}),
            (Ours, Arguments, {"deepspeed": placement()}),
        ):
            with tempfile.TemporaryDirectory() as folder:
                args = arguments(
                    output_dir=folder,
                    max_steps=12,
                    logging_steps=1,
                    report_to=[],
                    use_cpu=True,
                    save_strategy="no",
                    disable_tqdm=True,
                    per_device_train_batch_size=2,
                    learning_rate=1e-3,
                    adam_epsilon=1e-3,
                    **more,
                )
                logs.append(Logged())
                kind(seeded(gpt2), args, Words(), 0.5, [logs[-1]]).train()
                logs[-1].evaluations = [0.0] * 3
        self.assert_same_log(*reversed(logs))


if __name__ == "__main__":
    unittest.main()
