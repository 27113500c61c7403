"""Ranks that do not train the same, or that are there no more: every one of them is told, and none waits for ever."""

import os
import signal
import socket
import tempfile
import time
import unittest

from ranks_torch import (
    RanksTest,
    config_of,
    engine_of,
    seeded,
    terrace,
    together,
    torch,
    train_ranks,
)
from support_torch import Gpt, Mlp
from torch import nn


class Refused(RanksTest):
    def refused(self, make, kind=terrace.ConfigError, count=2):
        """The error of each rank."""
        ends = together(count, make)
        for rank, end in enumerate(ends):
            self.assertIsInstance(end.error, (kind, terrace.PeerError), f"rank {rank}: {end.text}")
        return [str(end.error) for end in ends]

    def differing(self, what, make):
        for text in self.refused(make):
            self.assertIn(what, text)
            self.assertIn("on rank 0", text)
            self.assertIn("on rank 1", text)

    def test_different_trainings_are_named_on_all(self):
        self.differing("gradient_clipping: 1", lambda rank: engine_of(seeded(Mlp), config_of(clip=1.0 + rank)))
        self.differing("parameter last.weight", lambda rank: engine_of(seeded(Mlp, 96 + 32 * rank)))
        self.differing("the model: Mlp", lambda rank: engine_of(seeded(Gpt if rank else Mlp)))

        def seeds(rank):
            torch.manual_seed(rank)
            return engine_of(Mlp())

        self.differing("torch.initial_seed(): 0", seeds)

        def values(rank):
            model = seeded(Mlp)
            with torch.no_grad():
                model.layers[1].weight[0, 0] += rank
            return engine_of(model)

        self.differing("values of layers.1.weight", values)
        self.differing(
            "training_data of terrace.initialize: 8",
            lambda rank: engine_of(seeded(Mlp), training_data=list(range(8 + rank))),
        )

    def test_what_one_alone_cannot_do_is_told_to_all(self):
        def meta(rank):
            with torch.device("meta" if rank else "cpu"):
                model = Mlp()
            return engine_of(model)

        texts = self.refused(meta)
        self.assertIn("rank 1 of 2", texts[0])
        self.assertIn("meta", texts[1])

    def test_wrapped_models_and_second_engines_are_refused(self):
        def wrapped(rank):
            group = f"file://{os.environ['TERRACE_MEET']}-gloo"
            torch.distributed.init_process_group("gloo", init_method=group, rank=rank, world_size=2)
            return engine_of(nn.parallel.DistributedDataParallel(seeded(Mlp)))

        for text in self.refused(wrapped):
            self.assertIn("DistributedDataParallel", text)

        def twice(rank):
            first = engine_of(seeded(Mlp))
            try:
                engine_of(seeded(Mlp))
            finally:
                first.close()

        for text in self.refused(twice, terrace.MisuseError):
            self.assertIn("they have an engine already", text)

    def test_a_batch_that_ranks_cannot_share_is_refused(self):
        config = dict(config_of(), train_batch_size=4, train_micro_batch_size_per_gpu=1)
        del config["gradient_accumulation_steps"]
        for text in self.refused(lambda rank: engine_of(seeded(Mlp), config), count=3):
            self.assertIn("4 micro-batches, which 3 ranks cannot share evenly", text)

    def test_a_model_of_fsdp_is_refused(self):
        def sharded(rank):
            group = f"file://{os.environ['TERRACE_MEET']}-gloo"
            torch.distributed.init_process_group("gloo", init_method=group, rank=rank, world_size=2)
            return engine_of(torch.distributed.fsdp.fully_shard(seeded(Mlp)))

        for text in self.refused(sharded):
            self.assertIn("divides the work among processes itself", text)

    def test_who_never_comes_is_named(self):
        def on(rank):
            return engine_of(seeded(Mlp), config_of(rank_timeout_seconds=1)) if rank == 0 else None

        end = together(2, on)[0]
        self.assertIsInstance(end.error, terrace.PeerError, end.text)
        self.assertIn("rank 1 of 2 did not come within 1 s", str(end.error))

    # --- Keys of the configuration ---

    def test_a_way_to_meet_that_is_not_there_is_refused_on_all(self):
        for text in self.refused(lambda rank: engine_of(seeded(Mlp), config_of(communicator="mpi"))):
            self.assertIn("terrace.communicator mpi", text)
        for text in self.refused(lambda rank: engine_of(seeded(Mlp), config_of(communicator="nccl"))):
            self.assertIn('"terrace.communicator nccl": the device is simulated', text)
        pulled = config_of(communicator="nccl", rank_exchange="pulled")
        for text in self.refused(lambda rank: engine_of(seeded(Mlp), pulled)):
            self.assertIn("terrace.rank_exchange is pulled, but terrace.communicator is nccl", text)

    def test_ranks_that_have_met_already_say_what_comes_too_late(self):
        def on(rank):
            terrace.init_distributed()
            said = []
            config = config_of(communicator="host", rank_timeout_seconds=7)
            engine_of(seeded(Mlp), config, log=lambda level, line: said.append(line)).close()
            return said

        for rank, said in enumerate(self.on_ranks(2, on)):
            late = [line.partition(" has no effect")[0] for line in said if "met before terrace.initialize" in line]
            self.assertEqual(late, [] if rank else ["terrace.communicator", "terrace.rank_timeout_seconds"])

    def test_ranks_take_nvme_paths_of_their_own(self):
        def folders(share, paths, count):
            with tempfile.TemporaryDirectory() as folder:
                names = [name.format(host=socket.gethostname()) for name in ("a", "b", "{host}-0", "{host}-1")]
                for name in names:
                    os.mkdir(os.path.join(folder, name))

                def on(rank):
                    config = config_of("nvme", "nvme", folder, nvme_share=share)
                    for section in ("offload_param", "offload_optimizer"):
                        config["zero_optimization"][section]["nvme_path"] = [os.path.join(folder, one) for one in paths]
                    engine = engine_of(seeded(Mlp), config)
                    train_ranks(engine, 1)
                    terrace.comm.barrier()
                    found = [sorted(os.listdir(os.path.join(folder, name))) for name in names]
                    engine.close()
                    return found

                return self.on_ranks(count, on)[0]

        mine, other = ["terrace-rank-0-of-2"], ["terrace-rank-1-of-2"]
        self.assertEqual(folders("auto", ["a", "b"], 2), [mine, other, [], []])
        self.assertEqual(folders("all", ["a", "b"], 2), [mine + other, mine + other, [], []])
        self.assertEqual(folders("auto", ["{host}-{local_rank}"], 2), [[], [], mine, other])

        def few(rank):
            return engine_of(seeded(Mlp), config_of("nvme", "nvme", tempfile.gettempdir(), nvme_share="own"))

        for text in self.refused(few):
            self.assertIn("terrace.nvme_share is own, and 1 of them is named", text)

    # --- Within a training ---

    def test_values_that_have_drifted_are_named_where_that_is_asked_for(self):
        def drifting(strict, change):
            def on(rank):
                model = seeded(Mlp)
                model.side = nn.BatchNorm1d(8)
                model.side.requires_grad_(False)
                engine = engine_of(model, config_of(strict=strict))
                train_ranks(engine, 1)
                with torch.no_grad():
                    change(model, rank)
                train_ranks(engine, 1, first=1)
                engine.close()

            return on

        def frozen(model, rank):
            model.side.weight[3] += rank

        def statistics(model, rank):
            model.side.running_mean += rank

        for text in self.refused(drifting(True, frozen), terrace.MisuseError):
            self.assertIn("the values of side.weight", text)
            self.assertIn("on rank 1", text)
        self.on_ranks(2, drifting(True, statistics))
        self.on_ranks(2, drifting(False, frozen))

    def test_what_is_raised_within_a_forward_is_told(self):
        class Failing(Mlp):
            def forward(self, x):
                found = super().forward(x)
                if engine_steps.get("fail"):
                    raise ValueError("this batch is empty")
                return found

        engine_steps = {}

        def on(rank):
            engine = engine_of(seeded(Failing))
            train_ranks(engine, 1)
            engine_steps["fail"] = rank == 1
            train_ranks(engine, 5, first=1)

        ends = together(3, on)
        self.assertIn("ValueError: this batch is empty", ends[1].text)
        for end in (ends[0], ends[2]):
            self.assertIsInstance(end.error, terrace.PeerError, end.text)
            self.assertIn("rank 1", str(end.error))
            self.assertIn("this batch is empty", str(end.error))

    def ends_of(self, act, count=3, **places):
        """How ranks end, the second of which does something else in its third step."""

        def on(rank):
            engine = engine_of(seeded(Mlp), config_of(**places))
            train_ranks(engine, 2)
            if rank == 1:
                act(engine)
            began = time.monotonic()
            try:
                train_ranks(engine, 50, first=2)
            except terrace.PeerError as error:
                return str(error), time.monotonic() - began

        return together(count, on)

    def test_a_rank_that_is_killed_is_named(self):
        for places in ({}, {"parameters": "device"}):
            ends = self.ends_of(lambda engine: os.kill(os.getpid(), signal.SIGKILL), **places)
            self.assertEqual(ends[1].signal_number, signal.SIGKILL)
            for end in (ends[0], ends[2]):
                self.assertIn("rank 1 of 3 (host", end.value[0], end.text)
                self.assertIn("died", end.value[0])

    def test_a_rank_that_raises_is_named_with_its_words(self):
        def fail(engine):
            raise RuntimeError("the data are at their end")

        ends = self.ends_of(fail)
        self.assertIn("the data are at their end", ends[1].text)
        for end in (ends[0], ends[2]):
            self.assertIn("rank 1", end.value[0], end.text)

    def test_a_rank_that_makes_fewer_steps_is_named(self):
        for places in ({}, {"parameters": "device"}):

            def stop(engine):
                engine.close()
                raise SystemExit(0)

            ends = self.ends_of(stop, **places)
            for end in (ends[0], ends[2]):
                self.assertIn("rank 1", end.value[0], end.text)

    def test_ranks_that_wait_for_each_other_are_told_who_is_where(self):
        def on(rank):
            engine = engine_of(seeded(Mlp), config_of(rank_exchange="symmetric"))
            train_ranks(engine, 1)
            with self.assertRaises(terrace.PeerError) as caught:
                if rank == 1:
                    terrace.comm.barrier()  # the other one goes on with the next pass
                train_ranks(engine, 1, first=1)
            return str(caught.exception)

        for end in together(2, on):
            self.assertIn("all ranks wait for each other", end.value or "", end.text)
            self.assertIn("rank 1 of 2", end.value)


if __name__ == "__main__":
    unittest.main()
