"""What the tests of wheels share: pip without network, and processes that see nothing of the tree."""

import ensurepip
import os
import pathlib
import subprocess

# A program that says where the package and its library are, and what a store gives.
STORE = """
import os, terrace
from terrace import _lib
store = terrace.Store([terrace.Tensor("w", (4,))], terrace.SimulatedDevice(1 << 20), host_bytes=8 << 20)
store.fill_arrays({"w": memoryview(bytes(16)).cast("f")})
print(os.path.dirname(terrace.__file__), _lib.library_path(), store.read_values("w").tolist())
"""


def pip_command():
    """Arguments of a Python that make it pip, before pip's own. It runs from the wheel that Python brings along, which
    Debian has elsewhere: to install it first takes longer than all else here."""
    folders = [pathlib.Path(ensurepip.__file__).parent / "_bundled", pathlib.Path("/usr/share/python-wheels")]
    wheel = next(wheel for folder in folders for wheel in sorted(folder.glob("pip-*.whl")))
    run = (
        f"import runpy, sys; sys.path.insert(0, {str(wheel)!r}); sys.argv[0] = 'pip'; "
        "runpy.run_module('pip', run_name='__main__')"
    )
    return ["-c", run]


def sheltered(test, command, folder, kept=("PATH", "HOME", "LD_LIBRARY_PATH"), **more):
    """What a process says that has none of the variables by which the tests find the tree. It has to succeed."""
    names = {name: os.environ[name] for name in kept if name in os.environ}
    environment = {**names, **more}
    done = subprocess.run(
        command, cwd=folder, text=True, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    test.assertEqual(done.returncode, 0, done.stdout)
    return done.stdout
