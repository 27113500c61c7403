#!/usr/bin/env python3
"""generate_config_keys.py: writes terrace/config_keys.tsv, the tables of docs/config.md, which the program writes.

A line is a key: its path, what values it takes, its default, its effect, and the note. `--check` compares instead
of writing.
"""

import argparse
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "config.md"
OUTPUT = ROOT / "python" / "terrace" / "config_keys.tsv"


def rows(text):
    section, inside = "", False
    for line in text.splitlines():
        if line.startswith("## "):
            section = "" if line == "## Top level" else line[3:] + "."
            inside = False
        elif line.startswith("| key | value |"):
            inside = True
        elif inside and line.startswith("| `"):
            key, *cells = (cell.strip() for cell in line.strip("|\n").split("|"))
            yield section + key.strip("`"), *cells


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    wanted = "".join("\t".join(row) + "\n" for row in rows(PAGE.read_text(encoding="utf-8")))
    if not parser.parse_args().check:
        OUTPUT.write_text(wanted, encoding="utf-8")
    elif OUTPUT.read_text(encoding="utf-8") != wanted:
        sys.exit(f"{OUTPUT.name} is not what {PAGE.name} says: run {pathlib.Path(__file__).name}")


if __name__ == "__main__":
    main()
