"""Runs an example of examples/python and reads the losses that it prints."""

import importlib.util
import os
import re
import subprocess
import sys
import unittest

from support_torch import ROOT


class ExampleCase(unittest.TestCase):
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
