"""`python -m terrace.quickstart [options of "terrace train"...]`: trains a small GPT-2 in less memory than it needs.

Its parameters and optimizer states lie on disk. Of 44.7 MB of parameters a quarter has room on the device, which has
26.7 MB in all; the host has a third of the 268 MB of states. An option given here replaces a default below; --nvme-path
should name a folder on the fastest disk there is. The text is on every machine with Python: its library's own sources.
"""

from __future__ import annotations

import os
import pathlib
import shlex
import signal
import subprocess
import sys
import sysconfig
import tempfile

from .__main__ import program_path
from .errors import IoError
from .system import reason_of

_TEXT_BYTES = 2_500_000
_SHAPE = {"--model": "gpt2", "--layers": "7", "--width": "512", "--heads": "8", "--context": "256"}
_BUDGETS = {"--device-memory": "25.5MiB", "--host-memory": "84MiB"}


def main() -> int:
    options = sys.argv[1:]
    if options[:1] == ["--"]:
        del options[0]
    # Flags may be spelt with underscores.
    given = {option.partition("=")[0].replace("_", "-") for option in options if option.startswith("--")}
    if "--nvme-path" not in given:
        print("what this run keeps on nvme is removed at its end; with --nvme-path DIR it stays", file=sys.stderr)
    with _folder() as folder:
        defaults = _defaults(pathlib.Path(folder).absolute(), given)
        chosen = [word for flag, value in defaults.items() if flag not in given for word in (flag, value)]
        command = [program_path(), "train", *chosen, *options]
        print(shlex.join(command), file=sys.stderr)
        # Ctrl-C is the program's, which stops behind a step; this process waits for it.
        signal.signal(signal.SIGINT, lambda *_: None)
        status = subprocess.run(command).returncode
    if "--nvme-path" not in given:
        print(f"removed {folder}, with the state in it", file=sys.stderr)
    return status


def _folder() -> tempfile.TemporaryDirectory[str]:
    """Not in /tmp, which may be memory."""
    place = os.environ.get("TMPDIR", os.getcwd())
    try:
        return tempfile.TemporaryDirectory(prefix="terrace-quickstart-", dir=place)
    except OSError as error:
        advice = "start it in a folder that you may write to, or name one in TMPDIR"
        sys.exit(str(IoError("cannot make a folder for the run in", place, reason_of(error), advice)))


def _defaults(folder: pathlib.Path, given: set[str]) -> dict[str, str]:
    nvme, text = folder / "nvme", folder / "text"
    nvme.mkdir()
    text.mkdir()
    if "--data" not in given:
        _write_text(text / "library.txt")
    config = pathlib.Path(__file__).with_name("quickstart.json")
    lasting = {"--data": str(text), "--config": str(config), "--nvme-path": str(nvme), "--steps": "60"}
    return {**_SHAPE, **lasting, **_BUDGETS}


def _write_text(path: pathlib.Path) -> None:
    """The modules of Python's library, in the order of their names."""
    with path.open("wb") as out:
        for module in sorted(pathlib.Path(sysconfig.get_path("stdlib")).glob("*.py")):
            out.write(module.read_bytes()[: _TEXT_BYTES - out.tell()])


if __name__ == "__main__":
    sys.exit(main())
