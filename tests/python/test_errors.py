"""Every kind of error, as an exception of four parts after which the store is as the library promises."""

import ctypes
import inspect
import os
import pathlib
import pickle
import re
import tempfile
import threading
import unittest
import unittest.mock

import terrace
from support import MIB, PATIENCE, ROOT, fill, make_store, parts_of, run_python, state_of, tensors, train
from terrace import _lib, errors
from terrace.ranks import Ranks
from terrace.store import request


class Kinds(unittest.TestCase):
    def raised(self, kind, call):
        with self.assertRaises(kind) as caught:
            call()
        self.assertIs(type(caught.exception), kind)
        self.assertTrue(all(parts_of(caught.exception)), parts_of(caught.exception))
        self.assertNotIn("terrace_", str(caught.exception))  # a name of C
        return caught.exception

    def test_a_device_or_an_optimizer_is_looked_at_where_it_is_made(self):
        for make, subject, reason in (
            (lambda: terrace.SimulatedDevice("2MiB"), "SimulatedDevice.budget_bytes", "'2MiB'"),
            (lambda: terrace.SimulatedDevice(-1), "SimulatedDevice.budget_bytes", "-1"),
            (lambda: terrace.SimulatedDevice(True), "SimulatedDevice.budget_bytes", "True"),
            (
                lambda: terrace.SimulatedDevice(1 << 20, d2h_bytes_per_second=1.5),
                "SimulatedDevice.d2h_bytes_per_second",
                "1.5",
            ),
            (lambda: terrace.CudaDevice(None), "CudaDevice.budget_bytes", "None"),
            (lambda: terrace.CudaDevice(1 << 20, ordinal="0"), "CudaDevice.ordinal", "'0'"),
        ):
            error = self.raised(terrace.ConfigError, make)
            self.assertEqual(error.subject, subject)
            self.assertIn(reason, error.reason)
            self.assertIn("whole number", error.advice)
        error = self.raised(terrace.ConfigError, lambda: terrace.Optimizer("adamww"))
        self.assertIn("adamw, adam, adagrad", error.reason)
        self.assertIn('"adamw"', error.advice)
        for make, subject in (
            (lambda: terrace.Optimizer(lr="fast"), "Optimizer.lr"),
            (lambda: terrace.Optimizer(betas=0.9), "Optimizer.betas"),
            (lambda: terrace.Optimizer(betas=(0.9, "x")), "Optimizer.betas"),
            (lambda: terrace.Optimizer("sgd", momentum=None), "Optimizer.momentum"),
        ):
            self.assertEqual(self.raised(terrace.ConfigError, make).subject, subject)

    def test_a_value_that_cannot_be_used_is_named(self):
        for options, subject in (
            ({"states": "nmve"}, "states"),
            ({"stats": "nvme"}, "stats"),
            ({"states": "nvme"}, "nvme_paths"),
            ({"threads": "two"}, "threads"),
            ({"chunk_elements": 17}, "chunk_elements"),
            ({"tier_name": "a\0b"}, "tier_name"),
            ({"log": 7}, "log"),
        ):
            self.assertEqual(self.raised(terrace.ConfigError, lambda: make_store(**options)).subject, subject)
        for tensor, subject in (
            (terrace.Tensor("w", (4,), home="caller"), "w"),
            (terrace.Tensor("w", (4,), "fp64"), "type of the tensor w"),
            (terrace.Tensor("w", ("x", 2)), "w"),
            (terrace.Tensor("w", 4), "w"),
            (terrace.Tensor("w", (4,), group="first"), "w"),
            (terrace.Tensor("w", (4,), home="caller", address=64, address_is_device=True), "w"),
        ):
            self.assertEqual(self.raised(terrace.ConfigError, lambda: make_store([tensor])).subject, subject)
        self.assertIn("did you mean", self.raised(terrace.ConfigError, lambda: make_store(stats="nvme")).advice)
        self.raised(terrace.ConfigError, lambda: terrace.Store(tensors(), "cuda"))

    def test_a_budget_that_is_too_small_says_what_would_do(self):
        error = self.raised(terrace.CapacityError, lambda: make_store(device_bytes=1))
        self.assertGreater(error.least_device_bytes, 1)
        self.assertEqual((error.least_host_bytes, error.least_bytes), (0, error.least_device_bytes))

    def test_a_file_that_is_missing_is_an_io_error_that_a_fill_heals(self):
        with make_store() as store:
            parts = [(tensor.name, "/nowhere/at/all", 0, "fp32") for tensor in store.tensors]
            error = self.raised(terrace.IoError, lambda: store.fill_files(parts))
            self.assertIn("/nowhere/at/all", str(error))
            store.fill_with(fill)
            train(store, 1)

    def test_a_gpu_that_is_not_there_is_named(self):
        with self.assertRaises((terrace.ConfigError, terrace.DeviceError)) as caught:
            terrace.Store(tensors(), terrace.CudaDevice(MIB, ordinal=99), host_bytes=8 * MIB)
        self.assertTrue(all(parts_of(caught.exception)))

    def test_bytes_that_changed_on_the_drive_are_found_and_the_error_stays(self):
        with tempfile.TemporaryDirectory() as folder:
            options = {"parameters": "nvme", "states": "nvme", "nvme_paths": [folder], "durable": True}
            with make_store(**options) as store:
                store.fill_with(fill)
                store.begin_commit("whole")
                store.finish_commit()
            for path in pathlib.Path(folder).rglob("*"):
                if path.is_file() and path.stat().st_size >= 16384:
                    path.write_bytes(bytes(byte ^ 1 for byte in path.read_bytes()))
            with self.assertRaises(terrace.CorruptError) as caught:
                with make_store(**options, resume=True) as store:
                    self.addCleanup(store.close)
                    state_of(store)
            self.assertTrue(all(parts_of(caught.exception)))

    def test_misuse_changes_nothing(self):
        with make_store() as store:
            store.fill_with(fill)
            wanted = state_of(store)
            ids = store.ids(["bias"])
            for call in (
                store.end_micro_batch,
                store.abandon_step,
                store.end_evaluation,
                lambda: store.update(terrace.Optimizer(), 1),
                lambda: store.lease("key", ["bias"]).__enter__(),
                lambda: store.open_lease(b"key", 0, ids, 1),
                lambda: store.close_lease(77),
                lambda: store.read_values(3),
                lambda: store.parameter_address(-1 & 0xFFFF),
                lambda: store.hand_over("bias", bytes(128)),
                lambda: store.select_micro_batch(1),
            ):
                with self.subTest(call):
                    self.raised(terrace.MisuseError, call)
            self.assertEqual(state_of(store), wanted)
            train(store, 1)

    def test_a_closed_store_says_so(self):
        store = make_store()
        store.close()
        store.close()
        error = self.raised(terrace.MisuseError, store.begin_step)
        self.assertEqual(error.reason, "it is closed")

    def test_a_second_call_at_the_same_moment_is_refused_and_so_is_a_close(self):
        refused = []
        with make_store() as store:
            inside, done = threading.Event(), threading.Event()

            def waiting(tensor, first, values):
                inside.set()
                done.wait(PATIENCE)

            filler = threading.Thread(target=store.fill_with, args=(waiting,))
            filler.start()
            inside.wait(PATIENCE)
            for call in (store.begin_step, store.close):
                refused.append(self.raised(terrace.MisuseError, call).reason)
            done.set()
            filler.join()
            store.fill_with(fill)
        self.assertEqual({reason.partition(",")[0] for reason in refused}, {"another call is under way"})

    def test_each_kind_of_the_library_has_a_class(self):
        self.assertEqual(set(errors.BY_KIND), set(_lib.ENUMS["terrace_error_kind"]))


class Names(unittest.TestCase):
    """What an error calls things by. base/option.h is the one table of options."""

    def shortage(self, **options):
        with self.assertRaises(terrace.CapacityError) as caught:
            make_store(**options)
        return caught.exception.advice

    def test_options_go_by_the_keywords_of_this_package_or_by_the_keys_of_a_configuration(self):
        self.assertIn("raise budget_bytes of the device", self.shortage(device_bytes=1))
        self.assertIn("raise host_bytes", self.shortage(host_bytes=1))
        with _lib.in_words_of_the_configuration():
            self.assertIn("raise terrace.device_memory", self.shortage(device_bytes=1))
            self.assertIn("raise terrace.host_memory", self.shortage(host_bytes=1))
        self.assertIn("raise host_bytes", self.shortage(host_bytes=1))

    def test_calls_go_by_attributes_of_a_store(self):
        store = make_store()
        store.close()
        calls = [
            lambda: store.update(terrace.Optimizer(), 1),
            lambda: store.plan,
            lambda: store.update_when,
            lambda: store.last_commit,
            lambda: store.read_values("bias"),
            store.begin_step,
            store.abandon_step,
            store.finish_commit,
            store.counters,
        ]
        for call in calls:
            with self.assertRaises(terrace.MisuseError) as caught:
                call()
            owner, _, name = caught.exception.what.partition(".")
            self.assertEqual((owner, hasattr(terrace.Store, name)), ("Store", True), caught.exception.what)
            self.assertEqual(caught.exception.cause, "no_store")

    def test_the_table_of_options_has_keywords_that_there_are(self):
        table = (ROOT / "base/option.h").read_text()
        words = re.findall(r'ROW\(.*?, (?:TERRACE_C_MEMBER\([^)]*\)|TERRACE_NONE), "([^"]*)", "', table)
        self.assertGreater(len(words), 40)
        others = {"", "budget_bytes of the device", "the optimizers of update()"}
        tensors = {f"Tensor.{name}" for name in terrace.Tensor._fields}
        of_ranks = set(inspect.signature(Ranks).parameters)
        self.assertEqual(set(words) - others - tensors - set(request.OPTIONS) - of_ranks, set())


class Exceptions(unittest.TestCase):
    def test_they_pickle_with_all_that_they_say(self):
        with self.assertRaises(terrace.CapacityError) as caught:
            make_store(device_bytes=1)
        copy = pickle.loads(pickle.dumps(caught.exception))
        self.assertEqual(parts_of(copy), parts_of(caught.exception))
        self.assertEqual(
            (copy.kind, copy.least_bytes, copy.plan), ("capacity", caught.exception.least_bytes, caught.exception.plan)
        )
        self.assertEqual(str(copy), str(caught.exception))

    def test_their_text_is_that_of_the_library(self):
        error = terrace.IoError("cannot read", "a file", "it is gone", "look for it")
        self.assertEqual(str(error), 'cannot read "a file": it is gone\n  look for it')
        self.assertEqual(str(terrace.Error("it failed")), "it failed")


class Library(unittest.TestCase):
    def use_of(self, library):
        code = """
            import sys, terrace
            try:
                terrace.plan([terrace.Tensor("w", (4,))], terrace.SimulatedDevice(1 << 20))
            except terrace.Error as error:
                print(type(error).__name__, error.subject, error.reason, error.advice, sep="|")
        """
        return run_python(code, env={**os.environ, "TERRACE_LIBRARY": library}).stdout.strip().split("|")

    def test_one_that_is_missing_is_named_with_what_it_needs(self):
        kind, subject, reason, advice = self.use_of("/nowhere/libterrace.so")
        self.assertEqual((kind, subject), ("IoError", "/nowhere/libterrace.so"))
        self.assertIn("libtbb12", advice)

    def test_one_that_is_no_terrace_is_refused(self):
        kind, subject, reason, _ = self.use_of("libm.so.6")
        self.assertEqual((kind, subject), ("ConfigError", "libm.so.6"))
        self.assertIn("terrace_abi", reason)

    def test_an_older_one_does_all_but_what_it_lacks(self):
        functions = {**_lib.FUNCTIONS, "terrace_of_tomorrow": (None, [])}
        with unittest.mock.patch.object(_lib, "FUNCTIONS", functions):
            library = _lib._declared(ctypes.CDLL(_lib.library_path()), "libterrace.so")
        self.assertEqual(library.terrace_abi(), _lib.ABI)
        with self.assertRaises(terrace.ConfigError) as caught:
            library.terrace_of_tomorrow(None)
        self.assertEqual(caught.exception.reason, "it has no terrace_of_tomorrow")

    def test_another_binary_interface_is_refused(self):
        loaded = ctypes.CDLL(_lib.library_path())
        with unittest.mock.patch.object(_lib, "ABI", 77), self.assertRaises(terrace.ConfigError) as caught:
            _lib._declared(loaded, "libterrace.so")
        self.assertIn("number 77", caught.exception.reason)

    def test_the_version_is_that_of_the_tree(self):
        version = re.search(r"project\(terrace VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text()).group(1)
        self.assertEqual(terrace.__version__, version)
        self.assertEqual(_lib.library().terrace_version().decode(), version)

    def test_an_import_needs_nothing_but_python(self):
        code = """
            import sys
            import terrace
            print(*({"numpy", "torch", "dataclasses", "inspect", "json"} & set(sys.modules)))
        """
        done = run_python(code, env={"TERRACE_LIBRARY": "/nowhere", "PYTHONNOUSERSITE": "1"})
        self.assertEqual((done.stdout, done.stderr), ("\n", ""), done.stderr)


if __name__ == "__main__":
    unittest.main()
