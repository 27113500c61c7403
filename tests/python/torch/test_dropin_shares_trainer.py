"""The Trainer of transformers on two ranks, with a drop-in optimizer whose states they share: it saves, and goes on."""

import contextlib
import io
import os
import unittest

from dropin_ranks import RanksTestCase, bits_of, of_ranks
from terrace.torch import OffloadAdamW
from test_dropin_trainer import SETTINGS, texts, tiny_model, transformers

SAVED = 4  # steps


if transformers is not None:

    class Consolidates(transformers.TrainerCallback):
        """That of docs/dropin_ranks.md."""

        def on_step_end(self, args, state, control, optimizer=None, **_):
            if control.should_save:
                optimizer.optimizer.consolidate_state_dict()


def trained(rank, count, folder, ranks, resume=None):
    """Whether states are shared, the losses, and the bits of the model."""
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 1}
    os.environ.update({name: str(value) for name, value in place.items()}, ACCELERATE_USE_CPU="true")
    given = transformers.TrainingArguments(
        output_dir=folder,
        max_steps=2 * SAVED,
        per_device_train_batch_size=2,
        logging_steps=1,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        seed=5,
        dataloader_pin_memory=False,
        save_strategy="steps",
        save_steps=SAVED,
        ddp_backend="gloo",
        ddp_find_unused_parameters=False,
    )
    trainer = transformers.Trainer(
        model=tiny_model(),
        args=given,
        train_dataset=texts(),
        optimizer_cls_and_kwargs=(OffloadAdamW, {**SETTINGS, "ranks": ranks}),
        callbacks=[Consolidates()],
    )
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        trainer.train(resume_from_checkpoint=resume)
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return trainer.optimizer.optimizer._states.group is not None, losses, bits_of(trainer.model)


@unittest.skipIf(transformers is None, "transformers is not installed")
class Trainer(RanksTestCase):
    def test_it_saves_and_goes_on_bit_by_bit(self):
        shared = of_ranks(2, trained, 2, f"{self.folder}/shared", "auto")
        self.assertEqual([rank[0] for rank in shared], [True, True])
        self.assert_all_equal(shared)
        checkpoint = f"{self.folder}/shared/checkpoint-{SAVED}"
        self.assertEqual(of_ranks(2, trained, 2, f"{self.folder}/again", "auto", checkpoint), shared)
        whole = of_ranks(2, trained, 2, f"{self.folder}/whole", "whole")
        self.assertEqual([rank[1:] for rank in whole], [rank[1:] for rank in shared])


if __name__ == "__main__":
    unittest.main()
