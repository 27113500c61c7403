"""Stages, data ranks and processes that divide tensors in one run. Which of the first two there are, and what lies where, changes
no bit; with divided tensors the numbers are those of one process to rounding."""

import tempfile
import unittest

from pipe_models import (
    MICRO_BATCHES,
    PipelineTest,
    engine_of,
    leave_mask,
    loss_of,
    train,
)
from support_torch import config_of, masters, torch
from tensor_layers import Block, Words
from terrace.pipe import (
    LayerSpec,
    PipelineModule,
    PipelineParallelGrid,
    PipeModelDataParallelTopology,
    TiedLayerSpec,
)
from torch import nn

WIDTH, HEADS, WORDS = 32, 4, 64


def gpt(size, is_tied=True, **named):
    """`size`: (stages, data ranks, processes that divide tensors)"""
    stages, data, tensor = size
    topology = PipeModelDataParallelTopology(num_pp=stages, num_mp=tensor, num_dp=data)
    group = PipelineParallelGrid(topology).get_slice_parallel_group()
    table = lambda key, **more: (
        TiedLayerSpec("table", Words, WORDS, WIDTH, group, **more) if is_tied else LayerSpec(Words, WORDS, WIDTH, group)
    )
    head = table("table", forward_fn=Words.as_head) if is_tied else LayerSpec(nn.Linear, WIDTH, WORDS, bias=False)
    body = [LayerSpec(Block, WIDTH, HEADS, group) for _ in range(3)]
    layers = [table("table"), *body, leave_mask, LayerSpec(nn.LayerNorm, WIDTH), head]
    return PipelineModule(
        layers, topology=topology, loss_fn=loss_of, seed_layers=True, partition_method="uniform", **named
    )


def whole_values(engine):
    """[(name, the master that this process has, the dimension in which it is divided)]"""
    return [
        (one.name, engine.master(one.parameter).tolist(), getattr(one.parameter, "partition_dim", None))
        for one in engine._tracked
        if one.is_trainable
    ]


def trained(size, places=("cpu", "cpu"), precision="fp32", clip=0.1, more=None, **named):
    """body(rank): (stage, number among those that divide its tensors), what train() tells, masters, their digests."""

    def body(rank):
        with tempfile.TemporaryDirectory() as folder:
            config = config_of(*places, folder, MICRO_BATCHES // size[1], clip, precision, **(more or {}))
            engine = engine_of(gpt(size, **named), config, persistence_threshold=0)
            told = train(engine)
            found = masters(engine), whole_values(engine)
            grid = engine.grid
            engine.close()
        return (grid.stage_id, grid.get_slice_parallel_rank()), told, *found

    return body


# What is the same in all runs of a row, and the runs: (stages, data ranks), and where parameters and states are.
NVME, DEVICE, CPU = ("nvme", "nvme"), ("device", "cpu"), ("cpu", "nvme")
ROWS = [
    ({}, [((2, 1), NVME), ((1, 2), DEVICE), ((3, 2), CPU)]),
    ({"precision": "bf16", "activation_checkpoint_interval": 2, "more": {"state_type": "int8"}},
     [((4, 1), NVME), ((2, 2), CPU)]),
    ({"precision": "bf16", "is_tied": False, "clip": 0.0}, [((3, 1), DEVICE), ((4, 2), NVME)]),
]  # fmt: skip


class Law(PipelineTest):
    def run_of(self, size, **named):
        """What all tell, and by the number among those that divide tensors the digests of all masters."""
        ends = self.on_ranks(size[0] * size[1] * size[2], trained(size, **named))
        of_shard = {}
        for (_, shard), told, digests, _ in ends:
            self.assertEqual(repr(told), repr(ends[0][1]))
            found = of_shard.setdefault(shard, {})
            for name, digest in digests.items():
                self.assertEqual(found.setdefault(name, digest), digest)
        return ends, (repr(ends[0][1]), of_shard)

    def test_no_bit_depends_on_stages_data_ranks_and_places(self):
        for named, runs in ROWS:
            _, wanted = self.run_of((1, 1, 2), **named)
            self.assertEqual(sorted(wanted[1]), [0, 1])
            for (stages, data), places in runs:
                with self.subTest(stages=stages, data=data, places=places, **named):
                    _, found = self.run_of((stages, data, 2), places=places, **named)
                    self.assertEqual(found, wanted)

    def test_the_numbers_are_those_of_one_process_to_rounding(self):
        (_, told, _, values), *_ = self.on_ranks(1, trained((1, 1, 1)))
        ends, _ = self.run_of((2, 1, 2))
        for found, alone in zip(ends[0][1], told):
            for one, other in zip(found[:2], alone[:2]):
                self.assertLessEqual(abs(one - other), 1e-5 * other)
        shards = {}
        for (_, _), _, _, values_here in ends:
            for name, value, dimension in values_here:
                shards.setdefault(name, []).append((torch.tensor(value), dimension))
        self.assertEqual(set(shards), {name for name, _, _ in values})
        for name, value, _ in values:
            found, dimension = [one for one, _ in shards[name]], shards[name][0][1]
            if dimension is None:
                self.assertTrue(torch.equal(*found), name)  # each updates alike what all have
            found = found[0] if dimension is None else torch.cat(found, dimension)
            self.assertLessEqual((found - torch.tensor(value)).abs().max().item(), 2e-4, name)


if __name__ == "__main__":
    unittest.main()
