"""Every function of the package says the types of what it takes and gives; tools/check_types says whether they are true.

What is left out of the one layout of all Python is listed in pyproject.toml. The list only shrinks."""

import ast
import re
import unittest

from support import ROOT

PACKAGE = ROOT / "python" / "terrace"
# The most that may be left out of the layout.
UNFORMATTED = {"python/terrace/_declarations.py"}


def listed(key):
    """The texts of a list of pyproject.toml, which Python before 3.11 cannot read."""
    text = (ROOT / "pyproject.toml").read_text()
    return re.findall(r'"([^"]+)"', re.search(rf"^{re.escape(key)} = \[(.*?)\]", text, re.M | re.S)[1])


def lacking(node, is_bound=False):
    """The functions below a node that leave out a type; a bound one need not say it of its first argument."""
    for inner in ast.iter_child_nodes(node):
        is_function = isinstance(inner, (ast.FunctionDef, ast.AsyncFunctionDef))
        if is_function:
            plain, others = [*inner.args.posonlyargs, *inner.args.args], inner.args
            said = plain[1:] if is_bound and not any(map(is_static, inner.decorator_list)) else plain
            for one in (*said, *others.kwonlyargs, others.vararg, others.kwarg):
                if one is not None and one.annotation is None:
                    yield f"{inner.name}({one.arg})"
            if inner.returns is None:
                yield f"{inner.name}()"
        yield from lacking(inner, isinstance(inner, ast.ClassDef) or (is_bound and not is_function))


def is_static(decorator):
    return isinstance(decorator, ast.Name) and decorator.id == "staticmethod"


class Typed(unittest.TestCase):
    def test_every_function_says_its_types(self):
        for path in sorted(PACKAGE.rglob("*.py")):
            name = path.relative_to(PACKAGE).as_posix()
            with self.subTest(name):
                self.assertEqual(list(lacking(ast.parse(path.read_text()))), [])

    def test_types_are_not_looked_at_when_a_program_runs(self):
        """They are written as later versions of Python have them."""
        for path in sorted(PACKAGE.rglob("*.py")):
            text = path.read_text()
            if path.name != "_declarations.py" and "def " in text:
                self.assertIn("from __future__ import annotations\n", text, path)

    def test_what_is_left_out_only_shrinks(self):
        self.assertNotIn("ignore_errors", (ROOT / "pyproject.toml").read_text())
        unformatted = set(listed("extend-exclude"))
        self.assertLessEqual(unformatted, UNFORMATTED)
        self.assertTrue(all((ROOT / name).is_file() for name in unformatted))


if __name__ == "__main__":
    unittest.main()
