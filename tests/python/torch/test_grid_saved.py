"""Checkpoints of stages whose tensors are divided, what is refused, and a process that fails."""

import tempfile
import unittest

from pipe_models import MICRO_BATCHES, PipelineTest, engine_of, raised_on, together, train
from support_torch import config_of, masters, terrace, torch
from terrace.pipe import PipelineParallelGrid, ProcessTopology
from test_grid import gpt


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
