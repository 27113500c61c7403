"""The text of a configuration: JSON with comments, trailing commas, and a missing comma where a line ends."""

import json
import re

from .errors import ConfigError

_STRING, _COMMENT = r'"(?:[^"\\\n]|\\.)*"', r"//[^\n]*|#[^\n]*|/\*.*?\*/"
_TOKEN = re.compile(rf"{_STRING}|{_COMMENT}|[\[\]{{}}:,]|\n|[^\S\n]+|[^\s\[\]{{}}:,\"]+|.", re.S)


def read_text(path):
    """The object that a file holds. Its keys stay where they are, so that line_of() finds them."""
    try:
        with open(path, encoding="utf-8-sig") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("cannot read the configuration", str(path), str(error), "name a JSON file") from None
    try:
        found = json.loads(as_json(text), object_pairs_hook=lambda pairs: _unique(pairs, path, text),
                           parse_constant=lambda word: _no_number(word, path))
    except json.JSONDecodeError as error:
        raise ConfigError("cannot read the configuration", f"{path}:{error.lineno}:{error.colno}", error.msg,
                          "write JSON; comments and trailing commas are accepted") from None
    if not isinstance(found, dict):
        raise ConfigError("cannot read the configuration", str(path), "it holds no section", "begin it with {")
    return found, text


def as_json(text):
    """The text without what JSON does not have; lines stay the same. Strings are kept as they are."""
    result, comma_at, line_ended, after_value = [], None, False, False
    for token in _TOKEN.findall(text):
        if token.startswith(("//", "#", "/*")):
            token = "\n" * token.count("\n") or " "
        if token.isspace():
            line_ended = line_ended or "\n" in token
            result.append(token)
            continue
        if token in "}]" and comma_at is not None:
            result[comma_at] = " "
        if after_value and line_ended and token not in "}]:,":
            result.append(",")
        comma_at = len(result) if token == "," and after_value else None
        after_value = token not in "{[:,"
        line_ended = False
        result.append(token)
    return "".join(result)


def line_of(text, key):
    """":7" where a key stands in line 7; "" where it is not known."""
    match = re.search(rf'"{re.escape(key)}"\s*:', text)
    return f":{text.count(chr(10), 0, match.start()) + 1}" if match else ""


def _unique(pairs, path, text):
    found = {}
    for key, value in pairs:
        if key in found:
            raise ConfigError("cannot read the configuration", f"{path}{line_of(text, key)}",
                              f'the key "{key}" is there twice in one section', "leave one of them")
        found[key] = value
    return found


def _no_number(word, path):
    raise ConfigError("cannot read the configuration", str(path), f"{word} is no number", "write a finite number")
