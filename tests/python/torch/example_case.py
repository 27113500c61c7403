"""Runs an example of examples/python and reads the losses that it prints. Each imports what it needs itself, so nothing
of torch is imported here."""

import importlib.util
import os
import pathlib
import re
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]


class ExampleCase(unittest.TestCase):
    def losses(self, name, module, *arguments, processes=1):
        for needed in ("torch", module):
            if importlib.util.find_spec(needed) is None:
                self.skipTest(f"{needed} is not installed")
        environment = dict(os.environ, PYTHONPATH=str(ROOT / "python"), OMP_NUM_THREADS="1", PYTHONWARNINGS="ignore")
        launcher = (
            ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"] if processes > 1 else []
        )
        run = subprocess.run(
            [sys.executable, *launcher, str(ROOT / "examples" / "python" / name), *arguments],
            env=environment,
            capture_output=True,
            text=True,
        )
        self.assertEqual(run.returncode, 0, run.stderr)
        return [float(found) for found in re.findall(r"loss'?:? '?([0-9.]+)", run.stdout)], run.stdout
