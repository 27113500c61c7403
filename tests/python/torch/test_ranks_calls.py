"""Calls that all ranks make: what they give, and what becomes of ranks that make different ones."""

import os
import tempfile
import threading
import time
import unittest

from ranks_torch import RanksTest, engine_of, seeded, terrace, together, torch, train_ranks
from support_torch import Mlp


class Calls(RanksTest):
    def differing(self, body, *words, count=2):
        for rank, end in enumerate(together(count, body)):
            self.assertIsInstance(end.error, terrace.PeerError, f"rank {rank}: {end.text}{end.value}")
            for word in words:
                self.assertIn(word, str(end.error))

    def test_every_reduction_is_that_of_its_name(self):
        of_torch = torch.distributed.ReduceOp

        def on(rank):
            def reduced(op, tensor):
                terrace.comm.all_reduce(tensor, op)
                return tensor.tolist()

            mine = [rank + 1.0, 4.0 - rank]
            found = {
                str(op): reduced(op, torch.tensor(mine))
                for op in (of_torch.SUM, of_torch.AVG, of_torch.PRODUCT, of_torch.MIN, of_torch.MAX, "max")
            }
            found["int"] = reduced("min", torch.tensor([rank, -rank], dtype=torch.int64))
            found["empty"] = reduced("sum", torch.empty(0))
            found["bf16"] = reduced("sum", torch.tensor(0.5 + rank, dtype=torch.bfloat16))
            for op in ("mean", None, 7, of_torch.BAND):
                with self.assertRaises(terrace.ConfigError):
                    terrace.comm.all_reduce(torch.ones(1), op)
            for wrong in ({"group": object()}, {"async_op": True}):
                with self.assertRaises(terrace.ConfigError):
                    terrace.comm.all_reduce(torch.ones(1), **wrong)
            return found

        one, two, three = self.on_ranks(3, on)
        self.assertEqual(
            one,
            {
                str(of_torch.SUM): [6.0, 9.0],
                str(of_torch.AVG): [2.0, 3.0],
                str(of_torch.PRODUCT): [6.0, 24.0],
                str(of_torch.MIN): [1.0, 2.0],
                str(of_torch.MAX): [3.0, 4.0],
                "max": [3.0, 4.0],
                "int": [0, -2],
                "empty": [],
                "bf16": 4.5,
            },
        )
        self.assertEqual((one, one), (two, three))

    def test_a_broadcast_has_any_size(self):
        def on(rank):
            tensor = torch.full((3 << 18,), float(rank))
            terrace.comm.broadcast(tensor, 1)
            return tensor.unique().tolist()

        self.assertEqual(self.on_ranks(2, on), [[1.0]] * 2)

    def test_different_calls_are_told_on_all(self):
        def reduces_or_waits(rank):
            if rank:
                terrace.comm.barrier()
            else:
                terrace.comm.all_reduce(torch.ones(2))

        self.differing(reduces_or_waits, "a barrier", "an all-reduce (sum) of float32 (2,)")

        def other_sources(rank):
            terrace.comm.broadcast(torch.ones(2), src=rank)

        self.differing(other_sources, "a broadcast from rank 0", "a broadcast from rank 1")

        def other_types(rank):
            terrace.comm.all_reduce(torch.ones(2, dtype=torch.int32 if rank else torch.float32))

        self.differing(other_types, "int32", "float32")

        with tempfile.TemporaryDirectory() as folder:

            def other_saves(rank):
                engine = engine_of(seeded(Mlp))
                train_ranks(engine, 1)
                (engine.save_safetensors if rank else engine.save_checkpoint)(folder)

            self.differing(other_saves, "the call to save")
            self.assertEqual(os.listdir(folder), [])

    def test_a_rank_that_is_at_its_end_takes_part_in_nothing(self):
        with tempfile.TemporaryDirectory() as folder:

            def on(rank):
                engine = engine_of(seeded(Mlp))
                train_ranks(engine, 1)
                if rank == 0:
                    engine.save_checkpoint(folder)
                engine.close()

            first = together(2, on)[0]
            self.assertIsInstance(first.error, terrace.PeerError, first.text)
            self.assertIn("the call to save a checkpoint", str(first.error))
            self.assertIn("rank 1 of 2", str(first.error))
            self.assertIn("the end of its training", str(first.error))

    def test_a_call_on_another_thread_is_refused_and_harms_nothing(self):
        with tempfile.TemporaryDirectory() as folder:
            has_tried = os.path.join(folder, "has tried")

            def on(rank):
                engine = engine_of(seeded(Mlp))
                train_ranks(engine, 1)
                causes = []

                def beside():
                    while engine.store.ranks._doing != "a barrier":
                        time.sleep(0.01)
                    time.sleep(0.5)  # by then the call has begun
                    while not causes:
                        try:
                            engine.store.ranks.any(False)
                        except terrace.MisuseError as error:
                            causes.append(error.cause)
                    open(has_tried, "w").close()

                if rank == 0:
                    thread = threading.Thread(target=beside)  # while this one waits for the other rank
                    thread.start()
                    terrace.comm.barrier()
                    thread.join()
                else:
                    while not os.path.exists(has_tried):
                        time.sleep(0.01)
                    terrace.comm.barrier()
                train_ranks(engine, 1)
                return causes

            self.assertEqual(self.on_ranks(2, on), [["store_busy"], []])


if __name__ == "__main__":
    unittest.main()
