#!/usr/bin/env python3
"""generate_declarations.py: writes terrace/_declarations.py, what capi/terrace.h and capi/terrace_run.h declare, for
ctypes.

It reads the C of these headers and no other: enums, structs and functions of one declaration each. What it does not
understand is an error, so that nothing is left out. `--check` compares instead of writing.
"""

import argparse
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
HEADERS = [ROOT / "capi" / name for name in ("terrace.h", "terrace_run.h")]
OUTPUT = ROOT / "python" / "terrace" / "_declarations.py"

SCALARS = {"uint32_t": "c_uint32", "uint64_t": "c_uint64", "double": "c_double", "int": "c_int"}


class Reader:
    def __init__(self, texts):
        self.abi = int(re.search(r"^#define TERRACE_ABI (\d+)$", texts[0], re.M).group(1))
        self.code = " ".join(map(self._code_of, texts))
        self.enums, self.structs, self.callbacks, self.functions = {}, {}, {}, {}
        self._read()

    @staticmethod
    def _code_of(text):
        """The declarations alone, on one line: no comments, no directives, no braces of extern "C"."""
        text = re.sub(r"/\*.*?\*/", " ", text, flags=re.S)
        text = re.sub(r"\\\n", " ", text)
        text = re.sub(r"^#.*$", " ", text, flags=re.M).replace("TERRACE_C_API", " ")
        text = re.sub(r'extern "C" \{(.*)\}', r"\1", text, flags=re.S)
        return re.sub(r"\s+", " ", text).strip()

    def _read(self):
        shapes = [
            (r"typedef enum (\w+) \{([^}]*)\} \1;", self._enum),
            (r"typedef struct (\w+) \{([^}]*)\} \1;", self._struct),
            (r"(?:typedef )?struct (\w+)(?: \1)?;", lambda name: None),
            (r"typedef ([\w ]+?) ?\(\*(\w+)\)\(([^)]*)\);", self._callback),
            (r"((?:const )?\w+ ?\**) ?(terrace_\w+)\(([^)]*)\);", self._function),
        ]
        at = 0
        while at < len(self.code):
            for pattern, action in shapes:
                match = re.compile(pattern).match(self.code, at)
                if match:
                    action(*match.groups())
                    at = match.end()
                    break
            else:
                sys.exit(f"cannot read: {self.code[at : at + 100]}")
            while self.code[at : at + 1] == " ":
                at += 1

    def _enum(self, name, body):
        values, value = {}, 0
        for item in filter(None, (part.strip() for part in body.split(","))):
            word, _, given = (part.strip() for part in item.partition("="))
            value = int(given) if given else value
            values[word] = value
            value += 1
        self.enums[name] = values

    def _struct(self, name, body):
        self.structs[name] = [self._declared(member) for member in filter(None, map(str.strip, body.split(";")))]

    def _callback(self, result, name, arguments):
        self.callbacks[name] = (result, self._arguments(arguments))

    def _function(self, result, name, arguments):
        self.functions[name] = (result.replace(" ", "").replace("const", "const "), self._arguments(arguments))

    def _arguments(self, text):
        return [] if text.strip() == "void" else [self._declared(part.strip()) for part in text.split(",")]

    @staticmethod
    def _declared(text):
        """("uint64_t*", "shape") of "const uint64_t* shape"; const matters for text alone."""
        kind, name = re.fullmatch(r"(.*?[ *])(\w+)", text).groups()
        kind = re.sub(r"\bstruct ", "", kind)
        if not re.fullmatch(r"const char ?\*(?: const\*)? ?", kind):
            kind = kind.replace("const", "")
        return kind.replace(" ", "").replace("const", "const "), name

    def type_of(self, kind, is_member):
        """The ctypes of a C type. Arguments take any address where ctypes would want a cast."""
        base = kind.rstrip("*")
        stars = len(kind) - len(base)
        if kind == "void":
            return "None"
        if kind == "const char*":
            return "c_char_p"
        if kind == "const char*const *":
            return "POINTER(c_char_p)"
        if stars == 0:
            return SCALARS.get(base) or (base if base in self.callbacks else sys.exit(f"unknown type {kind}"))
        if stars == 1 and base in self.structs:
            return f"POINTER({base})"
        if is_member and stars == 1 and base in SCALARS:
            return f"POINTER({SCALARS[base]})"
        return "c_void_p"


def words_of(enum):
    """{"nvme": 2} of {"TERRACE_NVME": 2}: in lower case, without what all the names begin with."""
    split = [name.split("_")[1:] for name in enum]
    while all(len(words) > 1 for words in split) and len({words[0] for words in split}) == 1 and len(split) > 1:
        split = [words[1:] for words in split]
    return {"_".join(words).lower(): value for words, value in zip(split, enum.values())}


def wrapped(items, indent, width=116):
    lines, line = [], indent
    for item in items:
        if len(line) + len(item) + 2 > width:
            lines.append(line.rstrip())
            line = indent
        line += item + ", "
    return lines + [line.rstrip()]


def declarations(reader):
    headers = " and ".join(f"capi/{header.name}" for header in HEADERS)
    lines = [f'"""What {headers} declare; written by python/generate_declarations.py."""', ""]
    names = "CFUNCTYPE, POINTER, Structure, c_char_p, c_double, c_int, c_uint32, c_uint64, c_void_p"
    lines += [f"from ctypes import {names}", "", f"ABI = {reader.abi}", "", "# The words of each enum."]
    lines.append("ENUMS = {")
    for name, enum in reader.enums.items():
        pairs = [f'"{word}": {value}' for word, value in words_of(enum).items()]
        line = f'    "{name}": {{' + ", ".join(pairs) + "},"
        lines += [line] if len(line) <= 116 else [f'    "{name}": {{', *wrapped(pairs, "        "), "    },"]
    lines += ["}", ""]
    for name, (result, arguments) in reader.callbacks.items():
        kinds = [reader.type_of(result, False)]
        # A function of Python gets memory as an address, so that nothing is copied.
        kinds += [
            "c_void_p" if kind.endswith("*") and kind != "const char*" else reader.type_of(kind, False)
            for kind, _ in arguments
        ]
        lines.append(f"{name} = CFUNCTYPE({', '.join(kinds)})")
    for name, members in reader.structs.items():
        lines += ["", "", f"class {name}(Structure):", "    _fields_ = ["]
        lines += wrapped([f'("{member}", {reader.type_of(kind, True)})' for kind, member in members], "        ")
        lines.append("    ]")
    lines += ["", "", "# The result and the arguments of each function.", "FUNCTIONS = {"]
    for name, (result, arguments) in reader.functions.items():
        kinds = [reader.type_of(kind, False) for kind, _ in arguments]
        line = f'    "{name}": ({reader.type_of(result, False)}, [{", ".join(kinds)}]),'
        if len(line) > 116:
            lines += [f'    "{name}": (', f"        {reader.type_of(result, False)},", "        ["]
            lines += wrapped(kinds, "            ") + ["        ],", "    ),"]
        else:
            lines.append(line)
    return "\n".join(lines + ["}", ""])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    wanted = declarations(Reader([header.read_text(encoding="utf-8") for header in HEADERS]))
    if not parser.parse_args().check:
        OUTPUT.write_text(wanted, encoding="utf-8")
    elif OUTPUT.read_text(encoding="utf-8") != wanted:
        sys.exit(f"{OUTPUT.name} is not what the headers of capi declare: run {pathlib.Path(__file__).name}")


if __name__ == "__main__":
    main()
