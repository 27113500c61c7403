"""The inputs of checkpoints go to host memory and nvme and back: no bit changes, no byte moves twice, no failure is silent."""

import copy
import gc
import glob
import os
import tempfile
import unittest
from unittest import mock

import torch
from support_torch import (
    KIB,
    MIB,
    EngineTest,
    Gpt,
    batch_of,
    config_of,
    engine_of,
    isolated,
    loss_of,
    masters,
    seeded,
    terrace,
    train,
)
from terrace.torch.engine.passes import saved_inputs
from torch.utils.checkpoint import checkpoint

_UNIT = 256 * KIB  # SavedDisk::kUnitBytes
_LAYERS = 5
_PLAIN, _REENTRANT = False, True  # use_reentrant
_INPUT_BYTES = 2 * 12 * 32 * 4  # of a block, fp32


class Checkpointed(Gpt):
    """Every block is computed again. `gives_mask`: the same tensor is an input of each."""

    def __init__(self, use_reentrant=_PLAIN, gives_mask=False):
        super().__init__(layers=_LAYERS)
        self.use_reentrant, self.gives_mask = use_reentrant, gives_mask
        self.meddle = lambda x: None

    def forward(self, tokens):
        x = self.table(tokens) + self.places[: tokens.shape[1]]
        mask = torch.full_like(x, 1e-3).requires_grad_(False)
        for block in self.blocks:
            before = x
            if self.gives_mask:
                x = checkpoint(lambda x, mask, block=block: block(x + mask), x, mask, use_reentrant=self.use_reentrant)
            else:
                x = checkpoint(block, x, use_reentrant=self.use_reentrant)
            self.meddle(before)
        return self.head(self.norm(x))


def activations_config(mode, folder, accumulation=1, parameters="cpu", states="cpu", precision="fp32", **section):
    config = config_of(
        parameters,
        states,
        folder,
        accumulation,
        precision=precision,
        chunk_elements=4096,
        offload_activations=mode,
        **section,
    )
    if mode in ("nvme", "auto") and "nvme" not in (parameters, states):
        config["zero_optimization"]["offload_optimizer"]["nvme_path"] = folder
    return config


class Saving(EngineTest):
    def setUp(self):
        super().setUp()
        threshold = mock.patch.object(saved_inputs, "LEAST_BYTES", 1)
        threshold.start()
        self.addCleanup(threshold.stop)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def least_host(self, config, model):
        config = {**config, "terrace": {**config["terrace"], "host_memory": 1}}
        return self.raised(terrace.CapacityError, engine_of, copy.deepcopy(model), config).least_bytes

    def engine(self, mode, model=None, units=None, **named):
        """`units`: the host memory that is left to activations, in those in which they go to nvme."""
        model = model or seeded(Checkpointed)
        config = activations_config(mode, self.folder, **named)
        if units is None:
            return engine_of(model, config)
        config["terrace"]["host_memory"] = self.least_host(config, model)
        while True:  # what is on nvme has its part of the memory, too
            config["terrace"]["host_memory"] += _UNIT // 2
            engine = engine_of(copy.deepcopy(model), config)
            if engine.saved_activations.host_most_bytes >= units * _UNIT:
                return engine
            engine.close()


class Laws(Saving):
    def outcome(self, mode, kind, units=None, **named):
        engine = self.engine(mode, seeded(Checkpointed, kind), units, **named)
        told = train(engine, 3)
        counters = engine.store.counters()
        use = engine.saved_activations
        result = told, masters(engine)
        engine.close()
        return result, counters, use

    def check(self, kind, **named):
        plain, counters, _ = self.outcome("none", kind, **named)
        self.assertEqual(counters["activation_d2h"], 0)
        for mode, units in (("cpu", None), ("nvme", 3), ("nvme", 1), ("auto", 2)):
            with self.subTest(mode=mode, units=units, kind=kind, **named):
                saved, counters, use = self.outcome(mode, kind, units, **named)
                self.assertEqual(saved, plain)
                self.assertGreater(counters["activation_d2h"], 0)
                self.assertEqual(counters["activation_write"] > 0, units is not None)
                self.assertLessEqual(use.host_peak_bytes, use.host_most_bytes)
                self.assertEqual((use.saved_count, use.host_bytes, use.nvme_bytes), (0, 0, 0))

    @isolated
    def test_both_kinds_and_types(self):
        for kind in (_PLAIN, _REENTRANT):
            for precision in ("fp32", "bf16"):
                self.check(kind, precision=precision)

    @isolated
    def test_placements_and_accumulation(self):
        self.check(_PLAIN, accumulation=3, parameters="device", states="cpu")
        self.check(_REENTRANT, accumulation=2, parameters="cpu", states="nvme", update="during_backward")
        self.check(_PLAIN, parameters="nvme", states="nvme", update="next_forward", strict=True)


class Bytes(Saving):
    @isolated
    def test_each_input_moves_down_once_and_up_once_but_the_last_which_has_not_left(self):
        for kind in (_PLAIN, _REENTRANT):
            engine = self.engine("cpu", seeded(Checkpointed, kind), accumulation=2)
            train(engine, 2)
            counters = engine.store.step_counters()
            self.assertEqual(counters["activation_d2h"], 2 * _LAYERS * _INPUT_BYTES)
            self.assertEqual(counters["activation_h2d"], 2 * (_LAYERS - 1) * _INPUT_BYTES)
            self.assertEqual(engine.saved_activations.host_peak_bytes, _LAYERS * 4096)  # of which each takes 3072
            engine.close()

    @isolated
    def test_each_that_leaves_host_memory_is_written_once_and_read_once(self):
        engine = self.engine("nvme", units=2)
        train(engine, 2)
        counters = engine.store.step_counters()
        self.assertEqual(counters["activation_write"], (_LAYERS - 2 + 1) * _UNIT)  # one is written ahead
        self.assertEqual(counters["activation_read"], (_LAYERS - 2) * _UNIT)
        use = engine.saved_activations
        self.assertEqual(use.host_peak_bytes, 2 * _UNIT)
        self.assertLess(use.host_most_bytes, 3 * _UNIT)
        engine.close()
        self.assertEqual(glob.glob(self.folder + "/**/saved*", recursive=True), [])

    @isolated
    def test_what_several_checkpoints_are_given_is_saved_once(self):
        for kind in (_PLAIN, _REENTRANT):
            told = []
            for mode in ("none", "cpu"):
                engine = self.engine(mode, seeded(Checkpointed, kind, True))
                told.append((train(engine, 2), masters(engine)))
                moved = engine.store.step_counters()["activation_d2h"]
                engine.close()
            self.assertEqual(told[0], told[1])
            self.assertEqual(moved, (_LAYERS + 1) * _INPUT_BYTES)

    @isolated
    def test_small_ones_stay(self):
        with mock.patch.object(saved_inputs, "LEAST_BYTES", MIB):
            engine = self.engine("cpu")
            train(engine, 1)
            self.assertEqual(engine.store.counters()["activation_d2h"], 0)
            engine.close()

    @isolated
    def test_nothing_is_saved_without_a_graph_or_by_another_model(self):
        engine = self.engine("cpu")
        other = seeded(Checkpointed)
        loss_of(other, batch_of(other, 0)).backward()
        with torch.no_grad():
            loss_of(engine.module, batch_of(engine.module, 0))
        self.assertEqual(engine.store.counters()["activation_d2h"], 0)
        engine.close()
        self.assertNotIn("apply", vars(torch.utils.checkpoint.CheckpointFunction))

    @isolated
    def test_they_come_back_ahead_of_their_use(self):
        begun = []
        begin = saved_inputs.SavedInputs._begin

        def noted(home, saved, is_ahead):
            has_begun = begin(home, saved, is_ahead)
            begun.append((saved.number, is_ahead, has_begun))
            return has_begun

        with mock.patch.object(saved_inputs.SavedInputs, "_begin", noted):
            engine = self.engine("cpu")
            train(engine, 1)
            engine.close()
        self.assertEqual(begun, [(number, True, True) for number in range(_LAYERS - 1, 0, -1)])


class Graphs(Saving):
    @isolated
    def test_several_forward_passes_before_their_backward_passes(self):
        told = []
        for mode, units in (("none", None), ("cpu", None), ("nvme", 2)):
            engine = self.engine(mode, units=units, accumulation=2)
            for step in range(2):
                losses = [loss_of(engine.module, batch_of(engine.module, step, place)) for place in range(2)]
                for loss in losses:
                    engine.backward(loss)
                    engine.step()
            told.append((losses[0].item(), losses[1].item(), masters(engine)))
            engine.close()
        self.assertEqual(told[0], told[1])
        self.assertEqual(told[0], told[2])

    @isolated
    def test_a_graph_that_is_kept_goes_backward_twice(self):
        told = []
        for mode, units in (("none", None), ("cpu", None), ("nvme", 2)):
            engine = self.engine(mode, units=units, accumulation=2)
            loss = loss_of(engine.module, batch_of(engine.module, 0))
            engine.backward(loss, retain_graph=True)
            engine.step()
            engine.backward(loss)
            engine.step()
            told.append(masters(engine))
            engine.close()
        self.assertEqual(told[0], told[1])
        self.assertEqual(told[0], told[2])

    @isolated
    def test_what_no_backward_pass_comes_to_goes_with_its_graph(self):
        engine = self.engine("nvme", units=2)
        loss = loss_of(engine.module, batch_of(engine.module, 0))
        self.assertEqual(engine.saved_activations.saved_count, _LAYERS)
        del loss
        gc.collect()
        self.assertEqual(engine.saved_activations.saved_count, 0)
        self.assertEqual(engine.saved_activations.nvme_bytes, 0)
        train(engine, 1)
        engine.close()

    @isolated
    def test_a_pass_that_fails_leaves_nothing(self):
        engine = self.engine("cpu")

        def fail(x):
            raise KeyboardInterrupt

        engine.module.meddle = fail
        with self.assertRaises(KeyboardInterrupt):
            loss_of(engine.module, batch_of(engine.module, 0))
        engine.module.meddle = lambda x: None
        gc.collect()
        told = train(engine, 2), masters(engine)
        self.assertEqual(engine.saved_activations.saved_count, 0)
        engine.close()
        plain = self.engine("none")
        self.assertEqual((train(plain, 2), masters(plain)), told)
        plain.close()

    @isolated
    def test_an_input_that_is_changed_in_place_is_refused_as_by_torch(self):
        for mode in ("none", "cpu"):
            engine = self.engine(mode)
            kept = []

            def change(x):
                kept.append(x)
                with torch.no_grad():
                    x.detach().add_(1)

            engine.module.meddle = change
            with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
                loss = loss_of(engine.module, batch_of(engine.module, 0))
                engine.backward(loss)
            engine.close()

    @isolated
    def test_a_checkpoint_within_a_checkpoint_is_left_alone(self):
        class Nested(Checkpointed):
            def forward(self, tokens):
                x = self.table(tokens) + self.places[: tokens.shape[1]]

                def two(x):
                    for block in self.blocks[:2]:
                        x = checkpoint(block, x, use_reentrant=self.use_reentrant)
                    return x

                for _ in range(2):
                    x = checkpoint(two, x, use_reentrant=self.use_reentrant)
                return self.head(self.norm(x))

        for kind in (_PLAIN, _REENTRANT):
            told = []
            for mode in ("none", "cpu"):
                engine = self.engine(mode, seeded(Nested, kind))
                told.append((train(engine, 2), masters(engine)))
                moved = engine.store.step_counters()["activation_d2h"]
                engine.close()
            self.assertEqual(told[0], told[1])
            self.assertEqual(moved, 2 * _INPUT_BYTES)

    @isolated
    def test_what_is_computed_again_saves_nothing(self):
        class Within(torch.nn.Module):
            def __init__(self, block, kind):
                super().__init__()
                self.block, self.kind = block, kind
                self.scale = torch.nn.Parameter(torch.ones(1))

            def forward(self, x):
                return checkpoint(self.block, x * self.scale, use_reentrant=self.kind)

        for kind in (_PLAIN, _REENTRANT):
            told = []
            for mode in ("none", "cpu"):
                model = seeded(Checkpointed, kind)
                model.blocks = torch.nn.ModuleList(Within(block, kind) for block in model.blocks)
                engine = self.engine(mode, model)
                told.append((train(engine, 2), masters(engine)))
                moved = engine.store.step_counters()["activation_d2h"]
                engine.close()
            self.assertEqual(told[0], told[1])
            self.assertEqual(moved, _LAYERS * _INPUT_BYTES)

    @isolated
    def test_strides_come_back(self):
        engine = self.engine("cpu")
        seen = []

        class Strided(torch.nn.Module):
            def forward(self, x):
                seen.append((x.size(), x.stride(), x.detach().clone()))
                return x * x

        strided = Strided()
        original = engine.module.meddle

        def check(x):
            if engine._passes._saved.is_here() and len(seen) < 1:
                for view in (x.transpose(0, 1), x.mean(0, keepdim=True).expand(4, -1, -1), x[:, ::2]):
                    self.views.append(checkpoint(strided, view, use_reentrant=False).sum())

        self.views = []
        engine.module.meddle = check
        loss = loss_of(engine.module, batch_of(engine.module, 0)) + sum(self.views)
        engine.backward(loss)
        self.assertEqual(len(seen), 6)
        by_size = {}
        for size, stride, values in seen:
            by_size.setdefault(size, []).append((stride, values))
        for (stride, values), (again, recomputed) in by_size.values():
            self.assertEqual(stride, again)
            self.assertTrue(torch.equal(values, recomputed))
        engine.module.meddle = original
        engine.close()


class Compiled(Saving):
    @isolated
    def test_compiled_blocks(self):
        told = []
        for mode in ("none", "cpu"):
            engine = self.engine(mode)
            for block in engine.module.blocks:
                block.compile(backend="aot_eager")
            told.append((train(engine, 3), masters(engine)))
            moved = engine.store.step_counters()["activation_d2h"]
            engine.close()
        self.assertEqual(told[0], told[1])
        self.assertEqual(moved, _LAYERS * _INPUT_BYTES)


class Failures(Saving):
    @isolated
    def test_too_little_host_memory_names_the_least_and_loses_nothing(self):
        model = seeded(Checkpointed)
        config = activations_config("cpu", self.folder)
        config["terrace"]["host_memory"] = self.least_host(config, model) + 2 * 4096
        engine = engine_of(model, config)
        error = self.raised(terrace.CapacityError, train, engine, 1)
        self.assertIn("terrace.offload_activations", str(error))
        self.assertEqual(error.least_host_bytes, config["terrace"]["host_memory"] + 4096)
        engine.zero_grad()
        self.assertEqual(engine.saved_activations.saved_count, 0)
        engine.close()
        config["terrace"]["host_memory"] += (_LAYERS - 2) * 4096
        engine = engine_of(seeded(Checkpointed), config)
        train(engine, 2)
        engine.close()

    @isolated
    def test_a_damaged_byte_is_named_and_the_step_can_be_made_again(self):
        engine = self.engine("nvme", units=2)
        train(engine, 1)
        loss = loss_of(engine.module, batch_of(engine.module, 1))
        for path in glob.glob(self.folder + "/**/saved*", recursive=True):
            self.damage(path)
        error = self.raised(terrace.CorruptError, engine.backward, loss)
        self.assertIn("saved activation", str(error))
        self.assertIn("saved0.tier", str(error))
        del loss
        engine.zero_grad()
        told = train(engine, 1, first=1), masters(engine)
        engine.close()
        plain = self.engine("none")
        self.assertEqual(((train(plain, 2)[1:]), masters(plain)), told)
        plain.close()

    @staticmethod
    def damage(path):
        size = os.path.getsize(path)
        with open(path, "r+b") as file:
            for place in range(100, size, _UNIT):
                file.seek(place)
                byte = file.read(1)[0]
                file.seek(place)
                file.write(bytes([byte ^ 1]))


class Configurations(Saving):
    @isolated
    def test_deepspeeds_key_means_host_memory(self):
        config = activations_config("none", self.folder)
        del config["terrace"]["offload_activations"]
        config["activation_checkpointing"] = {"cpu_checkpointing": True}
        engine = engine_of(seeded(Checkpointed), config)
        self.assertEqual(engine.config.without_effect, [])
        train(engine, 1)
        self.assertGreater(engine.store.counters()["activation_d2h"], 0)
        engine.close()

    @isolated
    def test_nvme_wants_a_folder_which_may_be_there_for_it_alone(self):
        config = activations_config("nvme", self.folder)
        engine = engine_of(seeded(Checkpointed), config)
        self.assertEqual(engine.config.without_effect, [])
        engine.close()
        del config["zero_optimization"]["offload_optimizer"]["nvme_path"]
        error = self.raised(terrace.ConfigError, engine_of, seeded(Checkpointed), config)
        self.assertIn("terrace.offload_activations is nvme", str(error))


if __name__ == "__main__":
    unittest.main()
