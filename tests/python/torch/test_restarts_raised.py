"""Ranks that raise in a step, under torchrun and `terrace launch --restarts`: the run goes on by itself from its checkpoints, and
ends with a failure when it has been started again as often as it may."""

import os
import sys
import unittest

from restarts import RAISED, TORCHRUN, RestartsTest


class Raised(RestartsTest):
    def test_torchrun_starts_no_more_often_than_it_may(self):
        """What the run has kept is there for whoever starts it anew."""
        command = [*TORCHRUN, "--max-restarts", "1"]
        done, told = self.launched(command, "checkpoints", [(0, 3, 2, "raises"), (1, 4, 3, "killed")])
        self.assertNotEqual(done.returncode, 0)
        self.assertEqual(told.lives, [(0, 2), (2, 2)])
        self.assertIn(f'PeerError: a rank has left the run "rank 0": OSError: {RAISED}', done.stderr)
        self.assert_death_is_told(done.stderr, rank=1, of=2, step=4, goes_on_at=2)
        self.goes_on(3, "checkpoints")
        self.assert_undisturbed("checkpoints")

    @unittest.skipUnless(os.environ.get("TERRACE_PROGRAM"), "the program is not built")
    def test_terrace_launch_starts_as_many_ranks_and_no_more_often_than_it_may(self):
        command = [os.environ["TERRACE_PROGRAM"], "launch", "-n", "2", "--restarts", "1", "--", sys.executable]
        done, told = self.launched(command, "checkpoints", [(1, 3, 3, "raises"), (0, 4, 2, "killed")])
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertEqual(told.lives, [(0, 2), (2, 2)])
        self.assertIn(RAISED, done.stderr)
        self.assertIn("restart 1 of 1: 2 of 2 ranks go on from what the run has kept", done.stderr)
        self.assert_death_is_told(done.stderr, rank=0, of=2, step=4, goes_on_at=2)
        self.assertIn("the run ends: it has been started again", done.stderr)
        self.goes_on(1, "checkpoints")
        self.assert_undisturbed("checkpoints")


if __name__ == "__main__":
    unittest.main()
