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


if __name__ == "__main__":
    unittest.main()
