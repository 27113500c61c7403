#!/usr/bin/env python3
"""generate_config_keys.py: writes what the package knows of keys from what the program knows.

terrace/config_keys.tsv has the tables of docs/config.md, which the program writes: a line is a key, with its path, what
values it takes, its default, its effect, and the note. terrace/config_other_names.tsv has the names that other programs
have for keys, from the source of the program's suggestions. `--check` compares instead of writing.
"""

import argparse
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "config.md"
SUGGESTIONS = ROOT / "runtime" / "config" / "schema" / "suggestions.cpp"
PACKAGE = ROOT / "python" / "terrace"


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


def other_names(text):
    found = re.search(r"kOtherNames = .*?\(\{\n(.*?)\n\}\);", text, re.S)
    names = re.findall(r'\{"([^"]+)", "([^"]+)"\},', found[1]) if found else []
    if not names or len(names) != len(found[1].splitlines()):
        sys.exit(f"{SUGGESTIONS.name}: cannot read kOtherNames")
    return names


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    is_check = parser.parse_args().check
    for name, found, source in (
        ("config_keys.tsv", rows(PAGE.read_text(encoding="utf-8")), PAGE),
        ("config_other_names.tsv", other_names(SUGGESTIONS.read_text(encoding="utf-8")), SUGGESTIONS),
    ):
        wanted, output = "".join("\t".join(row) + "\n" for row in found), PACKAGE / name
        if not is_check:
            output.write_text(wanted, encoding="utf-8")
        elif not output.exists() or output.read_text(encoding="utf-8") != wanted:
            sys.exit(f"{name} is not what {source.name} says: run {pathlib.Path(__file__).name}")


if __name__ == "__main__":
    main()
