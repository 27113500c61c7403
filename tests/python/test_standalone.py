"""A wheel of tools/wheel: it needs nothing but Python and glibc, and serves a user who is not root.

What it holds is linked from the objects of the build whose tests these are. That build has to have what `tools/wheel
--parts` makes; tools/test sees to that."""

import os
import pathlib
import pwd
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

from installing import STORE, pip_command, sheltered
from support import ROOT

# Beside glibc's own: the library of GCC that unwinds, which every process with exceptions shares.
SYSTEM = {"libc.so.6", "libm.so.6", "libgcc_s.so.1", "ld-linux-x86-64.so.2"}
NEWEST_GLIBC = 35
MOST_BYTES = 15_000_000
# Tests of the package that need neither other packages nor the tree.
INSTALLED = ("test_store", "test_safetensors", "test_accidents")


@unittest.skipUnless(
    os.environ.get("TERRACE_STANDALONE"),
    "the build has no third parties to put into a wheel: TERRACE_PARTS is what `tools/wheel --parts` makes",
)
class Standalone(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        # In a place that every user may enter.
        folder = tempfile.TemporaryDirectory(dir="/var/tmp")
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        cls.user = []
        if os.geteuid() == 0:
            cls.user = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups", "--"]
            os.chown(cls.folder, pwd.getpwnam("nobody").pw_uid, -1)
        cls.tree = os.environ["TERRACE_STANDALONE"]
        made = subprocess.run(
            [ROOT / "tools/wheel", "--tree", cls.tree, "--to", cls.folder],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        cls.wheel = pathlib.Path(made.stdout.strip())
        cls.wheel.chmod(0o644)
        cls.environment = cls.folder / "environment"

    def run_as_user(self, *command):
        return sheltered(self, [*self.user, *command], self.folder, kept=("PATH",), HOME=str(self.folder))

    def test_it_is_small_and_asks_of_a_machine_what_its_tag_says(self):
        (glibc,) = re.findall(r"-py3-none-manylinux_2_(\d+)_\w+\.whl$", self.wheel.name)
        self.assertLessEqual(int(glibc), NEWEST_GLIBC)
        self.assertLessEqual(self.wheel.stat().st_size, MOST_BYTES)
        auditwheel = ROOT / "build/python/bin/auditwheel"
        if not auditwheel.exists():
            self.skipTest("auditwheel is not installed in build/python")
        said = sheltered(self, [auditwheel, "show", self.wheel], self.folder)
        self.assertIn(f'tag: "{self.wheel.stem.split("-none-")[1]}"', " ".join(said.split()))

    def test_its_binaries_need_nothing_but_what_every_system_has(self):
        for name in ("libterrace.so.0", "terrace"):
            dynamic = subprocess.run(
                ["readelf", "--dynamic", os.path.join(self.tree, "standalone", name)],
                env={**os.environ, "LC_ALL": "C"},
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            ).stdout
            with self.subTest(name):
                self.assertLessEqual(set(re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic)), SYSTEM)
                self.assertNotRegex(dynamic, r"\((RPATH|RUNPATH)\)")

    def test_a_user_installs_it_and_trains(self):
        python, program = self.environment / "bin/python", self.environment / "bin/terrace"
        self.run_as_user(sys.executable, "-m", "venv", "--without-pip", self.environment)
        self.run_as_user(python, *pip_command(), "install", "--quiet", "--no-index", "--no-compile", self.wheel)
        package, library, values = self.run_as_user(python, "-c", STORE).split(" ", 2)
        self.assertTrue(package.startswith(str(self.environment)), package)
        self.assertTrue(library.startswith(package), library)
        self.assertEqual(values, "[0.0, 0.0, 0.0, 0.0]\n")
        version = self.run_as_user(program, "--version")
        self.assertRegex(version, r"^terrace [\d.]+\n")
        self.assertEqual(self.run_as_user(python, "-m", "terrace", "--version"), version)
        small = ["--layers", "1", "--width", "32", "--heads", "2", "--context", "32", "--steps", "2"]
        said = self.run_as_user(python, "-m", "terrace.quickstart", *small)
        self.assertIn("2 of 2 steps done", said)
        self.assertEqual([path.name for path in self.folder.glob("terrace-quickstart-*")], [])
        self.run_tests_of_the_package(python)

    def run_tests_of_the_package(self, python):
        """From a copy that has no package beside it."""
        tests = self.folder / "tests/python"
        tests.mkdir(parents=True)
        for name in ("support", *INSTALLED):
            shutil.copy(ROOT / f"tests/python/{name}.py", tests)
        said = sheltered(
            self, [*self.user, python, "-m", "unittest", *INSTALLED], tests, kept=("PATH",), HOME=str(self.folder)
        )
        self.assertRegex(said, r"Ran \d\d+ tests")


if __name__ == "__main__":
    unittest.main()
