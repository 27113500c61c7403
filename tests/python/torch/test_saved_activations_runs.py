"""Saved activations on several ranks, and in runs that are killed while some of them are on nvme: no bit changes."""

import os
import signal
import tempfile
from unittest import main, mock

from ranks_torch import RanksTest, in_order, train_ranks
from support_torch import engine_of, isolated, masters, seeded, train
from terrace.torch.engine.passes import saved_inputs
from test_saved_activations import _PLAIN, _REENTRANT, Checkpointed, Saving, activations_config

_MICRO_BATCHES = 4  # of a step, over all ranks


def trained(mode, kind, count, place):
    def body(rank):
        with tempfile.TemporaryDirectory() as folder, mock.patch.object(saved_inputs, "LEAST_BYTES", 1):
            config = activations_config(mode, folder, _MICRO_BATCHES // count, place, place)
            engine = engine_of(seeded(Checkpointed, kind), config)
            told = train_ranks(engine, 3)
            moved = engine.store.step_counters()["activation_d2h"]
            result = told, masters(engine), moved > 0
            engine.close()
            return result

    return body


class Ranks(RanksTest):
    def test_each_keeps_its_own_and_no_bit_changes(self):
        for kind, place in ((_PLAIN, "cpu"), (_REENTRANT, "nvme")):
            told, ends, _ = self.on_ranks(1, trained("none", kind, 1, place))[0]
            for mode in ("cpu", "nvme"):
                for count in (1, 2):
                    with self.subTest(kind=kind, place=place, mode=mode, ranks=count):
                        found = self.on_ranks(count, trained(mode, kind, count, place))
                        self.assertEqual(in_order([one[0] for one in found]), told)
                        for _, of_rank, has_moved in found:
                            self.assertEqual(of_rank, ends)
                            self.assertTrue(has_moved)


class Killed(Saving):
    @isolated
    def test_a_run_that_is_killed_with_inputs_on_nvme_goes_on_with_the_same_bits(self):
        named = {"states": "nvme", "durable": True, "commit_every_steps": 1, "commit_every_seconds": 0}
        child = os.fork()
        if not child:
            self.train_until_killed(named)
        _, status = os.waitpid(child, 0)
        self.assertTrue(os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL)
        config = activations_config("nvme", self.folder, **named)
        engine = engine_of(seeded(Checkpointed), config, resume=True)
        begun = engine.global_steps
        self.assertIn(begun, (1, 2))
        told = train(engine, 4 - begun, first=begun), masters(engine)
        engine.close()
        with tempfile.TemporaryDirectory() as folder:
            plain = engine_of(seeded(Checkpointed), activations_config("none", folder, states="nvme"))
            self.assertEqual((train(plain, 4)[begun:], masters(plain)), told)
            plain.close()

    def train_until_killed(self, named):
        engine = self.engine("nvme", units=2, **named)
        train(engine, 2)
        engine.store.finish_commit()
        unpack = saved_inputs.SavedInputs.unpack

        def killed(home, packed):
            if engine.saved_activations.nvme_bytes and getattr(packed, "group", None) == home._group - 2:
                os.kill(os.getpid(), signal.SIGKILL)
            return unpack(home, packed)

        with mock.patch.object(saved_inputs.SavedInputs, "unpack", killed):
            train(engine, 1, first=2)
        os._exit(0)


if __name__ == "__main__":
    main()
