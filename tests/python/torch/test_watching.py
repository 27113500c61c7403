"""Paths through a model that read parameters outside of their modules, whenever they come: they are learned, or a
line says that what was read is NaN. And what is left of a model when its engine is closed."""

import pickle
import unittest

from support_torch import (
    EngineTest,
    F,
    Mlp,
    batch_of,
    config_of,
    engine_of,
    isolated,
    loss_of,
    nn,
    seeded,
    terrace,
    torch,
    train,
    train_plain,
)


class Paths(nn.Module):
    """`path` says which weights are read without their modules."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(32, 96)
        self.side = nn.Linear(96, 96)
        self.other = nn.Linear(96, 96)
        self.last = nn.Linear(96, 8)
        self.path = ""

    def forward(self, x):
        x = torch.relu(self.first(x))
        if "side" in self.path:
            x = x + F.linear(x, self.side.weight)
        if "other" in self.path:
            x = x + F.linear(x, self.other.weight)
        return self.last(x)


class Listed(nn.Module):
    """Its parameters are those of a list, which has no forward of its own."""

    def __init__(self, count):
        super().__init__()
        self.layers = nn.ModuleList([nn.ParameterList([torch.full((32,), 1.0 + i) for i in range(count)])])
        self.last = nn.Linear(32, 8)

    def forward(self, x):
        for one in self.layers[0]:
            x = x * one.tanh()
        return self.last(x)


class Autocast(Mlp):
    """As accelerate prepares a model: the context is within its forward."""

    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            return super().forward(x)


class Actor(nn.Module):
    """torch's attention reads the weight of its output projection itself."""

    def __init__(self):
        super().__init__()
        self.mixes = nn.MultiheadAttention(32, 2, batch_first=True)
        self.out = nn.Linear(32, 8)
        self.is_bare = False

    def forward(self, x):
        if self.is_bare:
            return F.linear(x, self.out.weight)
        return self.out(self.mixes(x, x, x)[0])


class Agent(nn.Module):
    """Its own forward is never called."""

    def __init__(self):
        super().__init__()
        self.actor, self.critic = Actor(), Actor()

    def act(self, x):
        return self.actor(x[None])[0] - self.critic(x[None])[0]


class Nested(Mlp):
    is_late = False

    def forward(self, x):
        out = super().forward(x)
        return out, {"more": (F.linear(x, self.first.weight) if self.is_late else out,)}


def train_by(model, run, steps):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1, eps=1e-3)
    told = []
    for step in range(steps):
        loss = loss_of(model, batch_of(model, step), run)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        told.append(([loss.item()], norm.item()))
    return told


class Watching(EngineTest):
    @isolated
    def test_a_rare_path_is_learned(self):
        """A step of it is skipped once, and other steps between do not end the watch."""
        terrace.torch.engine.passes.read_watch._PATIENCE = 3
        for precision in ("fp32", "fp16"):
            said = []
            model = seeded(Paths)
            config = config_of()
            config["fp16"] = {"enabled": precision == "fp16", "initial_scale_power": 4}
            engine = engine_of(model, config, log=lambda level, line: said.append(line), persistence_threshold=0)
            with torch.no_grad():
                model(batch_of(model, 0))  # evaluations are not watched any more
            train(engine, 2)
            applied = []
            for step in range(2, 10):
                model.path = "side" if step % 3 == 0 else ""
                train(engine, 1, first=step)
                applied.append(engine.was_step_applied())
            self.assertEqual(applied, [True, False] + [True] * 6, precision)
            self.assertEqual(len([line for line in said if "watched" in line]), 1)
            for module in model.modules():
                self.assertIsNone(module.__dict__.get("forward"), "nothing new for a while ends the watch")

    @isolated
    def test_a_path_of_evaluations_is_learned(self):
        said = []
        model, plain = seeded(Paths), seeded(Paths)
        engine = engine_of(model, log=lambda level, line: said.append(line), persistence_threshold=0)
        train(engine, 1)
        plain.load_state_dict(model.state_dict())
        batch = batch_of(plain, 0)

        def evaluate(path):
            model.path = plain.path = path
            with torch.no_grad():
                return model(batch), plain(batch)

        self.assertTrue(torch.equal(*evaluate("side")), "the first evaluation is watched")
        self.assertIsNone(model.__dict__.get("forward"))
        self.assertEqual(said, [])
        self.assertTrue(evaluate("side other")[0].isnan().all(), "a later one cannot be")
        self.assertIn("an evaluation gave NaN", said[0])
        self.assertTrue(torch.equal(*evaluate("side other")), "but the next one is")
        self.assertTrue(torch.equal(*evaluate("side other")))
        self.assertEqual(len(said), 1)
        model.path = ""
        train(engine, 2, first=1)

    @isolated
    def test_rare_paths_that_alternate_cost_one_update_each(self):
        model = seeded(Paths)
        engine = engine_of(model, log=lambda level, line: None, persistence_threshold=0)
        train(engine, 1)
        applied = []
        for step, path in enumerate(("side", "", "other", "side", "other", "side other", ""), 1):
            model.path = path
            train(engine, 1, first=step)
            applied.append(engine.was_step_applied())
        self.assertEqual(applied, [False] + [True] * 6)

    @isolated
    def test_passes_that_begin_below_the_model_are_watched(self):
        model, plain = seeded(Agent), seeded(Agent)
        engine = engine_of(model, persistence_threshold=0)
        self.assert_near_plain(train(engine, 3, run=model.act), train_by(plain, plain.act, 3))
        self.assertEqual(engine.global_steps, 3)

    @isolated
    def test_nan_is_found_within_containers(self):
        said = []
        model = seeded(Nested)
        engine = engine_of(model, log=lambda level, line: said.append(line), persistence_threshold=0)
        loss_of(model, batch_of(model, 0), lambda batch: model(batch)[0]).backward()
        engine.step()
        with torch.no_grad():
            model(batch_of(model, 0))
            model.is_late = True
            self.assertTrue(model(batch_of(model, 0))[1]["more"][0].isnan().any())
            self.assertEqual(len(said), 1)
            self.assertFalse(model(batch_of(model, 0))[1]["more"][0].isnan().any())

    @isolated
    def test_a_parameter_without_a_pass_around_it_is_named(self):
        model = seeded(Agent)
        model.actor.is_bare = True
        engine_of(model, persistence_threshold=0)
        error = self.raised(terrace.MisuseError, model.act, batch_of(model, 0))
        self.assertIn("call the model itself", error.advice)

    @isolated
    def test_many_parameters_outside_of_modules(self):
        model, plain = seeded(Listed, 300), seeded(Listed, 300)
        engine = engine_of(model, persistence_threshold=0, units="leaf")
        self.assert_near_plain(train(engine, 3), train_plain(plain, 3))

    @isolated
    def test_autocast_within_the_forward_is_warned_of(self):
        said = []
        engine = engine_of(seeded(Autocast), log=lambda level, line: said.append(line))
        train(engine, 2)
        self.assertEqual(len([line for line in said if "autocast" in line]), 1)

    @isolated
    def test_a_parameter_that_is_frozen_after_the_forward_pass_has_no_gradient(self):
        """As with torch, the step leaves it alone."""
        weights = []
        for is_plain in (False, True):
            model = seeded(Mlp)
            engine = None if is_plain else engine_of(model, config_of(clip=0.0))
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1, eps=1e-3)
            optimizer = optimizer if is_plain else engine.optimizer
            loss = loss_of(model, batch_of(model, 0))
            model.last.weight.requires_grad_(False)
            loss.backward()
            model.last.weight.requires_grad_(True)
            optimizer.step()
            weights.append(model.state_dict())
        for name, value in weights[1].items():
            self.assertLessEqual((weights[0][name] - value).abs().max().item(), 1e-6, name)


class Closed(EngineTest):
    @isolated
    def test_a_model_without_values_says_so(self):
        model = seeded(Mlp)
        engine = engine_of(model, persistence_threshold=0)
        train(engine, 1)
        state = model.state_dict()
        engine.close()
        uses = (
            model.state_dict,
            model.last.state_dict,
            lambda: model(batch_of(seeded(Mlp), 0)),
            lambda: pickle.dumps(model),
        )
        for use in uses:
            self.assertIn("keep_values=True", self.raised(terrace.MisuseError, use).advice)
        model.load_state_dict(state, assign=True)
        for name, value in model.state_dict().items():
            self.assertTrue(torch.equal(value, state[name]), name)
        model(batch_of(model, 0))
        copied = pickle.loads(pickle.dumps(model))
        self.assertTrue(torch.equal(copied(batch_of(model, 0)), model(batch_of(model, 0))))

    @isolated
    def test_a_graph_outlives_its_engine_and_says_so(self):
        for keep_values in (False, True):
            model = seeded(Mlp)
            engine = engine_of(model)
            loss = loss_of(model, batch_of(model, 0))
            engine.close(keep_values)
            self.assertIn("closed", self.raised(terrace.MisuseError, loss.backward).reason)

    @isolated
    def test_values_that_are_kept_are_plain(self):
        model = seeded(Mlp)
        engine = engine_of(model, persistence_threshold=0)
        train(engine, 1)
        state = model.state_dict()
        engine.close(keep_values=True)
        for name, value in model.state_dict().items():
            self.assertTrue(torch.equal(value, state[name]), name)
        self.assertFalse(any(module._forward_pre_hooks for module in model.modules()))


class Refused(EngineTest):
    @isolated
    def test_what_cannot_be_meant(self):
        for named in ({"optimizer": "adamw"}, {"units": []}, {"resume": "maybe"}):
            self.assertIn(next(iter(named)), self.raised(terrace.ConfigError, engine_of, Mlp(), **named).subject)
        model = Mlp()
        model.register_buffer("alias", model.last.weight.detach()[1:2])
        self.assertIn("storage", self.raised(terrace.ConfigError, engine_of, model).reason)

    @isolated
    def test_a_gradient_that_was_handed_over_has_no_values_for_others(self):
        model = seeded(Mlp)
        engine_of(model).backward(loss_of(model, batch_of(model, 0)))
        gradient = model.first.weight.grad
        for use in (gradient.__dlpack__, lambda: torch.from_dlpack(gradient), gradient.norm):
            self.raised(terrace.MisuseError, use)


if __name__ == "__main__":
    unittest.main()
