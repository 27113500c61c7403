"""The scripts of examples/deepspeed learn something, alone and on two ranks, and know Terrace by their imports alone."""

import contextlib
import io
import os
import re
import runpy
import subprocess
import sys
import tempfile
import warnings

from ranks_torch import PATIENCE, RanksTest
from support_torch import ROOT

FOLDER = ROOT / "examples" / "deepspeed"
BERT = ("--deepspeed", "--deepspeed_config", str(FOLDER / "bert.json"))


class Scripts(RanksTest):
    def told(self, name, *arguments, count=1):
        """What the first rank has printed, and how many lines the others."""

        def on(rank):
            sys.argv = [name, *arguments]
            with contextlib.redirect_stdout(io.StringIO()) as out, warnings.catch_warnings():
                warnings.simplefilter("ignore")
                runpy.run_path(str(FOLDER / name), run_name="__main__")
            return out.getvalue()

        first, *others = self.on_ranks(count, on)
        self.assertEqual("".join(others), "")
        return first

    def losses(self, text):
        return [float(found) for found in re.findall(r"loss ([0-9.]+)", text)]

    def assert_alike(self, one, other):
        self.assertEqual(len(one), len(other))
        for loss, wanted in zip(one, other):
            self.assertAlmostEqual(loss, wanted, delta=2e-5)

    def test_only_imports_name_terrace(self):
        scripts = sorted(FOLDER.glob("*.py"))
        self.assertEqual([script.name for script in scripts], ["bert.py", "cifar.py", "hello.py"])
        for script in scripts:
            code = script.read_text().split('"""', 2)[2]
            named = [line for line in code.splitlines() if "terrace" in line.lower()]
            self.assertTrue(all(re.match(r"(import|from) terrace\.compat\.deepspeed\b", line) for line in named), named)

    def test_cifar(self):
        text = self.told("cifar.py")
        self.assertLess(self.losses(text)[-1], self.losses(text)[0] - 0.05)
        self.assert_alike(self.losses(self.told("cifar.py", count=2)), self.losses(text))
        of_experts = self.told_error("cifar.py", "--moe")
        self.assertIn("deepspeed.moe.layer.MoE", str(of_experts))

    def told_error(self, name, *arguments):
        sys.argv = [name, *arguments]
        with self.assertRaises(Exception) as caught:
            runpy.run_path(str(FOLDER / name), run_name="__main__")
        return caught.exception

    def test_bert(self):
        with tempfile.TemporaryDirectory() as folder:
            text = self.told("bert.py", *BERT, "--max_steps", "8", "--output", folder)
            self.assertEqual(os.listdir(folder), ["model.bin"])
        self.assertLess(self.losses(text)[-1], self.losses(text)[0] - 0.5)
        self.assert_alike(self.losses(self.told("bert.py", *BERT, "--max_steps", "8", count=2)), self.losses(text))

    def test_hello_goes_on_from_its_checkpoint(self):
        with tempfile.TemporaryDirectory() as folder:
            whole = self.told("hello.py", "--checkpoint_dir", folder, "--num_iterations", "12")
            again = self.told("hello.py", "--checkpoint_dir", folder, "--num_iterations", "12", "--load")
        self.assertEqual(self.losses(again), self.losses(whole)[8:])
        self.assertLess(self.losses(whole)[-1], self.losses(whole)[0] - 0.5)

    def test_hello_under_the_launcher(self):
        program = os.environ.get("TERRACE_PROGRAM")
        if not program:
            self.skipTest("TERRACE_PROGRAM names no program")
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, str(FOLDER / "hello.py"), "--checkpoint_dir", folder, "--num_iterations", "4"]
            run = subprocess.run(
                [program, "launch", "-n", "2", "--", *command],
                env=dict(os.environ, PYTHONPATH=str(ROOT / "python"), OMP_NUM_THREADS="1", PYTHONWARNINGS="ignore"),
                capture_output=True,
                text=True,
                timeout=PATIENCE,
            )
            self.assertEqual(run.returncode, 0, run.stderr)
            wanted = self.told("hello.py", "--checkpoint_dir", folder, "--num_iterations", "4")
        self.assert_alike(self.losses(run.stdout), self.losses(wanted))
