"""The example of a pipeline learns something, and the same in two and four stages as in one process."""

import importlib.util
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]


class Pipeline(unittest.TestCase):
    def losses(self, stages):
        with tempfile.TemporaryDirectory() as folder:
            variables = {"PYTHONPATH": str(ROOT / "python"), "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
            if stages > 1:
                variables.update(TERRACE_RANKS=str(stages), TERRACE_MEET=os.path.join(folder, "meet"))
            program = [sys.executable, str(ROOT / "examples" / "python" / "pipeline_gpt_bigcode.py")]
            arguments = ["--stages", str(stages), "--steps", "10", "--nvme-path", folder]
            runs = [
                subprocess.Popen(
                    program + arguments,
                    env={**os.environ, **variables, **({"TERRACE_RANK": str(rank)} if stages > 1 else {})},
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
                for rank in range(stages)
            ]
            said = [run.communicate() for run in runs]
            for run, (_, errors) in zip(runs, said):
                self.assertEqual(run.returncode, 0, errors)
            self.assertEqual([name for name in os.listdir(folder) if name != "meet"], [])
        return re.findall(r"loss ([0-9.]+)", said[0][0])

    def test_pipeline_gpt_bigcode(self):
        for needed in ("torch", "transformers"):
            if importlib.util.find_spec(needed) is None:
                self.skipTest(f"{needed} is not installed")
        alone = self.losses(1)
        self.assertLess(float(alone[-1]), float(alone[0]))
        for stages in (2, 4):
            self.assertEqual(self.losses(stages), alone)


if __name__ == "__main__":
    unittest.main()
