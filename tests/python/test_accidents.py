"""Forks, copies, interrupts and kills: the store stays usable, or fails cleanly, or goes on from its commit."""

import copy
import importlib.util
import os
import pickle
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import unittest
import unittest.mock

import terrace
from support import PATIENCE, PREAMBLE, fill, make_store, parts_of, run_python, train
from terrace.store.interruptible import call_elsewhere


class Copies(unittest.TestCase):
    def test_a_store_is_neither_pickled_nor_copied(self):
        with make_store() as store:
            for call in (pickle.dumps, copy.copy, copy.deepcopy):
                with self.assertRaises(terrace.MisuseError) as caught:
                    call(store)
                self.assertTrue(all(parts_of(caught.exception)))
            store.fill_with(fill)
            train(store, 1)

    def test_what_describes_a_store_is(self):
        described = (
            terrace.Tensor("w", (4, 2)),
            terrace.SimulatedDevice(7),
            terrace.Optimizer("lion"),
            terrace.Use("u", ["w"]),
        )
        self.assertEqual(pickle.loads(pickle.dumps(described)), described)


class Forks(unittest.TestCase):
    def test_a_child_gets_misuse_and_touches_no_file_of_the_parent(self):
        code = """
            import os, sys, terrace
            from support import fill, make_store, state_of, train
            store = make_store(parameters="nvme", states="nvme", nvme_paths=[sys.argv[1]], durable=True)
            store.fill_with(fill)
            store.begin_step()
            child = os.fork()
            if child == 0:
                for call in (store.end_micro_batch, store.abandon_step, store.counters, lambda: store.plan):
                    try:
                        call()
                        os._exit(1)
                    except terrace.MisuseError as error:
                        if "forked" not in error.reason:
                            os._exit(2)
                store.close()
                sys.exit(0)  # with all finalizers
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            store.abandon_step()
            train(store, 1)
            with make_store() as other:
                other.fill_with(fill)
                train(other, 1)
                print(status, state_of(store) == state_of(other))
        """
        with tempfile.TemporaryDirectory() as folder:
            done = run_python(code, folder)
        self.assertEqual((done.stdout, done.stderr), ("0 True\n", ""), done.stderr)


class Interrupts(unittest.TestCase):
    """SIGINT at a place that is known, because the code sends it to itself."""

    def setUp(self):
        # A shell starts what runs beside it with SIGINT ignored.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        self.addCleanup(signal.signal, signal.SIGINT, before)

    def test_one_in_a_fill_ends_it_and_another_fill_heals(self):
        with make_store() as store:
            arrived, first_call = threading.Event(), threading.Lock()

            def watched(function, interrupted):
                return call_elsewhere(function, lambda interrupt: (interrupted(interrupt), arrived.set()))

            def interrupting(tensor, first, values):
                if first_call.acquire(blocking=False):
                    os.kill(os.getpid(), signal.SIGINT)
                arrived.wait(PATIENCE)

            with unittest.mock.patch("terrace.store.store.call_elsewhere", watched):
                with self.assertRaises(KeyboardInterrupt):
                    store.fill_with(interrupting)
            with self.assertRaises(terrace.MisuseError):
                store.begin_step()
            store.fill_with(fill)
            train(store, 1)

    def test_those_that_come_at_any_time_in_steps_change_no_bit_of_the_training(self):
        code = """
            import os, signal, sys, terrace
            from support import fill, make_store, state_of, train
            armed = interrupts = 0
            def interrupt(*_):
                if armed:
                    raise KeyboardInterrupt
            signal.signal(signal.SIGINT, interrupt)
            with make_store() as store, make_store() as other:
                store.fill_with(fill)
                other.fill_with(fill)
                step = 1
                while step <= 20 or (not interrupts and step <= 2000):  # who sends them may be late
                    before = state_of(store)
                    try:
                        armed = 1
                        print("ready", flush=True)
                        train(store, step)
                        armed = 0
                    except KeyboardInterrupt:
                        armed, interrupts = 0, interrupts + 1
                        if not store.has_whole_state:
                            store.abandon_step()
                        if state_of(store) == before:
                            continue
                    train(other, step)
                    step += 1
                signal.signal(signal.SIGINT, signal.SIG_IGN)  # at its end Python puts back what kills it
                print(interrupts, state_of(store) == state_of(other))
        """
        process = subprocess.Popen(
            [sys.executable, "-c", PREAMBLE + textwrap.dedent(code)],
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        sent = 0
        for line in process.stdout:
            if line == "ready\n" and sent < 60:
                process.send_signal(signal.SIGINT)
                sent += 1
        said = process.stderr.read()
        self.assertEqual((said, process.wait()), ("", 0), said)
        interrupts, is_equal = line.split()
        self.assertGreater(int(interrupts), 0)
        self.assertEqual(is_equal, "True")
        process.stdout.close()
        process.stderr.close()

    @unittest.skipUnless(importlib.util.find_spec("numpy"), "there is no numpy")
    def test_one_while_numpy_is_imported_is_raised_after_it(self):
        code = """
            import os, signal, sys, terrace
            from support import fill, make_store, state_of, train
            signal.signal(signal.SIGINT, signal.default_int_handler)
            class Interrupts:
                is_due = True
                def find_spec(self, name, path, target=None):
                    if name.endswith("core._add_newdocs") and self.is_due:
                        self.is_due = False
                        os.kill(os.getpid(), signal.SIGINT)
            sys.meta_path.insert(0, Interrupts())
            with make_store() as store, make_store() as other:
                for each in (store, other):
                    each.fill_with(fill)
                try:
                    train(store, 1)
                except KeyboardInterrupt:
                    print("interrupted")
                    store.abandon_step()
                for each in (store, other):
                    train(each, 1)
                print(state_of(store) == state_of(other))
        """
        done = run_python(code)
        self.assertEqual((done.stdout, done.stderr), ("interrupted\nTrue\n", ""), done.stderr)

    def test_two_at_once_leave_no_call_behind(self):
        """The second one comes while the first is given on."""
        given, ended = [], []

        def function():
            os.kill(os.getpid(), signal.SIGINT)
            while not given:
                time.sleep(0.001)
            ended.append(True)
            return 7

        def interrupted(interrupt):
            given.append(interrupt)
            if len(given) == 1:
                raise KeyboardInterrupt

        try:
            self.assertEqual(call_elsewhere(function, interrupted), 7)
        except KeyboardInterrupt:
            self.fail("the call goes on, and nobody waits for it")
        self.assertEqual((len(given), ended), (2, [True]))

    def test_one_between_a_lease_and_its_block_leaves_no_lease_behind(self):
        with make_store() as store:
            store.fill_with(fill)
            c_lease = store._c_lease
            for at in ("before", "after"):

                def interrupted(*arguments, at=at):
                    if at == "after":
                        c_lease(*arguments)
                    raise KeyboardInterrupt

                store.begin_step()
                store._c_lease = interrupted
                with self.assertRaises(KeyboardInterrupt):
                    with store.lease("key", ["weight"]):
                        self.fail("the block has begun")
                store._c_lease = c_lease
                store.abandon_step()
            train(store, 1)

    def test_one_while_the_store_is_created_leaves_nothing_in_the_folder(self):
        code = """
            import ctypes, os, signal, sys, terrace
            from terrace import _lib
            from terrace.store import request
            from support import fill, make_store, train
            library = _lib.library()
            create = library.terrace_create
            class Interrupted:
                def terrace_create(self, *arguments):
                    create(*arguments)
                    raise KeyboardInterrupt
                def __getattr__(self, name):
                    return getattr(library, name)
            request.library = Interrupted
            options = {"states": "nvme", "nvme_paths": [sys.argv[1]]}
            try:
                make_store(**options)
            except KeyboardInterrupt:
                request.library = _lib.library
                print(os.listdir(sys.argv[1]))
                with make_store(**options) as store:
                    store.fill_with(fill)
                    print(train(store, 1).applied)
        """
        with tempfile.TemporaryDirectory() as folder:
            done = run_python(code, folder)
        self.assertEqual((done.stdout, done.stderr), ("[]\nTrue\n", ""), done.stderr)


TRAINING = """
    import os, sys, terrace
    from support import fill, make_store, state_of, train
    folder, last = sys.argv[1], int(sys.argv[2])
    options = {"parameters": "nvme", "states": "nvme", "nvme_paths": [folder], "durable": True}
    resumes = os.path.exists(os.path.join(folder, "begun"))
    with make_store(**options, resume=resumes, discard_commits=not resumes) as store:
        if not resumes:
            store.fill_with(fill)
            store.begin_commit("0")
            store.finish_commit()
            open(os.path.join(folder, "begun"), "w").close()
        for step in range(int(store.taken_up_text or 0) + 1, last + 1):
            train(store, step)
            store.begin_commit(str(step))
            print(step, flush=True)
        store.finish_commit()
        print(*(values.hex() for values in state_of(store).values()), flush=True)
"""


class Kills(unittest.TestCase):
    STEPS = 24

    def start(self, folder):
        program = [sys.executable, "-c", PREAMBLE + textwrap.dedent(TRAINING), folder, str(self.STEPS)]
        return subprocess.Popen(program, stdout=subprocess.PIPE, text=True)

    def test_a_killed_training_goes_on_from_its_commit_to_the_same_bits(self):
        with tempfile.TemporaryDirectory() as folder:
            wanted = self.start(folder).communicate(timeout=PATIENCE)[0].splitlines()[-1]
        with tempfile.TemporaryDirectory() as folder:
            kills = 0
            for kill_at in (1, 3, 2, 5, 4):  # steps after each begin
                process = self.start(folder)
                for _ in range(kill_at):
                    line = process.stdout.readline()
                process.kill()
                process.communicate()
                self.assertEqual(process.returncode, -signal.SIGKILL)
                self.assertRegex(line, re.compile(r"^\d+$"))
                kills += 1
            found = self.start(folder).communicate(timeout=PATIENCE)[0].splitlines()
        self.assertEqual(kills, 5)
        self.assertLess(len(found) - 1, self.STEPS)  # it has gone on
        self.assertEqual(found[-1], wanted)


if __name__ == "__main__":
    unittest.main()
