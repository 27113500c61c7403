"""`python -m terrace`, and the command `terrace` of a wheel that has the program: the program, in this process's place."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from .errors import IoError


def program_path() -> str:
    """TERRACE_PROGRAM's, else the one of this package; only wheels of tools/wheel have it. Ends the process without one."""
    folder = os.path.dirname(os.path.abspath(__file__))
    path = os.environ.get("TERRACE_PROGRAM") or os.path.join(folder, "bin", "terrace")
    if os.access(path, os.X_OK):
        return path
    error = IoError(
        "cannot run the program terrace",
        path,
        "it is not there, or you may not run it",
        "install a wheel that tools/wheel has made, or set TERRACE_PROGRAM to a built program",
    )
    sys.exit(str(error))


def main() -> NoReturn:
    os.execv(program_path(), ["terrace", *sys.argv[1:]])


if __name__ == "__main__":
    main()
