"""The Trainer of transformers, unchanged, with a drop-in optimizer: it logs what it logs with torch's AdamW."""

import contextlib
import io
import os
import tempfile
import unittest

import terrace
from dropin_training import torch
from terrace.torch import OffloadAdamW

try:
    import transformers

    transformers.logging.set_verbosity_error()
except ImportError:
    transformers = None

SETTINGS = {"lr": 2e-3, "weight_decay": 0.05}


def tiny_model():
    torch.manual_seed(11)
    config = transformers.GPT2Config(
        vocab_size=97,
        n_positions=24,
        n_embd=48,
        n_layer=2,
        n_head=3,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
    )
    return transformers.GPT2LMHeadModel(config)


def texts():
    generator = torch.Generator().manual_seed(2)
    rows = torch.randint(0, 97, (48, 24), generator=generator)
    return [{"input_ids": row, "labels": row} for row in rows]


def trained(folder, optimizer, settings, resume=None, **arguments):
    """What the trainer has logged in every step, and the model."""
    given = transformers.TrainingArguments(
        output_dir=folder,
        max_steps=12,
        per_device_train_batch_size=4,
        logging_steps=1,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        lr_scheduler_type="cosine",
        warmup_steps=3,
        seed=5,
        dataloader_pin_memory=False,
        **{"save_strategy": "no", **arguments},
    )
    model = tiny_model()
    trainer = transformers.Trainer(
        model=model, args=given, train_dataset=texts(), optimizer_cls_and_kwargs=(optimizer, settings)
    )
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        trainer.train(resume_from_checkpoint=resume)
    return [entry for entry in trainer.state.log_history if "loss" in entry], model


@unittest.skipIf(transformers is None, "transformers is not installed")
class UnchangedTrainer(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def assert_alike(self, found, wanted):
        """Losses and norms to six digits."""
        self.assertEqual(len(found), len(wanted))
        for mine, its in zip(found, wanted):
            self.assertEqual(mine["learning_rate"], its["learning_rate"])
            for key in ("loss", "grad_norm"):
                self.assertAlmostEqual(mine[key] / its[key], 1, delta=1e-6, msg=f"{key} of step {its['step']}")

    def test_it_logs_what_it_logs_with_torch(self):
        for accumulation in (1, 2):
            with self.subTest(accumulation=accumulation):
                settings = {"gradient_accumulation_steps": accumulation}
                wanted, _ = trained(self.folder, torch.optim.AdamW, SETTINGS, **settings)
                found, _ = trained(self.folder, OffloadAdamW, SETTINGS, **settings)
                self.assert_alike(found, wanted)
                self.assertEqual(len(wanted), 12)
                self.assertGreater(max(entry["grad_norm"] for entry in wanted), 1.0)  # so that it has clipped

    def test_it_resumes_from_its_own_checkpoint(self):
        options = {**SETTINGS, "states": "nvme", "path": self.folder}
        run, again = os.path.join(self.folder, "run"), os.path.join(self.folder, "again")
        saving = {"save_strategy": "steps", "save_steps": 6}
        wanted, whole = trained(run, OffloadAdamW, options, **saving)
        found, resumed = trained(again, OffloadAdamW, options, os.path.join(run, "checkpoint-6"), **saving)
        self.assertEqual([entry["loss"] for entry in found[-6:]], [entry["loss"] for entry in wanted[-6:]])
        for mine, its in zip(resumed.parameters(), whole.parameters()):
            self.assertTrue(torch.equal(mine, its))

    def test_gradients_that_left_in_backward_are_not_clipped_in_silence(self):
        with self.assertRaisesRegex(terrace.MisuseError, "max_grad_norm"):
            trained(self.folder, OffloadAdamW, {**SETTINGS, "hand_over": "backward"})


if __name__ == "__main__":
    unittest.main()
