"""A backward pass of torch's autograd, with parts of an engine that note what it does."""

import types
import unittest

import terrace
from support_torch import torch
from terrace.torch.engine.passes.backward import Backward
from terrace.torch.engine.passes.one_thread import Turn
from terrace.torch.engine.passes.open_step import EVALUATION, IDLE, STEP


class Noting:
    """Notes the names of its methods that are called, in one list for all."""

    def __init__(self, notes, **members):
        self.notes = notes
        self.__dict__.update(members)

    def __getattr__(self, name):
        return lambda *arguments: self.notes.append(name)


class NotingStep(Noting):
    def begin(self):
        self.notes.append("begin")
        self.phase = STEP

    def spoil(self, error):
        self.notes.append("spoil")
        raise error


class Backwards(unittest.TestCase):
    def setUp(self):
        self.notes = notes = []
        self.step = NotingStep(notes, phase=IDLE, updates=4, micro_batch=0, accumulation_steps=2, reading_kind=0)
        self.leases, self.turn = Noting(notes, backward=[]), Turn()
        self.backward = Backward(
            self.step,
            self.leases,
            Noting(notes),
            self.turn,
            lambda: notes.append("before_pass"),
            lambda: notes.append("announce"),
        )

    def use(self, **members):
        unit = types.SimpleNamespace(count=members.pop("count", 1))
        return types.SimpleNamespace(unit=unit, updates=4, keys=(b"f", b"b"), is_backward=False, **members)

    def go(self, *uses, create_graph=False):
        """Backward through one operation, whose gradients each use gets."""
        value = torch.ones(2, requires_grad=True)
        output = value * value
        for use in uses:
            output.grad_fn.register_prehook(lambda _, use=use: self.backward.come_to(use))
        output.sum().backward(create_graph=create_graph)

    def test_it_begins_with_the_first_gradient_and_ends_with_autograds_task(self):
        self.go(self.use())
        begin = ["require_unspoilt", "begin", "end_empty", "before_pass"]
        end = ["take_held", "close_task", "land", "end_backward"]
        self.assertEqual(self.notes, [*begin, "close_before", "open", *end])
        self.assertEqual((self.backward.is_running, self.turn.thread), (False, None))

    def test_a_unit_without_parameters_opens_no_lease(self):
        self.go(self.use(), self.use(count=0))
        self.assertEqual((self.notes.count("open"), len(self.leases.backward)), (1, 2))
        self.assertEqual(self.notes.count("before_pass"), 1)

    def test_the_update_is_announced_before_the_last_micro_batch(self):
        self.step.micro_batch = 1
        self.go(self.use())
        self.assertEqual(self.notes[:5], ["require_unspoilt", "begin", "end_empty", "before_pass", "announce"])

    def test_an_evaluation_that_is_open_ends(self):
        self.step.phase = EVALUATION
        self.step.end_evaluation = lambda: setattr(self.step, "phase", IDLE)
        self.go(self.use())
        self.assertIn("begin", self.notes)

    def test_an_old_graph_spoils_the_step(self):
        use = self.use()
        use.updates = 3
        self.assertRaisesRegex(terrace.MisuseError, "before the last update", self.go, use)
        self.assertEqual(self.notes, ["spoil"])

    def test_a_second_derivative_spoils_the_step(self):
        self.assertRaisesRegex(terrace.MisuseError, "second derivative", self.go, self.use(), create_graph=True)

    def test_what_is_refused_leaves_the_turn_to_others(self):
        refusals = (
            ("needs_scale", True, self.backward, "was not multiplied by the loss scale"),
            ("micro_batch", 2, self.step, "all 2 micro-batches of the step have gone backward"),
            ("is_closed", True, self.backward, "it is closed"),
        )
        for name, value, owner, reason in refusals:
            before = getattr(owner, name)
            setattr(owner, name, value)
            with self.subTest(name):
                self.assertRaisesRegex(terrace.MisuseError, reason, self.go, self.use())
                self.assertEqual((self.backward.is_running, self.turn.thread), (False, None))
            setattr(owner, name, before)

    def test_one_that_was_cut_short_is_told_and_forgotten(self):
        self.backward._task = 17
        self.backward.forget()
        self.assertEqual((self.notes, self.backward.is_running), (["note_early_end", "forget_held"], False))
        self.backward.forget()
        self.assertEqual(self.notes[2:], ["forget_held"])


if __name__ == "__main__":
    unittest.main()
