"""The step that a store has open, over a store that only notes what it is asked."""

import unittest

import terrace
from support_torch import torch
from terrace.torch.engine.passes.open_step import EVALUATION, IDLE, STEP, OpenStep


class NotingStore:
    """`refuses` has the calls that raise, each once, and with what."""

    def __init__(self):
        self.calls, self.refuses = [], {}

    def __getattr__(self, name):
        def call():
            self.calls.append(name)
            if name in self.refuses:
                raise self.refuses.pop(name)

        return call


class NotingMarks:
    are_set = False

    def set(self):
        self.are_set = True

    def remove(self):
        self.are_set = False


class OpenSteps(unittest.TestCase):
    def setUp(self):
        self.store, self.marks, self.begun = NotingStore(), NotingMarks(), []

    def step(self, accumulation_steps=1):
        return OpenStep(self.store, accumulation_steps, self.marks, lambda: self.begun.append(list(self.store.calls)))

    def go_backward(self, step):
        step.note_gradient()
        step.end_backward()

    def test_the_last_micro_batch_stays_open_until_the_update(self):
        step = self.step(2)
        step.begin_pass()
        self.go_backward(step)
        self.assertEqual((self.store.calls, self.marks.are_set), (["begin_step", "end_micro_batch"], False))
        self.go_backward(step)
        self.assertEqual((self.store.calls[2:], self.marks.are_set, step.micro_batch), ([], True, 2))
        self.assertTrue(step.complete())
        self.assertEqual(self.store.calls[2:], ["end_micro_batch"])
        step.updated()
        self.assertEqual((step.phase, step.updates, step.has_gradients), (IDLE, 1, False))

    def test_micro_batches_that_did_not_come_are_ended_before_an_update(self):
        step = self.step(3)
        step.begin_pass()
        self.go_backward(step)
        self.assertTrue(step.complete())
        self.assertEqual(self.store.calls.count("end_micro_batch"), 3)

    def test_without_gradients_there_is_nothing_to_update_with(self):
        step = self.step()
        self.assertFalse(step.complete())
        step.begin_pass()
        step.end_backward()  # of a loss that no parameter is in
        self.assertFalse(step.complete())
        self.assertEqual((step.micro_batch, self.store.calls), (0, ["begin_step"]))

    def test_no_two_micro_batches_have_one_stamp(self):
        step = self.step(2)
        stamps = []
        for _ in range(2):
            step.begin_pass()
            for _ in range(2):
                stamps.append(step.stamp)
                self.go_backward(step)
            step.complete()
            step.updated()
        with torch.no_grad():
            step.begin_pass()
        stamps.append(step.stamp)
        self.assertEqual(len(set(stamps)), 5)

    def test_what_runs_between_steps_runs_before_one_begins(self):
        step = self.step()
        step.begin_pass()
        self.assertEqual(self.begun, [[]])

    def test_without_gradients_wanted_a_pass_is_an_evaluation(self):
        step = self.step()
        with torch.no_grad():
            step.begin_pass()
        self.assertEqual(step.phase, EVALUATION)
        kind = step.reading_kind
        step.end_evaluation()
        step.begin_pass()
        self.assertNotEqual(step.reading_kind, kind)
        self.assertEqual(self.store.calls, ["begin_evaluation", "end_evaluation", "begin_step"])

    def test_a_store_that_refuses_to_begin_leaves_no_step(self):
        step = self.step()
        self.store.refuses["begin_step"] = terrace.IoError("cannot begin")
        self.assertRaises(terrace.IoError, step.begin_pass)
        self.assertEqual((step.phase, step.is_beginning), (IDLE, False))
        step.begin_pass()
        self.assertEqual(step.phase, STEP)

    def test_a_beginning_that_is_cut_short_is_given_up_whether_or_not_the_store_began(self):
        for refusal in ({}, {"abandon_step": terrace.MisuseError("no step is open")}):
            step = self.step()
            self.store.refuses.update(begin_step=KeyboardInterrupt(), **refusal)
            self.assertRaises(KeyboardInterrupt, step.begin_pass)
            self.assertTrue(step.is_beginning)
            step.close_leftovers()
            self.assertEqual((step.phase, step.is_beginning, self.store.calls[-1]), (IDLE, False, "abandon_step"))

    def test_a_step_whose_backward_pass_ended_early_is_spoilt_until_it_is_given_up(self):
        step = self.step()
        step.begin_pass()
        step.note_early_end()
        step.require_unspoilt()  # no gradient has been lost
        step.note_gradient()
        step.note_early_end()
        self.assertRaisesRegex(terrace.MisuseError, "ended early", step.require_unspoilt)
        step.abandon()
        step.require_unspoilt()
        self.assertEqual((step.phase, step.has_gradients, self.store.calls[-1]), (IDLE, False, "abandon_step"))

    def test_what_spoils_a_step_is_raised_at_once_and_again(self):
        step, error = self.step(), terrace.MisuseError("cannot go on")
        step.begin_pass()
        self.assertRaises(terrace.MisuseError, step.spoil, error)
        with self.assertRaises(terrace.MisuseError) as again:
            step.require_unspoilt()
        self.assertIs(again.exception, error)


if __name__ == "__main__":
    unittest.main()
