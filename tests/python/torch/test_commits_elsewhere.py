"""What the program `terrace` makes of the commits of an engine: it lists and verifies them, takes none for damaged that is
whole, and neither goes on from them nor takes their place."""

import json
import os
import pathlib
import subprocess
import tempfile

from support_torch import EngineTest, Mlp, config_of, engine_of, isolated, masters, seeded, terrace, train, unittest


class CommitsElsewhere(EngineTest):
    def setUp(self):
        self.program = os.environ.get("TERRACE_PROGRAM")
        if not self.program:
            self.skipTest("TERRACE_PROGRAM does not name the program terrace")
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)
        self.nvme = self.folder / "nvme"
        self.nvme.mkdir()

    def config(self):
        return config_of("nvme", "nvme", folder=self.nvme, durable=True, commit_every_steps=0, commit_every_seconds=0)

    def commit_three_steps(self):
        with engine_of(seeded(Mlp, 160), self.config()) as engine:
            train(engine, 3)
            engine.commit()
            return masters(engine)

    def run_program(self, *words):
        environment = {**os.environ, "XDG_CACHE_HOME": str(self.folder), "XDG_RUNTIME_DIR": str(self.folder)}
        return subprocess.run(
            [self.program, *map(str, words)], cwd=self.folder, env=environment, capture_output=True, text=True
        )

    def files(self):
        """All but the locks, which name the last process that held them."""
        found = (path for path in sorted(self.nvme.rglob("*")) if path.is_file() and "lock" not in path.name)
        return {path: path.read_bytes() for path in found}

    @isolated
    def test_a_whole_one_is_listed_verified_and_left(self):
        kept = self.commit_three_steps()
        listed = self.run_program("checkpoint", "ls", self.nvme, "--json")
        self.assertEqual(listed.returncode, 0, listed.stderr)
        (state,) = json.loads(listed.stdout)["states"]
        self.assertEqual((state["trouble"], state["step"], state["latest"]), (None, None, True))
        self.assertTrue(state["of_other_program"])
        self.assertGreater(state["bytes"], 0)
        self.assertIn("of another program", self.run_program("checkpoint", "ls", self.nvme).stdout)
        verified = self.run_program("checkpoint", "verify", self.nvme)
        self.assertEqual(verified.returncode, 0, verified.stdout + verified.stderr)
        pruned = self.run_program("checkpoint", "prune", self.nvme, "--damaged", "--json")
        self.assertEqual((pruned.returncode, json.loads(pruned.stdout)["removed"]), (0, []))
        with engine_of(seeded(Mlp, 160), self.config(), resume=True) as engine:
            self.assertEqual(engine.global_steps, 3)
            self.assertEqual(masters(engine), kept)

    @isolated
    def test_a_damaged_one_is_named(self):
        self.commit_three_steps()
        store = max((path for path in self.nvme.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
        with open(store, "r+b") as file:
            whole = file.read()
            file.seek(0)
            file.write(bytes(byte ^ 1 for byte in whole))
        verified = self.run_program("checkpoint", "verify", self.nvme)
        self.assertEqual(verified.returncode, 1, verified.stdout + verified.stderr)
        self.assertIn(store.name, verified.stdout + verified.stderr)

    @isolated
    def test_terrace_train_neither_goes_on_from_one_nor_removes_it(self):
        self.commit_three_steps()
        (self.folder / "text.txt").write_text("the water of a river runs down to " * 100)
        (self.folder / "ds.json").write_text(
            json.dumps({"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}})
        )
        model = ["--layers", 1, "--width", 24, "--heads", 2, "--context", 16, "--data", "text.txt"]
        command = ["train", *model, "--config", "ds.json", "--steps", 2]
        saved = self.run_program(*command, "--save", "saved")
        self.assertEqual(saved.returncode, 0, saved.stderr)
        before = self.files()
        on_nvme = ["--offload-optimizer", "nvme", "--nvme-path", self.nvme]
        for resume in ([], ["--resume", "nvme"], ["--resume", "auto"], ["--resume", "auto", "--save", "saved"]):
            with self.subTest(resume):
                refused = self.run_program(*command, *on_nvme, *resume)
                self.assertEqual(refused.returncode, 2, refused.stderr)
                self.assertIn("of a program that embeds the memory manager", refused.stderr)
                self.assertIn(str(self.nvme), refused.stderr)
                self.assertNotIn("add --resume auto", refused.stderr)
                self.assertEqual(self.files(), before)

    @isolated
    def test_an_engine_does_not_go_on_from_one_of_terrace_train(self):
        (self.folder / "text.txt").write_text("the water of a river runs down to " * 100)
        (self.folder / "ds.json").write_text(
            json.dumps({"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}})
        )
        model = ["--layers", 1, "--width", 24, "--heads", 2, "--context", 16, "--data", "text.txt"]
        command = ["train", *model, "--config", "ds.json", "--steps", 2]
        made = self.run_program(*command, "--offload-optimizer", "nvme", "--nvme-path", self.nvme)
        self.assertEqual(made.returncode, 0, made.stderr)
        before = self.files()
        self.assertTrue(before, "terrace train has kept no commit")
        for resume in (False, True, "auto"):
            with self.subTest(resume), self.assertRaises(terrace.Error) as refused:
                engine_of(seeded(Mlp, 160), self.config(), resume=resume)
            self.assert_four_parts(refused.exception)
            self.assertEqual(self.files(), before)


if __name__ == "__main__":
    unittest.main()
