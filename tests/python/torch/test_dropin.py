"""OffloadAdamW and the others beside torch.optim's: the same numbers, wherever states are."""

import contextlib
import io
import itertools
import os
import runpy
import tempfile
import unittest
import warnings
from unittest import mock

import terrace
from dropin_training import ROOT, bits, loss_of, network, torch, train, worst
from terrace.torch import OffloadAdagrad, OffloadAdam, OffloadAdamW, OffloadLion, OffloadSGD

PAIRS = (
    (torch.optim.AdamW, OffloadAdamW, {"lr": 1e-3, "weight_decay": 0.1}),
    (torch.optim.Adam, OffloadAdam, {"lr": 1e-3, "weight_decay": 0.01, "betas": (0.8, 0.95), "eps": 1e-6}),
    (torch.optim.Adagrad, OffloadAdagrad, {"lr": 1e-2, "weight_decay": 0.01}),
    (torch.optim.SGD, OffloadSGD, {"lr": 1e-2}),
    (torch.optim.SGD, OffloadSGD, {"lr": 1e-2, "momentum": 0.9, "dampening": 0.3, "weight_decay": 0.01}),
    (torch.optim.SGD, OffloadSGD, {"lr": 1e-2, "momentum": 0.9, "nesterov": True}),
)


class LionOfThePaper(torch.optim.Optimizer):
    """Algorithm 2 of arXiv:2302.06675."""

    def __init__(self, params, lr, betas, weight_decay):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            one, two = group["betas"]
            for parameter in group["params"]:
                moment = self.state[parameter].setdefault("exp_avg", torch.zeros_like(parameter))
                direction = (one * moment + (1 - one) * parameter.grad).sign()
                parameter -= group["lr"] * group["weight_decay"] * parameter
                parameter -= group["lr"] * direction
                moment.mul_(two).add_(parameter.grad, alpha=1 - two)


class BesideTorch(unittest.TestCase):
    def test_fifty_steps_give_the_losses_of_torch(self):
        lion = {"lr": 1e-4, "betas": (0.9, 0.99), "weight_decay": 0.1}
        for theirs, ours, settings in (*PAIRS, (LionOfThePaper, OffloadLion, lion)):
            with self.subTest(ours=ours.__name__, **settings):
                one, other = network(), network()
                wanted = train(one, theirs(one.parameters(), **settings), 50)
                found = train(other, ours(other.parameters(), **settings), 50)
                self.assertLess(worst(found, wanted), 1e-6)
                self.assertNotEqual(wanted[0], wanted[-1])
                for mine, its in zip(other.parameters(), one.parameters()):
                    torch.testing.assert_close(mine, its, rtol=0, atol=4e-6)

    def test_groups_have_the_defaults_of_torch(self):
        for theirs, ours, settings in PAIRS:
            wanted = theirs(network().parameters(), **settings).state_dict()["param_groups"]
            self.assertEqual(ours(network().parameters(), **settings).state_dict()["param_groups"], wanted)

    def test_settings_are_read_at_every_step(self):
        """Schedulers of torch, and a group that is changed by hand."""

        def scheduled(kind):
            model = network()
            groups = [
                {"params": model[0].parameters(), "weight_decay": 0.0},
                {"params": model[2].parameters(), "lr": 1e-2, "betas": (0.5, 0.9)},
                {"params": model[4].parameters()},
            ]
            optimizer = kind(groups, lr=torch.tensor(3e-3))
            rates = [
                torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=4),
                torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20),
            ]
            scheduler = torch.optim.lr_scheduler.SequentialLR(optimizer, rates, [4])
            losses = []
            for step in range(24):
                losses += train(model, optimizer, 1, first=step)
                scheduler.step()
                optimizer.param_groups[2]["eps"] = 1e-8 * (step + 1)
            return losses

        self.assertLess(worst(scheduled(OffloadAdamW), scheduled(torch.optim.AdamW)), 1e-6)

    def test_a_parameter_without_a_gradient_is_left_alone(self):
        def some(kind, **options):
            model = network()
            optimizer = kind(model.parameters(), lr=1e-2, weight_decay=0.1, **options)
            for step in range(12):
                optimizer.zero_grad()
                (loss_of(model, step) if step % 3 else model[4](torch.ones(1, 70)).square().sum()).backward()
                optimizer.step()
            return model, optimizer

        wanted, torch_optimizer = some(torch.optim.AdamW)
        for options in ({}, {"hand_over": "backward"}):
            found, optimizer = some(OffloadAdamW, **options)
            for mine, its in zip(found.parameters(), wanted.parameters()):
                torch.testing.assert_close(mine, its, rtol=0, atol=2e-6)
            steps = {key: state["step"].item() for key, state in optimizer.state_dict()["state"].items()}
            its_steps = {key: state["step"].item() for key, state in torch_optimizer.state_dict()["state"].items()}
            self.assertEqual(steps, its_steps)
            self.assertEqual(steps, {0: 8, 1: 8, 2: 8, 3: 8, 4: 12, 5: 12})

    def test_a_step_without_any_gradient_changes_nothing(self):
        model = network()
        optimizer = OffloadAdamW(model.parameters())
        before = bits(model.parameters())
        optimizer.step()
        self.assertEqual(bits(model.parameters()), before)
        self.assertEqual(optimizer.state_dict()["state"], {})
        self.assertIsNone(optimizer.last_update)

    def test_closures_hooks_and_a_gradient_of_zeros_work_as_in_torch(self):
        def run(kind):
            model, seen = network(), []
            optimizer = kind(model.parameters(), lr=1e-2)
            optimizer.register_step_pre_hook(lambda *_: seen.append("before"))
            optimizer.register_step_post_hook(lambda *_: seen.append("after"))

            def closure():
                optimizer.zero_grad(set_to_none=False)
                loss = loss_of(model, 3)
                loss.backward()
                seen.append(loss.item())
                return loss

            returned = [optimizer.step(closure).item() for _ in range(5)]
            optimizer.zero_grad(set_to_none=False)
            optimizer.step()
            return seen, returned, [state["step"].item() for state in optimizer.state_dict()["state"].values()]

        seen, returned, steps = run(OffloadAdamW)
        torch_seen, torch_returned, torch_steps = run(torch.optim.AdamW)
        self.assertEqual([entry for entry in seen if isinstance(entry, str)], ["before", "after"] * 6)
        self.assertEqual(steps, torch_steps)
        self.assertLess(worst(returned, torch_returned), 1e-6)
        self.assertLess(worst(seen[1::3][:5], torch_seen[1::3][:5]), 1e-6)


class Placements(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def trained(self, micro_batches, dtype, **options):
        model = network(dtype)
        optimizer = OffloadAdamW(model.parameters(), lr=1e-2, max_grad_norm=0.5, **options)
        norms = []
        step = optimizer.step
        optimizer.step = lambda: (step(), norms.append(optimizer.last_update.gradient_norm))
        losses = train(model, optimizer, 8, micro_batches)
        return losses, norms, bits(model.parameters())

    def test_no_bit_depends_on_where_states_are_or_when_gradients_are_taken(self):
        least = 0
        try:
            OffloadAdamW(network().parameters(), states="nvme", path=self.folder, host_bytes=1)
        except terrace.CapacityError as error:
            least = error.least_host_bytes
        homes = (
            {},
            {"states": "nvme", "path": self.folder},
            {"states": "nvme", "path": [self.folder], "host_bytes": 2 * least, "threads": 1},
        )
        ways = itertools.product((torch.float32, torch.bfloat16), (1, 3), (32, 8))
        for dtype, micro_batches, state_bits in ways:
            found = {}
            for number, home in enumerate(homes):
                named = {**home, "state_bits": state_bits}
                found[number, "step"] = self.trained(micro_batches, dtype, **named)
                found[number, "backward"] = self.trained(
                    micro_batches, dtype, hand_over="backward", accumulation_steps=micro_batches, **named
                )
            self.assertEqual(len(set(found[0, "step"][0])), 8 * micro_batches)
            self.assertGreater(max(found[0, "step"][1]), 0.5)
            for (number, hand_over), result in found.items():
                case = {"dtype": dtype, "micro_batches": micro_batches, "state_bits": state_bits}
                with self.subTest(**case, home=number, hand_over=hand_over):
                    # In bf16 p.grad sums up micro-batches in bf16, and the store in fp32.
                    alike = "step" if dtype == torch.float32 or micro_batches == 1 else hand_over
                    self.assertEqual(result, found[0, alike])

    def test_files_lie_in_the_folder_and_go_with_the_optimizer(self):
        model = network()
        optimizer = OffloadAdamW(model.parameters(), states="nvme", path=self.folder)
        train(model, optimizer, 1)
        other = OffloadAdamW(network().parameters(), states="nvme", path=self.folder)
        loss_of(network(), 0)
        other.param_groups[0]["params"][0].grad = torch.ones(70, 12)
        other.step()
        self.assertEqual(sorted(os.listdir(self.folder)), ["optimizer-0", "optimizer-1"])
        del optimizer, other
        self.assertEqual(os.listdir(self.folder), [])


class Clipping(unittest.TestCase):
    def test_torch_clips_as_it_does_with_its_own(self):
        def clipped(kind):
            model, norms = network(), []
            optimizer = kind(model.parameters(), lr=1e-2)

            def clip():
                norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.2).item())

            return train(model, optimizer, 20, before_step=clip), norms

        (losses, norms), (torch_losses, torch_norms) = clipped(OffloadAdamW), clipped(torch.optim.AdamW)
        self.assertLess(worst(losses, torch_losses), 1e-6)
        self.assertLess(worst(norms, torch_norms), 1e-5)
        self.assertGreater(min(norms), 0.2)

    def test_max_grad_norm_clips_as_torch_does(self):
        one, other = network(), network()
        reference = torch.optim.AdamW(one.parameters(), lr=1e-2)
        norms = []

        def clip():
            norms.append(torch.nn.utils.clip_grad_norm_(one.parameters(), 0.2).item())

        wanted = train(one, reference, 20, before_step=clip)
        optimizer = OffloadAdamW(other.parameters(), lr=1e-2, max_grad_norm=0.2, hand_over="backward")
        self.assertLess(worst(train(other, optimizer, 20), wanted), 2e-6)
        self.assertAlmostEqual(optimizer.last_update.gradient_norm, norms[-1], places=5)


class LossScales(unittest.TestCase):
    def scaled(self, kind, dtype, unscale, **options):
        """Steps with a GradScaler, one of which overflows; the scales, and the losses."""
        model = network(dtype)
        optimizer = kind(model.parameters(), lr=1e-3, eps=1e-4, **options)
        scaler = torch.amp.GradScaler(device="cpu", init_scale=2.0**10, growth_interval=5)
        losses, scales = [], []
        for step in range(12):
            optimizer.zero_grad()
            loss = loss_of(model, step)
            scaler.scale(loss * (float("inf") if step == 4 else 1)).backward()
            if unscale:
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss.item())
            scales.append(scaler.get_scale())
        return losses, scales, bits(model.parameters())

    def test_a_grad_scaler_of_torch_works(self):
        for unscale in (False, True):
            with warnings.catch_warnings():
                warnings.simplefilter("error")  # The scaler sees to infinite gradients.
                losses, scales, _ = self.scaled(OffloadAdamW, torch.float32, unscale)
            wanted, torch_scales, _ = self.scaled(torch.optim.AdamW, torch.float32, unscale)
            self.assertEqual(scales, torch_scales)
            self.assertLess(scales[4], scales[3])
            self.assertLess(worst(losses, wanted), 1e-6)

    def test_parameters_of_fp16_have_masters(self):
        """torch refuses to unscale fp16; here the update divides, and the masters keep what fp16 rounds away."""
        losses, scales, _ = self.scaled(OffloadAdamW, torch.float16, False)
        wanted, fp32_scales, _ = self.scaled(torch.optim.AdamW, torch.float32, False)
        self.assertEqual(scales, fp32_scales)
        self.assertLess(worst(losses, wanted), 1e-2)

    def test_an_infinite_gradient_changes_nothing_and_is_said(self):
        model = network()
        optimizer = OffloadAdamW(model.parameters())
        train(model, optimizer, 2)
        before, states = bits(model.parameters()), optimizer.state_dict()["state"]
        loss_of(model, 2).backward()
        model[0].bias.grad[3] = float("nan")
        with self.assertWarnsRegex(RuntimeWarning, "infinite or NaN"):
            optimizer.step()
        self.assertFalse(optimizer.last_update.applied)
        self.assertEqual(bits(model.parameters()), before)
        after = optimizer.state_dict()["state"]
        self.assertTrue(all(torch.equal(states[i][key], after[i][key]) for i in states for key in states[i]))


class Parameters(unittest.TestCase):
    def test_saved_tensors_notice_an_update(self):
        model = network()
        optimizer = OffloadAdamW(model.parameters())
        loss = loss_of(model, 0)
        loss.backward(retain_graph=True)
        optimizer.step()
        with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
            loss.backward()

    def test_any_strides_shapes_and_types_are_updated(self):
        def made():
            torch.manual_seed(3)
            square = torch.randn(9, 8, 7)
            return [
                torch.nn.Parameter(tensor)
                for tensor in (
                    square.transpose(0, 2),
                    torch.randn(40, 30)[::2, 3:9],
                    torch.tensor(1.5),
                    torch.randn(0, 4),
                    torch.randn(5),
                    torch.randn(4, 3, 5, 5).contiguous(memory_format=torch.channels_last),
                )
            ]

        def run(kind):
            parameters = made()
            optimizer = kind(parameters, lr=1e-2)
            for step in range(6):
                optimizer.zero_grad()
                sum((parameter * (step + 1)).sin().square().sum() for parameter in parameters).backward()
                optimizer.step()
                with torch.no_grad():
                    parameters[0].mul_(0.5)
            return parameters, optimizer

        (found, optimizer), (wanted, _) = run(OffloadAdamW), run(torch.optim.AdamW)
        for mine, its in zip(found, wanted):
            self.assertEqual(mine.stride(), its.stride())
            torch.testing.assert_close(mine, its, rtol=0, atol=2e-6)
        self.assertEqual(optimizer.state[found[0]]["exp_avg"].shape, found[0].shape)

    def test_what_the_program_writes_counts(self):
        """In place, by another tensor, and by a load: also of 16-bit parameters, whose masters have to follow."""

        def changed(kind, dtype):
            model = network(dtype)
            optimizer = kind(model.parameters(), lr=1e-2)
            train(model, optimizer, 3)
            with torch.no_grad():
                model[0].weight.mul_(0.5)
                model[2].weight.data = model[2].weight.data.flip(0).contiguous()
            model[4].load_state_dict(network(dtype)[4].state_dict())
            return train(model, optimizer, 4, first=3)

        wanted = changed(torch.optim.AdamW, torch.float32)
        self.assertLess(worst(changed(OffloadAdamW, torch.float32), wanted), 1e-6)
        self.assertLess(worst(changed(OffloadAdamW, torch.bfloat16), wanted), 3e-2)

    def test_what_has_moved_keeps_its_masters(self):
        def run(move):
            model = network(torch.bfloat16)
            optimizer = OffloadAdamW(model.parameters(), lr=1e-4)
            for step in range(8):
                train(model, optimizer, 1, first=step)
                if move:
                    for parameter in model.parameters():
                        parameter.data = parameter.data.clone()
            return bits(model.parameters())

        self.assertEqual(run(True), run(False))

    def test_two_optimizers_may_share_parameters(self):
        def shared(kind):
            model = network()
            one, other = kind(model.parameters(), lr=1e-3), kind(model[0].parameters(), lr=1e-2)
            return [loss for step in range(10) for loss in train(model, (one, other)[step % 2], 1, first=step)]

        self.assertLess(worst(shared(OffloadAdamW), shared(torch.optim.AdamW)), 1e-6)

    def test_mixed_types_are_one_optimizer(self):
        model = network(torch.bfloat16)
        model[2].float()
        forward = model[2].forward
        model[2].forward = lambda inputs: forward(inputs.float()).bfloat16()
        optimizer = OffloadAdamW(model.parameters(), lr=1e-2)
        losses = train(model, optimizer, 30)
        reference = network()
        wanted = train(reference, torch.optim.AdamW(reference.parameters(), lr=1e-2), 30)
        self.assertLess(worst(losses, wanted), 5e-2)
        self.assertLess(losses[-1], losses[0])


class Programs(unittest.TestCase):
    def output_of(self, path, *arguments):
        with contextlib.redirect_stdout(io.StringIO()) as printed, mock.patch("sys.argv", [path, *arguments]):
            runpy.run_path(str(ROOT / path), run_name="__main__")
        return printed.getvalue().splitlines()

    def test_the_example_trains_alike_in_both_places(self):
        with tempfile.TemporaryDirectory() as folder:
            flags = ("--width", "32", "--steps", "21")
            printed = self.output_of("examples/python/dropin.py", *flags)
            self.assertEqual(self.output_of("examples/python/dropin.py", *flags, "--path", folder), printed)
        self.assertEqual([line.split()[1] for line in printed[:3]], ["0", "10", "20"])
        self.assertLess(float(printed[2].split()[3]), float(printed[0].split()[3]))

    def test_the_comparison_runs(self):
        flags = ("--million", "1", "--tensors", "3", "--steps", "2")
        printed = self.output_of("bench/compare/torch/dropin.py", *flags)
        self.assertTrue(any(line.startswith("Terrace cpu") for line in printed), printed)


if __name__ == "__main__":
    unittest.main()
