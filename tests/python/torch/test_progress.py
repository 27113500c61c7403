"""What goes with the weights: values that a program writes, schedules, settings, buffers and names, through commits,
checkpoints and state dicts; and what Ctrl-C and refusals leave of a step."""

import base64
import copy
import io
import json
import pickle
import resource
import shutil
import tempfile
import unittest
import warnings
import zipfile
import zlib

from support_torch import (
    EngineTest,
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
)

SMALL = 1 << 16  # parameters of at most so many elements stay in torch's memory


class Counted(Mlp):
    """With running statistics, a counter, and small weights that are not trained."""

    def __init__(self):
        super().__init__()
        self.statistics = nn.BatchNorm1d(96)
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.last.requires_grad_(False)

    def forward(self, x):
        if self.training:
            self.count += 1
        return self.last(self.norm(self.statistics(torch.relu(self.first(x)))))


class Progress(EngineTest):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def nvme(self, model, resume=False, config=None, **named):
        """An engine of the model with its states on nvme."""
        options = {"update": "after_backward", "durable": True, **(config or {})}
        lr = options.pop("lr", 1e-2)
        accumulation = options.pop("accumulation", 1)
        parameters = options.pop("parameters", "nvme")
        made = config_of(parameters, "nvme", self.folder.name, lr=lr, accumulation=accumulation, **options)
        return engine_of(model, made, resume=resume, log=lambda level, line: self.said.append(line), **named)

    said = ()

    # --- Values that a program writes ---

    @isolated
    def test_values_written_to_small_parameters_are_those_of_all_that_is_saved(self):
        self.said = []
        engine = self.nvme(seeded(Mlp), persistence_threshold=SMALL)
        train(engine, 1)
        ways = {
            "safetensors": lambda: engine.save_safetensors(self.folder.name + "/s"),
            "checkpoint": lambda: engine.save_checkpoint(self.folder.name + "/c", "g"),
            "commit": lambda: (engine.commit(), engine.finish_commit()),
            "optimizer": lambda: engine.optimizer.load_state_dict(engine.optimizer.state_dict()),
        }
        for number, save in enumerate(ways.values()):
            with torch.no_grad():
                for parameter in engine.module.parameters():
                    parameter.fill_(number + 0.25)
            save()
            for parameter in engine.module.parameters():
                self.assertTrue(bool((engine.master(parameter) == number + 0.25).all()))
        engine.close()
        resumed = self.nvme(seeded(Mlp), True, persistence_threshold=SMALL)
        for name, value in resumed.state_dict().items():
            self.assertTrue(bool((value == list(ways).index("commit") + 0.25).all()), name)

    @isolated
    def test_a_moment_that_is_loaded_leaves_what_was_written_to_other_parameters(self):
        engine = engine_of(seeded(Mlp), persistence_threshold=SMALL)
        train(engine, 2)
        model_state, optimizer_state = copy.deepcopy((engine.state_dict(), engine.optimizer.state_dict()))
        expected = train(engine, 3, first=2)
        for optimizer_first in (False, True):
            other = engine_of(Mlp(), persistence_threshold=SMALL)
            if optimizer_first:
                other.optimizer.load_state_dict(optimizer_state)
            other.load_state_dict(model_state)
            if not optimizer_first:
                other.optimizer.load_state_dict(optimizer_state)
            self.assertEqual(train(other, 3, first=2), expected)

    # --- Commits ---

    @isolated
    def test_a_commit_has_schedule_buffers_and_small_frozen_weights(self):
        self.said = []

        def schedule(optimizer):
            return torch.optim.lr_scheduler.MultiStepLR(optimizer, [3, 8], 0.1)

        def engine_at(seed, resume):
            torch.manual_seed(seed)
            return self.nvme(Counted(), resume, persistence_threshold=SMALL, lr_scheduler=schedule)

        engine = engine_at(1, False)
        train(engine, 6)
        engine.commit()
        engine.finish_commit()
        expected = train(engine, 4, first=6)
        whole = {name: value.clone() for name, value in engine.state_dict().items()}
        rates = engine.get_lr()
        engine.close()
        resumed = engine_at(2, True)
        self.assertEqual(train(resumed, 4, first=6), expected)
        for name, value in resumed.state_dict().items():
            self.assertTrue(torch.equal(value, whole[name]), name)
        self.assertEqual(resumed.get_lr(), rates)
        self.assertAlmostEqual(rates[0], 1e-4)
        self.assertEqual(self.said, [])

    @isolated
    def test_a_commit_is_not_taken_up_by_another_model_or_other_groups(self):
        self.said = []

        class Named(nn.Module):
            def __init__(self, *names):
                super().__init__()
                for name in names:
                    setattr(self, name, nn.Linear(32, 32))

            def forward(self, x):
                return self.a(torch.relu(self.b(x)))

        engine = self.nvme(Named("a", "b"))
        train(engine, 1)
        engine.commit()
        engine.finish_commit()
        engine.close()
        error = self.raised(terrace.ConfigError, self.nvme, Named("b", "a"), True)
        self.assertIn('"a.weight"', str(error))
        self.assertIn("b.weight", str(error))
        model = Named("a", "b")
        groups = [{"params": [one]} for one in model.parameters()]
        error = self.raised(terrace.ConfigError, self.nvme, model, True, model_parameters=groups)
        self.assertIn("1 parameter groups, and there are 4", str(error))
        self.assertEqual(train(self.nvme(Named("a", "b"), True), 1, first=1)[0][0][0] > 0, True)

    @isolated
    def test_a_commit_that_no_room_was_planned_for_is_refused_in_words_of_the_configuration(self):
        self.said = []
        engine = self.nvme(seeded(Mlp))
        train(engine, 1)
        error = self.raised(terrace.MisuseError, engine.commit, retain=True)
        self.assertIn("terrace.retained_checkpoints", error.advice)
        self.assertNotIn("retained_commits", str(error))

    @isolated
    def test_the_text_of_a_commit_may_be_anything(self):
        self.said = []
        evil = io.BytesIO()
        with zipfile.ZipFile(evil, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("archive/data.pkl", bytes(1 << 20))

        def text_of(data):
            return json.dumps({"state": base64.b64encode(zlib.compress(data)).decode(), "client_state": {}})

        state = io.BytesIO()
        torch.save({"steps": 1}, state)
        bomb = text_of(bytes(300 << 20))
        for text in (
            "",
            "no JSON",
            "[]",
            text_of(pickle.dumps(print)),
            text_of(evil.getvalue()),
            bomb,
            text_of(state.getvalue()),
        ):
            engine = self.nvme(seeded(Mlp))
            engine.store.begin_commit(text)
            engine.finish_commit()
            engine.close()
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            if text:
                self.raised(terrace.ConfigError, self.nvme, seeded(Mlp), True)
            self.assertLess(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, 250 << 10)
            self.nvme(seeded(Mlp), discard_commits=True).store.keep_tier(False)
            shutil.rmtree(self.folder.name + "/terrace-tier", ignore_errors=True)

    @isolated
    def test_settings_that_differ_from_those_of_the_commit_are_said(self):
        self.said = []
        engine = self.nvme(seeded(Mlp))
        train(engine, 1)
        engine.commit()
        engine.finish_commit()
        engine.close()
        self.assertEqual(self.said, [])
        resumed = self.nvme(seeded(Mlp), True, {"lr": 5e-3})
        self.assertEqual(resumed.get_lr(), [1e-2])
        (line,) = self.said
        self.assertIn("lr of group 0 is 0.01, and not 0.005", line)

    @isolated
    def test_that_no_commits_can_be_kept_is_said(self):
        self.said = []
        self.nvme(Counted(), config={"parameters": "cpu"}, persistence_threshold=0)
        (line,) = [line for line in self.said if "no commits" in line]
        self.assertIn("frozen", line)

    @isolated
    def test_a_commit_that_fails_at_a_step_s_end_is_told_of_by_the_next_forward(self):
        self.said = []
        engine = self.nvme(seeded(Mlp), config={"commit_every_steps": 1})
        begin = engine.store.begin_commit

        def fail(*arguments):
            raise terrace.CapacityError("cannot commit", "a drive", "it is full", "make room")

        engine.store.begin_commit = fail
        train(engine, 1)
        self.assertEqual(engine.global_steps, 1)
        engine.store.begin_commit = begin
        self.raised(terrace.CapacityError, loss_of, engine, batch_of(engine.module, 1))
        other = engine_of(seeded(Mlp), config_of())
        train(other, 1)
        self.assertEqual(train(engine, 2, first=1), train(other, 2, first=1))

    # --- Checkpoints ---

    @isolated
    def test_a_checkpoint_that_is_refused_changes_nothing(self):
        place = self.folder.name
        engine = engine_of(seeded(Mlp), config_of(optimizer="SGD"))
        train(engine, 1)
        engine.save_checkpoint(place, "plain")
        wide = engine_of(seeded(Mlp))
        train(wide, 1)
        wide.save_checkpoint(place, "adam")

        class Other(Mlp):
            def __init__(self):
                super().__init__()
                self.last = nn.Linear(96, 9)

        momentum = config_of(optimizer="SGD")
        momentum["optimizer"]["params"]["momentum"] = 0.9
        grouped = seeded(Mlp)
        groups = [{"params": [one]} for one in grouped.parameters()]
        for tag, other in (
            ("adam", engine_of(Other())),
            ("plain", engine_of(Mlp(), momentum)),
            ("adam", engine_of(grouped, model_parameters=groups)),
        ):
            before = {name: value.clone() for name, value in other.state_dict().items()}
            self.raised(terrace.ConfigError, other.load_checkpoint, place, tag)
            for name, value in other.state_dict().items():
                self.assertTrue(torch.equal(value, before[name]), name)

    # --- Steps ---

    @isolated
    def test_ctrl_c_before_or_after_a_step_has_begun_in_the_store_is_gone_on_from(self):
        for comes_after in (False, True):
            engine, other = engine_of(seeded(Mlp)), engine_of(seeded(Mlp))
            begin = engine.store.begin_step

            def interrupted():
                if comes_after:
                    begin()
                raise KeyboardInterrupt

            for way in ("zero_grad", "forward"):
                engine.store.begin_step = interrupted
                with self.assertRaises(KeyboardInterrupt):
                    loss_of(engine, batch_of(engine.module, 0))
                engine.store.begin_step = begin
                if way == "zero_grad":
                    engine.zero_grad()
            self.assertEqual(train(engine, 2), train(other, 2))

    @isolated
    def test_ctrl_c_around_an_update_loses_no_step_of_the_schedule(self):
        for accumulation in (1, 2):
            for comes_after in (False, True):

                def warmup():
                    config = config_of(accumulation=accumulation)
                    config["scheduler"] = {"type": "WarmupLR", "params": {"warmup_num_steps": 10}}
                    return engine_of(seeded(Mlp), config)

                engine, other = warmup(), warmup()
                train(engine, 1), train(other, 1)
                update = engine.optimizer.step

                def interrupted():
                    if comes_after:
                        update()
                    raise KeyboardInterrupt

                engine.optimizer.step = interrupted
                with self.assertRaises(KeyboardInterrupt):
                    train(engine, 1, first=1)
                engine.optimizer.step = update
                engine.zero_grad()
                done = engine.global_steps
                self.assertEqual(done, 1 + comes_after)
                train(other, done - 1, first=1)
                self.assertEqual(engine.get_lr(), other.get_lr())
                self.assertEqual(train(engine, 3, first=done), train(other, 3, first=done))
                self.assertEqual(engine.micro_steps, other.micro_steps)

    @isolated
    def test_a_step_that_is_refused_is_made_when_it_is_asked_for_again(self):
        engine = engine_of(seeded(Mlp), config_of(accumulation=2))
        other = engine_of(seeded(Mlp), config_of(accumulation=2))
        for micro_batch in range(2):
            engine.backward(loss_of(engine, batch_of(engine.module, 0, micro_batch)))
            if micro_batch == 0:
                engine.step()
        (group,) = engine.optimizer.param_groups
        group["lr"] = -1.0
        self.raised(terrace.ConfigError, engine.step)
        group["lr"] = 1e-2
        engine.step()
        train(other, 1)
        self.assertEqual(engine.global_steps, 1)
        self.assertEqual(train(engine, 2, first=1), train(other, 2, first=1))

    @isolated
    def test_an_update_that_began_in_the_backward_pass_and_met_a_nan_ends_the_training_with_a_reason(self):
        engine = engine_of(seeded(Mlp), config_of(clip=0, update="during_backward"))
        train(engine, 2)
        engine.module.first.weight.register_hook(lambda gradient: gradient * float("nan"))
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # nothing says that the step was skipped
            error = self.raised(terrace.CancelledError, train, engine, 1, 2)
        self.assertIn("gradient_clipping", str(error))

    @isolated
    def test_what_no_engine_can_do_is_refused_before_a_step(self):
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau
        error = self.raised(terrace.ConfigError, engine_of, seeded(Mlp), lr_scheduler=plateau)
        self.assertIn("metric", str(error))
        engine = engine_of(seeded(Mlp))
        for norm in (0.0, -1.0, float("nan")):
            self.raised(terrace.ConfigError, engine.clip_grad_norm_, norm)
        self.assertGreater(train(engine, 1)[0][1], 0)


if __name__ == "__main__":
    unittest.main()
