"""A commit goes on with moments of another type and with masters in the other form: as through a checkpoint, wherever the
conversion is killed, and whatever a drive does to one of its requests. Runs that are disturbed are forked children of one
process below kill_at.c or fail_at.c."""

import ctypes
import errno
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest

from support_torch import EngineTest, Mlp, config_of, engine_of, isolated, masters, seeded, terrace, torch, train
from test_killed_saves import run_in_child

HERE = pathlib.Path(__file__).resolve().parent
FORMS = [(kind, compact) for compact in (False, True) for kind in ("fp32", "bf16", "int8")]
FROM, TO = ("fp32", False), ("int8", True)  # of the runs that are disturbed
REQUESTS = (("read", errno.EIO), ("write", errno.EIO), ("write", errno.ENOSPC), ("room", errno.ENOSPC))
KINDS = ("read", "write", "room")  # in the order of fail_at.c


def config(folder, form, optimizer="AdamW", parameters="nvme", **named):
    moments, compact = form
    return config_of(
        parameters,
        "nvme",
        folder,
        precision="bf16",
        optimizer=optimizer,
        durable=True,
        commit_every_seconds=0,
        state_type=moments,
        compact_state=compact,
        engine="threads",
        **named,
    )


def engine_on(folder, form, resume=False, log=lambda *_: None, **named):
    os.makedirs(folder, exist_ok=True)
    return engine_of(seeded(Mlp, 40), config(folder, form, **named), resume=resume, log=log)


def commit(engine):
    engine.commit()
    engine.finish_commit()


def tier_files(folder):
    return sorted(str(path.relative_to(folder)) for path in pathlib.Path(folder).rglob("*.manifest"))


class Conversions(EngineTest):
    def scratch(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        return pathlib.Path(scratch.name)

    def check(self, folder, before, after, **named):
        said = []
        place = folder / "in place"
        shutil.copytree(folder / "first", place)
        with engine_on(place, after, resume=True, log=lambda *words: said.append(words[-1]), **named) as engine:
            self.assertEqual(engine.global_steps, 3)
            told, ends = train(engine, 2, first=3), masters(engine)
            commit(engine)
        second = "" if before == after else "terrace-second-rank-0-of-1/"
        self.assertEqual(tier_files(place), [f"{second}terrace-tier/commit-{2 if before == after else 1:016}.manifest"])
        self.assertEqual(any("from here on" in text for text in said), before != after, said)
        with engine_on(folder / "other", after, **named) as engine:
            engine.load_checkpoint(folder / "saved")
            self.assertEqual((train(engine, 2, first=3), masters(engine)), (told, ends))
        shutil.rmtree(place)
        shutil.rmtree(folder / "other")

    @isolated
    def test_every_form_goes_on_in_every_other_as_through_a_checkpoint(self):
        for optimizer in ("AdamW", "Lion"):
            for before in FORMS:
                folder = self.scratch()
                with engine_on(folder / "first", before, optimizer=optimizer) as engine:
                    train(engine, 3)
                    commit(engine)
                    engine.save_checkpoint(folder / "saved")
                for after in FORMS:
                    with self.subTest(optimizer=optimizer, before=before, after=after):
                        self.check(folder, before, after, optimizer=optimizer)

    @isolated
    def test_a_commit_may_be_converted_again_and_again(self):
        folder = self.scratch()
        for number, (form, resume) in enumerate(zip([FROM, TO, FROM, TO], [False, "auto", True, "auto"])):
            with engine_on(folder, form, resume=resume) as engine:
                self.assertEqual(engine.global_steps, number)
                train(engine, 1, first=number)
                commit(engine)
            second = "terrace-second-rank-0-of-1/" if number % 2 else ""
            self.assertEqual(tier_files(folder), [f"{second}terrace-tier/commit-{1:016}.manifest"])
        # What is there is found wherever it lies.
        with self.assertRaises(terrace.ConfigError) as failure:
            engine_on(folder, FROM)
        self.assert_four_parts(failure.exception)
        with engine_of(seeded(Mlp, 40), config(folder, FROM), discard_commits=True) as engine:
            train(engine, 1)
            commit(engine)
        self.assertEqual(len(tier_files(folder)), 1)

    @isolated
    def test_the_average_of_a_commit_goes_on(self):
        folder = self.scratch()

        def values(average):
            return {name: value.tolist() for name, value in average.named_parameters()}

        with engine_on(folder, FROM) as engine:
            average = engine.averaged(0.9)
            train(engine, 2)
            commit(engine)
            ends = values(average)
        for form in (TO, FROM):
            with engine_on(folder, form, resume=True) as engine:
                average = engine.averaged(0.9)
                self.assertEqual((engine.global_steps, average.n_averaged, values(average)), (2, 2, ends))
                commit(engine)
            self.assertEqual(len(tier_files(folder)), 1)

    @isolated
    def test_the_commit_stays_where_the_converted_state_has_no_commit(self):
        folder = self.scratch()
        with engine_on(folder, FROM) as engine:
            train(engine, 1)
            commit(engine)
        before = tier_files(folder)
        engine = engine_on(folder, TO, resume=True)
        self.assertEqual(tier_files(folder), before)
        with self.assertRaises(terrace.Error) as refused:  # it is being read
            engine_on(folder, FROM, resume=True)
        self.assert_four_parts(refused.exception)
        del refused
        engine.close()
        with engine_on(folder, FROM, resume=True) as engine:
            self.assertEqual(engine.global_steps, 1)


class Run:
    """What a process below a shim does."""

    def __init__(self, folder):
        self.first, self.nvme = os.path.join(folder, "first"), os.path.join(folder, "saved")
        self.shim = ctypes.CDLL(None)

    def commit_first(self):
        with engine_on(self.first, FROM) as engine:
            train(engine, 2)
            commit(engine)

    def begin(self):
        shutil.rmtree(self.nvme, ignore_errors=True)
        shutil.copytree(self.first, self.nvme)

    def convert(self):
        engine = engine_on(self.nvme, TO, resume="auto")
        train(engine, 1, first=engine.global_steps)
        commit(engine)
        engine.close()

    def end(self):
        """[the step that is found, what lies there in the end, the end of a run that goes on to step 5]"""
        with engine_on(self.nvme, TO, resume="auto") as engine:
            step = engine.global_steps
            train(engine, 5 - step, first=step)
            commit(engine)
            ends = masters(engine)
        return step, [len(tier_files(self.nvme)), sorted(os.listdir(self.nvme))], ends

    def killed(self, number):
        self.shim.kill_at(ctypes.c_long(number))
        self.convert()
        return self.shim.calls_so_far()

    def kills(self):
        self.begin()
        count = run_in_child(lambda: self.killed(0))[1]
        calm, told = run_in_child(self.end)[1], []
        for number in range(1, count + 1, 3):
            self.begin()
            status, _ = run_in_child(lambda: self.killed(number))
            told.append((number, status, *run_in_child(self.end)))
        return {"calm": calm, "told": told}

    def failing(self, kind, number, error):
        self.shim.fail_at(kind, ctypes.c_long(number), error, 0)
        try:
            self.convert()
        except terrace.Error as refused:
            return [refused.what, str(refused.subject), refused.reason, refused.advice]
        return [self.shim.calls_of(one) for one in range(len(KINDS))]

    def faults(self):
        self.begin()
        counts = run_in_child(lambda: self.failing(0, 0, 0))[1]
        calm, told = run_in_child(self.end)[1], []
        for request, error in REQUESTS:
            kind = KINDS.index(request)
            for number in range(1, counts[kind] + 1):
                self.begin()
                status, seen = run_in_child(lambda: self.failing(kind, number, error))
                told.append(([request, number, error], status, seen, *run_in_child(self.end)))
        return {"calm": calm, "counts": counts, "told": told}


class Disturbed(EngineTest):
    def told(self, what):
        with tempfile.TemporaryDirectory() as folder:
            source = HERE / {"kills": "kill_at.c", "faults": "fail_at.c"}[what]
            shim = os.path.join(folder, "shim.so")
            subprocess.run([os.environ.get("CC", "cc"), "-shared", "-fPIC", source, "-o", shim, "-ldl"], check=True)
            command = [sys.executable, "-B", __file__, "serve", what, folder]
            environment = dict(os.environ, LD_PRELOAD=shim)
            done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
        return json.loads(done.stdout)

    def test_a_run_that_is_killed_in_a_conversion_goes_on_with_the_same_bits(self):
        told = self.told("kills")
        found = set()
        self.assertEqual(told["calm"][0], 3)
        for number, killed, status, seen in told["told"]:
            with self.subTest(f"before call {number}"):
                self.assertEqual((killed, status), (-signal.SIGKILL, 0))
                step, left, ends = seen
                self.assertEqual([left, ends], [told["calm"][1], told["calm"][2]])
                found.add(step)
        self.assertEqual(found, {2, 3})

    def test_a_conversion_of_which_a_request_fails_leaves_the_commit_whole(self):
        told = self.told("faults")
        found, named = set(), set()
        for case, status, seen, end_status, end in told["told"]:
            with self.subTest(case=case):
                self.assertEqual((status, end_status), (0, 0))
                step, left, ends = end
                self.assertEqual([left, ends], [told["calm"][1], told["calm"][2]])
                found.add(step)
                if isinstance(seen[0], str):
                    self.assertTrue(all(seen), seen)
                    named.add(case[0])
                    self.assertEqual(step, 2)
        self.assertEqual(found, {2, 3})
        self.assertIn("read", named)
        self.assertTrue(all(told["counts"]), told["counts"])


def serve(what, folder):
    run = Run(folder)
    run_in_child(run.commit_first)
    print(json.dumps(run.kills() if what == "kills" else run.faults()))


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        torch.set_num_threads(1)
        serve(*sys.argv[2:])
    else:
        unittest.main()
