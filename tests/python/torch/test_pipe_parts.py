"""What a pipeline is made of, without processes: how layers are divided, and what a message carries."""

import random
import unittest

from support_torch import EngineTest, isolated, terrace, torch
from terrace.pipe import LayerSpec, TiedLayerSpec
from terrace.pipe.boundary import Caught
from terrace.pipe.layers import balanced, numbered, partition_of
from terrace.pipe.messages import Arriving, bytes_of, message_of, unpacked, value_of
from torch import nn


class Never(nn.Linear):
    """A layer that is made on the meta device alone."""

    def __init__(self, *shape):
        super().__init__(*shape)
        assert self.weight.device.type == "meta"


class Division(EngineTest):
    def test_the_largest_stage_is_as_small_as_can_be(self):
        self.assertEqual(balanced([1] * 6, 3), [0, 2, 4, 6])
        self.assertEqual(balanced([9, 1, 1, 1, 9], 3), [0, 1, 4, 5])
        self.assertEqual(balanced([0, 0, 5], 3), [0, 1, 2, 3])
        draws = random.Random(1)
        for weights in ([1, 100, 1, 1], [0] * 5, *([draws.randrange(20) ** 2 for _ in range(8)] for _ in range(60))):
            bounds = balanced(weights, 3)
            self.assertTrue(all(one < other for one, other in zip(bounds, bounds[1:])), bounds)
            most = max(sum(weights[a:b]) for a, b in zip(bounds, bounds[1:]))
            tried = [
                max(sum(weights[:a]), sum(weights[a:b]), sum(weights[b:]))
                for a in range(1, len(weights) - 1)
                for b in range(a + 1, len(weights))
            ]
            self.assertEqual(most, min(tried))

    def test_methods_of_deepspeed(self):
        layers = [
            LayerSpec(Never, 64, 64),
            torch.tanh,
            LayerSpec(nn.GELU),
            LayerSpec(Never, 4, 4),
            LayerSpec(Never, 4, 4),
        ]
        self.assertEqual(partition_of(layers, 2, "uniform"), balanced([1] * 5, 2))
        self.assertEqual(partition_of(layers, 2, "parameters")[1], 1)
        self.assertEqual(partition_of(layers, 3, "type:never"), balanced([1, 0, 0, 1, 1], 3))
        for method in ("type:nothing", "best"):
            self.raised(terrace.ConfigError, partition_of, layers, 2, method)
        self.raised(terrace.ConfigError, partition_of, layers, 6, "uniform")

    def test_numbers_are_those_of_the_whole_model(self):
        tied = [TiedLayerSpec("a", Never, 4, 4) for _ in range(2)]
        layers = [tied[0], torch.tanh, LayerSpec(lambda: nn.Linear(2, 2)), nn.GELU(), tied[1], LayerSpec(Never, 2, 2)]
        self.assertEqual([one.number for one in numbered(layers)], [0, None, 1, 2, 0, 3])
        before = torch.get_rng_state()
        partition_of(layers, 2, "parameters")
        self.assertTrue(torch.equal(torch.get_rng_state(), before))


def sent(value):
    """What arrives of it."""
    message = message_of(value)
    head = unpacked(message.head.packed())
    coming = [Arriving(one, torch.device("cpu")) for one in head.tensors]
    for one, tensor in zip(coming, message.tensors):
        one.bytes.copy_(bytes_of(tensor))
    return value_of(head.layout, [one.tensor() for one in coming]), head


class Messages(EngineTest):
    def test_tensors_arrive_with_their_types_shapes_and_strides(self):
        numbers = torch.arange(24.0).view(2, 3, 4)
        for tensor in (
            numbers,
            numbers.bfloat16(),
            numbers.half().transpose(0, 2),
            numbers[:, 1:],
            numbers[:, :1].expand(2, 5, 4),
            numbers > 7,
            numbers.long(),
            torch.tensor(3.5),
            torch.empty(0, 3),
            numbers.to(torch.complex64),
        ):
            found, _ = sent(tensor)
            self.assertTrue(torch.equal(found, tensor))
            self.assertEqual((found.stride(), found.dtype), (tensor.stride(), tensor.dtype))

    def test_structures_arrive_as_they_are(self):
        x, mask = torch.randn(2, requires_grad=True), torch.ones(2, dtype=torch.bool)
        found, head = sent({"x": (x, [mask, None]), 1: (x, 2.5, "text", True, ())})
        self.assertEqual(found[1][1:], (2.5, "text", True, ()))
        self.assertIs(found["x"][0], found[1][0])  # sent once
        self.assertIs(type(found["x"][1]), list)
        self.assertEqual(head.carries, [True, False])
        for strange in ({1, 2}, nn.Linear(1, 1), torch.eye(2).to_sparse()):
            self.raised(terrace.ConfigError, message_of, (strange,))

    @isolated
    def test_gradients_are_caught_as_they_come(self):
        x, y, frozen = torch.randn(3), torch.randn(3), torch.randn(3)
        caught = Caught([x, frozen, y], [True, False, True])
        first, second, _ = caught.tensors
        self.assertFalse(second.requires_grad)
        first.mul_(2)  # as in one stage
        (first * second).sum().backward()
        self.assertTrue(torch.equal(caught.gradients[0], 2 * frozen))
        self.assertIsNone(caught.gradients[1])
        with torch.no_grad():
            self.assertFalse(Caught([torch.randn(3)], [True]).tensors[0].requires_grad)


if __name__ == "__main__":
    unittest.main()
