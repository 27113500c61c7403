"""plan_model: what it says of a model without values is what an engine of that model takes."""

import tempfile
import unittest

import terrace
from support_torch import Gpt, config_of, seeded, torch
from terrace.torch import plan_model

BUDGETS = {"device_memory": "4MiB", "host_memory": "64MiB"}


LARGE, SMALL, LITTLE = (
    {"terrace": {"device_memory": device, "host_memory": host}}
    for device, host in (("64MiB", "64MiB"), ("4MiB", "64MiB"), ("4MiB", "4MiB"))
)


def wide():
    """1.5 million parameters: 6 MiB, and 18 MiB of states."""
    return torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(6)))


def without_values(make):
    with torch.device("meta"):
        return make()


class OfAModel(unittest.TestCase):
    def config(self, parameters, states, path, **budgets):
        zero = {"stage": 3}
        for section, place in (("offload_param", parameters), ("offload_optimizer", states)):
            if place != "none":
                zero[section] = {"device": place, **({"nvme_path": path} if place == "nvme" else {})}
        return dict(config_of(), zero_optimization=zero, terrace={**BUDGETS, **budgets})

    def test_it_is_the_plan_of_the_engine(self):
        places = ("none", "cpu", "nvme")
        for parameters, states in [(one, other) for one in places for other in places]:
            for threshold in (0, 1 << 16):
                with self.subTest(parameters=parameters, states=states, threshold=threshold):
                    with tempfile.TemporaryDirectory() as folder:
                        config = self.config(parameters, states, folder)
                        planned = plan_model(without_values(Gpt), config, persistence_threshold=threshold)
                        model = seeded(Gpt)
                        engine, *_ = terrace.initialize(model=model, config=config, persistence_threshold=threshold)
                        with engine:
                            made = engine.store.plan
                    self.assertEqual(
                        (planned.device_bytes, planned.host_bytes, planned.nvme_bytes, planned.parameters),
                        (made.device_bytes, made.host_bytes, made.file_bytes, made.parameter_count),
                    )
                    self.assertEqual(planned.config, config)

    def test_the_nearest_placement_that_fits_is_taken(self):
        for given, places in ((LARGE, (None, None)), (SMALL, ("cpu", "cpu")), (LITTLE, ("nvme", "nvme"))):
            with self.subTest(given=given):
                zero = plan_model(without_values(wide), given, disk="1GiB").config.get("zero_optimization", {})
                chosen = tuple(zero.get(name, {}).get("device") for name in ("offload_param", "offload_optimizer"))
                self.assertEqual(chosen, places)

    def test_its_configuration_trains(self):
        with tempfile.TemporaryDirectory() as folder:
            planned = plan_model(without_values(wide), LITTLE, disk=1 << 30, nvme_path=folder)
            engine, *_ = terrace.initialize(model=wide(), config=planned.config)
            with engine:
                self.assertEqual(engine.store.plan.host_bytes, planned.host_bytes)
        self.assertIn('"device": "nvme"', str(planned))

    def test_what_is_too_small_is_told_with_the_least(self):
        with self.assertRaises(terrace.CapacityError) as raised:
            plan_model(without_values(wide), LITTLE)  # nothing may be on nvme
        self.assertGreater(raised.exception.least_host_bytes, 4 << 20)
        needed = plan_model(without_values(wide), LITTLE, disk="1GiB").nvme_bytes
        self.assertEqual(plan_model(without_values(wide), LITTLE, disk=needed).nvme_bytes, needed)
        with self.assertRaises(terrace.CapacityError) as raised:
            plan_model(without_values(wide), LITTLE, disk=needed - 1)
        self.assertEqual(raised.exception.least_nvme_bytes, needed)

    def test_budgets_may_be_arguments(self):
        named = {"terrace": {**BUDGETS, "device_memory": "1KiB"}}
        expected = plan_model(without_values(Gpt), {"terrace": BUDGETS})
        self.assertEqual(plan_model(without_values(Gpt), **BUDGETS), expected)
        self.assertEqual(plan_model(without_values(Gpt), named, device_memory=BUDGETS["device_memory"]), expected)
        self.assertEqual(named["terrace"]["device_memory"], "1KiB")

    def test_what_says_nothing_is_refused(self):
        with self.assertRaisesRegex(terrace.ConfigError, "no budget of device memory"):
            plan_model(without_values(wide))
        for disk in ("much", "2 apples", "-1", -1):
            with self.assertRaisesRegex(terrace.ConfigError, "is no size"):
                plan_model(without_values(wide), {"terrace": BUDGETS}, disk=disk)
        with self.assertRaisesRegex(terrace.ConfigError, "no torch.nn.Module"):
            plan_model("gpt2", {"terrace": BUDGETS})


if __name__ == "__main__":
    unittest.main()
