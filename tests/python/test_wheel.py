"""The package as pip installs it, from the tree and without network. The library is the one that was built."""

import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest
import unittest.mock
import zipfile

from installing import STORE, pip_command, sheltered
from support import ROOT
from terrace import _lib

sys.path.insert(0, str(ROOT / "python"))
import build_backend


class InFolder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.library = pathlib.Path(_lib.library_path()).resolve()

    def install(self, *arguments):
        """Of the package, without network, by what else pip is told."""
        quiet = ["--quiet", "--no-index", "--no-deps", "--disable-pip-version-check"]
        return [*pip_command(), *arguments, *quiet, "--config-settings", f"library={self.library}"]

    def run_in(self, environment, *arguments):
        """Of a process that finds nothing but what is installed."""
        return sheltered(self, [environment / "bin/python", "-I", *arguments], self.folder)


class Wheels(InFolder):
    def build(self):
        name = build_backend.build_wheel(self.folder, {"library": str(self.library)})
        return self.folder / name

    def test_a_wheel_is_small_serves_every_python_and_is_the_same_each_time(self):
        wheel = self.build()
        self.assertRegex(wheel.name, r"^terrace-[\d.]+-py3-none-linux_\w+\.whl$")
        self.assertLessEqual(wheel.stat().st_size, 3_000_000)
        first = wheel.read_bytes()
        self.assertEqual(self.build().read_bytes(), first)

    def test_its_record_names_every_file(self):
        with zipfile.ZipFile(self.build()) as archive:
            names = archive.namelist()
            record = archive.read(names[-1]).decode().splitlines()
            self.assertEqual([line.split(",")[0] for line in record], names)
            for line in record[:-1]:
                name, digest, size = line.split(",")
                content = archive.read(name)
                self.assertEqual((digest, int(size)), ("sha256=" + build_backend._digest(content), len(content)))
        self.assertIn("terrace/py.typed", names)
        self.assertEqual(
            [name for name in names if "__pycache__" in name or name.startswith("terrace/lib/")],
            [f"terrace/lib/{_lib.SONAME}"],
        )

    def test_where_the_program_or_room_is_missing_a_command_says_so(self):
        environment = {"PYTHONPATH": str(ROOT / "python"), "PATH": os.environ["PATH"]}
        for module, more, words in (
            ("terrace", {}, "cannot run the program terrace .*tools/wheel"),
            ("terrace.quickstart", {"TERRACE_PROGRAM": "/nowhere"}, 'cannot run the program terrace "/nowhere"'),
            (
                "terrace.quickstart",
                {"TERRACE_PROGRAM": "/bin/true", "TMPDIR": "/nowhere"},
                "a folder for the run .*TMPDIR",
            ),
        ):
            with self.subTest(f"{module} {more}"):
                done = subprocess.run(
                    [sys.executable, "-m", module], env={**environment, **more}, text=True, stderr=subprocess.PIPE
                )
                self.assertEqual(done.returncode, 1)
                self.assertRegex(" ".join(done.stderr.split()), words)

    def test_the_metadata_are_those_of_the_wheel(self):
        info = build_backend.prepare_metadata_for_build_wheel(self.folder)
        with zipfile.ZipFile(self.build()) as archive:
            for name in ("METADATA", "WHEEL"):
                self.assertEqual(archive.read(f"{info}/{name}"), (self.folder / info / name).read_bytes())

    def test_the_extras_of_the_project_are_in_the_metadata(self):
        try:
            import tomllib
        except ImportError:
            self.skipTest("this Python cannot read TOML")
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        info = build_backend.prepare_metadata_for_build_wheel(self.folder)
        lines = (self.folder / info / "METADATA").read_text().partition("\n\n")[0].splitlines()
        self.assertEqual(
            [line for line in lines if line.startswith("Provides")], [f"Provides-Extra: {one}" for one in extras]
        )
        self.assertEqual(
            [line for line in lines if line.startswith("Requires-Dist")],
            [f"Requires-Dist: {need} ; extra == '{one}'" for one, needs in extras.items() for need in needs],
        )

    def test_pip_installs_it_without_network_and_it_runs_by_itself(self):
        environment = self.folder / "environment"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
        self.run_in(environment, *self.install("install", "--no-compile"), str(ROOT))
        package, library, values = self.run_in(environment, "-c", STORE).split(" ", 2)
        self.assertTrue(package.startswith(str(environment)), package)
        self.assertEqual(library, f"{package}/lib/{_lib.SONAME}")
        self.assertTrue(pathlib.Path(package, "py.typed").is_file())
        self.assertEqual(values, "[0.0, 0.0, 0.0, 0.0]\n")


class Sources(InFolder):
    def setUp(self):
        super().setUp()
        # A copy of some of the tree, because a build writes to it.
        self.tree = self.folder / "tree"
        for part in ("python", "capi"):
            shutil.copytree(ROOT / part, self.tree / part, ignore=shutil.ignore_patterns("lib", "__pycache__"))
        for part in ("CMakeLists.txt", "README.md", "LICENSE", "pyproject.toml"):
            shutil.copy(ROOT / part, self.tree / part)

    def answer_of(self, call):
        code = f"import sys; sys.path.insert(0, 'python'); import build_backend; print(build_backend.{call})"
        return subprocess.run(
            [sys.executable, "-c", code], cwd=self.tree, check=True, text=True, stdout=subprocess.PIPE
        ).stdout.strip()

    def test_an_editable_install_points_at_the_tree_and_at_the_library(self):
        settings = {"library": str(self.library)}
        wheel = self.answer_of(f"build_editable({str(self.folder)!r}, {settings!r})")
        with zipfile.ZipFile(self.folder / wheel) as archive:
            self.assertEqual(archive.read("terrace.pth").decode(), f"{self.tree / 'python'}\n")
        self.assertEqual((self.tree / "python/terrace/lib" / _lib.SONAME).resolve(), self.library)

    def test_the_source_holds_what_a_build_needs_and_nothing_built(self):
        for built in ("build/x.o", "build-asan/x.o", ".cache/x", "PKG-INFO", "python/__pycache__/x.pyc"):
            (self.tree / built).parent.mkdir(parents=True, exist_ok=True)
            (self.tree / built).write_text("built")
        with tarfile.open(self.folder / self.answer_of(f"build_sdist({str(self.folder)!r})")) as archive:
            names = {name.split("/", 1)[1] for name in archive.getnames()}
            info = next(name for name in archive.getnames() if name.endswith("PKG-INFO"))
            self.assertIn(b"Name: terrace", archive.extractfile(info).read())
        here = {path.relative_to(self.tree).as_posix() for path in self.tree.rglob("*") if path.is_file()}
        self.assertEqual(here - names, {"build/x.o", "build-asan/x.o", ".cache/x", "python/__pycache__/x.pyc"})
        self.assertEqual(names - here, set())
        self.assertTrue({"tools/setup", "capi/terrace.h", "python/build_backend.py"} <= set(build_backend._tree()))

    def test_pip_makes_a_wheel_of_the_source(self):
        source = self.folder / build_backend.build_sdist(self.folder)
        environment = self.folder / "environment"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
        self.run_in(environment, *self.install("wheel", "--wheel-dir", self.folder), source)
        (wheel,) = self.folder.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            self.assertIn(f"terrace/lib/{_lib.SONAME}", archive.namelist())

    def test_a_library_that_is_not_there_is_named(self):
        with self.assertRaisesRegex(SystemExit, "there is no library /nowhere.so"):
            build_backend.build_wheel(self.folder, {"library": "/nowhere.so"})

    def test_without_cmake_the_advice_names_tools_setup(self):
        with unittest.mock.patch.dict(os.environ, {"PATH": "/nowhere"}):
            os.environ.pop("TERRACE_LIBRARY", None)
            with self.assertRaisesRegex(SystemExit, "tools/setup"):
                build_backend.build_wheel(self.folder)


if __name__ == "__main__":
    unittest.main()
