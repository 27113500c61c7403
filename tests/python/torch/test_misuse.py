"""What a program does to a model, its files and its settings behind an engine's back gives the right numbers, or an
error of four parts."""

import unittest

from support_torch import EngineTest, Mlp, engine_of, isolated, masters, seeded, terrace, torch, train


class Memory(EngineTest):
    @isolated
    def test_shared_memory_may_take_small_parameters(self):
        """Where they were is freed, and may be another tensor's by the next update, load or commit."""
        engines = [engine_of(seeded(Mlp)) for _ in range(2)]
        told = [train(engine, 1) for engine in engines]
        state = seeded(Mlp).state_dict()
        for load in (False, True):
            engines[0].zero_grad()
            engines[0].module.share_memory()
            others = [torch.full_like(one, 9.0) for one in state.values() for _ in range(20)]
            for engine, steps in zip(engines, told):
                if load:
                    engine.load_state_dict(state)
                steps += train(engine, 2, first=1)
            self.assertTrue(all(bool((one == 9.0).all()) for one in others))
        self.assertEqual((told[0], masters(engines[0])), (told[1], masters(engines[1])))


if __name__ == "__main__":
    unittest.main()
