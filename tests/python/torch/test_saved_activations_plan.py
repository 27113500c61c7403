"""What saved activations take is in the plan to the byte, and the least budget that is named is the least."""

import unittest

from support_torch import engine_of, isolated, seeded, terrace, train
from test_saved_activations import (
    _INPUT_BYTES,
    _LAYERS,
    _PLAIN,
    _REENTRANT,
    _UNIT,
    Checkpointed,
    Saving,
    activations_config,
)


class Plans(Saving):
    @isolated
    def test_the_plan_has_what_a_step_takes_and_moves_to_the_byte(self):
        for mode, units, kind in (("cpu", None, _PLAIN), ("nvme", 2, _REENTRANT), ("nvme", 9, _PLAIN)):
            engine = self.engine(mode, seeded(Checkpointed, kind), units, accumulation=2, states="nvme")
            self.assertEqual(engine.store.plan.saved_wanted_bytes, 0)  # before the first step nobody knows
            for _ in range(2):
                train(engine, 1)
                plan, counters, use = engine.store.plan, engine.store.step_counters(), engine.saved_activations
                moved = use.step_d2h_bytes, use.step_h2d_bytes, use.step_write_bytes, use.step_read_bytes
                names = "activation_d2h", "activation_h2d", "activation_write", "activation_read"
                self.assertEqual(moved, tuple(counters[name] for name in names))
                self.assertEqual(moved[:2], (2 * _LAYERS * _INPUT_BYTES, 2 * (_LAYERS - 1) * _INPUT_BYTES))
                self.assertEqual(plan.saved_wanted_bytes, _LAYERS * (4096 if mode == "cpu" else _UNIT))
                self.assertEqual(plan.saved_most_bytes, use.host_most_bytes)
                self.assertEqual(plan.saved_host_bytes, use.host_peak_bytes)
                self.assertEqual(plan.saved_nvme_bytes, use.nvme_peak_bytes)
                self.assertLessEqual(plan.host_bytes + plan.saved_most_bytes, engine.store.host_budget[0])
            on_nvme = {None: 0, 2: _LAYERS - 2 + 1, 9: 0}[units] * _UNIT  # one is written ahead
            self.assertEqual(plan.saved_nvme_bytes, on_nvme)
            self.assertEqual(use.step_write_bytes, 2 * on_nvme)
            engine.close()

    @isolated
    def test_the_least_that_is_named_does_and_a_byte_less_does_not(self):
        for mode, room, accumulation in (("cpu", 2 * 4096, 1), ("cpu", 2 * 4096, 4), ("nvme", _UNIT // 4, 4)):
            model = seeded(Checkpointed)
            config = activations_config(mode, self.folder, accumulation, states="nvme")
            config["terrace"]["host_memory"] = self.least_host(config, model) + room
            named = 0
            for _ in range(_LAYERS):  # of those that are saved until then, at most
                engine = engine_of(seeded(Checkpointed), config)
                try:
                    train(engine, 1)
                    break
                except terrace.CapacityError as error:
                    named = error.least_host_bytes
                finally:
                    engine.zero_grad()
                    engine.close()
                self.assertGreater(named, config["terrace"]["host_memory"])
                config["terrace"]["host_memory"] = named
            else:
                self.fail("each least was too little")
            config["terrace"]["host_memory"] = named - 1
            engine = engine_of(seeded(Checkpointed), config)
            self.raised(terrace.CapacityError, train, engine, 1)
            engine.close()


if __name__ == "__main__":
    unittest.main()
