"""The examples of examples/python that have a loop of their own learn something."""

import os
import tempfile
import unittest

from example_case import ExampleCase


class Examples(ExampleCase):
    def test_nanogpt(self):
        with tempfile.TemporaryDirectory() as folder:
            losses, _ = self.losses("nanogpt.py", "torch", "--nvme-path", folder)
            self.assertEqual(os.listdir(folder), [])
        self.assertEqual(len(losses), 5)  # the last is with averaged weights
        self.assertLess(losses[-2], losses[0] - 1)
        self.assertLess(losses[-1], losses[0] - 1)

    def test_any_family(self):
        with tempfile.TemporaryDirectory() as folder:
            losses, _ = self.losses(
                "any_family.py", "transformers", "--nvme-path", folder, "--output", os.path.join(folder, "trained")
            )
            self.assertEqual(os.listdir(folder), ["trained"])
            self.assertIn("model.safetensors", os.listdir(os.path.join(folder, "trained")))
        self.assertLess(losses[-1], losses[0] - 0.5)

    def test_models_and_sequences_that_processes_share(self):
        for name in ("tensor_parallel.py", "sequence_parallel.py"):
            with self.subTest(name), tempfile.TemporaryDirectory() as folder:
                alone, _ = self.losses(name, "torch")
                together, _ = self.losses(name, "torch", "--nvme-path", folder, processes=2)
                self.assertLess(alone[-1], alone[0] - 1)
                self.assertEqual(len(together), len(alone))
                for one, of_two in zip(alone, together):
                    self.assertAlmostEqual(one, of_two, delta=2e-3)
                self.assertEqual(os.listdir(folder), [])


if __name__ == "__main__":
    unittest.main()
