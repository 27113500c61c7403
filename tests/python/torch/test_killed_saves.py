"""A save that is killed before any of its calls that change a file leaves one whole state, and the next save nothing
of the dead one. The runs are forked children of one process below kill_at.c."""

import ctypes
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
import unittest

from support_torch import EngineTest, Mlp, config_of, engine_of, seeded, torch, train

HERE = pathlib.Path(__file__).resolve().parent


def build_shim(folder):
    shim = os.path.join(folder, "kill_at.so")
    compiler = os.environ.get("CC", "cc")
    subprocess.run([compiler, "-shared", "-fPIC", HERE / "kill_at.c", "-o", shim, "-ldl"], check=True)
    return shim


def run_in_child(function):
    """(exit status, what it returned)"""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.close(reader)
            os.write(writer, json.dumps(function()).encode())
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    os.close(writer)
    with open(reader, "rb") as file:
        text = file.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return status, json.loads(text) if text else None


class Run:
    """What the process below the shim does."""

    def __init__(self, folder):
        self.saves, self.nvme = os.path.join(folder, "saves"), os.path.join(folder, "nvme")
        self.shim = ctypes.CDLL(None)
        self.shim.kill_at.argtypes, self.shim.calls_so_far.restype = [ctypes.c_long], ctypes.c_long

    def engine(self):
        return engine_of(seeded(Mlp, 40), config_of(), log=lambda *_: None)

    def save(self, steps, tag, number=None):
        """Saves after so many steps; killed before the call of a number, or 0 to count them."""
        engine = self.engine()
        train(engine, steps)
        if number is not None:
            self.shim.kill_at(number)
        engine.save_checkpoint(self.saves, tag)
        return self.shim.calls_so_far()

    def calm(self):
        return train(self.engine(), 3)

    def look(self, tag):
        """(steps of what is there, whether it trains on as it should, what lies in the folder after a save)"""
        engine = self.engine()
        path, _ = engine.load_checkpoint(self.saves, tag)
        steps = engine.global_steps if path else 0
        goes_on = json.loads(json.dumps(train(engine, 1, first=steps))) == self.expected[steps : steps + 1]
        engine.save_checkpoint(self.saves, "next")
        return steps, goes_on, sorted(os.listdir(self.saves))

    def campaign(self, before, tag, named, stride):
        """[(number, steps found, ...)] of kills before each `stride`th call of a save, in a folder of before."""
        _, count = run_in_child(lambda: self.save(2, tag, 0))
        told = []
        for number in range(1, count + 1, stride):
            shutil.rmtree(self.saves, ignore_errors=True)
            if before is not None:
                shutil.copytree(before, self.saves, symlinks=True)
            status, _ = run_in_child(lambda: self.save(2, tag, number))
            seen = run_in_child(lambda: self.look(named))
            told.append((number, status, *seen))
        return told

    def commit(self, number=0):
        """A first step and its commit with an average, killed before a call from the commit on."""
        engine = self.engine_with_commits()
        engine.averaged(0.9)
        train(engine, 1)
        self.shim.kill_at(number)
        engine.commit()
        engine.finish_commit()
        return self.shim.calls_so_far()

    def engine_with_commits(self):
        os.makedirs(self.nvme, exist_ok=True)
        config = config_of("cpu", "nvme", self.nvme, durable=True, commit_every_seconds=0, engine="threads")
        return engine_of(seeded(Mlp, 40), config, log=lambda *_: None, resume="auto")

    def resume(self):
        engine = self.engine_with_commits()
        steps = engine.global_steps
        average = engine.averaged(0.9)
        if average.n_averaged != steps or steps and not self.is_first(engine, average):
            return steps, False
        return steps, json.loads(json.dumps(train(engine, 1, first=steps))) == self.expected[steps : steps + 1]

    @staticmethod
    def is_first(engine, average):
        """Of one step the average is what was trained."""
        return all(torch.equal(value, engine.master(name)) for name, value in average.named_parameters())

    def commits(self):
        _, count = run_in_child(self.commit)
        told = []
        for number in [*range(1, count - 2, 4), *range(count - 2, count + 1)]:
            shutil.rmtree(self.nvme)
            status, _ = run_in_child(lambda: self.commit(number))
            told.append((number, status, *run_in_child(self.resume)))
        return told


def serve(folder):
    run = Run(folder)
    _, run.expected = run_in_child(run.calm)
    first = run.campaign(None, "last", None, 7)
    shutil.rmtree(run.saves)
    run_in_child(lambda: run.save(1, "last"))
    before = run.saves + ".before"
    shutil.copytree(run.saves, before)
    again = run.campaign(before, "last", "last", 2)
    print(json.dumps({"first": first, "again": again, "commits": run.commits()}))


class Kills(EngineTest):
    @classmethod
    def setUpClass(cls):
        with tempfile.TemporaryDirectory() as folder:
            environment = dict(os.environ, LD_PRELOAD=build_shim(folder))
            # -B: files of compiled modules would be calls too, in the first run alone.
            command = [sys.executable, "-B", __file__, "serve", folder]
            done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
        cls.told = json.loads(done.stdout)

    def test_one_whole_state_is_there_wherever_a_save_is_killed(self):
        told = self.told
        for name, least in (("first", 0), ("again", 1)):
            found = set()
            for number, killed, status, seen in told[name]:
                with self.subTest(f"{name}, before call {number}"):
                    self.assertEqual((killed, status), (-signal.SIGKILL, 0))
                    steps, goes_on, names = seen
                    self.assertIn(steps, (least, 2))
                    self.assertTrue(goes_on)
                    self.assertEqual(names, ["last", "latest", "next"] if steps else ["latest", "next"])
                    found.add(steps)
            self.assertEqual(found, {least, 2}, name)
        self.assertGreater(len(told["again"]), 12)

    def test_a_run_that_is_killed_in_its_first_commit_begins_anew_or_goes_on(self):
        found = set()
        for number, killed, status, seen in self.told["commits"]:
            with self.subTest(f"before call {number}"):
                self.assertEqual((killed, status), (-signal.SIGKILL, 0))
                steps, goes_on = seen
                self.assertTrue(goes_on)
                found.add(steps)
        self.assertEqual(found, {0, 1})


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        torch.set_num_threads(1)
        serve(sys.argv[2])
    else:
        unittest.main()
