"""What a program does to a model, its files and its settings behind an engine's back gives the right numbers, or an
error of four parts."""

import copy
import os
import pathlib
import tempfile
import threading
import unittest

from support_torch import (
    EngineTest,
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


class Memory(EngineTest):
    @isolated
    def test_shared_memory_may_take_small_parameters(self):
        """Where they were is freed, and may be another tensor's by the next update, load or commit."""
        engines = [engine_of(seeded(Mlp)) for _ in range(2)]
        told = [train(engine, 1) for engine in engines]
        state = seeded(Mlp).state_dict()
        for load in (False, True):
            engines[0].zero_grad()
            engines[0].module.share_memory()
            others = [torch.full_like(one, 9.0) for one in state.values() for _ in range(20)]
            for engine, steps in zip(engines, told):
                if load:
                    engine.load_state_dict(state)
                steps += train(engine, 2, first=1)
            self.assertTrue(all(bool((one == 9.0).all()) for one in others))
        self.assertEqual((told[0], masters(engines[0])), (told[1], masters(engines[1])))


class Threads(EngineTest):
    @isolated
    def test_a_pass_of_another_thread_is_refused_and_harms_nothing(self):
        model, other = seeded(Mlp), seeded(Mlp)
        engine = engine_of(model, persistence_threshold=0)
        told = train(engine, 1)
        refused = []

        def evaluate():
            try:
                with torch.no_grad():
                    engine(batch_of(model, 0))
            except terrace.MisuseError as error:
                refused.append(error)

        def evaluate_beside(module, arguments):
            thread = threading.Thread(target=evaluate)
            thread.start()
            thread.join()

        handle = model.layers[1].register_forward_pre_hook(evaluate_beside)
        told += train(engine, 1, first=1)  # in the middle of a step
        with torch.no_grad():
            engine(batch_of(model, 0))  # and of an evaluation
        handle.remove()
        self.assertEqual(len(refused), 2)
        self.assert_four_parts(refused[0])
        evaluate_beside(None, None)  # between passes any thread may come
        self.assertEqual(len(refused), 2)
        told += train(engine, 1, first=2)
        undisturbed = engine_of(other, persistence_threshold=0)
        self.assertEqual((told, masters(engine)), (train(undisturbed, 3), masters(undisturbed)))

    @isolated
    def test_nothing_ends_the_pass_of_another_thread(self):
        engine = engine_of(seeded(Mlp), persistence_threshold=0)
        model = engine.module
        told = train(engine, 1)
        refused = []

        def disturb():
            for use in (engine.zero_grad, engine.optimizer.step, model.state_dict, engine.close):
                try:
                    use()
                except terrace.MisuseError as error:
                    refused.append(error.reason)

        def disturb_beside(*_):
            thread = threading.Thread(target=disturb)
            thread.start()
            thread.join()

        handle = model.layers[1].register_forward_pre_hook(disturb_beside)
        told += train(engine, 1, first=1)
        handle.remove()
        handle = model.layers[1].register_full_backward_pre_hook(disturb_beside)
        told += train(engine, 1, first=2)
        handle.remove()
        self.assertEqual(refused, ["a pass of another thread is running"] * 8)
        undisturbed = engine_of(seeded(Mlp), persistence_threshold=0)
        self.assertEqual((told, masters(engine)), (train(undisturbed, 3), masters(undisturbed)))


class Writes(EngineTest):
    @isolated
    def test_data_that_is_set_is_found_before_any_pass(self):
        engine = engine_of(seeded(Mlp), persistence_threshold=0)
        model = engine.module
        train(engine, 1)
        batch = batch_of(model, 1)

        def evaluate():
            with torch.no_grad():
                model(batch)

        def fill(one):
            with torch._C.DisableTorchFunctionSubclass():  # as in C++, where nobody refuses it at once
                one.data.zero_()

        for write in (lambda one: setattr(one, "data", torch.zeros(one.shape)), fill):
            write(model.last.weight)
            self.assertIn("gathered", self.raised(terrace.MisuseError, evaluate).advice)
            evaluate()  # it is told of once, and nothing was changed
            loss = loss_of(model, batch)
            write(model.last.weight)
            self.assertIn("gathered", self.raised(terrace.MisuseError, loss.backward).advice)
            engine.zero_grad()
        other = engine_of(seeded(Mlp), persistence_threshold=0)
        train(other, 1)
        self.assertEqual((train(engine, 1, first=1), masters(engine)), (train(other, 1, first=1), masters(other)))


class Settings(EngineTest):
    @isolated
    def test_a_norm_that_is_none_is_refused_at_once(self):
        config = dict(config_of(), gradient_clipping=float("nan"))
        self.assertIn("gradient_clipping", self.raised(terrace.ConfigError, engine_of, Mlp(), config).subject)

    @isolated
    def test_parameter_groups_are_checked_at_every_step(self):
        """A program may write to them at any time; a step that is refused is still there."""
        engine, other = (engine_of(seeded(Mlp)) for _ in range(2))
        told = train(engine, 1)
        group = engine.optimizer.param_groups[0]
        engine.backward(loss_of(engine.module, batch_of(engine.module, 1)))
        changes = {"amsgrad": True, "maximize": True, "lr": -1.0, "betas": (1.5, 0.9), "weight_decay": -0.1}
        for name, value in changes.items():
            kept = {key: group[key] for key in (name,) if key in group}
            group[name] = value
            self.assertIn(name, self.raised(terrace.ConfigError, engine.optimizer.step).subject)
            del group[name]
            group.update(kept)
        engine.step()
        told += train(engine, 2, first=2)
        self.assertEqual(told, [one for step, one in enumerate(train(other, 4)) if step != 1])
        self.assertEqual(masters(engine), masters(other))

    @isolated
    def test_sub_groups_bound_chunks_where_parameters_are_small_too(self):
        """Small ones are in torch's memory, and a model may have no others."""
        for threshold in (128, 1 << 20):
            told = train(engine_of(seeded(Mlp), persistence_threshold=threshold), 2)
            for size in (1e9, 4096):
                config = config_of()
                config["zero_optimization"]["sub_group_size"] = size
                engine = engine_of(seeded(Mlp), config, persistence_threshold=threshold)
                self.assertEqual(train(engine, 2), told)
                self.assertTrue(size > 4096 or engine.store.plan.chunk_elements == 4096)

    @isolated
    def test_warnings_of_a_configuration_name_the_line_of_the_program(self):
        config = config_of()
        config["zero_optimization"]["contiguous_gradients"] = True
        with self.assertWarnsRegex(UserWarning, "contiguous_gradients") as caught:
            terrace.initialize(model=seeded(Mlp), config=config)
        self.assertEqual(caught.filename, __file__)

    @isolated
    def test_states_of_another_kind_are_refused_and_change_nothing(self):
        engine = engine_of(seeded(Mlp))
        train(engine, 2)
        good = engine.optimizer_state_dict()
        groups, states = good["param_groups"], good["state"]
        sgd = {"momentum_buffer": states[0]["exp_avg"]}
        no_first = {key: value for key, value in states[1].items() if key != "exp_avg"}
        for bad, reason in (
            ({"state": {**states, 1: no_first}, "param_groups": groups}, "there is no exp_avg"),
            ({"state": {**states, 0: sgd}, "param_groups": groups}, "keeps no momentum_buffer"),
            ({"state": {**states, 2: {**states[2], "step": -1}}, "param_groups": groups}, "its step is -1"),
            ({"state": states, "param_groups": [{**groups[0], "amsgrad": True}]}, "does not have"),
            ({"state": states, "param_groups": []}, "groups"),
        ):
            error = self.raised(terrace.ConfigError, engine.load_optimizer_state_dict, bad)
            self.assertIn(reason, error.reason)
        after = engine.optimizer_state_dict()
        self.assertEqual(after["param_groups"], groups)
        for number, state in states.items():
            for name, value in state.items():
                self.assertTrue(torch.equal(after["state"][number][name], value))

    @isolated
    def test_masters_of_the_drop_in_optimizer_go_on(self):
        """Its states of a 16-bit parameter have the fp32 value, which the parameter is rounded from."""
        model = seeded(Mlp).bfloat16()
        optimizer = terrace.torch.OffloadAdamW(model.parameters(), lr=1e-2, weight_decay=0.1, eps=1e-3)
        train_plain(model, 3, clip=1e9, optimizer=optimizer)
        engine = engine_of(copy.deepcopy(model), config_of(clip=0.0))
        engine.load_optimizer_state_dict(optimizer.state_dict())
        told = train_plain(model, 3, clip=1e9, first=3, optimizer=optimizer)
        self.assertEqual([losses for losses, _ in train(engine, 3, first=3)], [losses for losses, _ in told])
        for number, one in enumerate(engine.module.parameters()):
            self.assertTrue(torch.equal(engine.master(one), optimizer.state_dict()["state"][number]["master"]))


class Files(EngineTest):
    @isolated
    def test_a_damaged_checkpoint_is_an_error_and_changes_nothing(self):
        with tempfile.TemporaryDirectory() as folder:
            engine = engine_of(seeded(Mlp))
            train(engine, 2)
            engine.save_checkpoint(folder, "first")
            train(engine, 1, first=2)
            before = masters(engine)
            progress = pathlib.Path(folder, "first", "progress.pt")
            whole = progress.read_bytes()
            for damaged in (b"", b"no archive", whole[: len(whole) // 2]):
                progress.write_bytes(damaged)
                error = self.raised(terrace.CorruptError, engine.load_checkpoint, folder)
                self.assertEqual(error.subject, str(progress))
            progress.write_bytes(whole)
            pathlib.Path(folder, "latest").write_bytes(b"\xff\xfe")
            self.raised(terrace.CorruptError, engine.load_checkpoint, folder)
            other = engine_of(seeded(Mlp), config_of(optimizer="Lion"))
            first = masters(other)
            self.raised(terrace.ConfigError, other.load_checkpoint, folder, "first")
            self.assertEqual((masters(engine), masters(other)), (before, first))
            self.assertTrue(engine.load_checkpoint(folder, "first")[0])

    @isolated
    def test_a_checkpoint_that_could_not_be_loaded_is_not_saved(self):
        """The one that was there stays."""
        with tempfile.TemporaryDirectory() as folder:
            engine = engine_of(seeded(Mlp))
            engine.save_checkpoint(folder, "one", {"epoch": 1})
            client_state = {"path": pathlib.Path()}
            error = self.raised(terrace.ConfigError, engine.save_checkpoint, folder, "one", client_state)
            self.assertIn("client_state", error.subject)
            self.assertEqual(engine.load_checkpoint(folder)[1], {"epoch": 1})
            self.assertEqual(sorted(os.listdir(folder)), ["latest", "one"])


class Models(EngineTest):
    @isolated
    def test_parameters_without_values_are_refused(self):
        model = seeded(Mlp)
        engine = engine_of(model)
        for end in (lambda: None, engine.close):
            end()
            error = self.raised(terrace.MisuseError, terrace.torch.OffloadAdamW, model.parameters())
            self.assertIn("no values", error.reason)
        self.assertIn("no values", self.raised(terrace.MisuseError, engine_of, model).reason)
        lazy = torch.nn.Sequential(torch.nn.LazyLinear(8))
        self.assertIn("shape", self.raised(terrace.ConfigError, engine_of, lazy).reason)
        lazy(torch.ones(2, 3))
        self.assertTrue(engine_of(lazy))

    @isolated
    def test_files_are_not_loaded_behind_an_engine(self):
        with tempfile.TemporaryDirectory() as folder:
            engine = engine_of(seeded(Mlp))
            engine.save_safetensors(folder)
            told = train(engine, 1)
            self.raised(terrace.MisuseError, terrace.torch.load, engine.module, folder)
            told += train(engine, 2, first=1)
            self.assertEqual(told, train(engine_of(seeded(Mlp)), 3))


class Limited(nn.Linear):
    is_limited = False

    def forward(self, hidden):
        if self.is_limited:
            clamp(self)
        return super().forward(hidden)


class Writing(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(64, 32)
        self.middle, self.last = Limited(32, 32), nn.Linear(32, 64)
        self.write = lambda model: None

    def forward(self, tokens):
        self.write(self)
        hidden = self.table(tokens)
        return self.last(hidden + torch.relu(self.middle(hidden)))


def clamp(layer):
    with torch.no_grad():
        layer.weight.clamp_(-0.05, 0.05)


def limit_the_middle(model):
    model.middle.is_limited = True


def limit_the_table(model):
    model.table.max_norm = 0.5


class WritesOfModels(EngineTest):
    """A model that writes to its own parameters in its forward pass."""

    @isolated
    def test_those_that_begin_later_are_refused_by_the_next_pass(self):
        tokens = torch.arange(12)[None]
        for parameters in ("cpu", "device"):
            for way in (limit_the_middle, limit_the_table):
                with self.subTest(f"{way.__name__}, parameters on {parameters}"):
                    engine = engine_of(seeded(Writing), config_of(parameters))
                    for _ in range(3):
                        engine.backward(engine(tokens).square().mean())
                        engine.step()
                    way(engine.module)

                    def go_on(engine=engine):
                        engine.backward(engine(tokens).square().mean())
                        engine(tokens)

                    before = masters(engine)
                    error = self.raised(terrace.MisuseError, go_on)
                    self.assertIn(error.subject, ("middle.weight", "table.weight"))
                    self.assertIn("checkpoint", error.advice)
                    self.assertEqual(masters(engine), before)
                    engine.module.middle.is_limited, engine.module.table.max_norm = False, None
                    with engine.gathered(engine.module, write=True):
                        clamp(engine.module.middle)
                    engine.zero_grad()
                    engine.backward(engine(tokens).square().mean())
                    engine.step()

    @isolated
    def test_they_are_refused_before_anything_is_written(self):
        def scale(model):
            with torch.no_grad():
                model.middle.weight[0] *= 2

        ways = {
            "clamp_": lambda model: clamp(model.middle),
            "clamp_ of data": lambda model: model.middle.weight.data.clamp_(-0.05, 0.05),
            "a row": scale,
            "out": lambda model: torch.neg(model.middle.weight.detach(), out=model.middle.weight.data),
            "max_norm": limit_the_table,
        }
        tokens = torch.arange(12)[None]

        def step(engine):
            engine.backward(engine(tokens).square().mean())
            engine.step()
            return engine(tokens).square().mean().item()

        for parameters in ("cpu", "device"):
            expected = step(engine_of(seeded(Writing), config_of(parameters)))
            for name, way in ways.items():
                for is_training in (True, False):
                    with self.subTest(f"{name}, parameters on {parameters}, training: {is_training}"):
                        engine = engine_of(seeded(Writing), config_of(parameters))
                        before = masters(engine)
                        engine.module.write = way
                        with torch.set_grad_enabled(is_training):
                            error = self.raised(terrace.MisuseError, engine, tokens)
                        self.assertIn(error.subject, ("middle.weight", "table.weight"))
                        self.assertIn("gathered", error.advice)
                        engine.module.write, engine.module.table.max_norm = (lambda model: None), None
                        self.assertEqual(masters(engine), before)
                        self.assertEqual(step(engine), expected)


if __name__ == "__main__":
    unittest.main()
