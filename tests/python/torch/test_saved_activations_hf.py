"""Gradient checkpointing of Hugging Face: the inputs of its layers wait in the store, and no bit changes."""

import tempfile
import unittest
from unittest import mock

import hf_models
import torch
from support_torch import EngineTest, config_of, engine_of, isolated, masters, seeded
from terrace.torch.engine.passes import saved_inputs


class HuggingFace(EngineTest):
    def outcome(self, make, mode, use_reentrant, folder):
        with mock.patch.object(saved_inputs, "LEAST_BYTES", 1):
            model = seeded(make)
            model.train()
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": use_reentrant})
            config = config_of(offload_activations=mode)
            config["zero_optimization"]["offload_optimizer"]["nvme_path"] = folder
            engine = engine_of(model, config)
            losses = []
            for step in range(3):
                words = torch.randint(0, 64, (2, 9), generator=torch.Generator().manual_seed(step))
                loss = engine(input_ids=words, labels=words).loss
                engine.backward(loss)
                engine.step()
                losses.append(loss.item())
            moved = engine.store.step_counters()["activation_d2h"]
            result = losses, masters(engine)
            engine.close()
            return result, moved

    @isolated
    def test_both_kinds(self):
        with tempfile.TemporaryDirectory() as folder:
            for make in (hf_models.gpt2, hf_models.llama):
                for use_reentrant in (False, True):
                    plain, moved = self.outcome(make, "none", use_reentrant, folder)
                    self.assertEqual(moved, 0)
                    for mode in ("cpu", "auto"):
                        saved, moved = self.outcome(make, mode, use_reentrant, folder)
                        self.assertEqual(saved, plain)
                        self.assertEqual(moved, 2 * 2 * 9 * 32 * 4)  # of two layers


if __name__ == "__main__":
    unittest.main()
