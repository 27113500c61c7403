"""terrace.compat.deepspeed has the names that scripts of DeepSpeed import, each over what Terrace has already."""

import importlib
import os
import tempfile

import terrace.compat.deepspeed as deepspeed
from ranks_torch import RanksTest
from support_torch import EngineTest, Mlp, batch_of, config_of, isolated, loss_of, nn, seeded, terrace, torch, train
from terrace.compat.deepspeed import finder, modules
from terrace.torch.engine.launched import free_place

PACKAGE = "terrace.compat.deepspeed"


def engine_of(model, config=None, **named):
    return deepspeed.initialize(model=model, config=config or config_of(), persistence_threshold=128, **named)[0]


class Imports(EngineTest):
    @isolated
    def test_every_name_of_every_module_is_there(self):
        count = 0
        for module in modules.MODULES:
            place = importlib.import_module(f"{PACKAGE}.{module}" if module else PACKAGE)
            for name in finder.names_of(module):
                getattr(place, name)
                self.assertIn(name, dir(place))
                count += 1
        self.assertGreater(count, 150)

    @isolated
    def test_names_are_those_of_terrace(self):
        from terrace.compat.deepspeed import comm, zero
        from terrace.compat.deepspeed.ops.adam import DeepSpeedCPUAdam
        from terrace.compat.deepspeed.pipe import LayerSpec
        from terrace.compat.deepspeed.runtime.activation_checkpointing.checkpointing import checkpoint
        from terrace.compat.deepspeed.runtime.engine import DeepSpeedEngine
        from terrace.compat.deepspeed.runtime.zero.partition_parameters import GatheredParameters

        for one, other in (
            (DeepSpeedCPUAdam, terrace.ops.adam.DeepSpeedCPUAdam),
            (LayerSpec, terrace.pipe.LayerSpec),
            (checkpoint, terrace.checkpointing.checkpoint),
            (DeepSpeedEngine, terrace.torch.Engine),
            (GatheredParameters, terrace.zero.GatheredParameters),
            (comm.all_reduce, terrace.comm.all_reduce),
            (zero.Init, terrace.zero.Init),
            (deepspeed.add_config_arguments, terrace.add_config_arguments),
            (deepspeed.PipelineModule, terrace.pipe.PipelineModule),
            (deepspeed.DeepSpeedConfigError, terrace.ConfigError),
        ):
            self.assertIs(one, other)
        self.assertEqual(deepspeed.get_accelerator().device_name(), "cpu")
        self.assertGreater(tuple(map(int, deepspeed.__version__.split("."))), (0, 19))
        self.assertFalse(hasattr(zero, "contextlib"))  # what a home has imported for itself

    @isolated
    def test_an_unknown_name_has_a_suggestion(self):
        def imported(text):
            with self.assertRaises(ImportError) as caught:
                exec(text, {})
            return str(caught.exception)

        self.assertIn('mean "safe_get_full_grad"', imported(f"from {PACKAGE}.utils import safe_get_full_gard"))
        self.assertIn('did you mean "zero"', imported(f"import {PACKAGE}.runtime.zerro"))
        self.assertIn(f"it is in {PACKAGE}.ops.adam", imported(f"from {PACKAGE} import DeepSpeedCPUAdam"))
        self.assertIn("docs/from_deepspeed.md", imported(f"from {PACKAGE}.runtime import frobnicate"))
        with self.assertRaisesRegex(AttributeError, 'did you mean "initialize"'):
            _ = deepspeed.initialise
        self.assertFalse(hasattr(deepspeed, "initialise"))
        self.assertFalse(hasattr(deepspeed.utils, "grups"))

    @isolated
    def test_what_has_no_meaning_can_be_imported_and_says_what_to_use(self):
        from terrace.compat.deepspeed.moe.layer import MoE
        from terrace.compat.deepspeed.ops.lamb import FusedLamb

        for use in (
            lambda: MoE(84, expert=nn.Linear(2, 2)),
            lambda: type("Mine", (MoE,), {}),
            lambda: FusedLamb([]),
            lambda: deepspeed.moe.layer.MoE(84),
            lambda: deepspeed.init_inference(nn.Linear(2, 2)),
            lambda: deepspeed.comm.new_group([0]),
            lambda: deepspeed.ops.op_builder.CPUAdamBuilder().load(),
        ):
            self.assertIn("DeepSpeed", self.raised(terrace.ConfigError, use).what)
        self.assertEqual(self.raised(terrace.ConfigError, MoE).subject, "deepspeed.moe.layer.MoE")
        self.assertNotIsInstance(engine_of(seeded(Mlp)), (deepspeed.PipelineEngine, deepspeed.InferenceEngine))
        for module, way in modules.WAYS_OF_MODULES.items():
            name = importlib.import_module(f"{PACKAGE}.{module}").Anything
            self.assertEqual(self.raised(terrace.ConfigError, name).advice, way)


class Tensors(RanksTest):
    @isolated
    def test_values_and_states_of_a_parameter(self):
        utils = deepspeed.utils
        for precision in ("fp32", "bf16"):
            model = seeded(Mlp)
            model.first.requires_grad_(False)
            engine = engine_of(model, config_of(precision=precision))
            train(engine, 2)
            for one in (model.last.weight, model.last.bias):  # in the store, and too small for it
                name = next(name for name, other in model.named_parameters() if other is one)
                master = utils.safe_get_full_fp32_param(one)
                self.assertTrue(torch.equal(master, engine.master(name)))
                utils.safe_set_full_fp32_param(one, master + 1)
                self.assertTrue(torch.equal(engine.master(name), master + 1))
                utils.safe_set_local_fp32_param(one, master.flatten())
                self.assertTrue(torch.equal(utils.safe_get_local_fp32_param(one), master.flatten()))
                states = engine.optimizer_state_dict()["state"].values()
                for key in ("exp_avg", "exp_avg_sq"):
                    found = utils.safe_get_full_optimizer_state(one, key)
                    self.assertTrue(any(torch.equal(found, state[key]) for state in states))
                    utils.safe_set_full_optimizer_state(one, found * 2, key)
                    self.assertTrue(torch.equal(utils.safe_get_local_optimizer_state(one, key), found.flatten() * 2))
            self.assertIsNone(utils.safe_get_full_fp32_param(model.first.weight))
            self.assertIsNone(utils.safe_get_full_optimizer_state(nn.Linear(2, 2).weight, "exp_avg"))
            wrong = self.raised(terrace.ConfigError, utils.safe_get_full_optimizer_state, model.last.weight, "exp_avgs")
            self.assertIn('"exp_avg"', wrong.advice)
            self.raised(terrace.ConfigError, utils.safe_set_full_fp32_param, model.last.weight, torch.zeros(3))
            engine.close()

    @isolated
    def test_a_gradient_is_given_to_a_hook(self):
        engine, plain = engine_of(seeded(Mlp)), seeded(Mlp)
        found = []
        weight = engine.module.last.weight
        weight.register_hook(lambda gradient: found.append(gradient.clone()))
        engine.backward(loss_of(engine.module, batch_of(plain, 0)))
        loss_of(plain, batch_of(plain, 0)).backward()
        self.assertLess((found[0] - plain.last.weight.grad).abs().max(), 1e-6)
        value = deepspeed.utils.safe_get_full_fp32_param(weight)  # within a step, as scripts do
        self.assertTrue(torch.equal(value, plain.last.weight))
        for call in (deepspeed.utils.safe_get_full_grad, deepspeed.utils.safe_get_local_grad):
            self.assertTrue(torch.equal(call(weight), found[0]))
        deepspeed.utils.safe_set_full_grad(weight, torch.zeros(8, 96))
        engine.step()
        self.assertTrue(
            torch.equal(deepspeed.utils.safe_get_full_optimizer_state(weight, "exp_avg"), torch.zeros(8, 96))
        )
        self.raised(terrace.MisuseError, deepspeed.utils.safe_get_full_grad, weight)  # its step is over
        deepspeed.utils.safe_set_full_grad(nn.Parameter(torch.ones(2)), torch.ones(2))  # it has none, as before
        deepspeed.utils.safe_set_full_grad(plain.last.weight, torch.ones(8, 96))
        self.assertEqual(deepspeed.utils.safe_get_full_grad(plain.last.weight).sum(), 8 * 96)

    def test_torch_has_a_group_of_all_ranks(self):
        host, _, port = free_place(["here"]).rpartition(":")

        def on(rank):
            os.environ.update(RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR=host, MASTER_PORT=port)
            deepspeed.init_distributed("gloo")
            total = torch.full((2,), rank + 1.0)
            torch.distributed.all_reduce(total)
            return total.tolist(), torch.distributed.get_rank()

        self.assertEqual(self.on_ranks(2, on), [([3.0, 3.0], 0), ([3.0, 3.0], 1)])

    def test_ranks_have_what_all_of_them_have(self):
        def on(rank):
            comm, utils = deepspeed.comm, deepspeed.utils
            every = [torch.zeros(2) for _ in range(2)]
            comm.all_gather(every, torch.full((2,), float(rank)))
            flat = torch.zeros(2, 3)
            comm.all_gather_into_tensor(flat, torch.full((3,), rank + 1.0))
            objects, sent = [None] * 2, [f"of {rank}", rank]
            comm.all_gather_object(objects, {"rank": rank})
            comm.broadcast_object_list(sent, src=1)
            total = torch.tensor(float(rank + 1))
            comm.all_reduce(total, op=comm.ReduceOp.MAX)
            found = [torch.stack(every).tolist(), flat.tolist(), objects, sent, total.item()]
            engine = engine_of(seeded(Mlp))
            train(engine, 1)
            weight = engine.module.last.weight
            master = utils.safe_get_full_fp32_param(weight)
            utils.safe_set_full_fp32_param(weight, master * 2)
            is_twice = torch.equal(utils.safe_get_full_fp32_param(weight), master * 2)
            moment = utils.safe_get_full_optimizer_state(weight, "exp_avg").norm().item()
            refused = []
            for call in (
                lambda: utils.safe_set_full_fp32_param(weight, master + rank),
                lambda: utils.safe_get_local_fp32_param(weight),
            ):
                refused.append(type(self.raised(terrace.ConfigError, call)).__name__)
            groups = utils.groups.get_data_parallel_world_size(), utils.groups._get_data_parallel_rank() == rank
            engine.close()
            return [*found, is_twice, moment > 0, refused, groups]

        wanted = [
            [[0, 0], [1, 1]],
            [[1] * 3, [2] * 3],
            [{"rank": 0}, {"rank": 1}],
            ["of 1", 1],
            2,
            True,
            True,
            ["ConfigError"] * 2,
            (2, True),
        ]
        self.assertEqual(self.on_ranks(2, on), [wanted] * 2)


class Rest(EngineTest):
    @isolated
    def test_schedules_are_those_of_the_configuration(self):
        for kind, params in (
            ("WarmupLR", {"warmup_num_steps": 3, "warmup_max_lr": 2e-2}),
            ("WarmupDecayLR", {"total_num_steps": 6, "warmup_num_steps": 2}),
            ("WarmupCosineLR", {"total_num_steps": 6, "warmup_num_steps": 2}),
            ("OneCycle", {"cycle_min_lr": 1e-4, "cycle_max_lr": 1e-2, "cycle_first_step_size": 2}),
            ("LRRangeTest", {"lr_range_test_step_size": 2}),
        ):
            self.assertIn(kind, deepspeed.runtime.lr_schedules.VALID_LR_SCHEDULES)
            model = seeded(Mlp)
            named = engine_of(seeded(Mlp), dict(config_of(), scheduler={"type": kind, "params": params}))
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1, eps=1e-3)
            schedule = getattr(deepspeed.runtime.lr_schedules, kind)(optimizer, **params)
            made = engine_of(model, optimizer=optimizer, lr_scheduler=schedule)
            for _ in range(5):
                self.assertEqual((made.get_lr(), made.get_mom()), (named.get_lr(), named.get_mom()), kind)
                self.assertEqual(train(made, 1), train(named, 1), kind)
        self.raised(terrace.ConfigError, deepspeed.runtime.lr_schedules.WarmupLR, optimizer, last_batch_iteration=4)

    @isolated
    def test_optimizers_are_those_of_the_configuration(self):
        lion, adagrad = deepspeed.ops.lion, deepspeed.ops.adagrad
        for kind, make, more in (
            ("Lion", lion.DeepSpeedCPULion, {"betas": (0.9, 0.99)}),
            ("Lion", lion.FusedLion, {"betas": (0.9, 0.99)}),
            ("Adagrad", adagrad.DeepSpeedCPUAdagrad, {"eps": 1e-3}),
        ):
            model, config = seeded(Mlp), config_of(optimizer=kind)
            config["optimizer"]["params"].update(more)
            wanted = train(engine_of(seeded(Mlp), config), 3)
            optimizer = make(model.parameters(), lr=1e-2, weight_decay=0.1, **more)
            self.assertEqual(train(engine_of(model, optimizer=optimizer), 3), wanted)
        self.raised(terrace.ConfigError, lion.DeepSpeedCPULion(seeded(Mlp).parameters()).step)

    @isolated
    def test_weights_of_a_checkpoint_without_an_engine(self):
        tools = deepspeed.utils.zero_to_fp32
        model = seeded(Mlp)
        model.first.requires_grad_(False)
        model.register_buffer("seen", torch.arange(3))
        engine = engine_of(model, config_of(precision="bf16"))
        train(engine, 2)
        with tempfile.TemporaryDirectory() as folder:
            engine.save_checkpoint(folder)
            engine.save_checkpoint(folder, "other")
            state = tools.get_fp32_state_dict_from_zero_checkpoint(folder, "global_step2")
            self.assertEqual(set(state), set(model.state_dict()))
            for name, value in state.items():
                trained = name.startswith(("layers", "norm", "last"))
                wanted = engine.master(name) if trained else model.state_dict()[name]
                self.assertTrue(torch.equal(value, wanted.float() if value.is_floating_point() else wanted), name)
            trained = tools.get_fp32_state_dict_from_zero_checkpoint(folder, exclude_frozen_parameters=True)
            self.assertEqual(set(state) - set(trained), {"first.weight", "first.bias", "seen"})
            plain = tools.load_state_dict_from_zero_checkpoint(Mlp(), folder)
            self.assertTrue(torch.equal(plain.last.weight, engine.master("last.weight")))
            for is_safe, name in ((False, "pytorch_model.bin"), (True, "model.safetensors")):
                tools.convert_zero_checkpoint_to_fp32_state_dict(
                    folder, f"{folder}/{is_safe}", safe_serialization=is_safe
                )
                self.assertEqual(os.listdir(f"{folder}/{is_safe}"), [name])
            os.mkdir(f"{folder}/theirs")
            open(f"{folder}/theirs/mp_rank_00_model_states.pt", "w").close()
            error = self.raised(terrace.ConfigError, tools.get_fp32_state_dict_from_zero_checkpoint, folder, "theirs")
            self.assertIn("zero_to_fp32.py", error.advice)

    @isolated
    def test_parameters_in_the_store_have_what_those_of_zero_3_have(self):
        engine = engine_of(seeded(Mlp))
        status = deepspeed.runtime.zero.partition_parameters.ZeroParamStatus
        weight, plain = engine.module.last.weight, nn.Linear(2, 2).weight
        self.assertEqual((weight.ds_status, weight.ds_numel, weight.ds_shape), (status.NOT_AVAILABLE, 768, (8, 96)))
        self.assertFalse(any(hasattr(one, "ds_id") for one in (engine.module.last.bias, plain)))
        loader = deepspeed.utils.RepeatingLoader([1, 2])
        self.assertEqual([next(loader) for _ in range(5)], [1, 2, 1, 2, 1])
        moved = deepspeed.runtime.utils.move_to_device({"x": [torch.ones(2), "y"]}, "meta")
        self.assertEqual((moved["x"][0].device.type, moved["x"][1]), ("meta", "y"))
        self.assertEqual(deepspeed.utils.set_z3_leaf_modules(engine.module, [nn.LayerNorm]), [engine.module.norm])
        with self.assertLogs("DeepSpeed") as logged:
            deepspeed.utils.log_dist("one", ranks=[0])
            deepspeed.utils.log_dist("two", ranks=[1])
            deepspeed.runtime.utils.see_memory_usage("three", force=True)
        self.assertEqual(len(logged.output), 2)
