"""hand_over="backward": gradients leave as they come, and nothing works on their placeholders by mistake."""

import gc
import unittest
import warnings

import terrace
from dropin_training import batch, bits, loss_of, network, torch, train, worst
from terrace.torch import OffloadAdamW
from torch.utils.checkpoint import checkpoint


def made(steps=1, **options):
    model = network()
    return model, OffloadAdamW(model.parameters(), 1e-2, hand_over="backward", accumulation_steps=steps, **options)


def with_torch(steps, micro_batches=1):
    model = network()
    return train(model, torch.optim.AdamW(model.parameters(), lr=1e-2), steps, micro_batches)


class Placeholders(unittest.TestCase):
    def setUp(self):
        self.model, self.optimizer = made()
        loss_of(self.model, 0).backward()

    def test_nothing_reads_or_writes_them(self):
        parameters, grad = list(self.model.parameters()), self.model[0].weight.grad
        self.assertIn("HandedOver('group 0, parameter 0', shape=(70, 12))", repr(grad))
        scaler = torch.amp.GradScaler(device="cpu")
        scaler.scale(torch.ones(()))
        for attempt in (
            lambda: torch.nn.utils.clip_grad_norm_(parameters, 1.0),
            lambda: torch.nn.utils.clip_grad_norm_(parameters, 1.0, foreach=False),
            lambda: torch.nn.utils.clip_grad_norm_(parameters, 1.0, norm_type=float("inf")),
            lambda: torch.nn.utils.clip_grad_value_(parameters, 1.0),
            lambda: torch.nn.utils.get_total_norm([parameter.grad for parameter in parameters]),
            lambda: scaler.unscale_(self.optimizer),
            lambda: scaler.step(self.optimizer),
            lambda: torch.optim.Adam(parameters).step(),
            lambda: torch.optim.Adam(parameters, foreach=True).step(),
            lambda: torch.optim.Adam(parameters, fused=True).step(),
            lambda: grad + 1,
            lambda: grad.zero_(),
            lambda: grad.detach(),
            lambda: grad.clone(),
            grad.norm,
            lambda: self.model.zero_grad(set_to_none=False),
        ):
            with self.assertRaises(terrace.MisuseError) as raised:
                attempt()
            self.assertEqual(raised.exception.subject[:19], "group 0, parameter ")
            self.assertIn("max_grad_norm", raised.exception.advice)
        self.assertEqual(grad.shape, self.model[0].weight.shape)
        self.optimizer.step()
        self.assertTrue(all(parameter.grad is None for parameter in parameters))
        wanted = with_torch(4)
        self.assertLess(worst(train(self.model, self.optimizer, 3, first=1), wanted[1:]), 1e-6)

    def test_states_are_read_between_steps_only(self):
        self.optimizer.step()
        loss_of(self.model, 1).backward()
        with self.assertRaisesRegex(terrace.MisuseError, "handed over for a step") as raised:
            self.optimizer.state_dict()
        self.assertIn("zero_grad()", raised.exception.advice)
        self.optimizer.zero_grad()
        self.assertEqual(self.optimizer.state_dict()["state"][0]["step"], 1)

    def test_another_optimizer_in_backward_is_refused(self):
        self.optimizer.step()
        other = OffloadAdamW(self.model.parameters(), hand_over="backward")
        with self.assertRaisesRegex(terrace.MisuseError, "another optimizer has taken it"):
            loss_of(self.model, 1).backward()
        other.zero_grad()
        self.optimizer.zero_grad()
        del other
        gc.collect()
        self.assertLess(worst(train(self.model, self.optimizer, 3, first=1), with_torch(4)[1:]), 1e-6)

    def test_an_optimizer_that_is_gone_leaves_gradients_to_torch(self):
        self.optimizer.zero_grad()
        del self.optimizer
        gc.collect()
        self.assertEqual(len(self.model[0].weight._backward_hooks), 0)
        loss_of(self.model, 0).backward()
        self.assertIs(type(self.model[0].weight.grad), torch.Tensor)


class Dropping(unittest.TestCase):
    def test_gradients_can_be_dropped_by_optimizer_and_model(self):
        wanted = with_torch(3)
        for steps in (1, 2):
            for dropped in ("optimizer", "model"):
                model, optimizer = made(steps)
                losses = []
                for step in range(3):
                    for _ in range(3):
                        # Half a backward pass: the gradients of the last layers only.
                        model[4](torch.ones(2, 70, requires_grad=True)).sum().backward()
                        (optimizer if dropped == "optimizer" else model).zero_grad()
                    for _ in range(steps):
                        loss = loss_of(model, step)
                        (loss / steps).backward()
                    losses.append(loss.item())
                    optimizer.step()
                self.assertLess(worst(losses, wanted), 1e-6)

    def test_dropped_just_before_the_step_nothing_is_updated(self):
        model, optimizer = made()
        before = bits(model.parameters())
        loss_of(model, 0).backward()
        model.zero_grad()
        optimizer.step()
        self.assertEqual(bits(model.parameters()), before)
        self.assertIsNone(optimizer.last_update)

    def test_dropping_some_or_replacing_one_is_an_error(self):
        for change in (None, torch.ones(70)):
            model, optimizer = made()
            loss_of(model, 0).backward()
            model[0].bias.grad = change
            with self.assertRaisesRegex(terrace.MisuseError, "dropped or replaced"):
                optimizer.step()
            optimizer.zero_grad()
            self.assertLess(worst(train(model, optimizer, 3), with_torch(3)), 1e-6)

    def test_gradients_set_to_zero_are_refused(self):
        model, optimizer = made()
        with self.assertRaisesRegex(terrace.ConfigError, "set_to_none"):
            optimizer.zero_grad(set_to_none=False)


class MicroBatches(unittest.TestCase):
    def test_they_are_told_apart_by_the_gradients_that_come_again(self):
        """Micro-batches that use different parts of the model, and fewer of them than the step may have."""

        def run(kind, **options):
            model = network()
            optimizer = kind(model.parameters(), lr=1e-2, **options)
            losses = []
            for step in range(6):
                optimizer.zero_grad()
                for number in range(step % 4):
                    head = model[4](torch.ones(1, 70) * step).square().sum()
                    loss = head if number == 1 else loss_of(model, step + number)
                    loss.backward()
                    losses.append(loss.item())
                optimizer.step()
            return losses

        found = run(OffloadAdamW, hand_over="backward", accumulation_steps=3)
        self.assertLess(worst(found, run(torch.optim.AdamW)), 2e-6)

    def test_too_many_are_an_error_and_the_next_step_is_right(self):
        for steps in (1, 2):
            model, optimizer = made(steps)
            with self.assertRaisesRegex(terrace.MisuseError, f"accumulation_steps: {steps}") as raised:
                for number in range(steps + 1):
                    loss_of(model, number).backward()
            self.assertIn("zero_grad()", raised.exception.advice)
            self.assertTrue(all(parameter.grad is None for parameter in model.parameters()))
            self.assertLess(worst(train(model, optimizer, 3, steps), with_torch(3, steps)), 1e-6)

    def test_shared_layers_and_checkpoints_give_their_gradients_once(self):
        for reentrant in (False, True):

            def run(kind, **options):
                model = network()
                shared = torch.nn.Sequential(model[0], model[1], model[2], model[1])
                optimizer = kind(model.parameters(), lr=1e-2, **options)
                losses = []
                for step in range(5):
                    optimizer.zero_grad()
                    inputs, targets = batch(step)
                    hidden = checkpoint(shared, inputs.requires_grad_(), use_reentrant=reentrant)
                    loss = (model[4](model[2](hidden) if not reentrant else hidden) - targets).square().mean()
                    loss.backward()
                    losses.append(loss.item())
                    optimizer.step()
                return losses

            self.assertLess(worst(run(OffloadAdamW, hand_over="backward"), run(torch.optim.AdamW)), 1e-6)


class Refusals(unittest.TestCase):
    def test_graphs_of_gradients_are_refused(self):
        model, optimizer = made()
        with self.assertRaisesRegex(terrace.MisuseError, "create_graph"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's own, of the memory that this takes
            loss_of(model, 0).backward(create_graph=True)
        self.assertLess(worst(train(model, optimizer, 3), with_torch(3)), 1e-6)

    def test_an_exception_in_backward_leaves_the_optimizer_usable(self):
        class Fails(torch.autograd.Function):
            @staticmethod
            def forward(_, inputs):
                return inputs.clone()

            @staticmethod
            def backward(_, gradient):
                raise ArithmeticError("in backward")

        model, optimizer = made()
        inputs, _ = batch(0)
        with self.assertRaisesRegex(ArithmeticError, "in backward"):
            model[2:](Fails.apply(model[:2](inputs))).sum().backward()
        optimizer.zero_grad()
        self.assertLess(worst(train(model, optimizer, 3), with_torch(3)), 1e-6)

    def test_parameters_may_not_move_between_gradient_and_step(self):
        model, optimizer = made()
        loss_of(model, 0).backward()
        model[0].weight.data = model[0].weight.data.clone()
        with self.assertRaisesRegex(terrace.MisuseError, "between its gradient and the step"):
            optimizer.step()
        self.assertLess(worst(train(model, optimizer, 3), with_torch(3)), 1e-6)

    def test_a_write_between_gradient_and_step_counts_or_is_refused(self):
        """It counts where the parameter is its own master."""

        def written(model, optimizer):
            loss_of(model, 0).backward()
            with torch.no_grad():
                model[0].weight.mul_(0.5)
            optimizer.step()

        model, optimizer = made()
        written(model, optimizer)
        reference = network()
        theirs = torch.optim.AdamW(reference.parameters(), lr=1e-2)
        written(reference, theirs)
        self.assertLess(worst(train(model, optimizer, 3), train(reference, theirs, 3)), 1e-6)
        model = network(torch.bfloat16)
        optimizer = OffloadAdamW(model.parameters(), lr=1e-2, hand_over="backward")
        with self.assertRaisesRegex(terrace.MisuseError, "between its gradient and the step"):
            written(model, optimizer)

    def test_a_parameter_that_thaws_within_a_step_is_refused(self):
        model, optimizer = made(2)
        model[0].requires_grad_(False)
        loss_of(model, 0).backward()
        model[0].requires_grad_(True)
        loss_of(model, 1).backward()
        with self.assertRaisesRegex(terrace.MisuseError, "frozen"):
            optimizer.step()
        optimizer.zero_grad()
        self.assertLess(worst(train(model, optimizer, 3, 2), with_torch(3, 2)), 1e-6)


if __name__ == "__main__":
    unittest.main()
