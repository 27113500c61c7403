"""Which folders of the package may know which: an arrow up is found here, as tests/source_tree/check finds one of C++."""

import ast
import unittest

from support import ROOT

PACKAGE = ROOT / "python" / "terrace"

# What a folder may import beside what lies in it. "" is the package's own folder. A file with a row of its own
# stands above its folder, which does not know it.
MAY_KNOW = {
    "": {"store", "torch", "torch/__init__.py", "torch/dealt.py", "torch/engine", "torch/engine/saved"},
    "store": {""},
    "ops": {""},
    "pipe": {"", "torch/engine", "torch/engine/saved"},
    "compat": set(),
    "compat/deepspeed": {"", "torch/engine", "torch/engine/saved"},
    "torch": {"", "store"},
    "torch/optimizer": {"", "store", "torch"},
    "torch/engine": {
        "",
        "store",
        "torch",
        "torch/dealt.py",
        "torch/optimizer",
        "torch/engine/passes",
        "torch/engine/saved",
    },
    "torch/engine/passes": {"", "store", "torch", "torch/engine"},
    "torch/engine/saved": {"", "store", "torch", "torch/engine", "torch/optimizer"},
    "torch/dealt.py": {"", "torch", "torch/engine"},
    "torch/__init__.py": {"torch", "torch/dealt.py", "torch/engine", "torch/optimizer", "torch/large_models.py"},
    "torch/large_models.py": {"", "torch", "torch/engine"},
}
# Of the package's own folder, which torch may load alone where a function is called: `import terrace` needs no torch.
BEFORE_TORCH = {
    "__init__.py",
    "_declarations.py",
    "_lib.py",
    "errors.py",
    "config.py",
    "safetensors.py",
    "saved_state.py",
    "system.py",
}


def room_of(path):
    inside = path.relative_to(PACKAGE)
    if inside.as_posix() in MAY_KNOW:
        return inside.as_posix()
    return "" if inside.parent.as_posix() == "." else inside.parent.as_posix()


def imports(path, tree):
    """The files of the package that a file imports, those within its functions too."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom) or not node.level:
            continue
        folder = path.parents[node.level - 1].joinpath(*(node.module or "").split("."))
        for name in node.names:
            for found in (folder / f"{name.name}.py", folder / name.name / "__init__.py", folder.with_suffix(".py")):
                if found.is_file():
                    yield found
                    break
            else:
                yield folder / "__init__.py"


class Folders(unittest.TestCase):
    def test_no_folder_knows_one_above_it(self):
        for path in sorted(PACKAGE.rglob("*.py")):
            room = room_of(path)
            for other in imports(path, ast.parse(path.read_text())):
                with self.subTest(path.relative_to(PACKAGE).as_posix(), imports=other.relative_to(PACKAGE).as_posix()):
                    self.assertTrue(other.is_file())
                    self.assertIn(room_of(other), {room, *MAY_KNOW[room]})

    def test_what_needs_no_torch_does_not_load_it(self):
        for path in [*PACKAGE.glob("store/*.py"), *(PACKAGE / name for name in BEFORE_TORCH)]:
            tree = ast.parse(path.read_text())
            tree.body = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
            known = {room_of(other) for other in imports(path, tree)}
            modules = {name.name for node in tree.body if isinstance(node, ast.Import) for name in node.names}
            with self.subTest(path.relative_to(PACKAGE).as_posix()):
                self.assertLessEqual(known, {"", "store"})
                self.assertNotIn("torch", modules)

    def test_every_folder_has_a_row(self):
        folders = {room_of(path) for path in PACKAGE.rglob("*.py")}
        self.assertEqual(folders, set(MAY_KNOW))


if __name__ == "__main__":
    unittest.main()
