"""Muon: matrices are updated as wholes, beside AdamW for the rest, as torch.optim.Muon does, and no bit depends on where
their states are. test_ranks.py and test_ranks_saved.py train by it on several ranks."""

import tempfile
import unittest
from unittest import mock

from support_torch import (
    EngineTest,
    Gpt,
    Mlp,
    config_of,
    engine_of,
    isolated,
    masters,
    nn,
    seeded,
    terrace,
    torch,
    train,
)

LR, STEPS = 1e-2, 50
REST = {"betas": (0.9, 0.95), "eps": 1e-10, "weight_decay": 0.1}


class Net(nn.Module):
    """Wide, tall and square matrices, whose gradients have no singular values near 0 on its batch."""

    def __init__(self):
        super().__init__()
        self.wide = nn.Linear(96, 48)
        self.tall = nn.Linear(48, 80)
        self.square = nn.Linear(80, 80, bias=False)

    def forward(self, x):
        return self.square(torch.tanh(self.tall(torch.tanh(self.wide(x)))))


def net_loss(run):
    generator = torch.Generator().manual_seed(5)
    x, turn = torch.randn(256, 96, generator=generator), torch.randn(96, 80, generator=generator)
    dtype = next(run.parameters()).dtype
    return (run(x.to(dtype)).float() - torch.tanh(x @ turn)).square().mean()


def divided(model):
    """(matrices, the rest)"""
    ones = list(model.parameters())
    return [one for one in ones if one.dim() == 2], [one for one in ones if one.dim() != 2]


def in_another_order(seed):
    """torch's Newton-Schulz with rows and columns in another order, so that its products are summed in another one."""
    own = torch.optim._muon._zeropower_via_newtonschulz

    def shuffled(matrix, *settings):
        generator = torch.Generator().manual_seed(seed)
        rows, columns = (torch.randperm(size, generator=generator) for size in matrix.shape)
        found = own(matrix[rows][:, columns], *settings)
        return found[torch.argsort(rows)][:, torch.argsort(columns)]

    return mock.patch.object(torch.optim._muon, "_zeropower_via_newtonschulz", shuffled)


def torch_trained(dtype, steps, **settings):
    """The weights that torch trains, as fp32, after so many steps. Of bf16 parameters torch would keep momentum in bf16; the
    engine has masters and moments in fp32, and so does this training."""
    model = seeded(Net)
    of = [nn.Parameter(one.detach().clone()) for one in model.parameters()]
    model.to(dtype)
    matrices, rest = ([one for one in of if (one.dim() == 2) == is_one] for is_one in (True, False))
    optimizers = torch.optim.Muon(matrices, lr=LR, **settings), torch.optim.AdamW(rest, lr=LR, **REST)
    for _ in range(steps):
        net_loss(model).backward()
        for one, parameter in zip(of, model.parameters()):
            one.grad, parameter.grad = parameter.grad.float(), None
        for optimizer in optimizers:
            optimizer.step()
        with torch.no_grad():
            for one, parameter in zip(of, model.parameters()):
                parameter.copy_(one)
    return [one.detach() for one in of]


def trained_here(dtype, steps, **settings):
    precision = "bf16" if dtype == torch.bfloat16 else "fp32"
    model = seeded(Net)
    config = muon_config(clip=0.0, precision=precision, lr=LR, strict=True)
    matrices, rest = divided(model)
    groups = [
        {"params": matrices, "use_muon": True, "weight_decay": 0.1, **settings},
        {"params": rest, "use_muon": False, **REST},
    ]
    engine = engine_of(model, config, model_parameters=groups)
    for _ in range(steps):
        engine.backward(net_loss(engine))
        engine.step()
    found = [engine.master(one).clone() for one in model.parameters()]
    engine.close()
    return found


def muon_config(*arguments, **named):
    return config_of(*arguments, optimizer="Muon", **named)


def farthest(found, others):
    """How far the nearest of `others` is at the farthest element of any parameter, in units of the learning rate."""
    return max(min((one - other[n]).abs().max().item() / LR for other in others) for n, one in enumerate(found))


class AgainstTorch(EngineTest):
    """torch rounds at the same places and sums in another order, which changes single bits of bf16 in the iterations. So a
    training of torch that only sums in another order goes as far from torch's own, and says how near is near after many
    steps. After one step it is two bits of bf16 at most, of elements that are all below 1."""

    @isolated
    def test_a_step_is_as_near_as_two_bits_of_bf16(self):
        for dtype in (torch.float32, torch.bfloat16):
            for settings in (
                {},
                {"nesterov": False},
                {"adjust_lr_fn": "match_rms_adamw"},
                {"momentum": 0.7},
                {"ns_steps": 3},
                {"ns_coefficients": (3.0, -4.0, 1.5)},
            ):
                rate = 0.2 * 96**0.5 if "adjust_lr_fn" in settings else (80 / 48) ** 0.5
                plain = torch_trained(dtype, 1, **settings)
                with self.subTest(dtype=dtype, **settings):
                    self.assertLessEqual(farthest(trained_here(dtype, 1, **settings), [plain]), rate * 2**-7)
                    other = {**settings, "ns_steps": settings.get("ns_steps", 5) - 1}
                    self.assertGreater(farthest(trained_here(dtype, 1, **other), [plain]), 10 * rate * 2**-7)

    @isolated
    def test_fifty_steps_are_as_near_as_torch_is_to_itself_in_another_order(self):
        for dtype in (torch.float32, torch.bfloat16):
            for settings in ({}, {"nesterov": False}, {"adjust_lr_fn": "match_rms_adamw", "momentum": 0.9}):
                plain = torch_trained(dtype, STEPS, **settings)
                others = []
                for seed in range(3):
                    with in_another_order(seed):
                        others.append(torch_trained(dtype, STEPS, **settings))
                near = max(farthest(one, [plain]) for one in others)
                with self.subTest(dtype=dtype, **settings):
                    self.assertLessEqual(farthest(trained_here(dtype, STEPS, **settings), [plain, *others]), 1.5 * near)
                    other = {**settings, "momentum": settings.get("momentum", 0.95) - 0.01}
                    self.assertGreater(farthest(trained_here(dtype, STEPS, **other), [plain, *others]), 1.5 * near)

    @isolated
    def test_a_given_optimizer_of_torch_is_taken_over(self):
        model, plain = seeded(Net), seeded(Net)
        for one in (model, plain):
            one.wide.bias = one.tall.bias = None
        optimizers = [torch.optim.Muon(one.parameters(), lr=LR) for one in (model, plain)]
        engine = engine_of(model, config_of(clip=0.0, strict=True), optimizer=optimizers[0])
        for _ in range(2):
            engine.backward(net_loss(engine))
            engine.step()
            net_loss(plain).backward()
            optimizers[1].step()
            optimizers[1].zero_grad()
            optimizers[0].param_groups[0]["lr"] = optimizers[1].param_groups[0]["lr"] = LR / 2
        for one, other in zip(model.parameters(), plain.parameters()):
            self.assertLessEqual((engine.master(one) - other).abs().max().item() / LR, 0.05)


# model, parameters, states, units, host budget, strict, accumulation
SETTINGS = [
    (Gpt, "device", "device", "leaf", "32MiB", False, 1),
    (Gpt, "cpu", "nvme", "Block", "tight", True, 1),
    (Gpt, "nvme", "nvme", "auto", "32MiB", True, 1),
    (Gpt, "nvme", "cpu", "leaf", "tight", False, 1),
    (Gpt, "nvme", "nvme", "leaf", "tight", False, 3),
    (Gpt, "device", "cpu", "auto", "32MiB", True, 3),
    (Mlp, "device", "device", "auto", "32MiB", True, 3),
    (Mlp, "cpu", "cpu", "leaf", "tight", False, 3),
    (Mlp, "cpu", "nvme", "auto", "tight", True, 3),
    (Mlp, "nvme", "nvme", "leaf", "32MiB", False, 3),
]


class Placements(EngineTest):
    def outcome(self, named, model, parameters, states, units, host, strict, accumulation):
        with tempfile.TemporaryDirectory() as folder:
            more = {"strict": strict, "chunk_elements": 4096, "host_memory": "32MiB", **named}
            config = muon_config(parameters, states, folder, accumulation, **more)
            if host == "tight":
                config["terrace"]["host_memory"] = 1
                error = self.raised(terrace.CapacityError, engine_of, seeded(model), config, units=units)
                config["terrace"]["host_memory"] = error.least_bytes
            engine = engine_of(seeded(model), config, units=units)
            told = train(engine, 3)
            result = told, masters(engine)
            engine.close()
            return result

    def check(self, **named):
        for make, accumulation in ((Gpt, 1), (Gpt, 3), (Mlp, 3)):
            found = [
                self.outcome(named, *setting)
                for setting in SETTINGS
                if (setting[0], setting[-1]) == (make, accumulation)
            ]
            for number, one in enumerate(found):
                self.assertEqual(one, found[0], (make, accumulation, number))

    @isolated
    def test_no_bit_depends_on_them_in_fp32(self):
        self.check()

    @isolated
    def test_no_bit_depends_on_them_in_bf16(self):
        self.check(precision="bf16")

    @isolated
    def test_no_bit_depends_on_them_with_compact_state_and_moments_in_codes(self):
        self.check(precision="bf16", compact_state=True, state_type="int8")

    @isolated
    def test_which_parameters_are_small_changes_nothing_without_clipping(self):
        outcomes = []
        for threshold in (0, 64, 1500, 1 << 20):
            engine = engine_of(seeded(Gpt), muon_config(accumulation=2, clip=0.0), persistence_threshold=threshold)
            outcomes.append(([losses for losses, _ in train(engine, 3)], masters(engine)))
        for outcome in outcomes:
            self.assertEqual(outcome, outcomes[0])


class Tables(nn.Module):
    """What is a matrix by its shape and none of Muon's."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(40, 32)
        self.position_embed = nn.Parameter(torch.randn(8, 32) * 0.02)
        self.layer = nn.Linear(32, 32)
        self.other = nn.Linear(32, 32)
        self.conv = nn.Conv1d(32, 32, 3, padding=1)
        self.head = nn.Linear(32, 40)

    def get_output_embeddings(self):
        return self.head

    def forward(self, x):
        x = self.layer(self.words(x) + self.position_embed[: x.shape[1]])
        return self.head(self.other(self.conv(x.mT).mT))


def names_of(engine):
    names = {id(parameter): name for name, parameter in engine.module.named_parameters()}
    return [[names[id(one)] for one in group["params"]] for group in engine.optimizer.param_groups]


def state_of(model):
    """What torch.optim.Muon keeps of a model of matrices after a step."""
    optimizer = torch.optim.Muon(model.parameters(), lr=LR)
    net_loss(model).backward()
    optimizer.step()
    return optimizer.state_dict()


class Matrices(EngineTest):
    @isolated
    def test_they_are_what_is_no_table_or_what_the_program_says(self):
        engine = engine_of(seeded(Tables), muon_config())
        self.assertEqual(names_of(engine)[0], ["layer.weight", "other.weight"])
        self.assertEqual([group["use_muon"] for group in engine.optimizer.param_groups], [True, False])
        engine.close()
        model = seeded(Tables)
        model.layer.weight.use_muon, model.position_embed.use_muon = False, True
        self.assertEqual(names_of(engine_of(model, muon_config()))[0], ["position_embed", "other.weight"])
        self.assertEqual(len(names_of(engine_of(seeded(Gpt), muon_config()))[0]), 1 + 3 * 4)  # places is one

    @isolated
    def test_a_model_of_matrices_alone_keeps_one_moment(self):
        places = {}
        for optimizer in ("Muon", "AdamW"):
            model = nn.Sequential(nn.Linear(64, 64, bias=False), nn.Linear(64, 64, bias=False))
            engine = engine_of(model, config_of(optimizer=optimizer))
            self.assertEqual(len(engine.optimizer.param_groups), 1)
            places[optimizer] = engine.store.plan.host_bytes
            engine.close()
        self.assertLess(places["Muon"], places["AdamW"] + 64 * 64 * 8)

    @isolated
    def test_each_group_has_the_settings_of_its_optimizer(self):
        of_muon = {"muon_lr": 0.02, "momentum": 0.9, "ns_steps": 3}
        of_rest = {"adam_lr": 3e-4, "eps": 1e-9, "betas": [0.8, 0.9]}
        params = {**of_muon, **of_rest, "weight_decay": 0.1}
        config = dict(config_of(), optimizer={"type": "Muon", "params": params})
        engine = engine_of(seeded(Mlp), config)
        muon, rest = engine.optimizer.param_groups
        self.assertEqual((muon["lr"], muon["momentum"], muon["eps"], muon["ns_steps"]), (0.02, 0.9, 1e-7, 3))
        self.assertEqual((rest["lr"], rest["betas"], rest["eps"]), (3e-4, (0.8, 0.9), 1e-9))
        self.assertEqual((muon["weight_decay"], rest["weight_decay"]), (0.1, 0.1))
        self.assertEqual(engine.get_mom(), [0.9, (0.8, 0.9)])
        self.assertEqual([one.kind for one in engine.optimizer.settings()], ["muon", "adamw"])
        engine.close()

    @isolated
    def test_groups_of_the_program_are_divided_or_taken_as_they_are(self):
        model = seeded(Mlp)
        first, others = list(model.first.parameters()), [one for one in model.parameters() if one.shape[-1] != 32]
        others = [one for one in others if all(one is not other for other in first)]
        groups = [{"params": first, "lr": 0.5}, {"params": others, "use_muon": False, "weight_decay": 0.0}]
        engine = engine_of(model, muon_config(), model_parameters=groups)
        self.assertEqual(
            [(group["use_muon"], group["lr"]) for group in engine.optimizer.param_groups],
            [(True, 0.5), (False, 0.5), (False, 1e-2)],
        )
        self.assertEqual(names_of(engine)[:2], [["first.weight"], ["first.bias"]])
        train(engine, 1)

    @isolated
    def test_a_plan_before_the_model_is_made_counts_what_the_engine_will(self):
        config = muon_config("cpu", "cpu", device_memory="8MiB", precision="bf16")
        with torch.device("meta"):
            model = Mlp(256)
        planned = terrace.torch.plan_model(model, config, persistence_threshold=128)
        engine = engine_of(seeded(Mlp, 256), config)
        self.assertEqual(planned.host_bytes, engine.store.plan.host_bytes)
        self.assertEqual(planned.device_bytes, engine.store.plan.device_bytes)

    @isolated
    def test_schedules_set_rates_and_momentum_of_both(self):
        config = dict(muon_config(), scheduler={"type": "WarmupLR", "params": {"warmup_num_steps": 4}})
        config["optimizer"]["params"].update(muon_lr=0.02, adam_lr=0.01)
        engine = engine_of(seeded(Mlp), config)
        train(engine, 5)
        self.assertEqual(engine.get_lr(), [0.02, 0.01])
        engine.close()
        engine = engine_of(seeded(Mlp), muon_config())
        rate = torch.optim.lr_scheduler.OneCycleLR(engine.optimizer, [0.02, 0.01], total_steps=4)
        train(engine, 1)
        self.assertEqual(engine.optimizer.param_groups[0]["momentum"], 0.95)
        rate.step()
        self.assertLess(engine.optimizer.param_groups[0]["momentum"], 0.95)
        train(engine, 1, first=1)


class States(EngineTest):
    @isolated
    def test_they_have_the_layout_of_torch(self):
        engine = engine_of(seeded(Mlp), muon_config())
        self.assertEqual(engine.optimizer.state_dict()["state"], {})
        train(engine, 2)
        state = engine.optimizer.state_dict()
        matrices = len(state["param_groups"][0]["params"])
        for number, one in state["state"].items():
            self.assertEqual(set(one), {"momentum_buffer"} if number < matrices else {"exp_avg", "exp_avg_sq", "step"})
        told, ends = train(engine, 2, first=2), masters(engine)
        engine.close()
        other = engine_of(seeded(Mlp), muon_config())
        train(other, 2)
        other.optimizer.load_state_dict(state)
        self.assertEqual((train(other, 2, first=2), masters(other)), (told, ends))

    @isolated
    def test_a_state_of_torch_is_loaded_and_one_of_here_by_torch(self):
        models = [seeded(Net) for _ in range(2)]
        for one in models:
            one.wide.bias = one.tall.bias = None
        state = state_of(models[0])
        engine = engine_of(models[1], muon_config())
        engine.optimizer.load_state_dict(state)
        found = engine.optimizer.state_dict()
        for number, one in state["state"].items():
            self.assertTrue(torch.equal(found["state"][number]["momentum_buffer"], one["momentum_buffer"]))
        torch.optim.Muon(models[0].parameters()).load_state_dict(found)

    @isolated
    def test_a_checkpoint_goes_on_from_any_placement(self):
        with tempfile.TemporaryDirectory() as folder:
            engine = engine_of(seeded(Gpt), muon_config(precision="bf16"))
            train(engine, 2)
            engine.save_checkpoint(folder)
            first = train(engine, 2, first=2), masters(engine)
            engine.close()
            with tempfile.TemporaryDirectory() as nvme:
                engine = engine_of(seeded(Gpt), muon_config("nvme", "nvme", nvme, precision="bf16"))
                engine.load_checkpoint(folder)
                self.assertEqual((train(engine, 2, first=2), masters(engine)), first)
                engine.close()
            other = engine_of(seeded(Gpt), config_of(precision="bf16"))
            error = self.raised(terrace.ConfigError, other.load_checkpoint, folder)
            self.assertIn("its optimizer is muon, and that of the engine adamw", str(error))
            other.close()
            model = seeded(Gpt)
            model.places.use_muon = False
            groups = [{"params": list(model.parameters()), "use_muon": False}, {"params": [], "use_muon": True}]
            other = engine_of(model, muon_config(precision="bf16"), model_parameters=groups)
            error = self.raised(terrace.ConfigError, other.load_checkpoint, folder)
            self.assertIn("use_muon", str(error))
            other.close()
            saved, beside = folder, f"{folder}/beside"
            for is_matrix in (False, True):  # the groups are as many as before
                model = seeded(Gpt)
                model.blocks[0].up.weight.use_muon = is_matrix
                other = engine_of(model, muon_config(precision="bf16"))
                error = self.raised(terrace.ConfigError, other.load_checkpoint, saved)
                self.assertEqual(error.subject, "blocks.0.up.weight")
                other.load_checkpoint(saved, load_optimizer_states=False)
                other.save_checkpoint(beside)
                saved = beside
                other.close()

    @isolated
    def test_a_commit_goes_on_and_is_of_the_same_matrices(self):
        with tempfile.TemporaryDirectory() as folder:
            config = muon_config("nvme", "nvme", folder, durable=True)
            engine = engine_of(seeded(Mlp), config)
            train(engine, 2)
            engine.commit()
            engine.finish_commit()
            first = train(engine, 2, first=2), masters(engine)
            engine.store.keep_tier(True)
            engine.close()
            adamw = config_of("nvme", "nvme", folder, durable=True)
            error = self.raised(terrace.ConfigError, engine_of, seeded(Mlp), adamw, resume=True)
            self.assertIn("the model and the optimizer that it was made of", error.advice)
            model = seeded(Mlp)
            matrices, rest = divided(model)
            turned = [{"params": rest, "use_muon": False}, {"params": matrices, "use_muon": True}]
            error = self.raised(terrace.ConfigError, engine_of, model, config, model_parameters=turned, resume=True)
            self.assertEqual((error.what, error.subject), ("cannot resume a training", "parameter group 0"))
            engine = engine_of(seeded(Mlp), config, resume=True)
            self.assertEqual((train(engine, 2, first=2), masters(engine)), first)
            engine.close()


class Refused(EngineTest):
    def engine_beside(self, update):
        model = nn.Linear(64, 64, bias=False)
        return engine_of(model, config_of(update=update), optimizer=torch.optim.Muon(model.parameters()))

    @isolated
    def test_what_is_no_matrix(self):
        model = seeded(Tables)
        model.conv.weight.use_muon = True
        error = self.raised(terrace.ConfigError, engine_of, model, muon_config())
        self.assertEqual((error.what, error.subject), ("cannot train a parameter by Muon", "conv.weight"))
        self.assertIn("(32, 32, 3)", error.reason)
        model.conv.weight.use_muon = "no"
        error = self.raised(terrace.ConfigError, engine_of, model, muon_config())
        self.assertEqual((error.subject, error.reason), ("conv.weight", "it is 'no'"))

    @isolated
    def test_updates_beside_other_work(self):
        for update in ("next_forward", "during_backward"):
            error = self.raised(terrace.ConfigError, engine_of, seeded(Mlp), muon_config(update=update))
            self.assertIn("Muon", str(error))
            self.assertIn("after_backward", str(error))
            error = self.raised(terrace.ConfigError, self.engine_beside, update)
            self.assertIn("let them run after_backward (terrace.update)", error.advice)
        engine = engine_of(seeded(Mlp), muon_config(update="auto"))
        train(engine, 1)
        self.assertEqual(engine.store.update_when, "after_backward")

    @isolated
    def test_settings_that_torch_refuses_too(self):
        engine = engine_of(seeded(Mlp), muon_config())
        train(engine, 1)
        muon, rest = engine.optimizer.param_groups
        for name, value in (
            ("ns_steps", 100),
            ("ns_steps", 2.5),
            ("ns_coefficients", (1.0, 2.0)),
            ("adjust_lr_fn", "none"),
            ("momentum", 1.0),
            ("use_muon", False),
        ):
            held, muon[name] = muon[name], value
            error = self.raised(terrace.ConfigError, train, engine, 1)
            self.assertIn(name, str(error))
            engine.zero_grad()
            muon[name] = held
        rest["use_muon"] = True
        error = self.raised(terrace.ConfigError, train, engine, 1)
        self.assertEqual(error.subject, "parameter group 1")
        engine.zero_grad()
        rest["use_muon"] = False
        train(engine, 1)

    def test_optimizers_of_a_store(self):
        for named in ({"ns_steps": -1}, {"ns_steps": 1.5}, {"ns_coefficients": 3.0}, {"adjust_lr_fn": "none"}):
            error = self.raised(terrace.ConfigError, terrace.Optimizer, "muon", **named)
            self.assertEqual(error.subject, "Optimizer." + next(iter(named)))
        muon = terrace.Optimizer("muon")
        self.assertEqual((muon.momentum, muon.nesterov, muon.eps, muon.ns_steps), (0.95, True, 1e-7, 5))
        self.assertEqual((terrace.Optimizer("sgd").momentum, terrace.Optimizer("sgd").nesterov), (0.0, False))


if __name__ == "__main__":
    unittest.main()
