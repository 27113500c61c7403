"""The examples run as they are."""

import subprocess
import sys
import unittest

from support import PREAMBLE, ROOT


class Examples(unittest.TestCase):
    def test_the_network_of_numpy_learns(self):
        path = ROOT / "examples/python/mlp_numpy.py"
        code = f"{PREAMBLE}import runpy; runpy.run_path({str(path)!r}, run_name='__main__')"
        done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        self.assertEqual(done.returncode, 0)
        self.assertRegex(done.stdout, r"^loss 1\.\d+ -> 0\.00\d+\n$")


if __name__ == "__main__":
    unittest.main()
