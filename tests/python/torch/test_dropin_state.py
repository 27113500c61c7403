"""States of the drop-in optimizers: torch's layout, in and out, and groups and parameters that come later."""

import copy
import io
import os
import pickle
import tempfile
import unittest
from unittest import mock

import terrace
from dropin_training import bits, network, torch, train, worst
from terrace.torch import OffloadAdagrad, OffloadAdam, OffloadAdamW, OffloadLion, OffloadSGD

MOMENTUM = {"lr": 1e-2, "momentum": 0.9, "dampening": 0.5}
PAIRS = (
    (torch.optim.AdamW, OffloadAdamW, {"lr": 1e-3}),
    (torch.optim.Adam, OffloadAdam, {"lr": 1e-3}),
    (torch.optim.Adagrad, OffloadAdagrad, {"lr": 1e-2}),
    (torch.optim.SGD, OffloadSGD, MOMENTUM),
    (torch.optim.SGD, OffloadSGD, {"lr": 1e-2}),
)


def saved_and_loaded(state):
    """As a checkpoint of torch brings it back."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


class Exchange(unittest.TestCase):
    def continued(self, before, after, settings, dtype=torch.float32, **options):
        """Losses of steps after the states went from one optimizer to another, with the weights."""
        model = network(dtype)
        first = before(model.parameters(), **settings, **options)
        train(model, first, 7)
        other = network(dtype)
        other.load_state_dict(model.state_dict())
        # Rates that are wrong on purpose: those that were saved count.
        wrong = {**settings, "lr": 123.0}
        second = after(other.parameters(), **wrong, **options)
        second.load_state_dict(saved_and_loaded(first.state_dict()))
        return train(other, second, 7, first=7), bits(other.parameters())

    def test_states_go_to_torch_and_back(self):
        for theirs, ours, settings in PAIRS:
            with self.subTest(ours=ours.__name__, **settings):
                wanted, _ = self.continued(theirs, theirs, settings)
                for one, other in ((theirs, ours), (ours, theirs), (ours, ours)):
                    self.assertLess(worst(self.continued(one, other, settings)[0], wanted), 1e-6)

    def test_a_run_goes_on_bit_by_bit(self):
        with tempfile.TemporaryDirectory() as folder:
            ways = (
                (torch.float32, 32),
                (torch.bfloat16, 32),
                (torch.float16, 32),
                (torch.float32, 8),
                (torch.bfloat16, 8),
            )
            for dtype, state_bits in ways:
                model = network(dtype)
                optimizer = OffloadAdamW(model.parameters(), lr=1e-3, state_bits=state_bits)
                train(model, optimizer, 7)
                wanted = train(model, optimizer, 7, first=7), bits(model.parameters())
                for options in ({}, {"states": "nvme", "path": folder}, {"hand_over": "backward"}):
                    with self.subTest(dtype=dtype, state_bits=state_bits, **options):
                        options["state_bits"] = state_bits
                        found = self.continued(OffloadAdamW, OffloadAdamW, {"lr": 1e-3}, dtype, **options)
                        self.assertEqual(found, wanted)

    def test_lion_goes_on_bit_by_bit(self):
        model = network()
        optimizer = OffloadLion(model.parameters())
        train(model, optimizer, 7)
        wanted = train(model, optimizer, 7, first=7), bits(model.parameters())
        self.assertEqual(self.continued(OffloadLion, OffloadLion, {"lr": 1e-4}), wanted)

    def test_a_load_in_the_middle_replaces_everything(self):
        model = network()
        optimizer = OffloadAdamW(model.parameters(), lr=1e-3)
        train(model, optimizer, 3)
        weights, states = copy.deepcopy(model.state_dict()), optimizer.state_dict()
        wanted = train(model, optimizer, 3, first=3)
        model.load_state_dict(weights)
        optimizer.load_state_dict(states)
        self.assertEqual(train(model, optimizer, 3, first=3), wanted)

    def test_an_empty_state_begins_anew(self):
        model = network()
        optimizer = OffloadAdamW(model.parameters(), lr=1e-3)
        empty = optimizer.state_dict()
        wanted = train(model, optimizer, 3)
        model.load_state_dict(network().state_dict())
        optimizer.load_state_dict(empty)
        self.assertEqual(train(model, optimizer, 3), wanted)

    def test_before_the_first_step_nothing_is_made(self):
        """accelerate saves and loads at once."""
        optimizer = OffloadAdamW(network().parameters())
        optimizer.load_state_dict(optimizer.state_dict())
        self.assertIsNone(optimizer._states.store)
        self.assertEqual(dict(optimizer.state), {})

    def test_the_state_is_a_view(self):
        model = network()
        optimizer, reference = OffloadAdamW(model.parameters()), network()
        train(model, optimizer, 2)
        theirs = torch.optim.AdamW(reference.parameters())
        train(reference, theirs, 2)
        self.assertEqual(len(optimizer.state), 6)
        for mine, its in zip(model.parameters(), reference.parameters()):
            self.assertIn(mine, optimizer.state)
            self.assertNotIn(its, optimizer.state)
            self.assertEqual(set(optimizer.state[mine]), set(theirs.state[its]))
            for key in ("exp_avg", "exp_avg_sq", "step"):
                torch.testing.assert_close(optimizer.state[mine][key], theirs.state[its][key], rtol=1e-5, atol=1e-8)
        with self.assertRaises(KeyError):
            optimizer.state[torch.ones(1)]
        self.assertTrue(optimizer.state[model[0].weight]["exp_avg"].any())
        for write in (optimizer.state.clear, lambda: optimizer.state.pop(model[0].weight)):
            with self.assertRaises(terrace.MisuseError):
                write()
        with self.assertRaises(terrace.MisuseError):
            optimizer.state[model[0].weight] = {}
        with self.assertRaisesRegex(RuntimeError, "inference tensor"):
            optimizer.state[model[0].weight]["exp_avg"].zero_()
        optimizer.state_dict()["state"][0]["exp_avg"].zero_()

    def test_hooks_of_state_dicts_are_called(self):
        model, seen = network(), []
        optimizer = OffloadAdamW(model.parameters())
        train(model, optimizer, 1)
        optimizer.register_state_dict_post_hook(lambda _, state: {**state, "more": 1})
        optimizer.register_load_state_dict_pre_hook(lambda _, state: seen.append(state["more"]))
        optimizer.register_load_state_dict_post_hook(lambda loaded: seen.append(len(loaded.state)))
        optimizer.load_state_dict(optimizer.state_dict())
        self.assertEqual(seen, [1, 6])

    def test_what_cannot_be_loaded_is_refused_and_changes_nothing(self):
        model = network()
        optimizer = OffloadAdamW(model.parameters(), lr=1e-3)
        train(model, optimizer, 2)
        good = optimizer.state_dict()

        def with_state(number, **changes):
            state = {**good["state"], number: {**good["state"].get(number, {}), **changes}}
            return {**good, "state": state}

        other = network()
        sgd = torch.optim.SGD(other.parameters(), **MOMENTUM)
        train(other, sgd, 1)
        groups = [{**good["param_groups"][0], "amsgrad": True}]
        for bad, subject, reason in (
            (with_state(0, exp_avg=torch.ones(3)), "parameter 0", r"exp_avg is of shape \(3,\)"),
            (with_state(1, exp_avg_sq=None), "parameter 1", "there is no exp_avg_sq"),
            (with_state(1, max_exp_avg_sq=torch.ones(3)), "parameter 1", "keeps no max_exp_avg_sq"),
            (with_state(17), "parameter 17", "no parameter group"),
            (with_state(2, step=torch.tensor(float("nan"))), "parameter 2", "its step is nan"),
            (with_state(2, step=-1), "parameter 2", "its step is -1"),
            (sgd.state_dict(), "parameter 0", "keeps no momentum_buffer"),
            ({**good, "param_groups": groups}, "amsgrad", "True"),
            ({**good, "param_groups": []}, "parameter groups", "has groups of"),
            ({}, "parameter groups", "has groups of"),
        ):
            with self.subTest(subject=subject, reason=reason):
                with self.assertRaisesRegex(terrace.ConfigError, reason) as raised:
                    optimizer.load_state_dict(bad)
                self.assertIn(subject, raised.exception.subject)
                self.assertTrue(raised.exception.advice)
        after = optimizer.state_dict()
        self.assertEqual(after["param_groups"], good["param_groups"])
        for number, state in good["state"].items():
            self.assertEqual(bits(after["state"][number].values()), bits(state.values()))

    def test_a_load_keeps_what_a_group_says_of_the_class_and_the_model(self):
        adam = torch.optim.Adam(network().parameters(), lr=0.25)
        model = network()
        optimizer = OffloadAdamW(model.named_parameters())
        optimizer.load_state_dict(adam.state_dict())
        (group,) = optimizer.param_groups
        self.assertEqual(group["lr"], 0.25)
        self.assertIs(group["decoupled_weight_decay"], True)
        self.assertEqual(group["param_names"], [name for name, _ in model.named_parameters()])

    def test_a_load_that_is_cut_short_leaves_the_states_as_they_were(self):
        with tempfile.TemporaryDirectory() as folder:
            model = network()
            optimizer = OffloadAdamW(model.parameters(), lr=1e-3, states="nvme", path=folder)
            train(model, optimizer, 2)
            states = optimizer.state_dict()
            weights = copy.deepcopy(model.state_dict())
            wanted = train(model, optimizer, 2, first=2)
            model.load_state_dict(weights)
            optimizer.load_state_dict(states)
            changed = {**states, "param_groups": [{**states["param_groups"][0], "lr": 9.0}]}
            kept = None
            with mock.patch.object(terrace.Store, "set_tensor_steps", side_effect=KeyboardInterrupt):
                try:
                    optimizer.load_state_dict(changed)
                except KeyboardInterrupt as interrupt:
                    kept = interrupt  # and with it the frames of the load
            self.assertIsNotNone(kept)
            self.assertEqual(len(os.listdir(folder)), 1)
            self.assertEqual(train(model, optimizer, 2, first=2), wanted)
            del optimizer

    def test_an_optimizer_is_neither_copied_nor_pickled(self):
        optimizer = OffloadAdamW(network().parameters())
        for copying in (copy.deepcopy, copy.copy, pickle.dumps):
            with self.assertRaisesRegex(terrace.MisuseError, "state_dict"):
                copying(optimizer)


class LaterParameters(unittest.TestCase):
    def grown(self, kind, **options):
        """A group is added after three steps, and a frozen parameter thaws after six."""
        model = network()
        model[2].weight.requires_grad_(False)
        middle = {"params": model[2].parameters(), "lr": 5e-3}
        optimizer = kind([{"params": model[0].parameters()}, middle], lr=1e-3, **options)
        losses = train(model, optimizer, 3)
        optimizer.add_param_group({"params": model[4].parameters(), "weight_decay": 0.2})
        losses += train(model, optimizer, 3, first=3)
        model[2].weight.requires_grad_(True)
        losses += train(model, optimizer, 3, first=6)
        model[0].weight.requires_grad_(False)
        return losses + train(model, optimizer, 3, first=9), optimizer

    def test_they_join_and_the_others_go_on(self):
        wanted, reference = self.grown(torch.optim.AdamW)
        with tempfile.TemporaryDirectory() as folder:
            for options in ({}, {"hand_over": "backward"}, {"states": "nvme", "path": folder}):
                with self.subTest(**options):
                    losses, optimizer = self.grown(OffloadAdamW, **options)
                    self.assertLess(worst(losses, wanted), 1e-6)
                    steps = {key: state["step"].item() for key, state in optimizer.state_dict()["state"].items()}
                    its_steps = reference.state_dict()["state"].items()
                    self.assertEqual(steps, {key: state["step"].item() for key, state in its_steps})
                    self.assertEqual(steps, {0: 9, 1: 12, 2: 6, 3: 12, 4: 9, 5: 9})

    def test_masters_of_16_bit_parameters_stay_as_they_are(self):
        """They are settled within the backward pass, where it takes gradients; its graph has saved the parameters."""

        def run(add, hand_over):
            model, more = network(torch.bfloat16), torch.nn.Parameter(torch.ones(3))
            optimizer = OffloadAdamW(model.parameters(), lr=1e-4, hand_over=hand_over)
            train(model, optimizer, 4)
            if add:
                more.grad = torch.ones(3)
                optimizer.add_param_group({"params": [more]})
            return train(model, optimizer, 8, first=4), bits(model.parameters())

        for hand_over in ("step", "backward"):
            self.assertEqual(run(True, hand_over), run(False, hand_over))

    def test_a_parameter_may_change_its_group_and_its_type(self):
        def run(kind):
            model = network()
            groups = [{"params": model[:3].parameters(), "lr": 1e-3}, {"params": model[4].parameters()}]
            optimizer = kind(groups, lr=1e-2)
            losses = train(model, optimizer, 3)
            optimizer.param_groups[1]["params"].append(optimizer.param_groups[0]["params"].pop())
            return losses + train(model, optimizer, 3, first=3)

        self.assertLess(worst(run(OffloadAdamW), run(torch.optim.AdamW)), 1e-6)
        model = network()
        optimizer = OffloadAdamW(model.parameters(), lr=1e-3)
        train(model, optimizer, 3)
        before = optimizer.state_dict()["state"]
        model.bfloat16()
        model[0].weight.grad = torch.zeros_like(model[0].weight)
        optimizer.zero_grad()
        train(model, optimizer, 1, first=3)
        after = optimizer.state_dict()["state"]
        self.assertEqual(after[0]["step"], 4)
        self.assertEqual(after[0]["master"].bfloat16().tolist(), model[0].weight.tolist())
        self.assertFalse(torch.equal(after[0]["exp_avg"], before[0]["exp_avg"]))

    def test_a_momentum_that_begins_later_begins_as_in_torch(self):
        def run(kind):
            model = network()
            optimizer = kind(model.parameters(), lr=1e-2, momentum=0.0, dampening=0.5)
            losses = train(model, optimizer, 3)
            optimizer.param_groups[0]["momentum"] = 0.9
            return losses + train(model, optimizer, 5, first=3)

        self.assertLess(worst(run(OffloadSGD), run(torch.optim.SGD)), 1e-6)


class NamedParameters(unittest.TestCase):
    def test_errors_name_parameters_by_their_names_in_the_model(self):
        model = torch.nn.Embedding(10, 4, sparse=True)
        names = ((model.named_parameters(), "weight"), (model.parameters(), "group 0, parameter 0"))
        for parameters, name in names:
            optimizer = OffloadAdamW(parameters)
            model(torch.tensor([1, 2])).sum().backward()
            with self.assertRaisesRegex(terrace.ConfigError, "sparse") as raised:
                optimizer.step()
            self.assertEqual(raised.exception.subject, name)
            optimizer.zero_grad()


if __name__ == "__main__":
    unittest.main()
