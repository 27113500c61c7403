"""terrace.ranks: processes that join, agree, find a dead one, and end together."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import unittest

import terrace
from support import PATIENCE, PREAMBLE
from terrace.ranks import Ranks

BEGIN = f"""
import os, signal, sys
import terrace
from terrace.ranks import Ranks

def joined(**options):
    return Ranks(timeout={PATIENCE}, **options)
"""


class RanksTest(unittest.TestCase):
    def together(self, count, script, variables=None):
        """What `count` processes that run the script came to: exit statuses, and what each wrote."""
        with tempfile.TemporaryDirectory() as folder:
            known = {
                name: value for name, value in os.environ.items() if not name.startswith(("OMPI_", "PMI_", "SLURM_"))
            }
            known["TERRACE_MEET"] = os.path.join(folder, "meet")
            processes = [
                subprocess.Popen(
                    [sys.executable, "-c", PREAMBLE + BEGIN + textwrap.dedent(script)],
                    env={**known, **(variables or self.of_torchrun)(rank, count)},
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
                for rank in range(count)
            ]
            wrote = [process.communicate(timeout=PATIENCE) for process in processes]
        return [process.returncode for process in processes], [one[0] for one in wrote], [one[1] for one in wrote]

    @staticmethod
    def of_torchrun(rank, count):
        return {"RANK": str(rank), "WORLD_SIZE": str(count)}

    @staticmethod
    def of_terrace(rank, count):
        return {"TERRACE_RANK": str(rank), "TERRACE_RANKS": str(count)}

    def test_share_their_words_and_know_their_places(self):
        script = """
            with joined() as ranks:
                ranks.agree({"the seed": 7, "the model": "gpt2"})
                print(ranks.rank, ranks.count, ranks.local_rank, ranks.local_count, ranks.launcher)
                print(ranks.all_of(ranks.rank * 10), ranks.texts_of_all(b"x" * ranks.rank))
                print(ranks.of_first(b"the first one's" if ranks.is_first else b"another's"), ranks.any(ranks.rank == 1))
                ranks.barrier()
                ranks.check()
            """
        for variables, launcher in ((self.of_torchrun, "torchrun"), (self.of_terrace, "terrace launch")):
            statuses, outputs, errors = self.together(3, script, variables)
            self.assertEqual(statuses, [0, 0, 0], errors)
            for rank, output in enumerate(outputs):
                lines = output.splitlines()
                self.assertEqual(lines[0].split()[:4], [str(rank), "3", str(rank), "3"], launcher)
                self.assertEqual(lines[1], "[0, 10, 20] [b'', b'x', b'xx']")
                self.assertEqual(lines[2], """b"the first one's" True""")

    def test_are_refused_once_where_a_value_differs(self):
        statuses, _, errors = self.together(
            2,
            """
            with joined() as ranks:
                ranks.agree({"the seed": 7 + ranks.rank, "the model": "gpt2"})
            """,
        )
        self.assertEqual(statuses, [1, 1])
        self.assertIn("the seed", errors[0])
        self.assertNotIn("the model", errors[0])
        self.assertEqual(errors[1], "")

    def test_name_one_that_is_killed(self):
        statuses, outputs, errors = self.together(
            4,
            """
            with joined() as ranks:
                step = 0
                try:
                    while True:
                        step += 1
                        ranks.step(step, "the forward pass")
                        ranks.kept("the state is that of step 2")
                        if ranks.rank == 2 and step == 3:
                            os.kill(os.getpid(), signal.SIGKILL)
                        ranks.barrier()
                except terrace.PeerError as error:
                    print(error)
                    raise
            """,
        )
        self.assertEqual(statuses, [1, 1, -signal.SIGKILL, 1], errors)
        for rank in (0, 1, 3):
            self.assertIn("rank 2 of 4 (host ", outputs[rank])
            self.assertIn("died in step 3", outputs[rank])
            self.assertIn("the state is that of step 2", outputs[rank])
        self.assertIn("terrace: error: rank 2 of 4", errors[0])
        self.assertEqual((errors[1], errors[3]), ("", ""))

    def test_end_with_the_worst_status_and_name_who_failed(self):
        statuses, _, errors = self.together(
            3,
            """
            with joined() as ranks:
                if ranks.rank == 1:
                    raise terrace.IoError("cannot write", "the file", "the disk is full", "free some")
                if ranks.rank == 2:
                    sys.exit(3)
                while True:
                    ranks.barrier()
            """,
        )
        self.assertEqual(statuses, [3, 3, 3], errors)
        self.assertIn('[rank 1] cannot write "the file": the disk is full', errors[1])
        self.assertEqual(errors[0], "")

    def test_a_failure_of_the_program_has_its_traceback(self):
        statuses, _, errors = self.together(
            2,
            """
            with joined() as ranks:
                if ranks.rank == 1:
                    {}["lost"]
                while True:
                    ranks.barrier()
            """,
        )
        self.assertEqual(statuses, [1, 1])
        self.assertIn("Traceback", errors[1])
        self.assertIn("[rank 1] KeyError: 'lost'", errors[1])
        self.assertEqual(errors[0], "")

    def test_that_compute_on_are_ended_after_a_death(self):
        statuses, _, errors = self.together(
            2,
            f"""
            import time
            with joined(ends_process=True) as ranks:
                ranks.barrier()
                if ranks.rank == 1:
                    os.kill(os.getpid(), signal.SIGKILL)
                time.sleep({PATIENCE})
            """,
        )
        self.assertEqual(statuses, [1, -signal.SIGKILL])
        self.assertIn("rank 1 of 2", errors[0])

    @unittest.skipUnless(shutil.which("mpirun"), "there is no mpirun")
    def test_of_mpirun_meet_over_mpi(self):
        """Its plug-in lies beside the library, and not beside the program, which is Python."""
        script = """
            with joined() as ranks:
                print("".join(map(str, ranks.all_of(ranks.rank + 1))), ranks.launcher, flush=True)
            """
        rules = {"ALLOW_RUN_AS_ROOT": "1", "ALLOW_RUN_AS_ROOT_CONFIRM": "1", "MCA_rmaps_base_oversubscribe": "1"}
        done = subprocess.run(
            ["mpirun", "-n", "2", sys.executable, "-c", PREAMBLE + BEGIN + textwrap.dedent(script)],
            env={**os.environ, **{"OMPI_" + name: value for name, value in rules.items()}},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual([line.split()[0] for line in done.stdout.splitlines()], ["12", "12"])

    def test_of_one_answer_at_once(self):
        said = []
        with Ranks(count=1, log=lambda level, line: said.append((level, line))) as alone:
            self.assertEqual((alone.rank, alone.count, alone.is_first, alone.launcher), (0, 1, True, ""))
            self.assertEqual(alone.texts_of_all(b"mine"), [b"mine"])
            self.assertEqual(alone.where(), "")
            alone.agree({})
            self.assertEqual(alone.end(), 0)
            self.assertEqual(alone.end(RuntimeError("lost"), 4), 4)
        self.assertEqual(said, [("error", "RuntimeError: lost")])

    def test_who_does_not_come_is_named(self):
        with tempfile.TemporaryDirectory() as folder:
            with self.assertRaises(terrace.PeerError) as missing:
                Ranks(rank=0, count=2, place=os.path.join(folder, "meet"), timeout=1)
            self.assertIn("rank 1", str(missing.exception))

    def test_wrong_options_are_refused(self):
        with self.assertRaises(terrace.ConfigError) as refused:
            Ranks(rank=1)
        self.assertEqual(refused.exception.subject, "rank")
        with self.assertRaises(terrace.ConfigError):
            Ranks(transport="pigeon")
        with self.assertRaises(terrace.ConfigError):
            Ranks(count=2, transport="mpi")


if __name__ == "__main__":
    unittest.main()
