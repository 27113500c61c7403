"""What a pipeline answers beside its training: evaluations, names of DeepSpeed, refusals, and a stage that fails."""

import os
import signal
import unittest

from pipe_models import MICRO_BATCHES, STEPS, PipelineTest, batches, gpt, layers_of, loss_of, raised_on, train
from support_torch import config_of, engine_of, terrace, torch
from terrace.pipe import PipelineModule, PipeModelDataParallelTopology, ProcessTopology


class Spoilt(torch.nn.Module):
    """Passes what it is given on, until it does something."""

    def __init__(self, act, count):
        super().__init__()
        self.act, self.left = act, count
        self.scale = torch.nn.Parameter(torch.ones(1))

    def forward(self, given):
        self.left -= 1
        if not self.left:
            self.act()
        return given[0] * self.scale, given[1]


def spoilt(stages, act):
    layers = layers_of(False)
    layers.insert(3, Spoilt(act, MICRO_BATCHES + 2))
    return PipelineModule(layers, num_stages=stages, loss_fn=loss_of, seed_layers=True, partition_method="uniform")


def raises(error):
    raise error


class Calls(PipelineTest):
    def test_an_evaluation_is_that_of_one_process(self):
        def evaluated(stages, data):
            def body(rank):
                engine = engine_of(gpt(stages), config_of(accumulation=MICRO_BATCHES // data), persistence_threshold=0)
                grid = engine.grid
                found = lambda: batches(5, grid.data_parallel_id, data, MICRO_BATCHES)
                told = [engine.eval_batch(found()).item(), train(engine, 1)[0], engine.eval_batch(found()).item()]
                loss, outputs = engine.eval_batch(found(), return_logits=True)
                assert engine.module.training
                alone = engine.eval_batch(found(), bcast_loss=False)
                each = engine.eval_batch(found(), reduce_output=None)
                is_last = engine.is_last_stage()
                assert (outputs is not None, alone is not None) == (is_last, is_last)
                assert len(each) == MICRO_BATCHES // data, each
                engine.close()
                return told, loss.item(), [one.sum().item() for one in outputs] if is_last and data == 1 else None

            return body

        (told, loss, outputs), *_ = self.on_ranks(1, evaluated(1, 1))
        for stages, data in ((2, 1), (3, 2)):
            found = self.on_ranks(stages * data, evaluated(stages, data))
            for one in found:
                self.assertEqual((repr(one[0]), one[1]), (repr(told), loss))
            if data == 1:
                self.assertEqual(found[-1][2], outputs)

    def test_names_of_deepspeed(self):
        def body(rank):
            engine = engine_of(gpt(2), config_of(accumulation=MICRO_BATCHES), persistence_threshold=0)
            named = (engine.stage_id, engine.num_stages, engine.is_first_stage(), engine.is_last_stage())
            assert (engine.grid.get_stage_id(), engine.mpu.get_pipe_parallel_world_size()) == (rank, 2)
            assert (engine.is_pipe_parallel, engine.is_data_parallel) == (True, False)
            engine.set_dataiterator(batches(0, 0, 1, MICRO_BATCHES))
            first = engine.train_batch().item()
            engine.set_dataloader([one for _ in range(1) for one in batches(0, 0, 1, MICRO_BATCHES)])
            losses = [engine.train_batch().item() for _ in range(2)]
            said = []
            for call in (lambda: engine(1), lambda: engine.backward(torch.ones(())), engine.step):
                try:
                    call()
                except terrace.MisuseError as error:
                    said.append(error.advice)
            names = [name for name, _ in engine.module.named_parameters()]
            engine.close()
            return named, first, losses, said, names

        ends = self.on_ranks(2, body)
        self.assertEqual([one[0] for one in ends], [(0, 2, True, False), (1, 2, False, True)])
        self.assertEqual(ends[0][1:3], ends[1][1:3])
        self.assertLess(ends[0][2][1], ends[0][1])
        for _, _, _, said, _ in ends:
            self.assertEqual(len([one for one in said if "train_batch" in one]), 3)
        whole = [name for name, _ in gpt(1).named_parameters()]
        self.assertEqual(ends[0][4] + ends[1][4], whole)

    def test_what_cannot_be_divided_is_refused(self):
        for named in ({"num_stages": 2}, {"num_stages": 0}, {"topology": PipeModelDataParallelTopology(1, 2, 1)}):
            self.raised(terrace.ConfigError, PipelineModule, [torch.nn.Linear(2, 2)], **named)

        def body(rank):
            said = []
            for call in (
                lambda: gpt(3),
                lambda: PipelineModule(layers_of(False), topology=ProcessTopology(["pipe", "expert"], [1, 2])),
                lambda: PipelineModule(layers_of(False), topology=PipeModelDataParallelTopology(2, 2, 1)),
                lambda: engine_of(gpt(2), config_of(), resume="auto"),
            ):
                try:
                    call()
                except terrace.ConfigError as error:
                    said.append(error.subject)
            return said

        for said in self.on_ranks(2, body):
            self.assertEqual(said, ["num_stages", "the axis 'expert' of the topology", "topology", "resume='auto'"])

    def test_data_that_end_within_an_update_are_an_error_on_all(self):
        for size in ((1, 1), (3, 1), (2, 2)):

            def body(rank, size=size):
                config = config_of(accumulation=MICRO_BATCHES // size[1])
                engine = engine_of(gpt(size[0]), config, persistence_threshold=0)
                train(engine, 1)
                found = [*batches(0, engine.grid.data_parallel_id, size[1], MICRO_BATCHES)]
                engine.train_batch(iter(found[:1]))

            for error in raised_on(size[0] * size[1], body):
                with self.subTest(size=size):
                    self.assertIsInstance(error, terrace.Error)
                    self.assertIn("ended after 1 micro-batches", str(error))
                    self.assertIn("an iterator that has gradient_accumulation_steps batches", str(error))

    def test_a_stage_that_fails_or_is_killed_is_named_on_all(self):
        for act, wanted in (
            (lambda: raises(RuntimeError("out of luck")), "out of luck"),
            (lambda: os.kill(os.getpid(), signal.SIGKILL), "rank 1"),
        ):

            def body(rank, act=act):
                train(engine_of(spoilt(3, act), config_of(accumulation=MICRO_BATCHES), persistence_threshold=0), STEPS)

            found = raised_on(3, body)
            for rank in (0, 2):
                with self.subTest(wanted=wanted, rank=rank):
                    self.assertIsInstance(found[rank], terrace.PeerError, found[rank])
                    self.assertIn(wanted, str(found[rank]))


if __name__ == "__main__":
    unittest.main()
