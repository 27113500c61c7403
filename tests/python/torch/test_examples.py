"""The examples of examples/python that use torch learn something."""

import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import unittest

from support_torch import ROOT


class Examples(unittest.TestCase):
    def losses(self, name, module, *arguments):
        if module is not None and importlib.util.find_spec(module) is None:
            self.skipTest(f"{module} is not installed")
        environment = dict(
            os.environ, PYTHONPATH=str(ROOT / "python"), OMP_NUM_THREADS="1", PYTHONWARNINGS="ignore"
        )
        run = subprocess.run(
            [sys.executable, str(ROOT / "examples" / "python" / name), *arguments],
            env=environment,
            capture_output=True,
            text=True,
        )
        self.assertEqual(run.returncode, 0, run.stderr)
        return [float(found) for found in re.findall(r"loss'?:? '?([0-9.]+)", run.stdout)], run.stdout

    def test_nanogpt(self):
        with tempfile.TemporaryDirectory() as folder:
            losses, _ = self.losses("nanogpt.py", None, "--nvme-path", folder)
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
