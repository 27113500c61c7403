"""Where bytes live, how units are cut and when updates run changes no bit of losses, norms and masters."""

import tempfile
import unittest

from support_torch import (
    MIB,
    Coded,
    EngineTest,
    Gpt,
    Mlp,
    config_of,
    engine_of,
    isolated,
    masters,
    seeded,
    terrace,
    train,
)

# A covering array: every pair of two columns' values is there, but for what cannot be had together.
# model, parameters, states, units, host budget, update, strict, accumulation
SETTINGS = [
    (Gpt, "device", "device", "leaf", "32MiB", "after_backward", False, 1),
    (Gpt, "cpu", "cpu", "auto", "32MiB", "next_forward", True, 3),
    (Gpt, "nvme", "nvme", "leaf", "tight", "during_backward", False, 3),
    (Gpt, "cpu", "nvme", "Block", "tight", "after_backward", True, 1),
    (Gpt, "nvme", "nvme", "auto", "32MiB", "during_backward", True, 1),
    (Gpt, "nvme", "cpu", "leaf", "32MiB", "next_forward", True, 1),
    (Gpt, "device", "cpu", "auto", "32MiB", "during_backward", False, 1),
    (Gpt, "cpu", "nvme", "auto", "tight", "next_forward", False, 1),
    (Gpt, "device", "nvme", "Block", "32MiB", "after_backward", True, 3),
    (Mlp, "nvme", "nvme", "auto", "tight", "next_forward", False, 3),
    (Mlp, "cpu", "cpu", "leaf", "32MiB", "during_backward", True, 3),
    (Mlp, "device", "device", "auto", "32MiB", "after_backward", True, 3),
    (Mlp, "cpu", "nvme", "leaf", "tight", "during_backward", True, 1),
    (Coded, "device", "device", "leaf", "32MiB", "after_backward", True, 3),
    (Coded, "cpu", "cpu", "auto", "32MiB", "during_backward", False, 3),
    (Coded, "nvme", "nvme", "leaf", "tight", "next_forward", True, 3),
    (Coded, "nvme", "cpu", "auto", "tight", "after_backward", True, 3),
    (Coded, "cpu", "nvme", "leaf", "tight", "during_backward", True, 3),
]


class Placements(EngineTest):
    def outcome(self, precision, moments, model, parameters, states, units, host, update, strict, accumulation):
        with tempfile.TemporaryDirectory() as folder:
            config = config_of(
                parameters,
                states,
                folder,
                accumulation,
                precision=precision,
                state_type=moments,
                strict=strict,
                update=update,
                chunk_elements=4096,
                host_memory="32MiB",
            )
            if host == "tight":
                config["terrace"]["host_memory"] = self.least_host(config, model, units)
            engine = engine_of(seeded(model), config, units=units)
            told = train(engine, 3)
            result = told, masters(engine)
            engine.close()
            return result

    def least_host(self, config, model, units):
        config["terrace"]["host_memory"] = 1
        error = self.raised(terrace.CapacityError, engine_of, seeded(model), config, units=units)
        self.assertGreater(error.least_bytes, 0)
        return error.least_bytes

    def check(self, precision, make, accumulation, moments="auto"):
        first = None
        for setting in SETTINGS:
            if setting[0] is not make or setting[-1] != accumulation:
                continue
            outcome = self.outcome(precision, moments, *setting)
            first = first or outcome
            self.assertEqual(outcome, first, setting)
        self.assertIsNotNone(first)

    @isolated
    def test_fp32(self):
        for make, accumulation in ((Gpt, 1), (Gpt, 3), (Mlp, 3), (Coded, 3)):
            self.check("fp32", make, accumulation)

    @isolated
    def test_bf16(self):
        for make, accumulation in ((Gpt, 1), (Gpt, 3), (Mlp, 3), (Coded, 3)):
            self.check("bf16", make, accumulation)

    @isolated
    def test_moments_in_codes(self):
        for precision, make, accumulation in (("bf16", Gpt, 1), ("fp32", Gpt, 3), ("bf16", Mlp, 3)):
            self.check(precision, make, accumulation, "int8")

    @isolated
    def test_which_parameters_are_small_matters_to_the_norms_last_bits_alone(self):
        """The order of its sum depends on it. Without clipping nothing else does."""
        outcomes, first_told = [], None
        for threshold in (0, 64, 1 << 20):
            engine = engine_of(seeded(Gpt), config_of(accumulation=2, clip=0.0), persistence_threshold=threshold)
            told = train(engine, 3)
            outcomes.append(([losses for losses, _ in told], masters(engine)))
            for (_, norm), (_, first) in zip(told, first_told if threshold else told):
                self.assertAlmostEqual(norm, first, delta=1e-12 * first)
            first_told = told
        self.assertEqual(outcomes[0], outcomes[1])
        self.assertEqual(outcomes[0], outcomes[2])

    @isolated
    def test_the_least_device_memory_is_enough(self):
        for model in (Gpt, Mlp, Coded):
            for units in ("leaf", "auto"):
                config = config_of(strict=True, device_memory=4096, chunk_elements=4096)
                error = self.raised(terrace.CapacityError, engine_of, seeded(model), config, units=units)
                config["terrace"]["device_memory"] = error.least_device_bytes
                self.assertLess(error.least_device_bytes, MIB)
                tight = engine_of(seeded(model), config, units=units)
                roomy = engine_of(seeded(model), config_of(chunk_elements=4096), units=units)
                self.assertEqual((train(tight, 3), masters(tight)), (train(roomy, 3), masters(roomy)))


if __name__ == "__main__":
    unittest.main()
