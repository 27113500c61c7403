"""safetensors: what breaks the format is found, and files appear whole or not at all."""

import errno
import fcntl
import json
import os
import pathlib
import struct
import tempfile
import unittest
import unittest.mock

import terrace
from support import fill, make_store, parts_of
from terrace import safetensors


def raw_file(header, data=b"", length=None):
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw) if length is None else length) + raw + data


def tensor(begin=0, end=8, dtype="F32", shape=(2,), **more):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end], **more}


class InFolder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.path = self.folder / "model.safetensors"


class Headers(InFolder):
    def test_a_right_one_is_read(self):
        header = {
            "__metadata__": {"format": "pt"},
            "b": tensor(8, 12, "BF16"),
            "a": tensor(),
            "empty": tensor(8, 8, "U8", (0,)),
        }
        self.path.write_bytes(raw_file(header, bytes(12)))
        entries, metadata = safetensors.read_header(self.path)
        begin = len(raw_file(header))
        self.assertEqual(metadata, {"format": "pt"})
        self.assertEqual(entries["b"], (str(self.path), "BF16", (2,), begin + 8, 4, "bf16"))
        self.assertEqual((entries["a"].offset, entries["empty"].type), (begin, None))

    def test_every_broken_one_is_refused(self):
        eight = bytes(8)
        for name, raw in {
            "empty": b"",
            "short": b"1234567",
            "long": raw_file({}, length=3),
            "huge": raw_file({}, length=2**63),
            "no JSON": raw_file(b"{]"),
            "no map": raw_file([]),
            "bytes": raw_file(b"\xff{}"),
            "deep": raw_file(b"[" * 99999),
            "twice": raw_file(b'{"a":%s,"a":%s}' % ((json.dumps(tensor()).encode(),) * 2), eight),
            "metadata": raw_file({"__metadata__": {"a": 1}}),
            "no tensor": raw_file({"a": 1}),
            "more keys": raw_file({"a": tensor(more=1)}, eight),
            "dtype": raw_file({"a": tensor(dtype="F31")}, eight),
            "dtypes": raw_file({"a": tensor(dtype=["F32"])}, eight),
            "shape": raw_file({"a": tensor(shape=(-2,))}, eight),
            "bool": raw_file({"a": tensor(shape=(True, 2))}, eight),
            "float": raw_file({"a": tensor(0.0, 8)}, eight),
            "backwards": raw_file({"a": tensor(8, 0)}, eight),
            "size": raw_file({"a": tensor(0, 4)}, eight),
            "hole": raw_file({"a": tensor(4, 12)}, bytes(12)),
            "overlap": raw_file({"a": tensor(), "b": tensor(4, 12)}, bytes(12)),
            "hole and overlap": raw_file({"a": tensor(4, 12), "b": tensor(8, 16)}, bytes(16)),
            "tail": raw_file({"a": tensor()}, bytes(9)),
            "cut": raw_file({"a": tensor()}, bytes(7)),
        }.items():
            self.path.write_bytes(raw)
            with self.subTest(name), self.assertRaises(terrace.CorruptError) as caught:
                safetensors.read_header(self.path)
            self.assertTrue(all(parts_of(caught.exception)))
            self.assertEqual(caught.exception.subject, str(self.path))

    def test_an_index_names_files_beside_it_alone(self):
        self.path.write_bytes(raw_file({"a": tensor()}, bytes(8)))
        index = self.folder / safetensors.INDEX
        for weight_map in ({"a": "../model.safetensors"}, {"a": ".."}, {"b": "model.safetensors"}, {"a": 1}, None):
            index.write_text(json.dumps({"weight_map": weight_map}))
            with self.subTest(str(weight_map)), self.assertRaises(terrace.CorruptError):
                safetensors.find(self.folder)
        index.write_text(json.dumps({"weight_map": {"a": "model.safetensors"}}))
        self.assertEqual(safetensors.find(self.folder), safetensors.find(self.path))
        with self.assertRaises(terrace.IoError) as caught:
            safetensors.find(self.folder / "nothing")
        self.assertTrue(all(parts_of(caught.exception)))


class Files(InFolder):
    TENSORS = [("a", "F32", (2,)), ("b", "U8", (3,)), ("c", "BF16", ())]
    VALUES = {"a": b"12345678", "b": b"abc", "c": b"xy"}

    def test_what_is_written_is_read(self):
        def in_parts(name):
            yield self.VALUES[name][:1]
            yield self.VALUES[name][1:]

        safetensors.write(self.path, self.TENSORS, in_parts, {"format": "pt"})
        raw = self.path.read_bytes()
        entries, metadata = safetensors.read_header(self.path)
        self.assertEqual({name: raw[e.offset : e.offset + e.bytes] for name, e in entries.items()}, self.VALUES)
        self.assertEqual((metadata, (len(raw) - 13) % 8), ({"format": "pt", "writer": "terrace"}, 0))
        self.assertEqual(os.listdir(self.folder), [self.path.name])

    def test_a_save_that_fails_leaves_the_old_file_and_nothing_beside_it(self):
        safetensors.write(self.path, self.TENSORS, self.VALUES.get)
        before = self.path.read_bytes()

        def broken(name):
            if name == "b":
                raise ZeroDivisionError
            return self.VALUES[name]

        with self.assertRaises(ZeroDivisionError):
            safetensors.write(self.path, self.TENSORS, broken)
        for tensors, values in (
            ([("a", "F32", (3,))], self.VALUES.get),
            ([("a", "F31", (1,))], self.VALUES.get),
            ([("b", "U8", (3,))] * 2, self.VALUES.get),
        ):
            with self.assertRaises(terrace.ConfigError) as caught:
                safetensors.write_sharded(self.folder, tensors, values)
            self.assertTrue(all(parts_of(caught.exception)))
        with self.assertRaises(terrace.IoError):
            safetensors.write(self.path / "below", self.TENSORS, self.VALUES.get)
        self.assertEqual((os.listdir(self.folder), self.path.read_bytes()), ([self.path.name], before))

    def test_a_full_drive_is_named_with_its_file_and_leaves_nothing(self):
        def fail(*_):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        def write():
            safetensors.write(self.path, self.TENSORS, self.VALUES.get)

        def write_sharded():
            safetensors.write_sharded(self.folder, self.TENSORS, self.VALUES.get, 9)

        for save in (write, write_sharded):
            with unittest.mock.patch.object(os, "fsync", fail), self.assertRaises(terrace.IoError) as caught:
                save()
            self.assertTrue(all(parts_of(caught.exception)))
            self.assertEqual(os.path.dirname(caught.exception.subject), str(self.folder))
            self.assertIn(".safetensors", caught.exception.subject)
            self.assertEqual(caught.exception.reason, os.strerror(errno.ENOSPC))
            self.assertEqual(os.listdir(self.folder), [])

    def test_files_are_durable_before_they_take_their_places_and_the_folder_behind_it(self):
        calls = []

        def watched(name, function):
            return lambda *arguments: (calls.append(name), function(*arguments))[1]

        functions = {name: watched(name, getattr(os, name)) for name in ("fsync", "replace", "remove")}
        with unittest.mock.patch.multiple(os, **functions):
            safetensors.write_sharded(self.folder, self.TENSORS, self.VALUES.get, 9)
        # Two shards and their index; the index of before goes first, and one file of before last.
        self.assertEqual(calls, ["fsync"] * 3 + ["remove"] + ["replace"] * 3 + ["fsync"] + ["remove"])

    def test_a_save_follows_no_link_and_takes_away_what_a_killed_one_has_left(self):
        target = self.folder / "somebody's"
        target.write_text("precious")
        aside = self.folder / ".model.safetensors.terrace-new"
        aside.symlink_to(target)
        with self.assertRaises(terrace.IoError) as caught:
            safetensors.write(self.path, self.TENSORS, self.VALUES.get)
        self.assertTrue(all(parts_of(caught.exception)))
        self.assertEqual(target.read_text(), "precious")
        aside.unlink()
        aside.write_text("half of a file")
        with open(aside, "rb") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            with self.assertRaises(terrace.IoError):
                safetensors.write(self.path, self.TENSORS, self.VALUES.get)
        safetensors.write(self.path, self.TENSORS, self.VALUES.get)
        self.assertEqual(sorted(os.listdir(self.folder)), ["model.safetensors", "somebody's"])

    def test_a_folder_with_weights_of_somebody_else_is_refused(self):
        def contents():
            return {one.name: one.read_bytes() for one in self.folder.iterdir() if one.is_file()}

        theirs = raw_file({"a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}, b"x")
        index = json.dumps({"metadata": {"total_size": 1}, "weight_map": {"a": "model.safetensors"}}).encode()
        for saved_before in (False, True):
            for name, raw in (
                ("model.safetensors", theirs),
                ("model-00007-of-00009.safetensors", b"somebody's"),
                (safetensors.INDEX, index),
                (safetensors.INDEX, b"[]"),
                ("pytorch_model.bin", b""),
                ("pytorch_model.bin.index.json", b"{}"),
            ):
                with self.subTest(name=name, saved_before=saved_before):
                    for one in self.folder.iterdir():
                        one.unlink()
                    if saved_before:
                        safetensors.write_sharded(self.folder, self.TENSORS, self.VALUES.get, 9)
                    (self.folder / name).write_bytes(raw)
                    before = contents()
                    for shard_bytes in (9, 100):
                        with self.assertRaises(terrace.ConfigError) as caught:
                            safetensors.write_sharded(self.folder, self.TENSORS, self.VALUES.get, shard_bytes)
                        self.assertTrue(all(parts_of(caught.exception)))
                        self.assertIn(name, caught.exception.reason)
                        self.assertEqual(contents(), before)

    def test_what_cannot_be_looked_at_is_neither_absent_nor_somebody_elses(self):
        loop = self.folder / "loop"
        loop.symlink_to(loop)
        for name in ("model.safetensors", safetensors.INDEX):
            place = self.folder / "saves"
            place.mkdir(exist_ok=True)
            (place / name).symlink_to(loop)
            for call, subject in (
                (lambda: safetensors.find(loop), loop),
                (lambda: safetensors.find(loop / "below"), loop / "below"),
                (lambda: safetensors.find(place), place / name),
                (lambda: safetensors.write_sharded(place, self.TENSORS, self.VALUES.get), place / name),
            ):
                with self.subTest(name=name, subject=subject), self.assertRaises(terrace.IoError) as caught:
                    call()
                self.assertEqual(caught.exception.subject, str(subject))
                self.assertEqual(caught.exception.reason, os.strerror(errno.ELOOP))
            (place / name).unlink()

    def test_weights_that_come_while_a_save_writes_are_refused_too(self):
        def values(name):
            self.path.write_bytes(b"somebody's")
            return self.VALUES[name]

        with self.assertRaises(terrace.ConfigError):
            safetensors.write_sharded(self.folder, self.TENSORS, values, 9)
        self.assertEqual((os.listdir(self.folder), self.path.read_bytes()), ([self.path.name], b"somebody's"))

    def test_other_files_stay_and_a_file_is_no_folder(self):
        others = {"config.json": "{}", "tokenizer.json": "{}", "adapter_model.safetensors": "somebody's"}
        for name, text in others.items():
            (self.folder / name).write_text(text)
        for shard_bytes in (9, 100):
            safetensors.write_sharded(self.folder, self.TENSORS, self.VALUES.get, shard_bytes)
        self.assertEqual(sorted(os.listdir(self.folder)), sorted([*others, "model.safetensors"]))
        for name, text in others.items():
            self.assertEqual((self.folder / name).read_text(), text)
        with self.assertRaises(terrace.IoError) as caught:
            safetensors.write_sharded(self.path, self.TENSORS, self.VALUES.get)
        self.assertTrue(all(parts_of(caught.exception)))

    def test_shards_have_an_index_and_replace_what_was_there(self):
        for shard_bytes, files in ((100, 1), (9, 2), (1, 3), (9, 2), (100, 1)):
            safetensors.write_sharded(self.folder, self.TENSORS, self.VALUES.get, shard_bytes)
            self.assertEqual(len(os.listdir(self.folder)), files + (files > 1))
            found = safetensors.find(self.folder)
            self.assertEqual(
                {
                    name: pathlib.Path(entry.path).read_bytes()[entry.offset :][: entry.bytes]
                    for name, entry in found.items()
                },
                self.VALUES,
            )
        safetensors.write_sharded(self.folder, self.TENSORS, self.VALUES.get, 9)
        self.assertEqual(
            json.loads((self.folder / safetensors.INDEX).read_text()),
            {
                "metadata": {"total_size": 13, "writer": "terrace"},
                "weight_map": {
                    "a": "model-00001-of-00002.safetensors",
                    "b": "model-00002-of-00002.safetensors",
                    "c": "model-00002-of-00002.safetensors",
                },
            },
        )


class Stores(InFolder):
    def test_a_store_goes_through_a_file_bit_by_bit(self):
        described = [terrace.Tensor("w", (3, 5), "bf16"), terrace.Tensor("n", (7,), "bf16", False)]

        def as_bf16(values):  # they are no other numbers
            raw = memoryview(values).cast("B").tobytes()
            return bytes(byte for at in range(0, len(raw), 4) for byte in raw[at + 2 : at + 4])

        with make_store(described) as store, make_store(described) as other:
            store.fill_with(fill)
            held = {"w": store.read_values("w", "master"), "n": store.read_values("n")}
            safetensors.write_sharded(self.folder, [("w", "F32", (3, 5)), ("n", "F32", (7,))], held.__getitem__)
            entries = safetensors.find(self.folder)
            self.assertEqual(entries["w"].type, "fp32")
            other.fill_files([(name, e.path, e.offset, e.type) for name, e in entries.items()])
            self.assertEqual(other.read_values("w", "master"), store.read_values("w", "master"))
            safetensors.write_sharded(
                self.folder,
                [("model.w", "BF16", (3, 5)), ("model.n", "BF16", (7,))],
                lambda name: as_bf16(store.read_values(name[6:])),
            )
            entries = safetensors.find(self.folder)
            self.assertEqual((set(entries), entries["model.w"].type), ({"model.w", "model.n"}, "bf16"))
            other.fill_files([(name[6:], e.path, e.offset, e.type) for name, e in entries.items()])
            self.assertEqual(other.read_values("w"), store.read_values("w"))


if __name__ == "__main__":
    unittest.main()
