"""The modules that people write, each trained here on a strict device and with torch alone."""

import unittest

from support_torch import (
    Block,
    EngineTest,
    F,
    Gpt,
    Mlp,
    batch_of,
    config_of,
    engine_of,
    isolated,
    loss_of,
    masters,
    nn,
    seeded,
    terrace,
    torch,
    train,
    train_plain,
)
from torch.utils.checkpoint import checkpoint


class Shared(nn.Module):
    """One layer three times, in a branch too, beside a frozen one."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(32, 32)
        self.frozen = nn.Linear(32, 32)
        self.frozen.requires_grad_(False)
        self.unused = nn.Linear(32, 32)

    def forward(self, x):
        a = torch.relu(self.first(self.frozen(x)))
        b = self.first(a)
        b += 1  # in place, on an output
        return self.first(a) + b * 0.5


class Views(nn.Module):
    """An output that is a view and is then changed in place; views of weights that outlive the forward pass."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Transposed(), Transposed()])
        self.bare = nn.Parameter(torch.randn(32, 32) / 6)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
            x += 0.5
        kept = self.bare.t()
        return torch.mm(x, kept) + F.linear(x, self.layers[0].inner.weight)


class Transposed(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(32, 32)

    def forward(self, x):
        return self.inner(x).view(-1, 32)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(32, 16, batch_first=True)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.normed = nn.utils.parametrizations.weight_norm(nn.Linear(16, 16))
        self.old_normed = nn.utils.weight_norm(nn.Linear(16, 8))

    def forward(self, x):
        x, _ = self.lstm(x[:, None].expand(-1, 3, -1))
        return self.old_normed(self.normed(self.attention(x, x, x, need_weights=False)[0]))


class Images(nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution = nn.Conv2d(1, 8, 3)
        self.norm = nn.BatchNorm2d(8)
        self.last = nn.Linear(48, 8)

    def forward(self, x):
        return self.last(torch.relu(self.norm(self.convolution(x.view(-1, 1, 4, 8)))).flatten(1)[:, :48])


class Experts(nn.Module):
    """In some steps an expert has no gradient."""

    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList([nn.Linear(32, 32) for _ in range(4)])
        self.steps = 0

    def forward(self, x):
        self.steps += 1
        return self.experts[self.steps % 3](x) + self.experts[(self.steps + 1) % 4](x)


class Checkpointed(Gpt):
    use_reentrant = False
    inside = False

    def forward(self, tokens):
        x = self.table(tokens) + self.places[: tokens.shape[1]]
        for block in self.blocks:
            if self.inside:
                x = x + checkpoint(
                    lambda y, block=block: block.down(F.gelu(block.up(block.norm(y)))),
                    x,
                    use_reentrant=self.use_reentrant,
                )
            x = checkpoint(block, x, use_reentrant=self.use_reentrant)
        return self.head(self.norm(x))


class Models(EngineTest):
    @isolated
    def test_shared_frozen_unused_and_in_place(self):
        for units in ("leaf", "auto"):
            engine = self.train_and_compare(Shared, units=units)
            self.assertEqual(engine.optimizer_state_dict()["state"].keys(), {0, 1})

    @isolated
    def test_views(self):
        for units in ("leaf", "auto", Transposed):
            self.train_and_compare(Views, units=units)

    @isolated
    def test_parameters_that_are_read_outside_of_their_modules(self):
        engine = self.train_and_compare(Recurrent, persistence_threshold=0)
        (whole,) = (hook.args[0] for hook in engine.module._forward_pre_hooks.values())
        self.assertEqual(whole.tracked, ())  # each is held by a unit that is open for a short time

    @isolated
    def test_convolutions_with_running_statistics(self):
        self.train_and_compare(Images)

    @isolated
    def test_experts_without_a_gradient_are_left_alone(self):
        self.train_and_compare(Experts, steps=6)
        self.train_and_compare(Experts, steps=6, units="leaf", config=config_of(accumulation=2))

    @isolated
    def test_language_model(self):
        for units in ("leaf", "auto", [Block], "Block"):
            self.train_and_compare(Gpt, units=units, config=config_of(accumulation=2, strict=True))

    @isolated
    def test_checkpointing(self):
        outcomes = []
        for units in ("leaf", "auto"):
            for inside in (False, True):
                for reentrant in (False, True):
                    model = seeded(Checkpointed)
                    model.inside, model.use_reentrant = inside, reentrant
                    engine = engine_of(model, config_of(strict=True, accumulation=2), units=units)
                    outcomes.append((inside, train(engine, 3), masters(engine)))
        for inside, *outcome in outcomes:
            self.assertEqual(outcome, list(next(other[1:] for other in outcomes if other[0] == inside)))

    @isolated
    def test_other_optimizers(self):
        for kind, make in (
            ("Adam", lambda p: torch.optim.AdamW(p, lr=1e-2, weight_decay=0.1, eps=1e-3)),
            ("Adagrad", lambda p: torch.optim.Adagrad(p, lr=1e-2, weight_decay=0.1, eps=1e-3)),
            ("SGD", lambda p: torch.optim.SGD(p, lr=1e-2, weight_decay=0.1, momentum=0.9)),
        ):
            model, plain, given = seeded(Mlp), seeded(Mlp), seeded(Mlp)
            config = config_of(optimizer=kind)
            if kind == "SGD":
                config["optimizer"]["params"]["momentum"] = 0.9
            engine = engine_of(model, config)
            told = train(engine, 4)
            self.assert_near_plain(told, train_plain(plain, 4, optimizer=make(plain.parameters())))
            by_object = engine_of(given, config_of(), optimizer=make(given.parameters()))
            self.assertEqual((train(by_object, 4), masters(by_object)), (told, masters(engine)))

    @isolated
    def test_a_plain_loop_does_the_same(self):
        outcomes = []
        for is_plain in (False, True):
            engine = engine_of(seeded(Gpt), config_of(accumulation=2))
            if is_plain:
                told, model = [], engine.module
                for step in range(3):
                    losses = []
                    for micro_batch in range(2):
                        loss = loss_of(model, batch_of(model, step, micro_batch))
                        (loss / 2).backward()
                        losses.append(loss.item())
                    engine.optimizer.step()
                    engine.optimizer.zero_grad()
                    told.append((losses, engine.get_global_grad_norm()))
            else:
                told = train(engine, 3)
            outcomes.append((told, masters(engine)))
        self.assertEqual(*outcomes)

    @isolated
    def test_schedules_of_torch_and_of_the_configuration(self):
        model, plain = seeded(Mlp), seeded(Mlp)
        engine = engine_of(model, config_of(), lr_scheduler=lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 5))
        told = train(engine, 4)
        optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-2, weight_decay=0.1, eps=1e-3)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 5)
        expected = []
        for step in range(4):
            expected += train_plain(plain, 1, first=step, optimizer=optimizer)
            schedule.step()
        self.assert_near_plain(told, expected)
        self.assertEqual(engine.get_lr(), schedule.get_last_lr())
        given = seeded(Mlp)
        optimizer = torch.optim.AdamW(given.parameters(), lr=1e-2, weight_decay=0.1, eps=1e-3)
        of_given = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 5)
        engine = engine_of(given, config_of(), optimizer=optimizer, lr_scheduler=of_given)
        self.assertEqual(train(engine, 4), told)
        config = dict(
            config_of(),
            scheduler={
                "type": "WarmupLR",
                "params": {"warmup_num_steps": 4, "warmup_type": "linear", "warmup_max_lr": 1e-2},
            },
        )
        engine = engine_of(seeded(Mlp), config)
        rates = []
        for step in range(5):
            rates.append(engine.get_lr()[0])
            train(engine, 1, first=step)
        self.assertEqual(rates, [0.0, 0.0, 2.5e-3, 5e-3, 7.5e-3])

    @isolated
    def test_partial_accumulation_and_gradients_set_by_hand(self):
        model, plain = seeded(Mlp), seeded(Mlp)
        engine = engine_of(model, config_of(accumulation=3, clip=0.0))
        optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-2, weight_decay=0.1, eps=1e-3)
        for one, by in ((model, engine.optimizer), (plain, optimizer)):
            for _ in range(2):
                loss_of(one, batch_of(one, 0)).backward()
            by.step()
            by.zero_grad()
            for parameter in one.parameters():
                parameter.grad = torch.full(parameter.shape, 0.25)
            by.step()
        for (name, value), (_, other) in zip(model.state_dict().items(), plain.state_dict().items()):
            self.assertLessEqual((value - other).abs().max().item(), 1e-6, name)

    @isolated
    def test_two_passes_before_one_backward(self):
        """Tied weights and a reentrant checkpoint among them, whose gradients torch completes in parts."""
        for reentrant in (False, True):
            told = []
            for is_plain in (False, True):
                model = seeded(Checkpointed)
                model.use_reentrant = reentrant
                engine = None if is_plain else engine_of(model, config_of(strict=True, clip=0.0))
                optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1, eps=1e-3)
                optimizer = optimizer if is_plain else engine.optimizer
                for step in range(3):
                    (loss_of(model, batch_of(model, step)) + loss_of(model, batch_of(model, step, 1))).backward()
                    optimizer.step()
                    optimizer.zero_grad()
                told.append(model.state_dict())
            for name, value in told[1].items():
                self.assertLessEqual((told[0][name] - value).abs().max().item(), 1e-6, name)

    @isolated
    def test_autocast_is_right_and_warned_of(self):
        said, told = [], []
        for is_plain in (False, True):
            model = seeded(Mlp)
            engine = None if is_plain else engine_of(model, log=lambda level, line: said.append(line))

            def run(batch):
                with torch.autocast("cpu", torch.bfloat16):
                    return model(batch)

            if is_plain:
                optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1, eps=1e-3)
                losses = []
                for step in range(3):
                    loss = loss_of(model, batch_of(model, step), run)
                    loss.backward()
                    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                    optimizer.step()
                    optimizer.zero_grad()
                    losses.append(loss.item())
            else:
                losses = [losses[0] for losses, _ in train(engine, 3, run=run)]
            told.append(losses)
        for loss, expected in zip(*told):
            self.assertLessEqual(abs(loss - expected), 1e-5 * abs(expected))
        self.assertEqual(len([line for line in said if "autocast" in line]), 1)

    @isolated
    def test_fp16_scales_its_loss(self):
        config = config_of(clip=0.0)
        config["fp16"] = {"enabled": True, "initial_scale_power": 40, "hysteresis": 1, "loss_scale_window": 4}
        engine = engine_of(seeded(Mlp), config)
        before = masters(engine)
        scales = []
        for step in range(40):
            train(engine, 1, first=step)
            scales.append(engine.loss_scale)
            if engine.global_steps == 0:
                self.assertEqual(masters(engine), before)
                self.assertEqual(scales[-1], 2.0 ** (39 - step))
        self.assertGreater(engine.skipped_steps, 10)
        self.assertGreater(engine.global_steps, 5)
        self.assertEqual(engine.skipped_steps + engine.global_steps, 40)
        self.assertNotEqual(masters(engine), before)
        self.assertGreater(max(scales[engine.skipped_steps :]), min(scales))
        self.assertEqual(next(engine.module.parameters()).dtype, torch.float16)

    @isolated
    def test_the_tuple_and_the_questions_of_deepspeed(self):
        said = []
        config = dict(
            config_of(accumulation=2),
            train_micro_batch_size_per_gpu=4,
            flops_profiler={"enabled": True},
            scheduler={"type": "WarmupLR", "params": {"warmup_num_steps": 4}},
        )
        data = [torch.randn(32) for _ in range(16)]
        engine, optimizer, loader, scheduler = terrace.initialize(
            model=seeded(Mlp), config=config, training_data=data, log=lambda level, line: said.append(line)
        )
        self.assertTrue(any("flops_profiler" in line for line in said))
        self.assertIsInstance(optimizer, torch.optim.Optimizer)
        boundaries = []
        for batch in loader:
            self.assertEqual(batch.shape, (4, 32))
            loss = engine(batch).square().mean()
            engine.backward(loss)
            boundaries.append(engine.is_gradient_accumulation_boundary())
            engine.step()
        self.assertEqual(boundaries, [False, True, False, True])
        self.assertEqual((engine.global_steps, engine.global_samples, scheduler.last_epoch), (2, 16, 2))
        self.assertEqual((engine.train_batch_size(), engine.train_micro_batch_size_per_gpu()), (8, 4))
        self.assertEqual(engine.gradient_accumulation_steps(), 2)
        self.assertEqual(engine.get_lr(), scheduler.get_last_lr())
        self.assertGreater(engine.get_global_grad_norm(), 0)


if __name__ == "__main__":
    unittest.main()
