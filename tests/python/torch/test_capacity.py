"""A device budget that is accepted is enough: for gradient checkpointing of both kinds, for parameters that are read
outside of their modules, and with every time of updates. Where a model does what nobody could know before its first
pass, the error names a budget that is enough, and nothing is lost."""

import contextlib
import tempfile
import unittest
import warnings

from support_torch import (
    EngineTest,
    F,
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
    train_plain,
)
from torch.utils.checkpoint import checkpoint


class Layer(nn.Module):
    """A parameter of its own around two modules. `inside`: it checkpoints what it does itself."""

    def __init__(self, width=96, inside=None):
        super().__init__()
        self.inside = inside
        self.scale = nn.Parameter(torch.ones(width, width) / width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        return self.run(x) if self.inside is None else checkpoint(self.run, x, use_reentrant=self.inside)

    def run(self, x):
        return x + self.down(torch.tanh(self.up(x @ self.scale)))


class Checkpointed(nn.Module):
    """Layers that are computed again in the backward pass. `around` is what is checkpointed: a module, so that its
    hooks run again, or a function of which the module is a part."""

    def __init__(self, layers=3, reentrant=True, around="module"):
        super().__init__()
        self.first = nn.Linear(32, 96)
        self.layers = nn.ModuleList([Layer(inside=reentrant if around == "inside" else None) for _ in range(layers)])
        self.last = nn.Linear(96, 96)
        self.reentrant, self.around = reentrant, around

    def forward(self, x):
        x = self.first(x)
        for layer in self.layers:
            if self.around == "module":
                x = checkpoint(layer, x, use_reentrant=self.reentrant)
            elif self.around == "inside":
                x = layer(x)
            elif self.around == "function":
                x = checkpoint(lambda h, layer=layer: torch.tanh(layer(h)), x, use_reentrant=self.reentrant)
            elif self.around == "twice":
                x = checkpoint(lambda h, layer=layer: self.again(layer, h), x, use_reentrant=self.reentrant)
        return self.last(x)

    def again(self, layer, x):
        return checkpoint(layer, torch.tanh(x), use_reentrant=self.reentrant)


class Reads(nn.Module):
    """`how` says where a module reads weights of others."""

    def __init__(self, how):
        super().__init__()
        self.how = how
        self.first, self.lent, self.last = nn.Linear(32, 96), nn.Linear(96, 96), nn.Linear(96, 96)
        self.all = nn.ParameterList([torch.eye(96) for _ in range(3)])
        self.named = nn.ParameterDict({"a": torch.eye(96), "b": torch.eye(96)})

    def forward(self, x):
        x = self.first(x)
        if self.how == "list":
            for one in self.all:
                x = torch.tanh(x @ one)
        elif self.how == "dict":
            x = torch.tanh(x @ self.named["a"]) @ self.named["b"]
        elif self.how == "method":
            x = self.borrow(x)
        elif self.how == "below":
            for one in (self.lent, self.first):
                x = x + one.weight.sum()
        return self.last(x)

    def borrow(self, x):
        return F.linear(x, self.lent.weight) + (lambda: self.last.bias)()


class Unknown(nn.Module):
    """It reads weights of others by names that are made when it runs. `at` is where: "forward", or "again" for what
    only a second computation does."""

    def __init__(self, at):
        super().__init__()
        self.at, self.calls = at, 0
        self.first, self.last = nn.Linear(32, 96), nn.Linear(96, 96)
        self.other = nn.ModuleList([nn.Linear(96, 96) for _ in range(4)])

    def forward(self, x):
        x = self.first(x)
        if self.at == "forward":
            for number in range(4):
                x = x + F.linear(x, getattr(self.other, str(number)).weight)
            return self.last(x)
        return self.last(checkpoint(self.odd, x, use_reentrant=False))

    def odd(self, x):
        for number in range(4):
            x = x + self.other[number](x)
        return x


class Odd(nn.Module):
    """A module that calls those of another one: they are open within each other as no tree of modules says."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(96, 96, bias=False) for _ in range(4)])
        self.first = nn.Linear(32, 96)
        for before, layer in zip(self.layers, [*self.layers][1:]):
            layer.register_forward_pre_hook(lambda module, arguments, before=before: (before(arguments[0]),))

    def forward(self, x):
        return self.layers[3](self.first(x))


@contextlib.contextmanager
def case(**words):
    """What fails within says in which case. (In a process of its own subTest() would tell nobody.)"""
    try:
        yield
    except Exception as error:
        raise AssertionError(f"in the case {words}") from error


def least_of(make, config, **named):
    """The least device budget that planning names."""
    config["terrace"]["device_memory"] = 1
    try:
        engine_of(seeded(make), config, **named)
    except terrace.CapacityError as error:
        return error.least_device_bytes
    raise AssertionError("a byte is no budget")


def config_at_least(make, factor=1, units="auto", persistence_threshold=0, **settings):
    config = config_of(chunk_elements=4096, **settings)
    least = least_of(make, config, units=units, persistence_threshold=persistence_threshold)
    config["terrace"]["device_memory"] = int(factor * least)
    return config, least


class Budgets(EngineTest):
    def outcome(self, make, config, steps=2, **named):
        engine = engine_of(seeded(make), config, persistence_threshold=0, **named)
        told = train(engine, steps)
        result = told, masters(engine)
        engine.close()
        return result

    def check(self, make, units="auto", factors=(1,), **settings):
        """At the least budget a model has the bits that it has with room for all."""
        wanted = self.outcome(make, config_of(chunk_elements=4096, **settings), units=units)
        self.assert_near_plain(wanted[0], train_plain(seeded(make), 2))
        for factor in factors:
            config, least = config_at_least(make, factor, units, **settings)
            self.assertEqual(self.outcome(make, config, units=units), wanted, factor)
        return least

    @isolated
    def test_what_is_computed_again_needs_no_more_than_a_forward_pass(self):
        for units in ("leaf", "auto"):
            for around in ("module", "inside", "function", "twice"):
                for reentrant in (True, False):
                    with case(units=units, around=around, reentrant=reentrant):
                        self.check(lambda: Checkpointed(3, reentrant, around), units, strict=True)

    @isolated
    def test_the_least_does_not_grow_with_the_layers(self):
        least = {layers: self.check(lambda: Checkpointed(layers), "leaf") for layers in (2, 5)}
        self.assertEqual(least[2], least[5])

    @isolated
    def test_it_does_not_either_where_modules_are_called_without_the_model(self):
        """Then the first that goes backward is within the part of a checkpoint."""
        config, _ = config_at_least(lambda: Checkpointed(3), units="leaf")
        engine = engine_of(seeded(lambda: Checkpointed(3)), config, units="leaf", persistence_threshold=0)
        plain = seeded(lambda: Checkpointed(3))

        def loss_of_parts(model):
            x = model.first(torch.ones(2, 32))
            for layer in model.layers:
                x = checkpoint(layer, x, use_reentrant=True)
            return x.square().mean()

        optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-2, weight_decay=0.1, eps=1e-3)
        for _ in range(3):
            loss, wanted = loss_of_parts(engine.module), loss_of_parts(plain)
            self.assertLess(abs(loss - wanted).item(), 1e-5 * wanted.item())
            engine.backward(loss)
            engine.step()
            wanted.backward()
            torch.nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        self.assertEqual(engine.global_steps, 3)

    @isolated
    def test_what_code_reads_of_other_modules_is_planned(self):
        for how in ("list", "dict", "method", "below"):
            for units in ("leaf", "auto"):
                with case(how=how, units=units):
                    self.check(lambda: Reads(how), units)

    @isolated
    def test_with_every_time_of_updates(self):
        for make in (Mlp, Checkpointed):
            wanted = {}
            for place in ("cpu", "nvme"):
                for update in ("after_backward", "next_forward", "during_backward"):
                    for clip, factor in ((0.0, 1), (0.0, 1.5), (1.0, 1.25), (1.0, 2)):
                        with case(make=make, place=place, update=update, clip=clip, factor=factor):
                            told = self.at_least(make, factor, place, place, update, clip)
                            self.assertEqual(told, wanted.setdefault(clip, told))

    def at_least(self, make, factor, parameters, states, update, clip):
        with tempfile.TemporaryDirectory() as folder:
            settings = dict(parameters=parameters, states=states, update=update, clip=clip)
            if "nvme" in (parameters, states):
                settings["folder"] = folder
            config, _ = config_at_least(make, factor, **settings)
            return self.outcome(make, config, steps=3)


class Shortages(EngineTest):
    def shortage(self, make, **settings):
        """(engine, error) of a first step for which the budget that was accepted is too small."""
        config, planned = config_at_least(make, units="leaf", **settings)
        engine = engine_of(seeded(make), config, units="leaf", persistence_threshold=0)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            error = self.raised(terrace.CapacityError, train, engine, 1)
        self.assertGreater(error.least_device_bytes, planned)
        self.assertLess(error.least_device_bytes, 4 * planned)
        self.assertIn(str(error.least_device_bytes), str(error))
        return engine, error

    @isolated
    def test_says_what_is_enough_and_loses_nothing(self):
        for make in (lambda: Unknown("forward"), Odd):
            for update in ("after_backward", "during_backward"):
                with case(make=make, update=update), tempfile.TemporaryDirectory() as folder:
                    engine, error = self.shortage(make, update=update, clip=0.0)
                    plain = seeded(make)
                    engine.save_checkpoint(folder)
                    for name, value in engine.module.state_dict().items():
                        self.assertTrue(torch.equal(value, plain.state_dict()[name]), name)
                    engine.close()
                    config = config_of(chunk_elements=4096, update=update, clip=0.0)
                    config["terrace"]["device_memory"] = error.least_device_bytes
                    enough = engine_of(seeded(make), config, units="leaf", persistence_threshold=0)
                    enough.load_checkpoint(folder)
                    self.assert_near_plain(train(enough, 3), train_plain(plain, 3, clip=1e30))
                    enough.close()

    @isolated
    def test_an_engine_can_be_closed_and_keeps_its_values(self):
        engine, _ = self.shortage(Odd)
        engine.close(keep_values=True)
        for one, other in zip(engine.module.parameters(), seeded(Odd).parameters()):
            self.assertTrue(torch.equal(one, other))


if __name__ == "__main__":
    unittest.main()
