"""`torchrun --max-restarts` and a script of terrace.initialize: a run whose ranks die goes on by itself, and its bits are those of
a run to which nothing happened."""

import unittest

from restarts import TORCHRUN, RestartsTest


class Restarts(RestartsTest):
    def test_two_kills_in_two_lives_leave_commits_to_go_on_from(self):
        command = [*TORCHRUN, "--max-restarts", "3"]
        done, told = self.launched(command, "commits", [(1, 3, 3, "killed"), (0, 5, 2, "killed")])
        self.assertEqual(done.returncode, 0, done.stderr)
        (first, _), (second, _), (third, _) = told.lives
        self.assertEqual((first, {ranks for _, ranks in told.lives}), (0, {2}))
        self.assert_death_is_told(done.stderr, rank=1, of=2, step=3, goes_on_at=second)
        self.assert_death_is_told(done.stderr, rank=0, of=2, step=5, goes_on_at=third)
        self.assert_undisturbed("commits")


if __name__ == "__main__":
    unittest.main()
