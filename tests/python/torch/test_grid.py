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
    raised_on,
    together,
    train,
)
from support_torch import config_of, masters, terrace, torch
from tensor_layers import Block, Words
from terrace.pipe import (
    LayerSpec,
    PipelineModule,
    PipelineParallelGrid,
    PipeModelDataParallelTopology,
    ProcessTopology,
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


def continued(size, folder, first, steps, save_as=None, load=None):
    """body(rank): number among those that divide tensors, what a training tells that loads one checkpoint and saves another one,
    and the digests of its masters."""

    def body(rank):
        with tempfile.TemporaryDirectory() as drive:
            config = config_of("cpu", "nvme", drive, MICRO_BATCHES // size[1], 0.1, "bf16")
            engine = engine_of(gpt(size), config, persistence_threshold=0)
            if load is not None:
                engine.load_checkpoint(folder, load)
            told = train(engine, steps, first)
            if save_as is not None:
                engine.save_checkpoint(folder, save_as)
            found = masters(engine)
            engine.close()
            return engine.grid.get_slice_parallel_rank(), told, found

    return body


class Saved(PipelineTest):
    def ends_of(self, size, *given, **named):
        found, told = {}, None
        for shard, told_here, values in self.on_ranks(size[0] * size[1] * size[2], continued(size, *given, **named)):
            told = told or told_here
            self.assertEqual(repr(told_here), repr(told))
            found.update({(shard, name): value for name, value in values.items()})
        return repr(told), found

    def test_other_stages_and_data_ranks_go_on_with_the_same_bits(self):
        with tempfile.TemporaryDirectory() as folder:
            _, ends = self.ends_of((1, 1, 2), folder, 0, 4)
            after = set()
            for size, other in (((1, 1), (3, 1)), ((2, 2), (1, 2)), ((3, 1), (2, 1))):
                tag = f"of {size}"
                self.ends_of((*size, 2), folder, 0, 2, save_as=tag)
                told, found = self.ends_of((*other, 2), folder, 2, 2, load=tag)
                with self.subTest(saved=size, loaded=other):
                    self.assertEqual(found, ends)
                after.add(told)
            self.assertEqual(len(after), 1)

    def test_another_division_of_tensors_is_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            self.ends_of((2, 1, 2), folder, 0, 1, save_as="of two")
            self.ends_of((1, 1, 1), folder, 0, 1, save_as="of one")
            self.ends_of((2, 1, 1), folder, 0, 1, save_as="of stages")
            for size, tag, wanted in (
                ((1, 1, 1), "of two", "2 processes have divided its tensors"),
                ((2, 1, 1), "of two", "2 processes have divided its tensors"),
                ((1, 1, 2), "of one", "its tensors are whole"),
                ((2, 1, 2), "of stages", "its tensors are whole"),
            ):

                def body(rank, size=size, tag=tag):
                    engine = engine_of(gpt(size), config_of(accumulation=MICRO_BATCHES), persistence_threshold=0)
                    before = masters(engine)
                    with self.assertRaises(terrace.ConfigError) as caught:
                        engine.load_checkpoint(folder, tag)
                    assert masters(engine) == before
                    engine.close()
                    return caught.exception

                for error in self.on_ranks(size[0] * size[1] * size[2], body):
                    self.assert_four_parts(error)
                    self.assertIn(wanted, error.reason)


class Failing(PipelineTest):
    def test_a_process_that_fails_is_named_on_all_others(self):
        """Two wait for what its stage sends. The one beside it may wait within a layer, where nothing but its end reaches it, with
        the reason on its screen."""

        def body(rank):
            engine = engine_of(gpt((2, 1, 2)), config_of(accumulation=MICRO_BATCHES), persistence_threshold=0)
            train(engine, 1)
            if rank == 2:
                engine.module.get_submodule("layers.3").up.register_forward_hook(lambda *_: 1 / 0)
            train(engine, 1, 1)

        found = raised_on(4, body)
        self.assertIn("ZeroDivisionError", str(found[2]))
        for rank in (0, 1):
            with self.subTest(rank=rank):
                self.assertIsInstance(found[rank], terrace.PeerError, found[rank])
                self.assertIn("ZeroDivisionError", str(found[rank]))
        if "nothing was raised: status 1" not in str(found[3]):
            self.assertIn("ZeroDivisionError", str(found[3]))


class Refused(PipelineTest):
    def test_a_division_may_be_told_once_more_and_no_other_one(self):
        def body(rank):
            said = []
            for more in (
                {"model_parallel_size": 1},
                {"mpu": PipelineParallelGrid(ProcessTopology(["pipe"], [2]), rank)},
            ):
                with self.assertRaises(terrace.ConfigError) as caught:
                    engine_of(gpt((1, 1, 2)), config_of(accumulation=MICRO_BATCHES), **more)
                said.append(caught.exception)
            model = gpt((1, 1, 2))
            engine = engine_of(model, config_of(accumulation=MICRO_BATCHES), model_parallel_size=2, mpu=model.mpu())
            assert (engine.world_size, engine.global_rank, engine.is_model_parallel) == (1, rank, True)
            assert engine.train_batch_size() == MICRO_BATCHES, engine.get_batch_info()
            grid = engine.grid
            groups = grid.get_slice_parallel_group(), grid.get_model_parallel_group()
            assert [torch.distributed.get_world_size(group) for group in groups] == [2, 2]
            engine.close()
            return said

        for said in self.on_ranks(2, body):
            self.assertEqual([error.subject for error in said], ["model_parallel_size", "mpu"])
            for error in said:
                self.assert_four_parts(error)

    def test_what_is_whole_begins_alike_in_a_stage(self):
        def body(rank):
            model = gpt((2, 1, 2))
            if rank == 3:
                with torch.no_grad():
                    model.get_parameter("layers.4.bias").add_(1)
            engine_of(model, config_of(accumulation=MICRO_BATCHES))

        ends = together(4, body)
        for end in ends:
            self.assertIsInstance(end.error, terrace.Error, end.text)
            self.assertIn("layers.4.bias", str(end.error))
        self.assertIsInstance(ends[3].error, terrace.ConfigError)
        self.assertIsInstance(ends[0].error, terrace.PeerError)


if __name__ == "__main__":
    unittest.main()
