"""How gradients of a GPU come to the store, on copies that are played: each ends at any time, at the latest when somebody
waits for it; and on streams that are played, where the store takes them from the GPU."""

import collections
import contextlib
import ctypes
import random
import unittest
from unittest import mock

from support_torch import torch
from terrace.torch.engine.passes.landing import DirectLanding, GpuStreams, Landing, LandingOnGpu, landing_for

Tracked = collections.namedtuple("Tracked", "number parameter")


class PlayedCopy:
    def __init__(self, copies, to, gradient):
        self.copies, self.to, self.gradient, self.is_over = copies, to, gradient, False

    def synchronize(self):
        """Copies of a stream end in their order."""
        while not self.is_over:
            self.copies.end_next()

    def query(self):
        """It may have ended without having been seen to."""
        return self.is_over and self.copies.random.random() < 0.1


class PlayedCopies:
    def __init__(self, seed, speed):
        self.random, self.speed = random.Random(seed), speed
        self.under_way = collections.deque()

    def memory(self, size):
        return torch.full((size,), 0xEE, dtype=torch.uint8)

    def begin(self, to, gradient):
        begun = PlayedCopy(self, to, gradient)
        self.under_way.append(begun)
        while self.under_way and self.random.random() < self.speed:  # before anybody has looked
            self.end_next()
        return begun

    def end_next(self):
        one = self.under_way.popleft()
        one.to.copy_(one.gradient)
        one.is_over = True

    def finish(self):
        while self.under_way:
            self.end_next()


class Landings(unittest.TestCase):
    def setUp(self):
        self.taken = []

    def hand_over(self, one, address):
        size = one.parameter.nbytes
        self.taken.append((one.number, bytes((ctypes.c_char * size).from_address(address))))

    def landing(self, sizes, copies, least_bytes=0):
        tracked = [Tracked(number, torch.empty(size)) for number, size in enumerate(sizes)]
        return tracked, Landing(tracked, copies, self.hand_over, least_bytes)

    def test_hand_every_gradient_over_whole_and_in_order(self):
        for seed in range(60):
            copies = PlayedCopies(seed, speed=(0.0, 0.5, 0.9)[seed % 3])
            choose = random.Random(1000 + seed)
            sizes = [choose.choice((1, 100, 128, 129, 5000)) for _ in range(40)]
            tracked, landing = self.landing(sizes, copies)
            for micro_batch in range(3):
                self.taken.clear()
                order = choose.sample(tracked, len(tracked))
                gradients = [torch.full((sizes[one.number],), float(one.number + 1000 * micro_batch)) for one in order]
                for one, gradient in zip(order, gradients):
                    landing.take(one, gradient)
                landing.finish()
                expected = [(one.number, gradient.numpy().tobytes()) for one, gradient in zip(order, gradients)]
                self.assertTrue(self.taken == expected, seed)

    def test_take_no_more_memory_than_two_of_the_largest(self):
        copies = PlayedCopies(1, speed=0.0)
        tracked, landing = self.landing([1000] * 10, copies)
        for one in tracked[:2]:
            landing.take(one, torch.zeros(1000))
        self.assertEqual(self.taken, [], "nobody has waited for a copy yet")
        landing.take(tracked[2], torch.zeros(1000))
        self.assertEqual([number for number, _ in self.taken], [0])

    def test_of_a_step_that_is_given_up_are_dropped(self):
        copies = PlayedCopies(1, speed=0.0)
        tracked, landing = self.landing([100, 100], copies)
        landing.take(tracked[0], torch.zeros(100))
        landing.drop()
        self.assertFalse(copies.under_way, "nothing is written to memory that is used again")
        landing.take(tracked[1], torch.ones(100))
        landing.finish()
        self.assertEqual([number for number, _ in self.taken], [1])


class PlayedStream:
    def __init__(self, cuda_stream):
        self.cuda_stream = cuda_stream


class PlayedGradient:
    """On a GPU."""

    device = "cuda:1"

    def __init__(self, address, said):
        self.address, self.said = address, said

    def data_ptr(self):
        return self.address

    def record_stream(self, stream):
        self.said.append(("kept for", stream.cuda_stream))


class PlayedStore:
    def __init__(self, said, cuda_ordinal=1, takes_from_gpu=True):
        self.said, self.cuda_ordinal, self.takes_from_gpu = said, cuda_ordinal, takes_from_gpu
        self.compute_stream = 7

    def use_stream(self, stream):
        self.said.append(("behind", stream))
        self.compute_stream = stream


class LandingsOnTheGpu(unittest.TestCase):
    def setUp(self):
        self.said = []
        self.store = PlayedStore(self.said)
        self.landing = LandingOnGpu(GpuStreams(self.store), self.hand_over)

    def hand_over(self, one, address):
        self.said.append((one, address, self.store.compute_stream))

    @contextlib.contextmanager
    def on_stream(self, number):
        def current_stream(device):
            self.assertEqual(device, PlayedGradient.device)
            return PlayedStream(number)

        with mock.patch.object(torch.cuda, "current_stream", current_stream):
            yield

    def test_hand_over_at_once_behind_the_stream_that_made_the_gradient(self):
        with self.on_stream(9):
            for number in (1, 2):
                self.landing.take(number, PlayedGradient(100 * number, self.said))
        each = [[("behind", 9), (one, 100 * one, 9), ("kept for", 9), ("behind", 7)] for one in (1, 2)]
        self.assertEqual(self.said, each[0] + each[1])
        self.landing.finish()
        self.landing.drop()
        self.assertEqual(self.store.compute_stream, 7)

    def test_leave_the_stream_as_it_was_where_the_store_refuses(self):
        def refuse(one, address):
            raise ValueError(one)

        with self.on_stream(9), self.assertRaises(ValueError):
            LandingOnGpu(GpuStreams(self.store), refuse).take(1, PlayedGradient(100, self.said))
        self.assertEqual(self.store.compute_stream, 7)

    def test_are_for_stores_that_take_gradients_from_the_gpu(self):
        self.assertIs(type(landing_for(self.store, [], self.hand_over)), LandingOnGpu)
        on_host = PlayedStore(self.said, cuda_ordinal=None, takes_from_gpu=False)
        self.assertIs(type(landing_for(on_host, [], self.hand_over)), DirectLanding)


if __name__ == "__main__":
    unittest.main()
