"""A store that is planned for a model: what is found to fit, and what a resume makes of it."""

import tempfile
import unittest
from types import SimpleNamespace

import terrace
from support_torch import MIB, Gpt, config_of, seeded, torch
from terrace.config import read_config
from terrace.torch.engine.device import DeviceKind
from terrace.torch.engine.parameters import Parameters
from terrace.torch.engine.parts import Parts
from terrace.torch.engine.planned import Planned, options_of

UNSIZED = DeviceKind(is_cuda=False, ordinal=0, strict=False)


class OfAModel(unittest.TestCase):
    def planned(self, units="auto", device=UNSIZED, **config):
        model = seeded(Gpt)
        groups = [{"params": list(model.parameters())}]
        parameters = Parameters(model, read_config(dict(config_of(), **config)), groups, 0, torch.device("cpu"))
        return Planned(parameters, units, device, options_of(parameters, "adamw", groups))

    def least(self, units):
        with self.assertRaises(terrace.CapacityError) as raised:
            self.planned(units, terrace.SimulatedDevice(1))
        return raised.exception.least_device_bytes

    def test_a_device_whose_size_is_not_given_holds_what_is_of_use(self):
        planned = self.planned()
        self.assertIsInstance(planned.used_device, terrace.SimulatedDevice)
        needed = terrace.plan(planned.specs, planned.used_device, planned.uses, **planned.options)
        self.assertLessEqual(needed.device_bytes, planned.used_device.budget_bytes)
        self.assertLessEqual(needed.device_useful_bytes, planned.used_device.budget_bytes)

    def test_where_layers_have_no_room_leaves_are_leased(self):
        leaf = self.least("leaf")
        self.assertEqual(self.least("auto"), leaf)
        with self.assertRaises(terrace.CapacityError):
            self.planned("auto", terrace.SimulatedDevice(leaf - 1))
        planned = self.planned("auto", terrace.SimulatedDevice(leaf))
        self.assertEqual(planned.units, "auto")
        names = [unit.name for unit in planned.chosen]
        self.assertEqual(names, [unit.name for unit in self.planned("leaf").chosen])
        self.assertNotEqual(names, [unit.name for unit in self.planned("auto").chosen])

    def test_units_that_are_named_do_not_become_others(self):
        with self.assertRaises(terrace.CapacityError):
            self.planned([torch.nn.Linear], terrace.SimulatedDevice(1))

    def test_gradients_are_handed_over(self):
        options = self.planned().options
        self.assertEqual((options["gradients"], options["unused_gradients"]), ("handed_over", "skip"))
        self.assertEqual((options["optimizer"], options["sgd_momentum"]), ("adamw", False))

    def test_gradients_are_handed_over_where_they_are_exchanged(self):
        for transport, count, expected in (
            ("nccl", 2, "handed_over_on_device"),
            ("nccl", 1, "handed_over"),
            ("auto", 2, "handed_over"),
        ):
            ranks = SimpleNamespace(transport=transport, count=count, local_count=count, all_of=lambda mine: [mine])
            model = seeded(Gpt)
            groups = [{"params": list(model.parameters())}]
            parts = Parts(None, ranks)
            parameters = Parameters(model, read_config(config_of()), groups, 0, torch.device("cpu"), parts)
            self.assertEqual(options_of(parameters, "adamw", groups)["gradients"], expected)

    def test_without_nvme_there_is_nothing_to_resume(self):
        planned = self.planned(device=terrace.SimulatedDevice(8 * MIB))
        with self.assertRaisesRegex(terrace.ConfigError, "nothing is on nvme"):
            planned.create(True)
        store, is_resumed = planned.create("auto")
        with store:
            self.assertFalse(is_resumed)

    def test_auto_begins_anew_where_there_is_no_commit(self):
        with tempfile.TemporaryDirectory() as folder:
            place = {"device": "nvme", "nvme_path": folder}
            planned = self.planned(zero_optimization={"stage": 3, "offload_param": place, "offload_optimizer": place})
            store, is_resumed = planned.create("auto")
            with store:
                self.assertFalse(is_resumed)


if __name__ == "__main__":
    unittest.main()
