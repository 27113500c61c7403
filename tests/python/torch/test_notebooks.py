"""The notebooks of examples/notebooks run, in Jupyter where nbclient is installed, else as a program, and what they say is of
the form of the outputs that lie in them."""

import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
NOTEBOOKS = ROOT / "examples" / "notebooks"


def said(notebook):
    """The lines that the cells of a notebook have printed."""
    cells = [cell for cell in json.loads(notebook.read_text())["cells"] if cell["cell_type"] == "code"]
    return "".join("".join(output["text"]) for cell in cells for output in cell["outputs"])


def form_of(text):
    """Without numbers, which are those of a machine, and without how they are padded."""
    return re.sub(r"0x[0-9a-fp.+-]+|\d[\d.,]*", "N", re.sub(" +", " ", text)).splitlines()


class Notebooks(unittest.TestCase):
    def run_notebook(self, name):
        source = NOTEBOOKS / name
        environment = dict(os.environ, PYTHONPATH=str(ROOT / "python"), OMP_NUM_THREADS="1")
        with tempfile.TemporaryDirectory() as folder:
            copy = pathlib.Path(folder, name)
            command = [sys.executable, NOTEBOOKS / "run.py", source]
            in_jupyter = all(map(importlib.util.find_spec, ("nbclient", "ipykernel")))
            if in_jupyter:
                copy.write_text(source.read_text())
                command = [sys.executable, "-m", "nbclient.cli", "--inplace", copy]
            run = subprocess.run(command, env={**environment, "TMPDIR": folder}, capture_output=True, text=True)
            self.assertEqual(run.returncode, 0, run.stderr)
            self.assertEqual(list(pathlib.Path(folder).glob("terrace-*")), [], "a notebook leaves nothing behind")
            return said(copy) if in_jupyter else run.stdout

    def test_prove_it(self):
        self.assertEqual(form_of(self.run_notebook("prove_it.ipynb")), form_of(said(NOTEBOOKS / "prove_it.ipynb")))

    def test_the_half_of_terrace_of_from_deepspeed_zero3(self):
        if importlib.util.find_spec("deepspeed"):
            self.skipTest("DeepSpeed is installed, and its half compiles its optimizer for minutes")
        here, there = self.run_notebook("from_deepspeed_zero3.ipynb"), said(NOTEBOOKS / "from_deepspeed_zero3.ipynb")
        self.assertEqual(form_of(here)[1:], form_of(there)[6:])
        in_memory, in_files = map(float, re.findall(r"^after: peak (\d+) MiB", here, re.M))
        self.assertLess(in_files, in_memory - 300)


if __name__ == "__main__":
    unittest.main()
