"""Scripts of DeepSpeed run as they are: its names have a meaning here, or a sentence says what to do."""

import argparse
import contextlib
import importlib
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import warnings

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
)
from terrace.compat.deepspeed.finder import WithoutMeaning

# What people copy for ZeRO-3, with a trainer in mind that fills "auto" in.
ZERO3 = """{
    "fp16": {"enabled": false, "loss_scale": 0, "loss_scale_window": 1000, "initial_scale_power": 16, "hysteresis": 2,
             "min_loss_scale": 1},  // no half
    "zero_optimization": {
        "stage": 3,
        "offload_optimizer": {"device": "cpu", "pin_memory": true},
        "offload_param": {"device": "cpu", "pin_memory": true},
        "overlap_comm": true,
        "contiguous_gradients": true,
        "sub_group_size": 1e9,
        "reduce_bucket_size": "auto",
        "stage3_prefetch_bucket_size": "auto",
        "stage3_param_persistence_threshold": "auto",
        "stage3_max_live_parameters": 1e9,
        "stage3_max_reuse_distance": 1e9,
        "stage3_gather_16bit_weights_on_model_save": true
    },
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "steps_per_print": 2000,
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "wall_clock_breakdown": false
}"""
# And for ZeRO-Infinity, with the tuning of a drive where blogs have it.
INFINITY = """{
    "zero_optimization": {
        "stage": 3,
        "offload_optimizer": {"device": "nvme", "nvme_path": "FOLDER", "pin_memory": true, "buffer_count": 4,
                              "fast_init": false, "pipeline_read": true, "pipeline_write": true},
        "offload_param": {"device": "nvme", "nvme_path": "FOLDER", "pin_memory": true, "buffer_count": 5,
                          "buffer_size": 1e8, "max_in_cpu": 1e9},
        "aio": {"block_size": 262144, "queue_depth": 32, "thread_count": 1, "single_submit": false,
                "overlap_events": true},
        "overlap_comm": true,
        "reduce_bucket_size": "auto",
        "stage3_prefetch_bucket_size": "auto",
    },
    "gradient_accumulation_steps": "auto",
    "steps_per_print": 2000,
    "wall_clock_breakdown": true,
}"""


class Files(EngineTest):
    @isolated
    def test_a_literal_file_runs_with_the_optimizer_of_the_loop(self):
        with tempfile.TemporaryDirectory() as folder:
            told = []
            for text in (ZERO3, INFINITY.replace("FOLDER", folder)):
                path = pathlib.Path(folder, "ds.json")
                path.write_text(text)
                model = seeded(Mlp)
                optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
                with warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("always")
                    engine, own, _, scheduler = terrace.initialize(
                        model=model, optimizer=optimizer, config=str(path), persistence_threshold=128
                    )
                self.assertIsNone(scheduler)
                lines = [str(one.message) for one in caught]
                self.assertEqual(len(lines), 1, lines)
                self.assertIn("steps_per_print", lines[0])
                told.append(train(engine, 3))
                self.assertEqual(own.param_groups[0]["lr"], 1e-3)
                self.assertIs(engine.client_optimizer, optimizer)
                engine.close()
            self.assertIn("zero_optimization.aio.thread_count", lines[0])
            self.assertEqual(*told)

    @isolated
    def test_the_old_key_moves_states_and_is_said(self):
        config = dict(config_of(), zero_optimization={"stage": 2, "cpu_offload": True})
        lines = []
        engine = engine_of(seeded(Mlp), config, log=lambda level, line: lines.append(line))
        self.assertEqual(engine.zero_offload_optimizer().device, "cpu")
        self.assertTrue(engine.zero_cpu_offload())
        self.assertEqual(engine.zero_offload_param().device, "none")
        self.assertTrue(any('cpu_offload: it stands for "offload_optimizer"' in line for line in lines), lines)


class Images(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.pool = nn.Conv2d(3, 8, 5), nn.MaxPool2d(2, 2)
        self.middle, self.last = nn.Linear(8 * 6 * 6, 64), nn.Linear(64, 10)

    def forward(self, x):
        x = self.pool(torch.relu(self.first(x)))
        return self.last(torch.relu(self.middle(x.flatten(1))))


class Scripts(EngineTest):
    @isolated
    def test_the_first_tutorial_runs_with_one_word_changed(self):
        import terrace as deepspeed

        get_accelerator = importlib.import_module("terrace.accelerator").get_accelerator
        images = torch.randn(24, 3, 16, 16, generator=torch.Generator().manual_seed(2))
        data = torch.utils.data.TensorDataset(images, (images.mean((1, 2, 3)) > 0).long())
        parser = argparse.ArgumentParser()
        parser.add_argument("--local_rank", type=int, default=-1)
        parser = deepspeed.add_config_arguments(parser)
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "ds.json")
            path.write_text(
                json.dumps(
                    {
                        "train_batch_size": 8,
                        "steps_per_print": 2000,
                        "gradient_clipping": 1.0,
                        "prescale_gradients": False,
                        "optimizer": {"type": "Adam", "params": {"lr": 0.003, "betas": [0.8, 0.999], "eps": 1e-8}},
                        "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 0.003, "warmup_num_steps": 5}},
                        "zero_optimization": {"stage": 2, "cpu_offload": False},
                        "wall_clock_breakdown": False,
                    }
                )
            )
            args = parser.parse_args(["--deepspeed", "--deepspeed_config", str(path)])
            self.assertTrue(args.deepspeed)
            deepspeed.init_distributed()
            net = seeded(Images)
            parameters = filter(lambda one: one.requires_grad, net.parameters())
            engine, optimizer, loader, _ = deepspeed.initialize(
                args=args, model=net, model_parameters=parameters, training_data=data
            )
        device = get_accelerator().device_name(engine.local_rank)
        losses = []
        for _ in range(4):
            for batch in loader:
                inputs, labels = batch[0].to(device), batch[1].to(device)
                loss = nn.functional.cross_entropy(engine(inputs), labels)
                engine.backward(loss)
                engine.step()
                losses.append(loss.item())
                if engine.local_rank == 0 and engine.global_rank == 0:
                    self.assertEqual(engine.global_steps, len(losses))
        self.assertLess(losses[-1], losses[0])
        self.assertEqual((engine.world_size, engine.get_batch_info()), (1, (8, 8, 1)))

    @isolated
    def test_a_pipeline_of_one_stage_trains_as_the_loop_does(self):
        pipe = importlib.import_module("terrace.pipe")
        square = lambda output, labels: (output - labels).square().mean()

        def made(interval):
            torch.manual_seed(7)
            tied = {"forward_fn": lambda module, x: x @ module.weight}
            return pipe.PipelineModule(
                [
                    pipe.TiedLayerSpec("in", nn.Linear, 32, 96, bias=False),
                    torch.tanh,
                    pipe.LayerSpec(nn.Linear, 96, 96),
                    nn.GELU(),
                    pipe.TiedLayerSpec("in", nn.Linear, 32, 96, bias=False, **tied),
                ],
                num_stages=1,
                loss_fn=square,
                activation_checkpoint_interval=interval,
            )

        def data():
            for step in range(100):
                x = torch.randn(4, 32, generator=torch.Generator().manual_seed(step))
                yield x, x * 0.5

        told = []
        for interval in (0, 2):
            engine = engine_of(made(interval), config_of(accumulation=2), persistence_threshold=0)
            batches = data()
            told.append(([engine.train_batch(batches).item() for _ in range(3)], masters(engine)))
            self.assertEqual((engine.global_steps, engine.micro_steps), (3, 6))
            with torch.no_grad():
                wanted = torch.stack([square(engine(x), y) for _, (x, y) in zip(range(2), data())]).mean()
            self.assertEqual(engine.eval_batch(data()), wanted)
            self.assertTrue(engine.module.training)
        self.assertEqual(*told)
        plain, batches = made(0), data()
        optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-2, weight_decay=0.1, eps=1e-3)
        for wanted in told[0][0]:
            losses = [square(plain(x), y) for _, (x, y) in zip(range(2), batches)]
            (sum(losses) / 2).backward()
            nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            self.assertAlmostEqual(sum(losses).item() / 2, wanted, delta=1e-5 * wanted)
        with self.assertRaisesRegex(terrace.ConfigError, "num_stages"):
            pipe.PipelineModule([nn.Linear(2, 2)], num_stages=2)

    @isolated
    def test_batches_without_a_loss_function_are_the_models(self):
        class WithLoss(Mlp):
            def forward(self, x, labels=None):
                return {"loss": super().forward(x).square().mean(), "labels": labels}

        x = torch.randn(4, 32)
        engine = engine_of(seeded(WithLoss))
        losses = [engine.train_batch(iter([batch])) for batch in ({"x": x}, (x, None), x)]
        self.assertEqual([loss.shape for loss in losses], [()] * 3)
        for wrong in ([x], {"x": x}):
            self.assertIn("iter(", self.raised(terrace.ConfigError, engine.train_batch, wrong).advice)
        self.raised(terrace.ConfigError, engine.train_batch)
        engine = engine_of(seeded(Mlp))
        self.assertIn("loss_fn", self.raised(terrace.ConfigError, engine.train_batch, iter([x])).advice)
        data = torch.utils.data.TensorDataset(torch.randn(4, 32))
        config = dict(config_of(), train_micro_batch_size_per_gpu=2)
        engine = engine_of(seeded(WithLoss), config, training_data=data)
        for _ in range(3):  # again and again
            engine.train_batch()
        self.assertEqual(engine.global_steps, 3)


class Names(EngineTest):
    @isolated
    def test_every_name_of_the_page_is_there(self):
        page = (pathlib.Path(__file__).parents[3] / "docs/from_deepspeed.md").read_text()
        table = page.partition("## What is here")[2].partition("\n\nAny other name")[0]
        engine = engine_of(seeded(Mlp))
        owners = {
            "the module": importlib.import_module("terrace.compat.deepspeed"),
            "the engine": engine,
            "the optimizer": engine.optimizer,
        }
        count = 0
        for line in table.splitlines():
            _, owner, cell, _ = line.split("|") if line.count("|") == 3 else (None, "", "", None)
            owner = owner.strip().strip("`")
            if owner == "`initialize`" or owner in ("", "of", "---", "initialize"):
                continue
            place = owners.get(owner) or importlib.import_module(f"terrace.compat.{owner}")
            for name in re.findall(r"`(\w+)`", cell):
                if owner == "deepspeed.accelerator" and name != "get_accelerator":
                    self.assertTrue(hasattr(place.get_accelerator(), name), name)
                elif name != "partition_parameters":
                    self.assertNotIsInstance(getattr(place, name), WithoutMeaning)
                count += 1
        self.assertGreater(count, 120)

    @isolated
    def test_what_is_not_there_is_said_of_the_engine(self):
        engine = engine_of(seeded(Mlp))
        for name, words in (
            ("tput_timer", "torch.profiler"),
            ("offload_states", "configuration"),
            ("get_momm", 'did you mean "get_mom"'),
            ("save_chekpoint", 'did you mean "save_checkpoint"'),
            ("wandb_logger", "from_deepspeed.md"),
        ):
            with self.assertRaises(AttributeError) as caught:
                getattr(engine, name)
            self.assertIn(f"Terrace's engine has no '{name}'", str(caught.exception))
            self.assertIn(words, str(caught.exception))
        self.assertFalse(hasattr(engine, "tput_timer"))
        self.assertIs(engine.layers, engine.module.layers)  # what the model has passes through
        for owner, name in (
            (terrace, "init_inference"),
            (terrace.comm, "all_to_all"),
            (terrace.ops, "lamb"),
            (terrace.checkpointing, "get_cuda_rng_tracker"),
        ):
            with self.assertRaisesRegex(AttributeError, f"terrace.* has no '{name}'"):
                getattr(owner, name)

    def test_modules_are_there_after_the_package_alone(self):
        tried = "import terrace; print(terrace.torch.init.__name__, terrace.ranks.__name__)"
        done = subprocess.run([sys.executable, "-W", "ignore", "-c", tried], capture_output=True, text=True)
        self.assertEqual(done.stdout, "init terrace.ranks\n", done.stderr)
        name = "initialise"
        with self.assertRaisesRegex(AttributeError, 'terrace has no .initialise.: did you mean "initialize"'):
            getattr(terrace, name)

    @isolated
    def test_arguments_of_initialize(self):
        class Whole:
            get_model_parallel_world_size = staticmethod(lambda: 1)

        class Halves:
            get_model_parallel_world_size = staticmethod(lambda: 2)

        train(engine_of(seeded(Mlp), mpu=Whole(), dist_init_required=True, distributed_port=29500), 1)
        engine = terrace.initialize(model=seeded(Mlp), config_params=config_of(accumulation=3))[0]
        self.assertEqual(engine.gradient_accumulation_steps(), 3)
        self.assertEqual(self.raised(terrace.ConfigError, engine_of, seeded(Mlp), mpu=Halves()).subject, "mpu")
        self.raised(terrace.ConfigError, engine_of, seeded(Mlp), mesh_param=(2, 2))
        self.raised(terrace.ConfigError, engine_of, seeded(Mlp), config_params=config_of(accumulation=3))

    @isolated
    def test_a_boundary_that_is_set_ends_an_update_early(self):
        engine, other = engine_of(seeded(Mlp), config_of(accumulation=3)), engine_of(seeded(Mlp))
        for _ in range(2):
            with engine.no_sync():
                engine.set_gradient_accumulation_boundary(False)
                engine.backward(loss_of(engine.module, batch_of(engine.module, 0)), scale_wrt_gas=False)
                engine.step()
            engine.set_gradient_accumulation_boundary(True)
            engine.backward(loss_of(engine.module, batch_of(engine.module, 1)), scale_wrt_gas=False)
            engine.step()
            (
                loss_of(other.module, batch_of(other.module, 0)) + loss_of(other.module, batch_of(other.module, 1))
            ).backward()
            other.step()
        self.assertEqual((engine.global_steps, other.global_steps), (2, 2))
        for name, master in ((one.name, engine.master(one.name)) for one in engine._tracked if one.is_trainable):
            self.assertLess((master - other.master(name)).abs().max(), 1e-5, name)
        beside = config_of(accumulation=2, update="during_backward")
        beside["gradient_clipping"] = 0.0
        engine = engine_of(seeded(Mlp), beside)
        self.raised(terrace.MisuseError, engine.set_gradient_accumulation_boundary, True)

    @isolated
    def test_settings_and_scales_are_told(self):
        config = dict(config_of(), fp16={"enabled": True, "initial_scale_power": 4})
        engine = engine_of(seeded(Mlp), config)
        self.assertEqual((engine.optimizer.cur_scale, engine.optimizer.loss_scale, engine.loss_scale), (16.0,) * 3)
        self.assertTrue(engine.dynamic_loss_scale())
        self.assertEqual(engine.get_mom(), [(0.9, 0.999)])
        engine.set_lr(0.5)
        self.assertEqual(engine.get_lr(), [0.5])
        self.assertFalse(engine.optimizer.overflow)
        engine.backward(engine(torch.randn(4, 32).half()).float().square().mean() * float("inf"))
        engine.step()
        self.assertTrue(engine.optimizer.overflow)
        engine.set_train_batch_size(1)
        self.assertIn("load_checkpoint", self.raised(terrace.ConfigError, engine.set_train_batch_size, 2).advice)
        moved = engine_of(seeded(Mlp), config_of(optimizer="SGD"))
        self.assertEqual(moved.get_mom(), [0])
        self.assertFalse(moved.dynamic_loss_scale())

    @isolated
    def test_checkpoints_and_states_have_their_names(self):
        model = seeded(Mlp)
        model.first.requires_grad_(False)
        engine = engine_of(model)
        state = engine.module_state_dict(exclude_frozen_parameters=True)
        self.assertEqual(set(engine.module_state_dict()) - set(state), {"first.weight", "first.bias"})
        engine.load_module_state_dict(engine.module_state_dict())
        with tempfile.TemporaryDirectory() as folder:
            engine.save_checkpoint(folder, "one")
            self.assertIsNone(engine.loaded_checkpoint_tag)
            engine.load_checkpoint(folder)
            self.assertEqual(engine.loaded_checkpoint_tag, "one")
            expected = train(engine, 2)
            # In DeepSpeed's order: strict, without optimizer states, without the schedule.
            engine.load_checkpoint(folder, "one", True, False, False)
            self.assertEqual(engine.global_steps, 2)
            engine.load_checkpoint(folder, None, True, True, True, False, None)
            self.assertEqual(engine.global_steps, 0)
            before = masters(engine)
            for arguments in (("one", False), ("one", True, True, True, False, lambda source, into: None)):
                error = self.raised(terrace.ConfigError, engine.load_checkpoint, folder, *arguments)
                self.assertIn("load_optimizer_states=False", error.advice)
            self.raised(terrace.ConfigError, engine.save_checkpoint, folder, "part", {}, True, True)
            self.assertEqual(sorted(os.listdir(folder)), ["latest", "one"])
            self.assertEqual(masters(engine), before)
            self.assertEqual(train(engine, 2), expected)
        engine.destroy()
        self.raised(terrace.MisuseError, engine.module_state_dict)


class Zero(EngineTest):
    @isolated
    def test_gathered_parameters_are_those_of_their_engine(self):
        models = [seeded(Mlp) for _ in range(2)]
        engines = [engine_of(model, persistence_threshold=0) for model in models]
        plain = nn.Linear(4, 4)
        wanted = seeded(Mlp).last.weight
        with terrace.zero.GatheredParameters([models[0].last.weight, models[1].last.weight, plain.weight]):
            for model in models:
                self.assertTrue(torch.equal(model.last.weight, wanted))
                model.last.weight.data.fill_(3.0)
        with terrace.zero.GatheredParameters(models[0].last.weight, modifier_rank=0), torch.no_grad():
            self.assertTrue(torch.equal(models[0].last.weight, wanted))  # nothing was kept without a rank
            models[0].last.weight.fill_(2.0)
        self.assertTrue(bool((engines[0].master("last.weight") == 2).all()))
        with terrace.zero.GatheredParameters(models[1].last.weight, enabled=False):
            self.assertTrue(bool(models[1].last.weight.isnan().all()))
        engines[1].close()
        with self.assertRaises(terrace.MisuseError):
            with terrace.zero.GatheredParameters(models[1].last.weight):
                pass

    @isolated
    def test_init_makes_parameters_where_the_file_places_them(self):
        with tempfile.TemporaryDirectory() as folder:
            for config, elsewhere in ((config_of("nvme", "nvme", folder), True), (config_of(), False)):
                with terrace.zero.Init(config_dict_or_path=config):
                    model = seeded(Mlp)
                maps = pathlib.Path("/proc/self/maps").read_text()
                self.assertEqual(folder in maps, elsewhere)
                self.assertTrue(torch.equal(model.last.weight, seeded(Mlp).last.weight))
                train(engine_of(model, config), 1)
                del model
            with terrace.zero.Init(dtype=torch.bfloat16):
                self.assertEqual(nn.Linear(2, 2).weight.dtype, torch.bfloat16)
            self.assertEqual(torch.get_default_dtype(), torch.float32)
            with self.assertRaisesRegex(terrace.ConfigError, "nvme_path"), terrace.zero.Init(remote_device="nvme"):
                pass

    @isolated
    def test_optimizers_by_their_names(self):
        model, other = seeded(Mlp), seeded(Mlp)
        settings = {"lr": 1e-2, "weight_decay": 0.1}
        engine = engine_of(model, optimizer=terrace.ops.adam.DeepSpeedCPUAdam(model.parameters(), **settings))
        told = train(engine, 2)
        plain = torch.optim.AdamW(other.parameters(), **settings)
        self.assertEqual(told, train(engine_of(other, optimizer=plain), 2))
        named = terrace.ops.adam.FusedAdam(seeded(Mlp).parameters(), adam_w_mode=False)
        self.assertIs(type(named), torch.optim.Adam)
        for wrong in ({"amsgrad": True}, {"bias_correction": False}):
            self.raised(terrace.ConfigError, terrace.ops.adam.DeepSpeedCPUAdam, model.parameters(), **wrong)

    @isolated
    def test_checkpointing_recomputes(self):
        class Recomputed(Mlp):
            def forward(self, x):
                x = torch.relu(self.first(x))
                for layer in self.layers:
                    x = x + terrace.checkpointing.checkpoint(lambda h, layer=layer: torch.relu(layer(h)), x)
                return self.last(self.norm(x))

        self.assertFalse(terrace.checkpointing.is_configured())
        with self.assertWarnsRegex(UserWarning, "checkpoint_in_cpu"):
            terrace.checkpointing.configure(None, checkpoint_in_cpu=True)
        self.assertTrue(terrace.checkpointing.is_configured())
        engines = [engine_of(seeded(make), persistence_threshold=0) for make in (Recomputed, Mlp)]
        self.assertEqual(*[(train(engine, 3), masters(engine)) for engine in engines])

    @isolated
    def test_comm_is_of_one_process(self):
        comm = importlib.import_module("terrace.comm")
        self.assertEqual((comm.get_rank(), comm.get_world_size(), comm.get_local_rank()), (0, 1, 0))
        value = torch.ones(3)
        for call in (comm.all_reduce, comm.broadcast):
            call(value)
        comm.barrier()
        self.assertEqual(value.tolist(), [1, 1, 1])
        with contextlib.ExitStack() as stack:
            os.environ.update(RANK="0", WORLD_SIZE="2")
            stack.callback(os.environ.pop, "RANK")
            stack.callback(os.environ.pop, "WORLD_SIZE")
            self.raised(terrace.ConfigError, comm.init_distributed)
