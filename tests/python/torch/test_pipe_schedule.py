"""Topology and schedule of a pipeline: pure, so every number of stages and micro-batches is tried."""

import collections
import unittest

from support_torch import terrace
from terrace.pipe import schedule as of
from terrace.pipe.topology import (
    PipeDataParallelTopology,
    PipelineParallelGrid,
    PipeModelDataParallelTopology,
    ProcessTopology,
)

SIZES = [(stages, micro_batches) for stages in range(1, 9) for micro_batches in range(1, 13)]
_PAIRS = {of.RecvActivation: (-1, of.SendActivation), of.RecvGrad: (1, of.SendGrad)}


def flat(schedule):
    return [one for step in schedule for one in step]


def run_with_links_of(bound, schedules):
    """Whether all stages come to their ends where so many messages fit between two of them, and a stage waits for what
    it receives."""
    todo = [collections.deque(flat(one)) for one in schedules]
    links = collections.defaultdict(collections.deque)  # by (from, to)
    has_moved = True
    while has_moved:
        has_moved = False
        for stage, own in enumerate(todo):
            while own:
                one = own[0]
                if isinstance(one, (of.SendActivation, of.SendGrad)):
                    to = stage + 1 if isinstance(one, of.SendActivation) else stage - 1
                    if len(links[stage, to]) >= bound:
                        break
                    links[stage, to].append(one)
                elif type(one) in _PAIRS:
                    offset, kind = _PAIRS[type(one)]
                    waiting = links[stage + offset, stage]
                    if not waiting:
                        break
                    sent = waiting.popleft()
                    if not isinstance(sent, kind) or sent.micro_batch != one.micro_batch:
                        return False
                own.popleft()
                has_moved = True
    return not any(todo)


class Schedule(unittest.TestCase):
    def test_each_micro_batch_goes_forward_before_it_goes_backward_and_both_in_order(self):
        for stages, micro_batches in SIZES:
            for stage in range(stages):
                found = flat(of.TrainSchedule(micro_batches, stages, stage))
                forward = [one.micro_batch for one in found if isinstance(one, of.ForwardPass)]
                backward = [one.micro_batch for one in found if isinstance(one, of.BackwardPass)]
                self.assertEqual(forward, list(range(micro_batches)))
                self.assertEqual(backward, list(range(micro_batches)))
                for k in range(micro_batches):
                    self.assertLess(found.index(of.ForwardPass(k)), self.place_of(found, of.BackwardPass, k))

    def place_of(self, found, kind, micro_batch):
        return next(i for i, one in enumerate(found) if isinstance(one, kind) and one.micro_batch == micro_batch)

    def test_no_more_are_live_than_stages_from_here_to_the_last(self):
        for stages, micro_batches in SIZES:
            for stage in range(stages):
                schedule = of.TrainSchedule(micro_batches, stages, stage)
                live = most = 0
                for one in flat(schedule):
                    live += isinstance(one, of.ForwardPass) - isinstance(one, of.BackwardPass)
                    most = max(most, live)
                self.assertEqual(most, min(stages - stage, micro_batches))
                self.assertEqual(most, schedule.num_pipe_buffers())

    def test_what_is_sent_is_received_in_its_order(self):
        for kind in (of.TrainSchedule, of.InferenceSchedule):
            for stages, micro_batches in SIZES:
                schedules = [kind(micro_batches, stages, stage) for stage in range(stages)]
                for stage, own in enumerate(schedules):
                    for received, (offset, sent) in _PAIRS.items():
                        wanted = [one.micro_batch for one in flat(own) if isinstance(one, received)]
                        if not 0 <= stage + offset < stages:
                            self.assertEqual(wanted, [])
                            continue
                        there = flat(schedules[stage + offset])
                        self.assertEqual(wanted, [one.micro_batch for one in there if isinstance(one, sent)])

    def test_what_is_sent_has_been_computed_and_what_is_received_is_used(self):
        """Of each micro-batch, within its pass forward and its pass backward."""
        orders = (
            (of.RecvActivation, of.ForwardPass, of.SendActivation),
            (of.RecvGrad, of.BackwardPass, of.SendGrad),
            (of.LoadMicroBatch, of.ForwardPass),
        )
        for stages, micro_batches in SIZES:
            for stage in range(stages):
                found = flat(of.TrainSchedule(micro_batches, stages, stage))
                for k in range(micro_batches):
                    for order in orders:
                        kinds = [type(one) for one in found if one.micro_batch == k and type(one) in order]
                        self.assertEqual(kinds, [kind for kind in order if kind in kinds])

    def test_no_stage_waits_for_ever(self):
        for kind in (of.TrainSchedule, of.InferenceSchedule):
            for stages, micro_batches in SIZES:
                schedules = [kind(micro_batches, stages, stage) for stage in range(stages)]
                self.assertTrue(run_with_links_of(1, schedules), (kind.__name__, stages, micro_batches))

    def test_ends_of_the_pipeline_read_data_and_every_stage_updates_once(self):
        for stages, micro_batches in SIZES:
            for stage in range(stages):
                found = flat(of.TrainSchedule(micro_batches, stages, stage))
                loads = [one for one in found if isinstance(one, of.LoadMicroBatch)]
                self.assertEqual(len(loads), micro_batches if stage in (0, stages - 1) else 0)
                self.assertEqual([one.name for one in found[-2:]], ["ReduceTiedGrads", "OptimizerStep"])
        self.raises(of.TrainSchedule, 0, 1, 0)
        self.raises(of.TrainSchedule, 1, 2, 2)

    def raises(self, *call):
        with self.assertRaises(terrace.ConfigError):
            call[0](*call[1:])


class Topology(unittest.TestCase):
    def test_the_last_axis_counts_fastest(self):
        topology = PipeDataParallelTopology(num_pp=2, num_dp=3)
        self.assertEqual((topology.world_size(), topology.get_dim("pipe"), topology.get_dim("other")), (6, 2, 0))
        self.assertEqual(topology.get_rank(pipe=1, data=2), 5)
        self.assertEqual(tuple(topology.get_coord(4)), (1, 1))
        self.assertEqual(topology.get_axis_comm_lists("pipe"), [[0, 3], [1, 4], [2, 5]])
        self.assertEqual(topology.get_axis_comm_lists("data"), [[0, 1, 2], [3, 4, 5]])
        self.assertEqual(topology.get_axis_comm_lists("model"), [])
        self.assertEqual(topology.get_axis_list("pipe", 1), [3, 4, 5])
        self.assertEqual(topology.filter_match(pipe=0, data=1), [1])
        self.assertEqual(topology.get_rank_repr(5), "")
        self.assertEqual(topology.get_rank_repr(5, omit_axes=["data"]), "pipe_01")

    def test_with_three_axes_each_rank_has_one_place(self):
        topology = PipeModelDataParallelTopology(num_pp=2, num_mp=2, num_dp=2)
        self.assertEqual(topology.get_axis_names(), ["pipe", "data", "model"])
        self.assertEqual(topology.get_rank_repr(5), "model_01")
        for rank in range(8):
            self.assertEqual(topology.get_rank(**topology.get_coord(rank)._asdict()), rank)
        self.assertEqual(topology.get_axis_comm_lists("model"), [[0, 1], [2, 3], [4, 5], [6, 7]])

    def test_what_is_no_place_is_refused(self):
        topology = ProcessTopology(["pipe", "data"], [2, 2])
        for call in (
            lambda: topology.get_rank(pipe=1),
            lambda: topology.get_rank(pipe=2, data=0),
            lambda: topology.get_coord(4),
            lambda: ProcessTopology(["pipe"], [0]),
            lambda: ProcessTopology(["pipe", "pipe"], [1, 2]),
        ):
            with self.assertRaises(terrace.ConfigError):
                call()

    def test_a_grid_says_where_a_process_is(self):
        topology = PipeDataParallelTopology(num_pp=3, num_dp=2)
        grid = PipelineParallelGrid(topology, 3)
        self.assertEqual((grid.get_stage_id(), grid.get_data_parallel_id()), (1, 1))
        self.assertEqual((grid.pp_group, grid.dp_group), ([1, 3, 5], [2, 3]))
        self.assertEqual((grid.stage_to_global(2), grid.stage_to_global(0, data=0)), (5, 0))
        self.assertEqual((grid.is_first_stage(), grid.is_last_stage()), (False, False))
        self.assertEqual((grid.get_pipe_parallel_world_size(), grid.get_slice_parallel_world_size()), (3, 1))
        self.assertIsNone(grid.get_slice_parallel_group())
        self.assertEqual((grid.get_model_parallel_world_size(), grid.get_model_parallel_rank()), (3, 1))


if __name__ == "__main__":
    unittest.main()
