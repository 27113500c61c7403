"""`terrace launch --restarts` and a script of terrace.initialize: a run whose ranks die goes on by itself with those that are
left, and its bits are those of a run to which nothing happened."""

import os
import sys
import unittest

from restarts import RestartsTest


@unittest.skipUnless(os.environ.get("TERRACE_PROGRAM"), "the program is not built")
class Restarts(RestartsTest):
    def test_two_kills_in_two_lives_leave_commits_to_go_on_from(self):
        command = [os.environ["TERRACE_PROGRAM"], "launch", "-n", "3", "--restarts", "2", "--", sys.executable]
        done, told = self.launched(command, "commits", [(1, 3, 4, "killed"), (0, 5, 2, "killed")])
        self.assertEqual(done.returncode, 0, done.stderr)
        (first, of_first), (second, of_second), (third, of_third) = told.lives
        self.assertEqual((first, of_first, of_second, of_third), (0, 3, 2, 1))
        self.assert_death_is_told(done.stderr, rank=1, of=3, step=3, goes_on_at=second)
        self.assert_death_is_told(done.stderr, rank=0, of=2, step=5, goes_on_at=third)
        self.assertGreaterEqual(done.stderr.count("killed by signal 9 (Killed)"), 2)
        self.assertIn("restart 1 of 2: 2 of 3 ranks go on from what the run has kept", done.stderr)
        self.assertIn("restart 2 of 2: 1 of 2 ranks go on from what the run has kept", done.stderr)
        self.assert_undisturbed("commits")


if __name__ == "__main__":
    unittest.main()
