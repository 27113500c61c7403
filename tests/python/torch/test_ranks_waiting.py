"""Ranks that hang, or that are busy while another one dies: who keeps the others waiting is named on all of them."""

import os
import signal
import sys
import tempfile
import time
import unittest

from ranks_torch import PATIENCE, RanksTest, config_of, engine_of, seeded, terrace, together, train_ranks
from support_torch import Mlp


class Waiting(RanksTest):
    def ends_of(self, act, count=3, others=None, **own):
        """How ranks end, the second of which does something else behind its second step, and what each wrote."""
        with tempfile.TemporaryDirectory() as folder:

            def on(rank):
                sys.stderr = open(os.path.join(folder, str(rank)), "w", buffering=1)
                engine = engine_of(seeded(Mlp), config_of(**own))
                train_ranks(engine, 2)
                if rank == 1:
                    with open(os.path.join(folder, "process"), "w") as file:
                        file.write(str(os.getpid()))
                    act(*([folder] if act is self.be_slow else []))
                elif others is not None:
                    others()
                try:
                    train_ranks(engine, 20, first=2)
                except terrace.PeerError as error:
                    with open(os.path.join(folder, f"told{rank}"), "w"):
                        return str(error)
                finally:
                    if rank == 0 and act in (self.stop, self.hang):
                        self.end_of_its_launcher(folder, count)

            ends = together(count, on)
            told = []
            for rank in range(count):
                with open(os.path.join(folder, str(rank))) as file:
                    told.append(file.read())
            return ends, told

    @staticmethod
    def end_of_its_launcher(folder, count):
        """Ends the second rank, which all others know of by then."""
        patience, others = time.monotonic() + PATIENCE, [rank for rank in range(count) if rank != 1]
        while time.monotonic() < patience:
            if all(os.path.exists(os.path.join(folder, f"told{rank}")) for rank in others):
                break
            time.sleep(0.1)
        with open(os.path.join(folder, "process")) as file:
            os.kill(int(file.read()), signal.SIGKILL)

    @staticmethod
    def stop():
        os.kill(os.getpid(), signal.SIGSTOP)

    @staticmethod
    def hang():
        while True:
            pass

    def test_a_rank_that_computes_for_ever_is_named(self):
        ends, told = self.ends_of(self.hang, stall_warning_seconds=1, stall_abort_seconds=3)
        for end in (ends[0], ends[2]):
            self.assertIn("rank 1 of 3 (host", end.value, end.text)
            self.assertIn("is in step 3 at the program, between two steps", end.value)
        # It ends by itself where the first rank has told it in time, and else its launcher ends it, as the first rank does here.
        self.assertIn((ends[1].status, ends[1].signal_number), ((1, 0), (0, signal.SIGKILL)))
        self.assertIn("no progress for", told[0])

    def test_a_rank_that_is_stopped_is_named(self):
        ends, told = self.ends_of(self.stop, stall_warning_seconds=1, stall_abort_seconds=5)
        self.assertEqual(ends[1].signal_number, signal.SIGKILL)
        for end in (ends[0], ends[2]):
            self.assertIn("rank 1 of 3 (host", end.value, end.text)
            self.assertIn("has said nothing for", end.value)

    @staticmethod
    def be_slow(folder):
        """Until the first rank has warned of it twice."""
        patience, told = time.monotonic() + PATIENCE, ""
        while told.count("no progress for") < 2 and time.monotonic() < patience:
            time.sleep(0.1)
            with open(os.path.join(folder, "0")) as file:
                told = file.read()

    def test_a_rank_that_is_slow_is_warned_of(self):
        ends, told = self.ends_of(self.be_slow, count=2, stall_warning_seconds=1)
        self.assertEqual([end.text for end in ends], ["", ""])
        self.assertIn("rank 1 of 2 (host", told[0])
        self.assertIn("between two steps", told[0])
        self.assertEqual(told[1], "")

    # --- Others that ask Terrace for nothing meanwhile ---

    def busy(self, act):
        """What ranks wrote that were at something else, and the end of the second one."""
        ends, told = self.ends_of(act, others=lambda: time.sleep(PATIENCE))
        self.assertEqual([ends[0].status, ends[2].status], [1, 1], ends[0].text)
        return ends[1], told

    def test_a_death_ends_ranks_that_are_busy(self):
        end, told = self.busy(lambda: os.kill(os.getpid(), signal.SIGKILL))
        self.assertEqual(end.signal_number, signal.SIGKILL)
        self.assertIn("rank 1 of 3 (host", told[0])
        self.assertIn("died in step 3", told[0])
        self.assertEqual(told[2], "")
        end, told = self.busy(lambda: os._exit(0))
        self.assertIn("died in step 3", told[0])

    def test_a_failure_ends_ranks_that_are_busy(self):
        def fail():
            raise RuntimeError("the data are at their end")

        end, told = self.busy(fail)
        for rank in (0, 2):
            self.assertIn("rank 1 of 3 (host", told[rank])
            self.assertIn("has failed\n  RuntimeError: the data are at their end", told[rank])

    def test_who_is_busy_without_an_engine_goes_on(self):
        def on(rank):
            engine = engine_of(seeded(Mlp), config_of())
            train_ranks(engine, 1)
            engine.close()
            if rank == 1:
                os._exit(3)
            time.sleep(3)  # longer than whoever has an engine is given
            return "saved"

        self.assertEqual([end.value for end in together(2, on)], ["saved", None])

    # --- Ranks that end early ---

    def test_however_a_rank_ends_the_others_are_told(self):
        def interrupt():
            raise KeyboardInterrupt

        for act, words in (
            (interrupt, "KeyboardInterrupt"),
            (lambda: sys.exit(0), "rank 1"),
            (lambda: sys.exit(3), "rank 1"),
            (lambda: os._exit(0), "died in step 3"),
        ):
            ends, _ = self.ends_of(act)
            for end in (ends[0], ends[2]):
                self.assertIn(words, end.value or "", end.text)
                self.assertIn("rank 1", end.value)


if __name__ == "__main__":
    unittest.main()
