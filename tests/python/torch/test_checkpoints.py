"""Checkpoints of an engine in a folder: what is refused, what damage does, and that a load which fails is no state to
go on from."""

import fcntl
import hashlib
import json
import os
import pathlib
import shutil
import stat
import struct
import tempfile
import unittest
import warnings

from support_torch import EngineTest, Mlp, config_of, engine_of, isolated, masters, nn, seeded, terrace, torch, train

DATA = pathlib.Path(__file__).resolve().parent / "data/checkpoints_version1"
FILES = ["manifest.json", "states.bin", "beside.safetensors", "progress.pt"]


def tree_of(folder):
    """{path below the folder: bytes, or what a link leads to}"""
    found = {}
    for path in sorted(pathlib.Path(folder).rglob("*")):
        name = str(path.relative_to(folder))
        found[name] = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else None
    return found


def state_of(engine):
    return [
        *(engine.master(one.parameter).clone() for one in engine._tracked if one.is_trainable),
        *(moment.clone() for one in engine.optimizer_state_dict()["state"].values() for moment in one.values()),
        torch.tensor(engine.global_steps),
    ]


def is_same(one, other):
    return len(one) == len(other) and all(torch.equal(a, b) for a, b in zip(one, other))


def copied_from_before(name, folder):
    """A checkpoint that the Terrace before the format of today has saved, and what it told of the engine."""
    place = pathlib.Path(folder, "t")
    shutil.copytree(DATA / name, place)
    return place, json.loads((DATA / f"{name}.json").read_text())


def digest_of(tensor):
    return hashlib.sha256(bytes(tensor.contiguous().view(torch.uint8).flatten().tolist())).hexdigest()


class OfBefore(Mlp):
    """The model in DATA."""

    def __init__(self):
        super().__init__(width=12)
        self.register_buffer("count", torch.zeros(3, dtype=torch.int64))
        self.last.bias.requires_grad_(False)
        self.layers[1].weight.requires_grad_(False)


class Small(Mlp):
    def __init__(self):
        super().__init__(width=40)
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))


class CheckpointTest(EngineTest):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.said = []

    def engine(self, make=Small, config=None, **named):
        return engine_of(seeded(make), config, log=lambda level, line: self.said.append(line), **named)

    def trained(self, steps, tag):
        engine = self.engine()
        train(engine, steps)
        engine.save_checkpoint(self.folder, tag)
        return engine


class Names(CheckpointTest):
    @isolated
    def test_a_tag_is_a_plain_name(self):
        engine = self.trained(1, "first")
        above = pathlib.Path(self.folder, "above")
        inner = above / "saves"
        inner.mkdir(parents=True)
        (above / "notes.txt").write_text("mine")
        engine.save_checkpoint(str(inner), "one")
        before = tree_of(above)
        tags = ["", ".", "..", "../..", "one/../..", "a/b", "a\\b", "/", str(above), ".hidden", "latest", "latest.new"]
        for tag in [*tags, "new\nline", "bell\a", "\x7f", " ", "x" * 201, "\udc80"]:
            with self.subTest(tag):
                for call in (engine.save_checkpoint, engine.load_checkpoint):
                    self.raised(terrace.ConfigError, call, str(inner), tag)
                self.assertEqual(tree_of(above), before)
        missing = str(above / "not yet")
        self.raised(terrace.ConfigError, engine.save_checkpoint, missing, "..")
        self.assertFalse(os.path.exists(missing))
        self.raised(terrace.ConfigError, engine.save_checkpoint, str(inner), "nul\0")

    @isolated
    def test_a_name_that_something_else_has_is_refused_and_nothing_is_removed(self):
        engine = self.trained(1, "first")
        folder = pathlib.Path(self.folder)
        for name in ("results", "empty", "weights", "linked", "spoilt", "steps"):
            (folder / name).mkdir()
        (folder / "results/notes.txt").write_text("mine")
        (folder / "weights/model.safetensors").write_text("a download")
        (folder / "linked/manifest.json").symlink_to(folder / "results/notes.txt")
        shutil.copytree(folder / "first", folder / "spoilt", dirs_exist_ok=True)
        (folder / "spoilt/notes.txt").write_text("mine")
        (folder / "steps/manifest.json").write_text("of a checkpoint of `terrace train`")
        (folder / "steps/states.bin").write_text("its states")
        (folder / "file").write_text("mine")
        (folder / "link").symlink_to(folder / "first")
        before = tree_of(folder)
        for name in ("results", "empty", "weights", "linked", "spoilt", "steps", "file", "link"):
            with self.subTest(name):
                error = self.raised(terrace.ConfigError, engine.save_checkpoint, self.folder, name)
                self.assertIn(name, error.subject)
                self.assertEqual(tree_of(folder), before)

    @isolated
    def test_what_a_dead_job_left_goes_and_what_somebody_put_there_stays(self):
        engine = self.trained(1, "first")
        folder = pathlib.Path(self.folder)
        shutil.copytree(folder / "first", folder / ".second.partial")
        (folder / ".third.partial").mkdir()
        (folder / ".third.partial/notes.txt").write_text("mine")
        (folder / ".mine.partial").write_text("mine")
        (folder / ".latest.next").write_text("gone 0123456789abcdef\n")
        shutil.move(folder / "first", folder / ".first.replaced")
        self.assertEqual(self.engine().load_checkpoint(self.folder)[0], str(folder / ".first.replaced"))
        engine.save_checkpoint(self.folder, "fourth")
        self.assertEqual(sorted(os.listdir(folder)), [".mine.partial", ".third.partial", "first", "fourth", "latest"])
        self.assertTrue(any(".third.partial is left alone: it holds notes.txt" in line for line in self.said))

    @isolated
    def test_latest_is_held_to_the_same_rule(self):
        engine = self.trained(1, "first")
        latest = pathlib.Path(self.folder, "latest")
        for text in ("../first", str(pathlib.Path(self.folder, "first")), "", "..", "a\nb"):
            latest.write_text(text)
            with self.subTest(text):
                self.raised(terrace.CorruptError, engine.load_checkpoint, self.folder)
        latest.write_bytes(b"\xff")
        self.raised(terrace.CorruptError, engine.load_checkpoint, self.folder)
        latest.write_text("first\n")
        self.assertEqual(engine.load_checkpoint(self.folder)[0], str(pathlib.Path(self.folder, "first")))

    @isolated
    def test_no_link_is_followed_and_nobody_else_reads(self):
        os.umask(0)
        engine = self.engine()
        victim = pathlib.Path(self.folder, "victim")
        victim.write_text("precious")
        saves = pathlib.Path(self.folder, "saves")
        saves.mkdir()
        for name in ("latest", "latest.new", ".latest.next", ".latest.next.new", "latest.aside", ".one.partial"):
            (saves / name).symlink_to(victim)
        self.raised(terrace.IoError, engine.save_checkpoint, str(saves), "one")
        (saves / ".one.partial").unlink()
        engine.save_checkpoint(str(saves), "one")
        self.assertEqual(victim.read_text(), "precious")
        made = [saves / "latest", saves / "one", *(saves / "one" / name for name in FILES)]
        modes = {path.name: stat.S_IMODE(os.lstat(path).st_mode) for path in made}
        self.assertEqual(modes, {"latest": 0o600, "one": 0o700, **dict.fromkeys(FILES, 0o600)})
        new = pathlib.Path(self.folder, "made", "here")
        engine.save_checkpoint(str(new), "one")
        self.assertEqual([stat.S_IMODE(os.stat(path).st_mode) for path in (new.parent, new)], [0o700] * 2)

    @isolated
    def test_nothing_to_load_is_said_and_deepspeed_s_own_is_named(self):
        engine = self.trained(1, "first")
        folder = pathlib.Path(self.folder)
        for place, words in (
            (folder / "nowhere", "is no folder"),
            (folder / "first", 'tag="first"'),
        ):
            self.said.clear()
            self.assertEqual(engine.load_checkpoint(str(place)), (None, {}))
            (line,) = self.said
            self.assertIn(words, line)
        (folder / "latest").unlink()
        self.said.clear()
        self.assertEqual(engine.load_checkpoint(self.folder), (None, {}))
        self.assertIn("give tag= one of first", self.said[0])
        (folder / "global_step2").mkdir()
        (folder / "global_step2/mp_rank_00_model_states.pt").write_text("weights")
        (folder / "latest").write_text("global_step2")
        for tag in (None, "global_step2"):
            error = self.raised(terrace.ConfigError, engine.load_checkpoint, self.folder, tag)
            self.assertIn("zero_to_fp32", error.advice)

    @isolated
    def test_settings_that_come_from_the_checkpoint_are_said(self):
        self.trained(1, "first")
        other = self.engine(config=config_of(lr=5e-3))
        other.load_checkpoint(self.folder)
        self.assertEqual(other.get_lr(), [1e-2])
        (line,) = self.said
        self.assertIn("settings of the checkpoint are in force: lr of group 0 is 0.01, and not 0.005", line)


class Earlier(CheckpointTest):
    def refused(self, engine, kind, *words):
        before = state_of(engine)
        error = self.raised(kind, engine.load_checkpoint, self.folder, "t")
        self.assertTrue(is_same(state_of(engine), before))
        for word in words:
            self.assertIn(word, str(error))
        return error

    def engine_for(self, name):
        model = seeded(OfBefore) if name == "fp32" else seeded(OfBefore).bfloat16()
        return engine_of(model, config_of(precision=name), log=lambda level, line: self.said.append(line))

    def assert_told(self, engine, told):
        self.assertEqual(engine.global_steps, told["steps"])
        self.assertEqual(masters(engine), told["masters"])
        states = engine.optimizer_state_dict()["state"].values()
        moments = [[digest_of(value) for name, value in sorted(one.items()) if name != "step"] for one in states]
        self.assertEqual(moments, told["moments"])
        self.assertEqual([one["step"].item() for one in states], [told["steps"]] * len(states))
        self.assertEqual({name: digest_of(one) for name, one in engine.module.state_dict().items()}, told["tensors"])
        if told["average"]:
            average = {name: digest_of(one) for name, one in engine.average.named_parameters()}
            self.assertEqual(average, told["average"])

    @isolated
    def test_every_bit_of_one_from_before_is_loaded_and_saved_in_the_format_of_today(self):
        for name in ("fp32", "bf16"):
            with self.subTest(name):
                place, told = copied_from_before(name, self.folder)
                engine = self.engine_for(name)
                if told["average"]:
                    engine.averaged(0.5)
                path, client_state = engine.load_checkpoint(self.folder, "t")
                self.assertEqual((path, client_state), (str(place), {"epoch": 4}))
                self.assert_told(engine, told)
                engine.save_checkpoint(self.folder, "t", client_state)  # in its place
                names = set(FILES) | {"frozen.bin"} | ({"average.safetensors"} if told["average"] else set())
                self.assertEqual(set(os.listdir(place)), names)
                other = self.engine_for(name)
                if told["average"]:
                    other.averaged(0.5)
                self.assertEqual(other.load_checkpoint(self.folder, "t")[1], {"epoch": 4})
                self.assert_told(other, told)
                self.assertEqual(train(engine, 2, first=3), train(other, 2, first=3))
                shutil.rmtree(place)

    @isolated
    def test_damage_of_one_from_before_is_named_and_nothing_is_loaded(self):
        place, _ = copied_from_before("fp32", self.folder)
        engine = self.engine_for("fp32")
        train(engine, 1)
        for name in ("manifest.json", "model.safetensors", "optimizer.safetensors", "progress.pt"):
            raw = (place / name).read_bytes()
            for at in (0, len(raw) // 3, len(raw) - 1):
                (place / name).write_bytes(raw[:at] + bytes([raw[at] ^ 4]) + raw[at + 1 :])
                self.refused(engine, terrace.CorruptError, name)
            (place / name).write_bytes(raw[:-1])
            self.refused(engine, terrace.CorruptError, name)
            (place / name).write_bytes(raw)
        engine.load_checkpoint(self.folder, "t")

    @isolated
    def test_one_without_a_manifest_loads_with_a_warning_unless_a_type_is_another(self):
        place, told = copied_from_before("fp32", self.folder)
        (place / "manifest.json").unlink()
        engine = self.engine_for("fp32")
        engine.load_checkpoint(self.folder, "t")
        self.assert_told(engine, dict(told, average=None))
        self.assertTrue(any("has no manifest" in line for line in self.said))
        path = place / "model.safetensors"
        raw = path.read_bytes()
        length = struct.unpack("<Q", raw[:8])[0]
        header = json.loads(raw[8 : 8 + length])
        for dtype in ("I32", "U32", "F8_E4M3"):
            for name in ("first.bias", "count"):
                changed = {one: dict(value) for one, value in header.items()}
                changed[name]["dtype"] = dtype
                text = json.dumps(changed).encode()
                path.write_bytes(struct.pack("<Q", len(text)) + text + raw[8 + length :])
                self.refused(engine, terrace.Error, str(path) if "F8" in dtype or name == "count" else name)
        for cut in (0, 4, length // 2, len(raw) - 5):
            path.write_bytes(raw[:cut])
            self.refused(engine, terrace.Error)
        path.write_bytes(raw)
        for text in (b"", b"no pickle", (place / "progress.pt").read_bytes()[:300]):
            (place / "progress.pt").write_bytes(text)
            self.refused(engine, terrace.CorruptError, "progress.pt")
        torch.save({"steps": 3}, place / "progress.pt")
        self.refused(engine, terrace.CorruptError, "progress.pt")


class Damage(CheckpointTest):
    def refused(self, engine, kind=terrace.CorruptError, *words):
        before = state_of(engine)
        error = self.raised(kind, engine.load_checkpoint, self.folder, "t")
        self.assertTrue(is_same(state_of(engine), before))
        for word in words:
            self.assertIn(word, str(error))
        return error

    @isolated
    def test_every_flipped_bit_is_named_and_nothing_is_loaded(self):
        self.trained(2, "t")
        engine = self.engine()
        train(engine, 1)
        for name in FILES:
            path = pathlib.Path(self.folder, "t", name)
            raw = path.read_bytes()
            for number in range(24):
                at = number * (len(raw) - 1) // 23
                path.write_bytes(raw[:at] + bytes([raw[at] ^ 1 << number % 8]) + raw[at + 1 :])
                with self.subTest(f"{name} at {at}"):
                    error = self.refused(engine)
                    self.assertIn(name, error.subject)
                    if name != "manifest.json":
                        self.assertRegex(error.reason, r"block 0 .*at offset 0.*checksum is \w{16} and .* \w{16}")
            path.write_bytes(raw)
        engine.load_checkpoint(self.folder, "t")

    @isolated
    def test_a_bit_behind_the_first_block_is_found_before_anything_is_loaded(self):
        def engine():
            return self.engine(lambda: Mlp(width=400))

        saved, loads = engine(), engine()
        train(saved, 2)
        saved.save_checkpoint(self.folder, "t")
        train(loads, 1)
        path = pathlib.Path(self.folder, "t", "states.bin")
        raw = path.read_bytes()
        self.assertGreater(len(raw), 1 << 20)
        path.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
        self.assertIn("states.bin", self.refused(loads).subject)

    @isolated
    def test_files_that_are_not_those_of_the_save_are_named(self):
        self.trained(2, "t")
        engine = self.trained(3, "other")
        place, other = pathlib.Path(self.folder, "t"), pathlib.Path(self.folder, "other")
        kept = {name: (place / name).read_bytes() for name in FILES}

        def with_(name, raw):
            for one, bytes_ in kept.items():
                (place / one).write_bytes(bytes_)
            if raw is None:
                (place / name).unlink()
            else:
                (place / name).write_bytes(raw)

        for name in ("manifest.json", "states.bin", "progress.pt"):
            with_(name, (other / name).read_bytes())
            self.refused(engine, terrace.CorruptError, str(place))
        for name in FILES:
            for raw in (kept[name][: len(kept[name]) // 2], b"", kept[name] + b"\0"):
                with_(name, raw)
                self.refused(engine, terrace.CorruptError, name)
        for name in FILES[1:]:
            with_(name, None)
            self.refused(engine, terrace.IoError, name)
        with_("more.safetensors", b"more")
        self.refused(engine, terrace.CorruptError, "more.safetensors")
        (place / "more.safetensors").unlink()
        for wrong in (b"F64", b"U64"):
            name = "beside.safetensors"
            with_(name, kept[name].replace(b'"dtype":"I64"', b'"dtype":"%s"' % wrong, 1))
            self.refused(engine, terrace.CorruptError, name)
        with_(FILES[0], kept[FILES[0]])
        engine.load_checkpoint(self.folder, "t")
        self.assertEqual(engine.global_steps, 2)

    @isolated
    def test_a_load_that_fails_in_its_middle_leaves_no_state_to_go_on_from(self):
        self.trained(2, "t")
        engine = self.engine()
        train(engine, 1)
        write, calls = engine.store.write_values, []

        def fail(*arguments, **named):
            calls.append(1)
            if len(calls) == 9:
                raise OSError(5, "Input/output error")
            write(*arguments, **named)

        engine.store.write_values = fail
        self.raised(terrace.CorruptError, engine.load_checkpoint, self.folder, "t")
        engine.store.write_values = write
        for call in (
            lambda: train(engine, 1),
            engine.step,
            engine.optimizer.step,
            engine.commit,
            lambda: engine.save_checkpoint(self.folder, "u"),
            lambda: engine.save_safetensors(self.folder),
            lambda: engine.load_checkpoint(self.folder, "t", load_module_only=True) and engine.step(),
        ):
            self.raised(terrace.CancelledError, call)
        self.assertFalse(os.path.exists(os.path.join(self.folder, "u")))
        engine.load_checkpoint(self.folder, "t")
        other = self.engine()
        other.load_checkpoint(self.folder, "t")
        self.assertEqual(train(engine, 2, first=2), train(other, 2, first=2))

    @isolated
    def test_a_checkpoint_of_another_model_changes_nothing(self):
        class Wider(Small):
            def __init__(self):
                super().__init__()
                self.more = nn.Linear(8, 8)

        engine = self.engine(Wider)
        train(engine, 1)
        engine.save_checkpoint(self.folder, "t")
        other = self.engine()
        train(other, 1)
        self.refused(other, terrace.ConfigError, "more.")
        self.assertEqual(other.load_checkpoint(self.folder, "t", load_module_only=True)[1], {})

    @isolated
    def test_a_folder_that_cannot_be_looked_into_is_not_an_empty_one(self):
        engine = self.engine()
        loop = pathlib.Path(self.folder, "loop")
        loop.symlink_to(loop)
        for folder in (loop, loop / "saves"):
            error = self.raised(terrace.IoError, engine.load_checkpoint, str(folder))
            self.assertIn("symbolic links", error.reason)
        self.assertEqual(engine.load_checkpoint(self.folder), (None, {}))

    @isolated
    def test_one_job_at_a_time_saves_into_a_folder(self):
        engine = self.trained(1, "t")
        held = os.open(self.folder, os.O_RDONLY)
        fcntl.flock(held, fcntl.LOCK_EX)
        error = self.raised(terrace.IoError, engine.save_checkpoint, self.folder, "t")
        os.close(held)
        self.assertIn("a job that runs saves", error.reason)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            engine.save_checkpoint(self.folder, "t")
        self.assertEqual(sorted(os.listdir(self.folder)), ["latest", "t"])


if __name__ == "__main__":
    unittest.main()
