"""Gradients on their way to the store, handed over to a function that notes them."""

import ctypes
import types
import unittest

import terrace
from support_torch import torch
from terrace.torch.engine.passes.gradients import Gradients
from terrace.torch.engine.passes.open_step import IDLE, STEP


class PlayedStep:
    phase, stamp, micro_batch, accumulation_steps, has_read_nothing = STEP, 7, 0, 1, False
    begun = taken = 0

    def begin(self):
        self.begun += 1
        self.phase = STEP

    def note_gradient(self):
        self.taken += 1

    def spoil(self, error):
        raise error


class Tracked:
    comes_in_parts, is_managed, leases, stamp, type_number = False, True, 1, -1, 0

    def __init__(self, number):
        self.number, self.name = number, f"p{number}"
        self.parameter = torch.nn.Parameter(torch.zeros(4))


class OnTheirWay(unittest.TestCase):
    def setUp(self):
        self.ones, self.step, self.given = [Tracked(3), Tracked(5)], PlayedStep(), []
        store = types.SimpleNamespace(cuda_ordinal=None, _handle=ctypes.c_void_p(1))
        self.gradients = Gradients(store, self.ones, self.step)

        def note(handle, number, address, type_number, flags):
            self.given.append((number, list((ctypes.c_float * 4).from_address(address.value))))

        self.gradients._c_hand_over = note

    def take(self, one, values=(1.0, 2.0, 3.0, 4.0), **more):
        one.parameter.grad = torch.tensor(values)
        self.gradients.take(one, one.parameter, **more)

    def refused(self, reason, one, values=(1.0, 2.0, 3.0, 4.0)):
        with self.assertRaisesRegex(terrace.MisuseError, reason):
            self.take(one, values)
        self.assertEqual(self.given, [])

    def test_a_complete_gradient_is_handed_over_and_leaves_the_parameter(self):
        one = self.ones[0]
        self.take(one)
        self.assertEqual((self.given, one.parameter.grad), ([(3, [1.0, 2.0, 3.0, 4.0])], None))
        self.assertEqual((one.stamp, self.step.taken), (7, 1))

    def test_one_that_comes_in_parts_is_held_until_the_backward_pass_is_over(self):
        self.ones[0].comes_in_parts = True
        self.take(self.ones[0])
        self.take(self.ones[0], (2.0, 2.0, 2.0, 2.0))
        self.assertEqual(self.given, [])
        self.gradients.take_held()
        self.gradients.take_held()
        self.assertEqual(self.given, [(3, [2.0, 2.0, 2.0, 2.0])])

    def test_what_is_held_of_a_pass_that_was_cut_short_is_gone(self):
        self.ones[0].comes_in_parts = True
        self.take(self.ones[0])
        self.gradients.forget_held()
        self.gradients.take_held()
        self.assertEqual((self.given, self.ones[0].parameter.grad), ([], None))

    def test_a_second_one_in_a_micro_batch_is_refused(self):
        self.ones[0].stamp = self.step.stamp
        self.refused("gradient in this micro-batch already", self.ones[0])

    def test_one_of_a_module_that_was_not_noticed_is_refused(self):
        self.ones[0].leases = 0
        self.refused("went backward without being noticed", self.ones[0])
        self.assertFalse(self.step.has_read_nothing)

    def test_nan_of_a_placeholder_is_taken_and_noted(self):
        self.ones[0].leases = 0
        self.take(self.ones[0], (float("nan"),) * 4)
        self.assertEqual((self.step.has_read_nothing, len(self.given)), (True, 1))

    def test_a_gradient_that_was_set_is_taken_before_an_update(self):
        self.step.phase = IDLE
        self.ones[1].parameter.grad = torch.full((4,), 5.0)
        self.gradients.take_set()
        self.assertEqual((self.given, self.step.begun), ([(5, [5.0] * 4)], 1))

    def test_one_that_was_set_after_the_last_micro_batch_is_refused_and_stays(self):
        self.step.micro_batch = 1
        self.ones[1].parameter.grad = torch.full((4,), 5.0)
        with self.assertRaisesRegex(terrace.MisuseError, "all micro-batches of the step are complete"):
            self.gradients.take_set()
        self.assertIsNotNone(self.ones[1].parameter.grad)

    def test_a_parameter_that_was_frozen_after_the_forward_pass_has_none(self):
        self.gradients.take(self.ones[0], self.ones[0].parameter)
        self.assertEqual((self.given, self.step.taken), ([], 0))


if __name__ == "__main__":
    unittest.main()
