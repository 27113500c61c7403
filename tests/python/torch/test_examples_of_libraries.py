"""The examples of examples/python over transformers and PEFT learn something."""

import tempfile
import unittest

from example_case import ExampleCase


class Examples(ExampleCase):
    def test_hf_trainer(self):
        with tempfile.TemporaryDirectory() as folder:
            losses, text = self.losses("hf_trainer.py", "transformers", "--output", folder)
        self.assertLess(losses[3], losses[0] - 0.5)
        self.assertIn("saved and loaded", text)

    def test_lora_peft(self):
        with tempfile.TemporaryDirectory() as folder:
            losses, text = self.losses("lora_peft.py", "peft", "--nvme-path", folder)
        self.assertLess(losses[-1], losses[0] - 0.5)
        self.assertIn("are trained", text)


if __name__ == "__main__":
    unittest.main()
