"""Ranks whose passes differ have the numbers of one rank, and none of them waits for good."""

import itertools
import tempfile
import unittest

from divergent import LEVELS, failure_of, is_possible
from ranks_torch import (
    RanksTest,
    batch_of,
    config_of,
    engine_of,
    loss_of,
    masters,
    seeded,
    together,
    torch,
    train_ranks,
)
from support_torch import Mlp


def covering():
    """Cases so that each pair of levels that is possible is in one of them."""
    pairs = [
        {name: level, other: another}
        for (name, levels), (other, others) in itertools.combinations(LEVELS.items(), 2)
        for level, another in itertools.product(levels, others)
    ]
    left = [pair for pair in pairs if is_possible(pair)]
    while left:
        case = {}
        for name, levels in LEVELS.items():
            open_to = [level for level in levels if _can_be(case, name, level)]
            case[name] = max(
                open_to, key=lambda level: sum(_covers({**case, name: level}, pair, name) for pair in left)
            )
        before = len(left)
        left = [pair for pair in left if not pair.items() <= case.items()]
        if len(left) == before:  # what is left goes together with few others
            case = _around(left.pop(0))
        yield case


def _covers(case, pair, name):
    return name in pair and all(case.get(other, level) == level for other, level in pair.items())


def _can_be(case, name, level):
    return is_possible({**case, name: level})


def _around(pair):
    case = dict(pair)
    for name, levels in LEVELS.items():
        if name not in case:
            case[name] = next(level for level in levels if _can_be(case, name, level))
    return case


class Divergent(RanksTest):
    def test_each_pair_of_settings_is_as_of_one_rank(self):
        for seed, case in enumerate(covering(), 1):
            with self.subTest(seed=seed, case=case):
                self.assertEqual(failure_of(seed, case), "")

    def test_which_way_ranks_exchange_is_chosen_and_said(self):
        def chosen(**settings):
            def on(rank):
                said = []
                engine = engine_of(seeded(Mlp), config_of(**settings), log=lambda level, line: said.append(line))
                found = engine.store.pulls, [line for line in said if line.startswith("2 ranks")]
                engine.close()
                return found

            return self.on_ranks(2, on)

        for settings in ({}, {"parameters": "device"}, {"rank_exchange": "pulled"}):
            (pulls, said), (others, nothing) = chosen(**settings)
            self.assertEqual((pulls, others, nothing), (True, True, []))
            self.assertEqual(said, ["2 ranks pull what they need: their passes may differ"])
        for settings, why in (
            ({"rank_exchange": "symmetric"}, ""),
            ({"update": "during_backward"}, "no rank knows before the end of a step"),
            ({"parameters": "device", "update": "next_forward"}, "parameters on the device"),
            ({"states": "device"}, "does not wait until the parameters are home"),
        ):
            (pulls, said), (others, _) = chosen(**settings)
            self.assertEqual((pulls, others), (False, False))
            self.assertIn("2 ranks exchange together", said[0])
            self.assertIn(why, said[0])

    def test_what_pulling_does_not_allow_is_refused_by_both_keys(self):
        for settings in ({"update": "during_backward"}, {"parameters": "device", "update": "next_forward"}):
            config = config_of(rank_exchange="pulled", **settings)

            def on(rank, config=config):
                engine_of(seeded(Mlp), config)

            for end in together(2, on):
                self.assertIn("terrace.update", str(end.error))
                self.assertIn("terrace.rank_exchange", str(end.error))

    def test_a_step_that_nobody_has_gradients_for_changes_nothing(self):
        def on(rank):
            engine = engine_of(seeded(Mlp), config_of(accumulation=2))
            train_ranks(engine, 1)
            before = masters(engine)
            for _ in range(4):
                engine.step()
            self.assertEqual((engine.global_steps, masters(engine)), (1, before))
            told = train_ranks(engine, 1, 1)
            engine.close()
            return told

        for told in self.on_ranks(2, on):
            self.assertEqual(len(told), 1)

    def test_commits_and_reads_fall_between_steps_that_ranks_begin_at_other_times(self):
        def on(rank):
            with tempfile.TemporaryDirectory() as folder:
                config = config_of("nvme", "nvme", folder, durable=True, commit_every_steps=1)
                engine = engine_of(seeded(Mlp), config)
                for step in range(3):
                    if (rank + step) % 2:
                        with torch.no_grad():
                            engine(batch_of(engine.module, 90))
                        engine(batch_of(engine.module, 91))  # begins a step that is given up
                    state = engine.module.state_dict()["last.weight"].sum().item()
                    loss = loss_of(engine.module, batch_of(engine.module, step, rank), engine)
                    loss.backward()
                    engine.optimizer.step()  # without engine.step(), a commit is made when the next step begins
                ends = state, masters(engine), engine.store.finish_commit()
                engine.close()
                return ends

        one, other = self.on_ranks(2, on)
        self.assertEqual(one, other)
        self.assertEqual(one[2], 3)

    def test_a_rank_that_gives_up_gradients_alone_is_named(self):
        def on(rank):
            engine = engine_of(seeded(Mlp), config_of(accumulation=2))
            train_ranks(engine, 1)
            engine.backward(loss_of(engine.module, batch_of(engine.module, 5), engine))
            if rank == 1:
                engine.zero_grad()
            engine.step()
            engine.step()

        first, second = together(2, on)
        self.assertIn('"rank 1": it has given up the step', str(first.error))
        self.assertIn('"rank 0": it updates', str(second.error))


if __name__ == "__main__":
    unittest.main()
