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
            with joined(ends_process="always") as ranks:
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

    def test_divide_a_store_and_have_the_bits_of_one_rank(self):
        script = """
            from support import make_store, fill, hash_of
            with joined() as ranks:
                kept, count = 6, ranks.count
                store = make_store(ranks=ranks, accumulation_steps=kept // count)
                store.fill_with(fill)
                for step in (1, 2):
                    store.begin_step()
                    for k in range(kept // count):
                        number = k * count + ranks.rank
                        with store.lease("all/backward", ["weight", "bias"], "backward"):
                            for name in ("weight", "bias"):
                                view = memoryview(store.gradient(name)).cast("B").cast("f")
                                for at in range(len(view)):
                                    view[at] = hash_of(len(name) + at + 1000 * number + step) - 0.5
                        store.end_micro_batch()
                    print(store.update(terrace.Optimizer(lr=0.01), step).gradient_norm.hex())
                print(bytes(store.read_values("weight", "master")).hex())
                store.close()
            """
        ends = [self.together(count, script) for count in (1, 2, 3)]
        for statuses, outputs, errors in ends:
            self.assertEqual(set(statuses), {0}, errors)
            self.assertEqual(set(outputs), set(ends[0][1]))

    @unittest.skipUnless(os.environ.get("TERRACE_PLAYED_CUDA"), "TERRACE_PLAYED_CUDA does not name a played driver")
    def test_on_gpus_have_the_bits_of_one_rank_too(self):
        """Each rank has a GPU of the played driver of its own, and hands over gradients that have come to the host, or
        lie on the GPU. Parameters and these pass through the host, or go from GPU to GPU by a played NCCL."""
        script = """
            import array, ctypes
            from support import MIB, fill, hash_of, tensors
            from terrace.store.store import KINDS

            def leased(store, kind):
                ids = store.ids(["weight", "bias", "kept"])
                return store.open_lease(b"all/" + kind.encode(), KINDS[kind], ids, 3)

            def first_of(store, name):  # memory of the played GPU is this machine's
                if ON_GPUS:
                    ctypes.CDLL("libcuda.so.1").cuStreamSynchronize(ctypes.c_void_p(store.compute_stream))
                return ctypes.c_float.from_address(store.parameter_address(name)).value

            def handed_over(store, name, values):
                if GRADIENTS == "handed_over":
                    return store.hand_over(name, values)
                place, size = store.work_memory
                driver, on = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(store.compute_stream)
                data = values.tobytes()
                assert size >= len(data)
                ctypes.memmove(place, data, len(data))  # nothing is under way there
                store.hand_over(name, place)
                driver.cuMemsetD8Async(ctypes.c_uint64(place), ctypes.c_ubyte(0x7F), ctypes.c_size_t(len(data)), on)
                driver.cuStreamSynchronize(on)

            with joined(transport=TRANSPORT) as ranks:
                gpu = terrace.CudaDevice(MIB, ranks.rank) if ON_GPUS else terrace.SimulatedDevice(MIB)
                kept, count = 6, ranks.count
                store = terrace.Store(
                    tensors(), gpu, ranks=ranks, accumulation_steps=kept // count, gradients=GRADIENTS, threads=2, work_bytes=8192,
                    parameters=PARAMETERS, divide_parameters=DIVIDES, update_when=WHEN, host_bytes=8 * MIB, unused_gradients="skip")
                print(store.cuda_ordinal == (ranks.rank if ON_GPUS else None))
                store.fill_with(fill)
                for step in (1, 2):
                    store.begin_step()
                    for k in range(kept // count):
                        number = k * count + ranks.rank
                        number_of_lease = leased(store, "forward")
                        used = first_of(store, "weight") + first_of(store, "bias")
                        store.close_lease(number_of_lease)
                        number_of_lease = leased(store, "backward")
                        for name, elements in (("weight", 48 * 32), ("bias", 32)):
                            values = [hash_of(len(name) + at + 1000 * number + step) - used for at in range(elements)]
                            handed_over(store, name, array.array("f", values))
                        store.close_lease(number_of_lease)
                        store.end_micro_batch()
                    print(store.update(terrace.Optimizer(lr=0.01), step).gradient_norm.hex())
                print(bytes(store.read_values("weight", "master")).hex())
                print(bytes(store.read_values("weight", "parameter")).hex())
                store.close()
            """
        for parameters, divides, when in (
            ("cpu", False, "after_backward"),
            ("cpu", False, "next_forward"),
            ("device", False, "during_backward"),
            ("device", True, "after_backward"),
        ):
            said = f"PARAMETERS, DIVIDES, WHEN = {parameters!r}, {divides}, {when!r}\n"
            found = set()
            for on_gpus, count, way, gradients in (
                (False, 1, "auto", "handed_over"),
                (True, 1, "auto", "handed_over"),
                (True, 2, "auto", "handed_over"),
                (True, 2, "nccl", "handed_over"),
                (True, 3, "nccl", "handed_over"),
                (True, 2, "nccl", "handed_over_on_device"),
                (True, 3, "nccl", "handed_over_on_device"),
            ):
                words = f"ON_GPUS, TRANSPORT, GRADIENTS = {on_gpus}, {way!r}, {gradients!r}\n{said}"
                statuses, outputs, errors = self.together(count, words + textwrap.dedent(script), self.on_played_gpus)
                self.assertEqual(set(statuses), {0}, errors)
                self.assertTrue(all(output.startswith("True\n") for output in outputs))
                found.update(outputs)
            self.assertEqual(len(found), 1, said)

    @staticmethod
    def on_played_gpus(rank, count):
        return {"RANK": str(rank), "WORLD_SIZE": str(count), "LD_LIBRARY_PATH": os.environ["TERRACE_PLAYED_CUDA"]}


class LaunchedTest(unittest.TestCase):
    """`terrace launch -- python train.py`."""

    def setUp(self):
        self.program = os.environ.get("TERRACE_PROGRAM")
        if not self.program:
            self.skipTest("TERRACE_PROGRAM does not name the program terrace")

    def launch(self, count, script, *flags):
        with tempfile.TemporaryDirectory() as folder:
            train = os.path.join(folder, "train.py")
            with open(train, "w", encoding="utf-8") as file:
                file.write(PREAMBLE + BEGIN + textwrap.dedent(script))
            return subprocess.run(
                [self.program, "launch", "-n", str(count), *flags, "--", sys.executable, "train.py", "--steps", "4"],
                cwd=folder,
                capture_output=True,
                text=True,
                timeout=PATIENCE,
            )

    def test_is_a_launcher_of_python(self):
        done = self.launch(
            2,
            """
            with joined() as ranks:
                words = (ranks.launcher, ranks.all_of(ranks.rank), ranks.local_count, sys.argv)
                if ranks.is_first:
                    print(*words)
            """,
        )
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(done.stdout, "Terrace [0, 1] 2 ['train.py', '--steps', '4']\n")

    def test_ends_with_the_status_of_an_exception(self):
        done = self.launch(
            2,
            """
            with joined() as ranks:
                ranks.agree({"the seed": ranks.rank})
            """,
        )
        self.assertEqual(done.returncode, 1)
        self.assertEqual(done.stderr.count("the seed"), 1, done.stderr)

    def test_goes_on_from_what_the_ranks_have_kept(self):
        script = """
            with joined() as ranks:
                done = int(open("state").read()) if os.path.exists("state") else 0
                for step in range(done + 1, 5):
                    ranks.step(step, "the forward pass")
                    if ranks.count == 3 and ranks.rank == 1 and step == 3:
                        os.kill(os.getpid(), signal.SIGKILL)
                    ranks.barrier()
                    if KEEPS:
                        if ranks.is_first:
                            open("state", "w").write(str(step))
                        ranks.kept(f"the state is that of step {step}")
                if ranks.is_first:
                    print(f"{ranks.count} ranks have gone on from step {done}")
            """
        for keeps in (True, False):
            done = self.launch(3, f"KEEPS = {keeps}\n" + textwrap.dedent(script), "--restarts", "1")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("rank 1 of 3 (host ", done.stderr)
            self.assertIn("died in step 3\n  killed by signal 9", done.stderr)
            self.assertEqual("the state is that of step 2" in done.stderr, keeps, done.stderr)
            how = "go on from what the run has kept" if keeps else "begin again, since the run has kept nothing yet"
            self.assertIn(f"restart 1 of 1: 2 of 3 ranks {how}", done.stderr)
            self.assertEqual(done.stdout, f"2 ranks have gone on from step {2 if keeps else 0}\n")


if __name__ == "__main__":
    unittest.main()
