"""What is generated is what it is generated from, and the structs are those of the compiler of C."""

import ctypes
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

from support import ROOT
from terrace import _declarations


def structs():
    return [
        value
        for value in vars(_declarations).values()
        if isinstance(value, type) and issubclass(value, ctypes.Structure) and value is not ctypes.Structure
    ]


class Generated(unittest.TestCase):
    def test_the_declarations_are_those_of_the_header(self):
        subprocess.run([sys.executable, ROOT / "python/generate_declarations.py", "--check"], check=True)

    def test_a_declaration_that_is_not_understood_is_an_error(self):
        with tempfile.TemporaryDirectory() as folder:
            tree = pathlib.Path(folder)
            (tree / "python").mkdir()
            (tree / "capi").mkdir()
            shutil.copy(ROOT / "python/generate_declarations.py", tree / "python")
            shutil.copy(ROOT / "capi/terrace_run.h", tree / "capi")
            header = (ROOT / "capi/terrace.h").read_text()
            for added in ("union odd { int a; };", "typedef struct x { long a; } x;", "int x[4];"):
                at = header.index("TERRACE_C_API const char* terrace_version")
                (tree / "capi/terrace.h").write_text(header[:at] + added + "\n" + header[at:])
                done = subprocess.run(
                    [sys.executable, tree / "python/generate_declarations.py", "--check"],
                    stderr=subprocess.PIPE,
                    text=True,
                )
                with self.subTest(added):
                    self.assertEqual(done.returncode, 1)
                    self.assertRegex(done.stderr, "cannot read|unknown type")

    def test_every_member_lies_where_the_compiler_puts_it(self):
        lines, wanted = [], []
        for struct in structs():
            lines.append(f'printf("%zu\\n", sizeof({struct.__name__}));')
            wanted.append(ctypes.sizeof(struct))
            for name, kind in struct._fields_:
                lines.append(
                    f'printf("%zu\\n", offsetof({struct.__name__}, {name}) * 1000 + '
                    f"sizeof((({struct.__name__}*)0)->{name}));"
                )
                wanted.append(getattr(struct, name).offset * 1000 + ctypes.sizeof(kind))
        for enum, words in _declarations.ENUMS.items():
            wanted += words.values()
            lines += [f'printf("%d\\n", (int)({enum}){value});' for value in words.values()]
        program = "#include <stddef.h>\n#include <stdio.h>\n#include <terrace_run.h>\nint main(void) {\n%s\n}\n"
        with tempfile.TemporaryDirectory() as folder:
            source = pathlib.Path(folder, "sizes.c")
            source.write_text(program % "\n".join(lines))
            program = source.with_suffix("")
            compiler = [os.environ.get("CC", "cc"), "-std=c11", f"-I{ROOT / 'capi'}"]
            subprocess.run([*compiler, source, "-o", program], check=True)
            printed = subprocess.run([program], stdout=subprocess.PIPE, check=True).stdout
        self.assertGreater(len(structs()), 10)
        self.assertEqual(list(map(int, printed.split())), wanted)


if __name__ == "__main__":
    unittest.main()
