"""The programs that pages show run as they stand, and do what the page says."""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]


def programs_of(page):
    """The blocks of Python that are whole programs: those that import terrace and print what they reached."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / page).read_text(), re.S)
    return [block for block in blocks if re.search("^(import|from) terrace", block, re.M) and "\nprint(" in block]


class Pages(unittest.TestCase):
    def run_here(self, folder, *arguments):
        environment = dict(os.environ, PYTHONPATH=str(ROOT / "python"), OMP_NUM_THREADS="1")
        run = subprocess.run(
            [sys.executable, "-W", "ignore", *arguments], cwd=folder, env=environment, capture_output=True, text=True
        )
        self.assertEqual(run.returncode, 0, run.stderr)
        return run.stdout

    def learns(self, folder, program):
        said = self.run_here(folder, "-c", program)
        self.assertLess(float(re.search(r"^loss ([0-9.]+)", said).group(1)), 0.05, said)

    def test_the_programs_of_the_pages_on_python_learn(self):
        programs = programs_of("python.md") + programs_of("python_without_engine.md")
        self.assertEqual(len(programs), 3)
        for program in programs:
            with self.subTest(program.splitlines()[1]), tempfile.TemporaryDirectory() as folder:
                self.learns(folder, program)

    def test_the_first_five_minutes_end_with_the_page_of_a_run(self):
        (program,) = programs_of("first_five_minutes.md")
        self.assertEqual(re.findall(r"  # (\d)\b", program), ["1", "2", "3"])
        with tempfile.TemporaryDirectory() as folder:
            self.learns(folder, program)
            self.assertEqual(len(pathlib.Path(folder, "steps.jsonl").read_text().splitlines()) > 100, True)
            if "TERRACE_PROGRAM" not in os.environ:
                self.skipTest("the program is not built here")
            page = (ROOT / "docs" / "first_five_minutes.md").read_text()
            (command,) = re.findall(r"^terrace (report .*)$", page, re.M)
            self.run_here(folder, "-m", "terrace", *command.split())
            self.assertIn("<html", pathlib.Path(folder, "run.html").read_text())


if __name__ == "__main__":
    unittest.main()
