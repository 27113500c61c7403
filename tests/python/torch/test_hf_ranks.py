"""transformers' Trainer over a store on several ranks: the numbers of one process. These tests are run with two versions of
transformers (tools/test)."""

import contextlib
import io
import json
import os
import pathlib
import tempfile
import types
import unittest

import transformers
from hf_models import Words, gpt2
from ranks_torch import RanksTest, seeded, terrace, together, torch
from support_torch import config_of, isolated
from terrace.hf import TerraceMixin, TerraceTrainer
from terrace.torch.dealt import DealtBatches
from transformers import Trainer, TrainingArguments

MICRO_BATCHES = 4
STEPS = 6  # two epochs
LOGGED = ("loss", "grad_norm", "learning_rate", "eval_loss", "eval_samples", "eval_logits", "eval_labels")


class Uneven(Words):
    """Three micro-batches and a half."""

    def __len__(self):
        return 7


def meeting(folder, count):
    """What torchrun sets, for `together`; torch.distributed meets in the folder."""
    return lambda rank: {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "TERRACE_TEST_GLOO": f"file://{folder}/gloo",
    }


def measured(outputs):
    return {
        "samples": len(outputs.predictions),
        "logits": float(outputs.predictions.astype("float64").sum()),
        "labels": int(outputs.label_ids.sum()),
    }


def arguments_of(folder, count, **more):
    return TrainingArguments(
        **dict(
            output_dir=str(folder),
            per_device_train_batch_size=2,
            per_device_eval_batch_size=2,
            gradient_accumulation_steps=MICRO_BATCHES // count,
            learning_rate=1e-2,
            max_steps=STEPS,
            logging_steps=1,
            eval_strategy="steps",
            eval_steps=2,
            save_strategy="steps",
            save_steps=2,
            load_best_model_at_end=True,
            greater_is_better=True,  # the best is the one with the greatest loss, so that it is not the last
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
            dataloader_pin_memory=False,
            max_grad_norm=0.5,
        )
        | more
    )


def meets(count):
    """What TrainingArguments do in a process of torchrun."""
    if count > 1:
        meet = os.environ["TERRACE_TEST_GLOO"]
        torch.distributed.init_process_group("gloo", init_method=meet, rank=int(os.environ["RANK"]), world_size=count)


def trainer_of(folder, count, data=None, callbacks=(), **more):
    meets(count)
    config = config_of()
    return TerraceTrainer(
        model=seeded(gpt2),
        args=arguments_of(folder, count, **more),
        train_dataset=data or Words(),
        eval_dataset=Uneven(),
        compute_metrics=measured,
        callbacks=list(callbacks),
        terrace_config={name: config[name] for name in ("zero_optimization", "terrace")},
        terrace_options={"persistence_threshold": 128},
    )


def logged(trainer):
    return [{name: one[name] for name in LOGGED if name in one} for one in trainer.state.log_history[:-1]]


def trained(folder, count, resume=None, **more):
    """What is logged, and what was printed."""
    told = io.StringIO()
    with contextlib.redirect_stdout(told), contextlib.redirect_stderr(io.StringIO()):
        trainer = trainer_of(folder, count, **more)
        assert trainer.args.world_size == count
        trainer.train(resume_from_checkpoint=str(resume) if resume else None)
        assert trainer.model_wrapped is trainer.model
        trainer.save_model()
        losses = logged(trainer)
        trainer.engine.close()
    return losses, told.getvalue()


class TrainerOnRanks(RanksTest):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)

    def on(self, count, body):
        """What body() returned on each rank, as torchrun starts them."""
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            ends = together(count, lambda rank: body(), meeting(folder, count))
        for end in ends:
            self.assertFalse(end.text or end.signal_number, end.text)
        return [end.value for end in ends]

    def assert_equal_files(self, one, other, names):
        for name in names:
            self.assertEqual((one / name).read_bytes(), (other / name).read_bytes(), name)

    def assert_equal_states(self, one, other):
        one, other = (torch.load(folder / "optimizer.pt") for folder in (one, other))
        self.assertEqual(one["state"].keys(), other["state"].keys())
        for key, state in one["state"].items():
            for name, value in state.items():
                self.assertTrue(torch.equal(torch.as_tensor(value), torch.as_tensor(other["state"][key][name])), name)

    def test_it_has_the_numbers_of_one_process_and_goes_on_with_any_number(self):
        whole, (log,) = (
            self.folder / "of 1",
            [found for found, _ in self.on(1, lambda: trained(self.folder / "of 1", 1))],
        )
        self.assertEqual([one["eval_samples"] for one in log if "eval_loss" in one], [7, 7, 7])
        divided = self.folder / "of 2"
        found = self.on(2, lambda: trained(divided, 2))
        self.assertEqual([one for one, _ in found], [log, log])
        self.assertIn("'eval_loss'", found[0][1])
        self.assertNotIn("loss", found[1][1])
        weights = "model.safetensors"
        self.assert_equal_files(whole, divided, [weights, "checkpoint-2/" + weights, "checkpoint-6/" + weights])
        for step in (2, 4, 6):
            self.assert_equal_states(whole / f"checkpoint-{step}", divided / f"checkpoint-{step}")
        states = [json.loads((folder / "checkpoint-6/trainer_state.json").read_text()) for folder in (whole, divided)]
        self.assertEqual([state["best_global_step"] for state in states], [2, 2])
        self.assert_equal_files(divided, divided / "checkpoint-2", [weights])
        for count, begun in ((1, divided), (2, whole)):
            again = self.folder / f"again on {count}"
            for history, _ in self.on(count, lambda: trained(again, count, begun / "checkpoint-4")):
                self.assertEqual(history, log)
            self.assert_equal_files(whole, again, [weights, "checkpoint-6/" + weights])
            self.assert_equal_states(whole / "checkpoint-6", again / "checkpoint-6")

    def test_ranks_that_differ_and_the_last_words_of_callbacks(self):
        def on():
            data = torch.utils.data.Subset(Words(), range(24 - 2 * int(os.environ["RANK"])))
            trainer = trainer_of(self.folder, 2, data=data)
            with self.assertRaises(terrace.ConfigError) as refused:
                trainer.train()
            stops = transformers.EarlyStoppingCallback(early_stopping_patience=1)
            trainer.train_dataset = Words()
            trainer.add_callback(stops)
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                trainer.train()
            stopped = trainer.state.global_step
            trainer.engine.close()
            return refused.exception.reason, stopped

        for reason, stopped in self.on(2, on):
            self.assertIn("the length of train_dataset: 24 on rank 0, 22 on rank 1", reason)
            self.assertEqual(stopped, 4)


class Refused(RanksTest):
    def refused(self, act, *arguments, **named):
        return self.raised(terrace.ConfigError, act, *arguments, **named)

    def test_the_mixin_comes_first(self):
        class Derived(Trainer):
            pass

        class Ours(TerraceMixin, Derived):
            pass

        class Further(TerraceTrainer, Derived):
            pass

        error = self.refused(lambda: type("Wrong", (Derived, TerraceMixin), {}))
        self.assertIn("class Wrong(TerraceMixin, Derived)", error.advice)
        self.refused(lambda: type("Wrong", (Derived, TerraceTrainer), {}))
        error = self.refused(type("Alone", (TerraceMixin,), {}), terrace_config={})
        self.assertEqual(error.reason, "it is not before a Trainer")

    @isolated
    def test_nothing_else_divides_the_model(self):
        class DistributedDataParallel(torch.nn.Module):
            """As torch's own, which needs a group."""

            def __init__(self, module):
                super().__init__()
                self.module = module

        given = dict(args=arguments_of("none", 1), terrace_config={})
        error = self.refused(TerraceTrainer, model=DistributedDataParallel(seeded(gpt2)), **given)
        self.assertEqual(error.subject, "DistributedDataParallel")
        error = self.refused(
            TerraceTrainer, model=seeded(gpt2), args=types.SimpleNamespace(fsdp=["full_shard"]), terrace_config={}
        )
        self.assertEqual(error.subject, "TrainingArguments.fsdp")
        for variable, name in (("ACCELERATE_USE_FSDP", "FSDP"), ("ACCELERATE_USE_DEEPSPEED", "DeepSpeed")):
            os.environ[variable] = "true"
            error = self.refused(TerraceTrainer, model=seeded(gpt2), **given)
            self.assertIn(name, error.reason)
            del os.environ[variable]

    def test_ranks_that_transformers_does_not_see_are_refused(self):
        """As `terrace launch` starts them."""

        def on(rank):
            return self.refused(trainer_of, "none", 1).reason

        for end in together(2, on):
            self.assertFalse(end.text, end.text)
            self.assertIn("one of 1", end.value)


class Dealt(RanksTest):
    def test_evaluations_leave_nothing_out(self):
        for count in range(9):
            whole = [[number] for number in range(count)]
            for ranks in (1, 2, 3):
                dealt = [DealtBatches(whole, rank, ranks, repeats_last=True) for rank in range(ranks)]
                found = [list(one) for one in dealt]
                self.assertEqual({len(one) for one in found}, {-(-count // ranks)})
                own = [
                    batch for k, of_round in enumerate(zip(*found)) for one, batch in zip(dealt, of_round) if one.has(k)
                ]
                self.assertEqual(own, whole)


if __name__ == "__main__":
    unittest.main()
