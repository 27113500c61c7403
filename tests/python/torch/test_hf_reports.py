"""What `report_to` of a Trainer over a store gets, and the monitors of its configuration. These tests are run with two
versions of transformers (tools/test)."""

import contextlib
import importlib.util
import io
import json
import os
import pathlib
import sys
import tempfile
import unittest

from hf_models import Words, gpt2, transformers
from played_services import Played
from ranks_torch import RanksTest, together
from support_torch import config_of, isolated, seeded
from terrace.hf import TerraceTrainer
from test_hf_ranks import meeting, meets
from transformers import TrainingArguments

FIGURES = {
    "terrace/" + name for name in ("h2d_bytes", "d2h_bytes", "nvme_read_bytes", "nvme_write_bytes", "wait_seconds")
}


class Reported(transformers.TrainerCallback):
    """As those of report_to are: it stands where they do, and keeps what it is told."""

    def __init__(self):
        self.logs, self.is_first = [], None

    def on_log(self, arguments, state, control, logs=None, **_):
        self.is_first = state.is_world_process_zero
        self.logs.append(dict(logs, step=state.global_step))


class Reports(RanksTest):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)

    def trainer(self, count=1, callbacks=(), options=(), sections=(), places=(), **more):
        meets(count)
        arguments = TrainingArguments(
            **dict(
                output_dir=str(self.folder / "out"),
                per_device_train_batch_size=2,
                gradient_accumulation_steps=2,
                learning_rate=1e-2,
                max_steps=6,
                logging_steps=1,
                save_strategy="no",
                report_to=[],
                use_cpu=True,
                disable_tqdm=True,
                max_grad_norm=0.5,
                dataloader_pin_memory=False,
            )
            | more
        )
        config = config_of(**dict(places))
        return TerraceTrainer(
            model=seeded(gpt2),
            args=arguments,
            train_dataset=Words(),
            callbacks=list(callbacks),
            terrace_config={**{name: config[name] for name in ("zero_optimization", "terrace")}, **dict(sections)},
            terrace_options={"persistence_threshold": 128, **dict(options)},
        )

    def trained(self, resume=None, **named):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            trainer = self.trainer(**named)
            trainer.train(resume_from_checkpoint=resume)
        trainer.engine.close()
        return trainer, printed.getvalue()

    @isolated
    def test_they_have_the_engines_numbers_and_what_moved(self):
        reported, path = Reported(), self.folder / "steps.jsonl"
        (self.folder / "nvme").mkdir()
        trainer, printed = self.trained(
            callbacks=[reported],
            options={"step_log": path},
            places={"states": "nvme", "folder": self.folder / "nvme", "host_memory": "440KiB"},
            logging_steps=2,
        )
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        steps = [line for line in lines if line["event"] == "step"]
        logs = [one for one in reported.logs if "loss" in one]
        self.assertEqual([one["step"] for one in logs], [2, 4, 6])
        for log, first, last in zip(logs, steps[::2], steps[1::2]):
            self.assertEqual(set(log) & FIGURES, FIGURES)
            self.assertAlmostEqual(float(log["grad_norm"]), last["gradient_norm"], delta=1e-6)
            self.assertEqual(log["learning_rate"], last["lr"])
            self.assertAlmostEqual(log["loss"], (first["loss"] + last["loss"]) / 2, delta=1e-4)  # rounded
        # The counters of the first log begin where the training does, as those of the log of steps.
        for log, first, last in zip(logs, steps[::2], steps[1::2]):
            for name, keys in (("h2d", ["h2d"]), ("nvme_read", ["record_read", "param_read", "gradient_read"])):
                moved = sum(line[f"{key}_bytes"] for key in keys for line in (first, last))
                self.assertEqual(log[f"terrace/{name}_bytes"], moved / 2)
            for name in ("h2d", "nvme_read", "nvme_write"):
                self.assertGreater(log[f"terrace/{name}_bytes"], 0)
        self.assertFalse(any(FIGURES & set(one) for one in trainer.state.log_history))
        self.assertIn("'loss'", printed)
        self.assertNotIn("terrace/", printed)

    @isolated
    def test_monitors_count_sequences_and_go_on_with_the_checkpoint_of_the_trainer(self):
        csv = {"enabled": True, "output_path": str(self.folder), "job_name": "csv"}
        sections = {"csv_monitor": csv, "train_micro_batch_size_per_gpu": "auto"}
        reported = Reported()
        saving = dict(save_strategy="steps", save_steps=3, sections=sections)
        self.trained(callbacks=[reported], **saving)
        self.trained(resume=str(self.folder / "out" / "checkpoint-3"), **saving)

        def rows(name):
            path = self.folder / "csv" / f"Train_Samples_{name}.csv"
            return [row.split(",") for row in path.read_text().split()[1:]]

        logs = [one for one in reported.logs if "loss" in one]
        for name, of_trainer in (("train_loss", "loss"), ("lr", "learning_rate"), ("gradient_norm", "grad_norm")):
            self.assertEqual([row[0] for row in rows(name)], ["4", "8", "12", "16", "20", "24"])
            for row, log in zip(rows(name), logs, strict=True):
                self.assertAlmostEqual(float(row[1]), float(log[of_trainer]), delta=1e-4)  # rounded

    @isolated
    def test_tensorboard(self):
        if importlib.util.find_spec("tensorboard") is None:
            self.skipTest("tensorboard is not installed")
        os.environ["TENSORBOARD_LOGGING_DIR"] = str(self.folder / "tensorboard")
        self.trained(report_to=["tensorboard"])
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        found = EventAccumulator(str(self.folder / "tensorboard"))
        found.Reload()
        for name in ("loss", "grad_norm", "learning_rate", *FIGURES):
            self.assertEqual([one.step for one in found.Scalars(f"train/{name}")], [1, 2, 3, 4, 5, 6])

    def test_of_several_ranks_the_first_one_reports(self):
        def body(rank):
            sys.path.insert(0, str(self.folder))
            played = Played(self.folder, rank_variable="RANK")
            reported = Reported()
            self.trained(count=2, callbacks=[reported], sections={"wandb": {"enabled": True}})
            return reported.is_first, [one["step"] for one in reported.logs if "loss" in one], played.calls()

        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            ends = together(2, lambda rank: body(rank), meeting(folder, 2))
        for end in ends:
            self.assertFalse(end.text or end.signal_number, end.text)
        self.assertEqual([end.value[0] for end in ends], [True, False])
        self.assertEqual([end.value[1] for end in ends], [[1, 2, 3, 4, 5, 6]] * 2)
        calls = ends[0].value[2]
        self.assertEqual({one["rank"] for one in calls}, {"0"})
        self.assertEqual([one["step"] for one in calls if one["call"] == "log"], [8, 16, 24, 32, 40, 48])


if __name__ == "__main__":
    unittest.main()
