"""Which parameters of a model a store gets, without a store."""

import types
import unittest

import terrace
from support_torch import Mlp, config_of, seeded, torch
from terrace.config import read_config
from terrace.torch.engine.parameters import Parameters

CPU = torch.device("cpu")


def parameters_of(model, groups=None, threshold=0, config=None, device=CPU):
    groups = [{"params": list(model.parameters())}] if groups is None else groups
    return Parameters(model, read_config(config or config_of()), groups, threshold, device)


class OfAStore(unittest.TestCase):
    def test_every_parameter_has_a_tensor_in_the_models_order(self):
        model = seeded(Mlp)
        found = parameters_of(model)
        specs = found.specs()
        self.assertEqual([spec.name for spec in specs], [name for name, _ in model.named_parameters()])
        self.assertEqual([spec.shape for spec in specs], [tuple(one.shape) for one in model.parameters()])
        self.assertEqual([one.number for one in found.tracked], list(range(len(specs))))

    def test_a_frozen_one_is_kept_and_not_trained(self):
        model = seeded(Mlp)
        first = next(model.parameters()).requires_grad_(False)
        one = next(one for one in parameters_of(model).tracked if one.parameter is first)
        self.assertEqual((one.is_trainable, one.is_managed), (False, True))

    def test_groups_are_counted(self):
        model = seeded(Mlp)
        every = list(model.parameters())
        found = parameters_of(model, [{"params": every[:1]}, {"params": every[1:]}])
        self.assertEqual(found.group_count, 2)
        self.assertEqual([one.group for one in found.tracked], [0] + [1] * (len(every) - 1))

    def test_small_ones_come_last_and_lie_in_memory_of_torch(self):
        model = seeded(Mlp)
        found = parameters_of(model, threshold=100)
        found.copy_small()
        specs = found.specs()
        small = [one for one in found.tracked if one.is_small]
        self.assertTrue(small and found.tracked[-len(small) :] == small)
        self.assertEqual([specs[one.number].home for one in small], ["caller"] * len(small))
        self.assertEqual([specs[one.number].address for one in small], [one.values.data_ptr() for one in small])
        self.assertFalse({id(one.parameter) for one in small} & set(found.managed_of))

    def test_on_a_gpu_small_ones_are_in_the_store_behind_a_padding(self):
        found = parameters_of(seeded(Mlp), threshold=100, device=torch.device("cuda"))
        specs = found.specs()
        self.assertEqual(len(found.managed_of), len(found.tracked))
        self.assertEqual([spec.home for spec in specs], ["managed"] * len(specs))
        self.assertTrue(any(spec.name.startswith(".padding.") for spec in specs))

    def test_the_configuration_says_the_type(self):
        config = config_of(precision="bf16")
        self.assertEqual({spec.type for spec in parameters_of(seeded(Mlp), config=config).specs()}, {"bf16"})

    def test_a_batch_norm_keeps_fp32_under_bf16(self):
        model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
        found = parameters_of(model, config=config_of(precision="bf16"))
        self.assertEqual([one.type for one in found.tracked], ["bf16", "bf16", "fp32", "fp32"])

    def test_a_parameter_of_another_model_is_refused(self):
        with self.assertRaisesRegex(terrace.ConfigError, "1 of its parameters are not the model's"):
            parameters_of(seeded(Mlp), [{"params": [torch.nn.Parameter(torch.ones(2))]}])

    def test_a_large_frozen_one_of_another_type_is_words(self):
        model = seeded(Mlp)
        model.codes = torch.nn.Parameter(torch.zeros(67, dtype=torch.int8), requires_grad=False)
        found = parameters_of(model, threshold=8)
        self.assertEqual(found.outside, [])
        found.copy_small()
        specs = {spec.name: spec for spec in found.specs()}
        self.assertEqual((specs["codes"].type, specs["codes"].shape), ("word", (17,)))

    def test_a_store_is_filled_in_the_parameters_own_type(self):
        model = seeded(Mlp).to(torch.bfloat16)
        found = parameters_of(model)
        given = {}
        found.fill(types.SimpleNamespace(tensors=found.specs(), fill_arrays=given.update))
        wanted = {one.number: (one.parameter.data_ptr(), "bf16") for one in found.tracked}
        self.assertEqual(given, wanted)


if __name__ == "__main__":
    unittest.main()
