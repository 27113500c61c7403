"""How docstrings of this tree become Markdown: lines that say what an argument is are a list, indented code is code."""

from __future__ import annotations

import re
from typing import Any

import griffe

_ARGUMENT = re.compile(r"^([a-z_]\w*(?:, [a-z_]\w*)*): ")


class Docstrings(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)


def as_markdown(text: str) -> str:
    lines: list[str] = []
    in_list = False
    for line in text.splitlines():
        found = _ARGUMENT.match(line)
        if found and not in_list:
            lines.append("")  # a list begins behind an empty line
        if found:
            line = f"- `{found[1]}`: {line[found.end() :]}"
        in_list = bool(found) or (in_list and line.startswith("    "))
        lines.append(line)
    return "\n".join(lines)
