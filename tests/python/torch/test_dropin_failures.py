"""What goes wrong around a drop-in optimizer is an error of four parts, and the next step is right."""

import itertools
import os
import random
import resource
import signal
import sys
import tempfile
import time
import unittest
from unittest import mock

import terrace
from dropin_training import bits, loss_of, network, torch, train, worst
from terrace.torch import OffloadAdagrad, OffloadAdamW, OffloadSGD


def with_torch(steps):
    model = network()
    return train(model, torch.optim.AdamW(model.parameters(), lr=1e-2), steps)


class Refusals(unittest.TestCase):
    def refused(self, kind, subject, reason, make):
        with self.assertRaises(kind) as raised:
            make()
        error = raised.exception
        self.assertIn(subject, error.subject)
        self.assertRegex(error.reason, reason)
        self.assertTrue(error.what and error.advice)

    def test_settings_and_options_that_cannot_be_honoured(self):
        def make(optimizer=OffloadAdamW, **options):
            return lambda: optimizer(network().parameters(), **options)

        for subject, reason, attempt in (
            ("amsgrad", "True", make(amsgrad=True)),
            ("maximize", "True", make(maximize=True)),
            ("capturable", "True", make(capturable=True)),
            ("differentiable", "True", make(differentiable=True)),
            ("lr_decay", "0.1", make(OffloadAdagrad, lr_decay=0.1)),
            ("initial_accumulator_value", "1", make(OffloadAdagrad, initial_accumulator_value=1)),
            ("maximize", "True", make(OffloadSGD, maximize=True)),
            ("nesterov", "without a momentum", make(OffloadSGD, nesterov=True)),
            ("lr", "0 or more", make(lr=-1.0)),
            ("eps", "0 or more", make(eps=float("nan"))),
            ("betas", r"\[0, 1\)", make(betas=(0.9, 1.0))),
            ("weight_decay", "0 or more", make(weight_decay=-1)),
            ("state", "no option", make(state="cpu")),
            ("states", "'cpu' or 'nvme'", make(states="disk")),
            ("hand_over", "'step' or 'backward'", make(hand_over="never")),
            ("path", "a folder", make(states="nvme")),
            ("path", "left out", make(path="/")),
            ("accumulation_steps", "1 or more", make(accumulation_steps=0, hand_over="backward")),
            ("accumulation_steps", "torch sums", make(accumulation_steps=2)),
            ("max_grad_norm", "0 or more", make(max_grad_norm=-1)),
        ):
            with self.subTest(subject=subject, reason=reason):
                self.refused(terrace.ConfigError, subject, reason, attempt)
        OffloadAdamW(network().parameters(), foreach=True, fused=True, amsgrad=False)

    def test_parameters_that_cannot_be_updated(self):
        base, plain, shared = torch.randn(6, 6), torch.ones(3), "change the other"
        with torch.device("meta"):
            meta = torch.nn.Parameter(torch.empty(3))
        for kind, reason, parameters in (
            (terrace.ConfigError, "complex64", [torch.nn.Parameter(torch.ones(3, dtype=torch.complex64))]),
            (terrace.ConfigError, "float64", [torch.nn.Parameter(plain), torch.nn.Parameter(plain.double())]),
            (terrace.ConfigError, "float8", [torch.nn.Parameter(plain.to(torch.float8_e4m3fn))]),
            (terrace.ConfigError, "sparse", [torch.nn.Parameter(torch.eye(3).to_sparse())]),
            (terrace.MisuseError, "no memory .device meta", [meta]),
            (terrace.ConfigError, shared, [torch.nn.Parameter(base), torch.nn.Parameter(base.view(36))]),
            (terrace.ConfigError, shared, [torch.nn.Parameter(base[:4]), torch.nn.Parameter(base[3:])]),
            (terrace.ConfigError, "with each other", [torch.nn.Parameter(torch.ones(3, 1).expand(3, 4))]),
        ):
            with self.subTest(reason=reason):
                self.refused(kind, "", reason, lambda: OffloadAdamW(parameters))
                for parameter in parameters:
                    parameter.requires_grad_(False)
                OffloadAdamW(parameters)
        OffloadAdamW([torch.nn.Parameter(base[:3]), torch.nn.Parameter(base[3:])])
        parameter = torch.nn.Parameter(plain)
        for groups in ([parameter, parameter], [{"params": [parameter]}, {"params": parameter}]):
            self.refused(terrace.ConfigError, "parameter", "already", lambda: OffloadAdamW(groups))

    def test_a_refused_group_leaves_the_optimizer_as_it_was(self):
        model = network()
        optimizer = OffloadAdamW(model.parameters(), lr=1e-2)
        more = torch.nn.Parameter(torch.ones(3))
        for group in ({"params": [more], "lr": -1}, {"params": [torch.nn.Parameter(torch.ones(3).double())]}):
            with self.assertRaises(terrace.ConfigError):
                optimizer.add_param_group(group)
        self.assertLess(worst(train(model, optimizer, 3), with_torch(3)), 1e-6)

    def test_a_parameter_whose_memory_is_gone(self):
        model = network()
        optimizer = OffloadAdamW(model.parameters(), lr=1e-2)
        train(model, optimizer, 2)
        kept = model[2].weight.data.clone()
        model[2].weight.untyped_storage().resize_(0)
        model[0].bias.grad = torch.ones(70)
        self.refused(terrace.MisuseError, "parameter 2", "no memory", optimizer.step)
        model[2].weight.data = kept
        optimizer.zero_grad()
        self.assertLess(worst(train(model, optimizer, 3, first=2), with_torch(5)[2:]), 1e-6)

    def test_settings_are_refused_at_the_step_too(self):
        for hand_over in ("step", "backward"):
            model = network()
            optimizer = OffloadAdamW(model.parameters(), lr=1e-2, hand_over=hand_over)
            loss_of(model, 0).backward()
            optimizer.param_groups[0]["amsgrad"] = True
            self.refused(terrace.ConfigError, "amsgrad", "True", optimizer.step)
            optimizer.param_groups[0]["amsgrad"] = False
            optimizer.step()
            self.assertLess(worst(train(model, optimizer, 3, first=1), with_torch(4)[1:]), 1e-6)


class Room(unittest.TestCase):
    def test_a_budget_that_is_too_small_names_the_least_before_anything_is_allocated(self):
        with tempfile.TemporaryDirectory() as folder:
            for options in ({}, {"states": "nvme", "path": folder}):
                with self.assertRaises(terrace.CapacityError) as raised:
                    OffloadAdamW(network().parameters(), host_bytes=1000, **options)
                least = raised.exception.least_host_bytes
                self.assertGreater(least, 1000)
                self.assertIn(str(least), str(raised.exception))
                self.assertEqual(os.listdir(folder), [])
                with self.assertRaises(terrace.CapacityError):
                    OffloadAdamW(network().parameters(), host_bytes=least - 1, **options)
                model = network()
                optimizer = OffloadAdamW(model.parameters(), lr=1e-2, host_bytes=least, **options)
                self.assertLess(worst(train(model, optimizer, 3), with_torch(3)), 1e-6)
                del optimizer

    def test_a_folder_that_is_not_there(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "states")
            with self.assertRaisesRegex(terrace.IoError, "no folder") as raised:
                OffloadAdamW(network().parameters(), states="nvme", path=path)
            self.assertEqual(raised.exception.subject, path)
            os.symlink(path, path)
            with self.assertRaisesRegex(terrace.IoError, "symbolic links"):
                OffloadAdamW(network().parameters(), states="nvme", path=path)
            os.unlink(path)
            os.mkdir(path)
            model = network()
            optimizer = OffloadAdamW(model.parameters(), lr=1e-2, states="nvme", path=path)
            os.rmdir(path)
            before = bits(model.parameters())
            with self.assertRaises(terrace.IoError):
                train(model, optimizer, 1)
            self.assertEqual(bits(model.parameters()), before)
            os.mkdir(path)
            self.assertLess(worst(train(model, optimizer, 3), with_torch(3)), 1e-6)
            del optimizer

    def test_a_full_drive(self):
        """A limit on the size of files plays it: first there is no room for states, then none for a state_dict."""
        everything = resource.getrlimit(resource.RLIMIT_FSIZE)

        def on_a_full_drive(attempt):
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, everything[1]))
            try:
                with self.assertRaises((terrace.IoError, terrace.CapacityError)) as raised:
                    attempt()
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, everything)
            self.assertTrue(raised.exception.reason and raised.exception.advice)

        with tempfile.TemporaryDirectory() as folder:
            model = network()
            optimizer = OffloadAdamW(model.parameters(), lr=1e-2, states="nvme", path=folder)
            before = bits(model.parameters())
            on_a_full_drive(lambda: train(model, optimizer, 1))  # noqa: F821, it is deleted at the end
            self.assertEqual((bits(model.parameters()), os.listdir(folder)), (before, []))
            losses = train(model, optimizer, 2)
            on_a_full_drive(optimizer.state_dict)
            self.assertEqual(os.listdir(folder), ["optimizer-0"])
            losses += train(model, optimizer, 2, first=2)
            self.assertLess(worst(losses, with_torch(4)), 1e-6)
            del optimizer


class Exceptions(unittest.TestCase):
    def test_of_a_closure_goes_through(self):
        model = network()
        optimizer = OffloadAdamW(model.parameters(), lr=1e-2)

        def closure():
            loss_of(model, 0).backward()
            raise ArithmeticError("in the closure")

        with self.assertRaisesRegex(ArithmeticError, "in the closure"):
            optimizer.step(closure)
        self.assertLess(worst(train(model, optimizer, 3), with_torch(3)), 1e-6)

    def test_interrupts_at_any_moment_leave_whole_steps(self):
        """A timer interrupts steps somewhere; in the end parameters and states are those of steps that were not."""

        def interrupt(*_):
            raise KeyboardInterrupt

        self.addCleanup(signal.signal, signal.SIGALRM, signal.signal(signal.SIGALRM, interrupt))
        moments = random.Random(5)
        for hand_over in ("step", "backward"):
            settings = {"lr": 1e-2, "max_grad_norm": 0.5}
            model, interrupts = network(), 0
            optimizer = OffloadAdamW(model.parameters(), hand_over=hand_over, **settings)
            train(model, optimizer, 1)
            begun = time.perf_counter()
            train(model, optimizer, 4, first=1)
            usual = (time.perf_counter() - begun) / 4
            for _ in range(100):
                optimizer.zero_grad()
                loss = loss_of(model, _steps_of(optimizer))
                try:
                    signal.setitimer(signal.ITIMER_REAL, moments.uniform(1e-5, usual))
                    loss.backward()
                    optimizer.step()
                    signal.setitimer(signal.ITIMER_REAL, 0)
                except KeyboardInterrupt:
                    interrupts += 1
                    torch.set_grad_enabled(True)  # torch.no_grad() may have been cut short
            optimizer.zero_grad()
            steps = _steps_of(optimizer)
            reference = network()
            train(reference, OffloadAdamW(reference.parameters(), **settings), steps)
            self.assertEqual(bits(model.parameters()), bits(reference.parameters()))
            self.assertGreater(interrupts, 0)

    def test_a_second_interrupt_while_the_first_is_cleared_up(self):
        """Before the gradients of the step are dropped in the store, and after."""
        for hand_over, is_late in itertools.product(("step", "backward"), (False, True)):
            model = network()
            optimizer = OffloadAdamW(model.parameters(), lr=1e-2, hand_over=hand_over)
            train(model, optimizer, 1)
            store = optimizer._states.store
            abandon_step = store.abandon_step

            def interrupted(abandon_step=abandon_step, is_late=is_late):
                if is_late:
                    abandon_step()
                raise KeyboardInterrupt

            with (
                mock.patch.object(store, "update", side_effect=KeyboardInterrupt),
                mock.patch.object(store, "abandon_step", interrupted),
                self.assertRaises(KeyboardInterrupt),
            ):
                train(model, optimizer, 1, first=1)
            if hand_over == "step":
                optimizer.zero_grad()
            loss = loss_of(model, 1)
            loss.backward()
            optimizer.step()
            losses = [loss.item(), *train(model, optimizer, 2, first=2)]
            self.assertLess(worst(losses, with_torch(4)[1:]), 1e-6)

    def test_interrupts_of_reading_leave_no_file(self):
        """At every line on the way to a state_dict of states on nvme."""

        def interrupted_at(place):
            count = 0

            def trace(frame, event, argument):
                nonlocal count
                if not frame.f_code.co_filename.startswith(package):
                    return None
                if event == "line":
                    count += 1
                    if count == place:
                        raise KeyboardInterrupt
                return trace

            sys.settrace(trace)
            try:
                optimizer.state_dict()  # noqa: F821, it is deleted at the end
            except KeyboardInterrupt:
                return True
            finally:
                sys.settrace(None)
            return False

        package = os.path.dirname(terrace.__file__)
        with tempfile.TemporaryDirectory() as folder:
            model = torch.nn.Linear(5, 1, bias=False)
            optimizer = OffloadAdamW(model.parameters(), lr=1e-2, states="nvme", path=folder)
            model(torch.ones(5)).sum().backward()
            optimizer.step()
            wanted = bits(optimizer.state_dict()["state"][0].values())
            places = 0
            while interrupted_at(places + 1):
                places += 1
                self.assertEqual(os.listdir(folder), ["optimizer-0"])
            self.assertGreater(places, 20)
            self.assertEqual(bits(optimizer.state_dict()["state"][0].values()), wanted)
            del optimizer

    def test_a_forked_child_is_told_and_the_parent_goes_on(self):
        for hand_over in ("step", "backward"):
            model = network()
            optimizer = OffloadAdamW(model.parameters(), lr=1e-2, hand_over=hand_over)
            losses = train(model, optimizer, 2)
            child = os.fork()
            if child == 0:
                refused = 0
                for attempt in (lambda: train(model, optimizer, 1), optimizer.state_dict):
                    try:
                        attempt()
                    except terrace.MisuseError as error:
                        refused += "forked" in error.reason
                os._exit(refused)
            self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 2)
            losses += train(model, optimizer, 2, first=2)
            self.assertLess(worst(losses, with_torch(4)), 1e-6)


def _steps_of(optimizer):
    """The steps that every parameter has had, which are the same."""
    (steps,) = {state["step"].item() for state in optimizer.state.values()}
    return int(steps)


if __name__ == "__main__":
    unittest.main()
