"""terrace.initialize under the launchers of ranks: an unchanged script trains on as many as were started."""

import contextlib
import os
import sys
import types
import unittest
from unittest import mock

from launched_script import LaunchedTest
from ranks_torch import RanksTest, config_of, engine_of, seeded, terrace, together, torch, train_ranks
from support_torch import EngineTest, Mlp, isolated, train
from terrace.torch.engine.device import DeviceKind, choose_device, gpu_of, require_own_gpu

# What each launcher sets in a rank.
LAUNCHERS = {
    "torchrun": lambda rank: {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2"},
    "Terrace": lambda rank: {"TERRACE_RANK": str(rank), "TERRACE_RANKS": "2"},
    # srun of an allocation of 8 tasks, in a step of 2 on one of its hosts.
    "Slurm": lambda rank: {
        "SLURM_JOB_ID": "77",
        "SLURM_STEP_ID": "3",
        "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": str(rank),
        "SLURM_NODEID": "0",
        "SLURM_NTASKS": "8",
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_NUM_NODES": "1",
        "SLURM_STEP_TASKS_PER_NODE": "2",
        "SLURM_STEP_NODELIST": "node7",
        "SLURM_NODELIST": "node[7-8]",
    },
}


class Launched(LaunchedTest):
    def test_torchrun(self):
        self.launched(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2")

    def test_every_launchers_variables_are_known(self):
        def on(rank):
            engine = engine_of(seeded(Mlp), config_of(communicator="host"))  # no MPI, which srun would be a launcher of
            found = engine.global_rank, engine.world_size, train_ranks(engine, 1)[0][1]
            self.assertEqual(engine.local_rank, rank)
            engine.close()
            return found

        norms = set()
        for name, variables in LAUNCHERS.items():
            ends = together(2, on, variables)
            self.assertEqual([end.value[:2] for end in ends], [(0, 2), (1, 2)], (name, ends[0].text))
            norms.update(end.value[2] for end in ends)
        self.assertEqual(len(norms), 1)

    def test_a_group_of_torch_serves_without_a_launcher(self):
        """As torch.multiprocessing.spawn makes it."""

        def on(rank):
            meet = f"file://{os.environ.pop('TERRACE_MEET')}-gloo"
            torch.distributed.init_process_group("gloo", init_method=meet, rank=rank, world_size=2)
            engine = engine_of(seeded(Mlp))
            found = engine.global_rank, engine.world_size, train_ranks(engine, 1)[0][1]
            engine.close()
            torch.distributed.barrier()
            return found

        ends = together(2, on, lambda rank: {})
        self.assertEqual([end.value[:2] for end in ends], [(0, 2), (1, 2)], ends[0].text)
        self.assertEqual(ends[0].value[2], ends[1].value[2])

    @isolated
    def test_one_process_of_a_launcher_is_one_process(self):
        os.environ.update({"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"})
        engine = engine_of(seeded(Mlp))
        train(engine, 1)
        self.assertEqual((engine.world_size, terrace.comm.get_world_size()), (1, 1))
        engine.close()
        # A script of sbatch is one process, whatever its step will have.
        os.environ.update({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"})
        train(engine_of(seeded(Mlp)), 1)

    @isolated
    def test_half_of_a_launcher_is_named(self):
        os.environ["RANK"] = "1"
        self.assertIn("WORLD_SIZE", self.raised(terrace.ConfigError, engine_of, seeded(Mlp)).reason)

    @isolated
    def test_a_batch_for_several_ranks_says_so(self):
        config = dict(config_of(), train_batch_size=16, train_micro_batch_size_per_gpu=8)
        config["gradient_accumulation_steps"] = 1
        error = self.raised(terrace.ConfigError, engine_of, seeded(Mlp), config)
        self.assertIn("which is 16 on 2 ranks", error.reason)
        self.assertIn("gradient_accumulation_steps 2 keeps the batch", error.advice)


class Gpus(EngineTest):
    """Which GPU a rank takes of those that torch sees, or says that it sees."""

    def chosen(self, count, rank=None, local_count=2, device="cuda", current=0):
        ranks = None if rank is None else types.SimpleNamespace(local_rank=rank, local_count=local_count, host="a")
        config = types.SimpleNamespace(device_kind="simulated", device_memory=None, strict=False)
        seen = {"is_available": True, "device_count": count, "current_device": current}
        with contextlib.ExitStack() as patches:
            for name, value in seen.items():
                patches.enter_context(mock.patch.object(torch.cuda, name, lambda value=value: value))
            return gpu_of(choose_device(config, device, ranks))

    def test_each_rank_has_that_of_its_place_on_its_host(self):
        self.assertEqual([self.chosen(4, rank, 4) for rank in range(4)], [0, 1, 2, 3])
        self.assertEqual([self.chosen(1, rank) for rank in range(2)], [0, 0])  # its launcher shows it one alone
        self.assertEqual(self.chosen(4, 1, device="cuda:3"), 3)
        self.assertEqual(self.chosen(4, 1, current=2), 2)  # as torch.cuda.set_device has said
        self.assertEqual((self.chosen(4), self.chosen(4, device="cuda:1")), (0, 1))
        self.assertIsNone(self.chosen(4, 1, device="cpu"))
        error = self.raised(terrace.ConfigError, self.chosen, 2, 0, 3)
        self.assertIn("2 GPUs of host a", error.subject)

    def test_what_two_ranks_have_alike_is_refused(self):
        def required(mine, every):
            ranks = types.SimpleNamespace(host="a", texts_of_all=lambda text: every)
            of = lambda ordinal: types.SimpleNamespace(uuid=f"GPU-{ordinal}")
            with mock.patch.object(torch.cuda, "get_device_properties", of):
                with mock.patch.object(torch.cuda, "set_device") as use:
                    require_own_gpu(DeviceKind(mine is not None, mine or 0, False), ranks)
                    return use.call_args

        self.assertEqual(required(1, [b"a GPU-0", b"a GPU-1"]).args, (1,))
        self.assertEqual(required(0, [b"a GPU-0", b"b GPU-0"]).args, (0,))
        self.assertIsNone(required(None, [b"", b""]))
        for every, words in (
            ([b"a GPU-1", b"a GPU-0", b"a GPU-1"], "ranks 0 and 2 have the same"),
            ([b"a GPU-1", b""], "rank 1 has none"),
            ([b"", b"a GPU-1"], "rank 0 has none"),
        ):
            self.assertIn(words, self.raised(terrace.ConfigError, required, 1, every).reason)


class Dealt(RanksTest):
    def batches(self, count, size, ranks, **named):
        from terrace.torch import RankSampler

        return [list(RankSampler(range(count), size, rank=rank, ranks=ranks, **named)) for rank in range(ranks)]

    def test_rank_r_has_every_nth_micro_batch(self):
        whole = self.batches(24, 2, 1)[0]
        for ranks in (2, 3, 4):
            found = self.batches(24, 2, ranks)
            self.assertEqual([one for of_round in zip(*found) for one in of_round], whole)

    def test_every_rank_has_as_many(self):
        for count in range(12):
            for ranks in (1, 2, 3):
                for drop_last in (False, True):
                    found = self.batches(count, 2, ranks, drop_last=drop_last)
                    self.assertEqual({len(one) for one in found}, {len(found[0])})
                    self.assertLess(count // 2 - ranks, len(found[0]) * ranks)

    def test_an_order_of_the_users_is_dealt(self):
        from terrace.torch import RankSampler

        order = torch.utils.data.RandomSampler(range(8), generator=torch.Generator().manual_seed(3))
        whole = list(torch.utils.data.RandomSampler(range(8), generator=torch.Generator().manual_seed(3)))
        sampler = RankSampler(order, 1, rank=1, ranks=2)
        self.assertEqual([one for batch in sampler for one in batch], whole[1::2])
        self.assertEqual(len(sampler), 4)

    def test_wrong_arguments_are_refused(self):
        from terrace.torch import RankSampler

        self.raised(terrace.ConfigError, RankSampler, range(4), 0)
        self.raised(terrace.ConfigError, RankSampler, iter(()), 1)


if __name__ == "__main__":
    unittest.main()
