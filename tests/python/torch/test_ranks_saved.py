"""What several ranks write: checkpoints, commits and weights are those of one rank, for any number of ranks to go on from."""

import os
import pathlib
import shutil
import signal
import tempfile
import unittest

from ranks_torch import (
    RanksTest,
    config_of,
    engine_of,
    in_order,
    masters,
    seeded,
    terrace,
    together,
    train_ranks,
)
from support_torch import Gpt, Mlp

MICRO_BATCHES = 6


def config_for(ranks, **named):
    return config_of(
        named.pop("parameters", "cpu"), named.pop("states", "cpu"), accumulation=MICRO_BATCHES // ranks, **named
    )


class Saved(RanksTest):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)

    def test_checkpoints_are_of_no_number_of_ranks(self):
        for optimizer in ("AdamW", "Muon"):
            with self.subTest(optimizer=optimizer):
                self.check_checkpoints(self.folder / optimizer, optimizer)

    def check_checkpoints(self, folder, optimizer):
        def begin(count):
            def on(rank):
                engine = engine_of(seeded(Gpt), config_for(count, optimizer=optimizer))
                train_ranks(engine, 2)
                self.assertTrue(engine.save_checkpoint(folder / f"of {count}", client_state={"count": count}))
                engine.close()

            return on

        def go_on(count, saved):
            def on(rank):
                engine = engine_of(seeded(Gpt), config_for(count, optimizer=optimizer))
                _, client_state = engine.load_checkpoint(folder / f"of {saved}")
                told = train_ranks(engine, 2, first=2)
                ends = masters(engine)
                engine.close()
                return told, ends, client_state["count"]

            return on

        for count in (1, 2, 3):
            self.on_ranks(count, begin(count))
        for count in (2, 3):
            for file in ("states.bin", "beside.safetensors"):
                one, other = (folder / f"of {of}" / "global_step2" / file for of in (1, count))
                self.assertEqual(one.read_bytes(), other.read_bytes(), file)
        one = self.on_ranks(1, go_on(1, 1))[0]
        for count, saved in ((1, 3), (2, 3), (3, 2), (2, 1)):
            found = self.on_ranks(count, go_on(count, saved))
            self.assertEqual(in_order([told for told, _, _ in found]), one[0])
            for _, ends, of in found:
                self.assertEqual((ends, of), (one[1], saved))

    def test_weights_are_written_by_the_first_and_held_by_none(self):
        def save(count):
            def on(rank):
                engine = engine_of(seeded(Mlp), config_for(count, precision="bf16"))
                train_ranks(engine, 1)
                folder = self.folder / f"weights of {count}"
                engine.save_safetensors(folder)
                engine.save_16bit_model(folder, "half.safetensors")
                engine.close()
                return os.path.getsize(folder / "half.safetensors") if rank == 0 else 0

            return on

        for count in (1, 3):
            self.on_ranks(count, save(count))
        for file in ("model.safetensors", "half.safetensors"):
            one, other = (self.folder / f"weights of {of}" / file for of in (1, 3))
            self.assertEqual(one.read_bytes(), other.read_bytes())

    def test_a_save_that_fails_on_the_first_is_told_on_all_and_harms_nothing(self):
        place = self.folder / "a file"
        place.write_text("")

        def on(rank):
            engine = engine_of(seeded(Mlp), config_for(2))
            train_ranks(engine, 1)
            with self.assertRaises(terrace.Error) as refused:
                engine.save_checkpoint(place)
            told = train_ranks(engine, 1, first=1)
            engine.save_checkpoint(self.folder / "well")
            engine.close()
            return type(refused.exception).__name__, str(refused.exception), told

        found = self.on_ranks(2, on)
        self.assertNotEqual(found[0][0], "PeerError")
        self.assertEqual(found[1][0], "PeerError")
        self.assertIn("rank 0 of 2", found[1][1])

    def test_commits_are_of_all_and_resumed_by_as_many(self):
        def on(count, resume, steps):
            def train(rank):
                config = config_for(count, parameters="nvme", states="nvme", folder=self.folder, durable=True)
                engine = engine_of(seeded(Mlp), config, resume=resume)
                first = engine.global_steps
                told = train_ranks(engine, steps, first=first)
                engine.commit({"told": count})
                engine.finish_commit()
                ends = masters(engine)
                state = engine.client_state
                engine.close()
                return first, told, ends, state

            return train

        self.on_ranks(2, on(2, "auto", 2))
        found = self.on_ranks(2, on(2, "auto", 2))
        self.assertEqual([first for first, *_ in found], [2, 2])
        shutil.rmtree(self.folder / "terrace-rank-0-of-2")
        shutil.rmtree(self.folder / "terrace-rank-1-of-2")
        whole = self.on_ranks(1, on(1, False, 4))[0]
        self.assertEqual(in_order([told for _, told, _, _ in found]), whole[1][2:])
        self.assertEqual(found[0][2], whole[2])

    def test_a_commit_without_a_share_is_refused_on_all(self):
        def on(resume):
            def train(rank):
                config = config_for(2, states="nvme", folder=self.folder, durable=True)
                engine = engine_of(seeded(Mlp), config, resume=resume)
                train_ranks(engine, 1)
                engine.commit()
                engine.finish_commit()
                engine.close()

            return train

        self.on_ranks(2, on("auto"))
        shutil.rmtree(self.folder / "terrace-rank-1-of-2")
        for end in together(2, on(True)):
            self.assertIsInstance(end.error, (terrace.ConfigError, terrace.CorruptError, terrace.PeerError), end.text)

    def test_what_dead_jobs_of_other_numbers_left_goes(self):
        def die(count):
            def on(rank):
                engine = engine_of(seeded(Mlp), config_for(count, states="nvme", folder=self.folder))
                train_ranks(engine, 1)
                os.kill(os.getpid(), signal.SIGKILL)

            return on

        def end_well(count):
            def on(rank):
                engine = engine_of(seeded(Mlp), config_for(count, states="nvme", folder=self.folder))
                train_ranks(engine, 1)
                terrace.comm.barrier()
                left = self.folders()
                terrace.comm.barrier()
                engine.close()
                return left

            return on

        for died, count in ((3, 2), (2, 1), (1, 2)):
            together(died, die(died))
            self.assertEqual(len(self.folders()), died)
            for left in self.on_ranks(count, end_well(count)):
                self.assertEqual(len(left), count, left)
            self.assertEqual(self.folders(), set())

    def commits_of(self, numbers, threshold=128, **named):
        """[what train_ranks told, by rank] of runs of so many ranks one after the other, each of which goes on from the
        commit of the one before, makes a step and commits."""
        told = []
        for count in numbers:
            before = self.folders()

            def on(rank):
                config = self.config(count, **named)
                engine = engine_of(seeded(Gpt), config, resume="auto", persistence_threshold=threshold)
                first, state = engine.global_steps, engine.client_state
                found = train_ranks(engine, 1, first=first)
                kept = self.folders()
                terrace.comm.barrier()  # the first rank removes what it has gone on from when its commit is durable
                engine.commit({"steps": first + 1})
                engine.finish_commit()
                ends = masters(engine)
                engine.close()
                return first, state, found, kept, ends

            found = self.on_ranks(count, on)
            for first, state, _, kept, _ in found:
                self.assertEqual((first, state), (len(told), {"steps": first} if first else {}))
                self.assertLessEqual(before, kept)
            self.assertEqual(len(self.folders()), count, self.folders())
            told.append([one for _, _, one, _, _ in found])
            ends = [one for *_, one in found]
        return [in_order(one)[0] for one in told], ends

    def config(self, count, precision="fp32", **named):
        config = config_for(count, states="nvme", folder=self.folder, durable=True, commit_every_seconds=0, **named)
        if precision != "fp32":
            config[precision] = {"enabled": True, **({"initial_scale_power": 8} if precision == "fp16" else {})}
        config["scheduler"] = {"type": "WarmupLR", "params": {"warmup_num_steps": 4, "warmup_max_lr": 1e-2}}
        return config

    def folders(self):
        return set(os.listdir(self.folder))

    def test_any_number_of_ranks_goes_on_from_a_commit(self):
        for named in (
            {},
            {"precision": "bf16", "parameters": "nvme"},
            {"precision": "fp16"},
            {"precision": "bf16", "compact_state": True},
            {"precision": "bf16", "compact_state": True, "state_type": "int8"},
            {"precision": "bf16", "compact_state": True, "optimizer": "Muon"},
            {"parameters": "nvme", "optimizer": "Muon", "threshold": 1500},  # matrices and others on either side of it
        ):
            with self.subTest(**named):
                told, ends = self.commits_of((2, 3, 1, 2), **named)
                shutil.rmtree(self.folder / "terrace-rank-0-of-2")
                shutil.rmtree(self.folder / "terrace-rank-1-of-2")
                alone, of_one = self.commits_of((1, 1, 1, 1), **named)
                shutil.rmtree(self.folder / "terrace-tier")
                self.assertEqual(told, alone)
                self.assertEqual(ends, [of_one[0]] * 2)

    def test_a_commit_of_others_that_not_all_see_is_named_and_stays(self):
        """Nothing of it is removed, so that it is there when the folder is."""
        self.commits_of((2,))
        away = self.folder.with_name(self.folder.name + "-away")
        os.rename(self.folder / "terrace-rank-1-of-2", away)
        self.addCleanup(shutil.rmtree, away, ignore_errors=True)
        for count in (1, 3):
            for resume in ("auto", True, False):
                ends = together(count, lambda rank: engine_of(seeded(Gpt), self.config(count), resume=resume))
                for end in ends:
                    self.assertIsInstance(end.error, terrace.ConfigError, end.text)
                    self.assertIn("terrace-rank-1-of-2" if resume else "2 ranks committed it", end.text)
        os.rename(away, self.folder / "terrace-rank-1-of-2")
        self.assertEqual(self.folders(), {"terrace-rank-0-of-2", "terrace-rank-1-of-2"})

        def on(rank):
            engine = engine_of(seeded(Gpt), self.config(3), resume=True)
            return engine.global_steps

        self.assertEqual(self.on_ranks(3, on), [1, 1, 1])
        self.assertEqual(self.folders(), {"terrace-rank-0-of-2", "terrace-rank-1-of-2"})


if __name__ == "__main__":
    unittest.main()
