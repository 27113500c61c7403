"""Configurations of DeepSpeed, as the package reads them."""

import math
import pathlib
import re
import tempfile
import unittest

import numpy
import terrace
from support import MIB, ROOT, parts_of, tensors
from terrace.config import known_keys, read_config


class Texts(unittest.TestCase):
    def error_of(self, text):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "ds.json")
            path.write_text(text)
            with self.assertRaises(terrace.ConfigError) as caught:
                read_config(path)
        self.assertTrue(all(parts_of(caught.exception)))
        return caught.exception

    def test_what_is_wrong_is_named_with_its_line(self):
        self.assertRegex(self.error_of('{\n"trian_batch_size": 1}').subject, r"ds.json:2:1: trian_batch_size$")
        self.assertIn("did you mean", self.error_of('{\n"trian_batch_size": 1}').advice)
        self.assertRegex(self.error_of('{"a": 1,\n"a": 2}').reason, 'duplicate key "a"$')
        self.assertRegex(self.error_of('{"gradient_clipping": NaN}').reason, "NaN")
        self.assertRegex(self.error_of('{"gradient_clipping": }').subject, r"ds.json:1:23$")
        self.assertRegex(self.error_of("[1]").reason, "a configuration is an object")

    def test_the_examples_are_read(self):
        for path in sorted((ROOT / "examples/configs").glob("*.json")):
            if path.name == "parameter_groups.json":
                with self.assertRaisesRegex(terrace.ConfigError, "parameter_groups"):
                    read_config(path, 100)
            else:
                with self.subTest(path.name):
                    self.assertGreaterEqual(read_config(path, 100).train_batch_size, 1)
        scalars = read_config(ROOT / "examples/configs/zero2_cpu_fp16.json", 100)
        self.assertTrue(scalars.values["tensorboard.enabled"])
        self.assertFalse([line for line in scalars.without_effect if "tensorboard" in line])
        nvme = read_config(ROOT / "examples/configs/zero3_nvme.json", 100)
        self.assertEqual((nvme.store_options["parameters"], nvme.store_options["states"]), ("nvme", "nvme"))

    def test_the_file_of_the_front_page_is_read(self):
        text = re.search(r"```jsonc\n(.*?)```", (ROOT / "README.md").read_text(), re.S).group(1)
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "ds.json")
            path.write_text(text)
            config = read_config(path)
        self.assertEqual((config.train_batch_size, config.precision, config.gradient_clipping), (4, "bf16", 1.0))
        self.assertEqual(config.optimizer, terrace.Optimizer("adamw", 3e-4, (0.9, 0.95), 1e-8, 0.1))
        self.assertEqual(config.without_effect, [])


class Keys(unittest.TestCase):
    def refused(self, config, subject, **options):
        with self.assertRaises(terrace.ConfigError) as caught:
            read_config(config, **options)
        self.assertTrue(all(parts_of(caught.exception)), parts_of(caught.exception))
        self.assertEqual(caught.exception.subject, subject)
        return caught.exception

    def test_every_key_of_the_page_has_a_meaning(self):
        """Each is honoured, said to have no effect, or refused by name; none is dropped."""
        samples = {
            "true or false": True,
            "a text": "x",
            "any value": 1,
            "not accepted": 1,
            "only false": True,
            "only true": False,
            "only with nothing enabled": {"enabled": True},
        }
        for key in known_keys():
            path, effect, note = key["key"], key["effect"], key["note"]
            if effect not in ("without effect", "refused") or key["value"] not in samples:
                continue
            config = samples[key["value"]]
            for name in reversed(path.split(".")):
                config = {name: config}
            with self.subTest(path):
                if effect == "refused":
                    self.refused(config, path)
                else:
                    self.assertIn(f"{path}: {note}", read_config(config).without_effect)

    def test_what_python_does_not_do_is_said_where_it_is_asked_for(self):
        def said(config):
            return [line.partition(":")[0] for line in read_config(config).without_effect]

        self.assertEqual(said({"steps_per_print": 10, "wall_clock_breakdown": True}), ["steps_per_print"])
        self.assertEqual(said({"steps_per_print": None, "wall_clock_breakdown": False}), [])
        masters = {"bf16_optimizer_states": True, "bf16_master_weights_and_grads": True}
        self.assertEqual(said({"bf16": dict(masters, enabled=True)}), ["bf16.bf16_master_weights_and_grads"])
        commits = {"commit_every_steps": 5, "commit_every_seconds": 300, "retained_checkpoints": 1}
        names = ["terrace." + name for name in commits]
        below = {"stage": 2, "offload_optimizer": {"device": "nvme", "nvme_path": "/a"}}
        self.assertEqual(said({"terrace": commits}), names)
        self.assertEqual(said({"terrace": dict(commits, durable=False), "zero_optimization": below}), names)
        self.assertEqual(said({"terrace": commits, "zero_optimization": below}), [])
        self.assertEqual(said({"terrace": dict.fromkeys(commits, 0)}), [])

    def test_every_monitor_has_an_effect_wherever_files_have_it(self):
        names = ("tensorboard", "csv_monitor", "wandb", "comet")
        sections = {name: {"enabled": True} for name in names}
        for config in (sections, {"monitor": sections}, {"monitor_config": sections}, dict(sections, monitor=sections)):
            found = read_config(config)
            self.assertEqual(found.without_effect, [])
            self.assertTrue(all(found.values[name + ".enabled"] for name in names))
        self.refused({"wandb": {"entity": "t"}}, "wandb.entity")

    def test_keys_are_named_as_they_were_written(self):
        config = {
            "zero_optimization": {"stage": 2, "aio": {"thread_count": 4}},
            "monitor_config": {"tag": "x"},
        }
        said = [line.partition(":")[0] for line in read_config(config).without_effect]
        self.assertEqual(sorted(said), ["monitor_config.tag", "zero_optimization.aio.thread_count"])
        self.refused({"aio": {"thread_count": 0}}, "aio.thread_count")
        self.refused({"zero_optimization": {"aio": {"thread_counts": 1}}}, "zero_optimization.aio.thread_counts")
        self.refused({"zero_optimization": {"stage": 0, "cpu_offload": True}}, "zero_optimization.cpu_offload")
        for name in ("thread_count", "num_threads"):
            self.refused({"aio": {"intra_op_parallelism": 2, name: 3}}, f"aio.{name}")

    def test_old_names_are_taken_and_said(self):
        old = {"stage": 3, "cpu_offload": True, "cpu_offload_params": True, "cpu_offload_use_pin_memory": False}
        config = read_config({"zero_optimization": old})
        self.assertEqual(
            [config.store_options[name] for name in ("states", "parameters", "no_host_lock")], ["cpu", "cpu", True]
        )
        self.assertEqual(
            [line.partition(":")[0] for line in config.old_names],
            [f"zero_optimization.{name}" for name in old if name != "stage"],
        )
        self.assertIn('"offload_optimizer": {"device": "cpu"}', config.old_names[0])
        self.assertEqual(read_config({"zero_optimization": {"stage": 2, "cpu_offload": False}}).old_names, [])

    def test_a_dict_may_have_what_programs_have(self):
        """Numbers of numpy, paths, tuples, and accelerate's word for never."""
        config = read_config(
            {
                "steps_per_print": math.inf,
                "train_batch_size": numpy.int64(4),
                "gradient_clipping": numpy.float32(0.5),
                "bf16": {"enabled": numpy.bool_(True)},
                "optimizer": {"type": "AdamW", "params": {"lr": numpy.array(0.5), "betas": (0.9, numpy.float64(0.8))}},
                "zero_optimization": {
                    "stage": 2,
                    "offload_optimizer": {"device": "nvme", "nvme_path": pathlib.Path("/a")},
                },
            }
        )
        self.assertEqual((config.train_batch_size, config.gradient_clipping, config.precision), (4, 0.5, "bf16"))
        self.assertEqual((config.optimizer.lr, config.optimizer.betas), (0.5, (0.9, 0.8)))
        self.assertEqual(config.store_options["nvme_paths"], ["/a"])
        self.assertEqual(config.without_effect, [])
        self.refused({"gradient_clipping": math.inf}, "gradient_clipping")
        self.refused({"train_batch_size": math.inf}, "train_batch_size")

    def test_batches_of_several_ranks_name_them(self):
        sizes = {"train_batch_size": 24, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4}
        error = self.refused(sizes, "train_batch_size")
        self.assertIn("2 x 4 = 8 in one process, which is 24 on 3 ranks", error.reason)
        self.assertEqual(error.advice, "gradient_accumulation_steps 12 keeps the batch")
        del sizes["gradient_accumulation_steps"]
        self.assertEqual(read_config(sizes).gradient_accumulation_steps, 12)
        error = self.refused(dict(sizes, train_batch_size=23), "train_batch_size")
        self.assertIn("23, which is not a multiple of train_micro_batch_size_per_gpu, 2", error.reason)

    def test_nothing_is_made_up_for_a_loop_that_brings_it(self):
        """A file of "auto" without an optimizer is one for a trainer; where there is none, it gets that of one."""
        config = {"zero_optimization": {"stage": 3, "reduce_bucket_size": "auto"}}
        self.refused(config, "scheduler.params.total_num_steps")
        self.assertEqual(read_config(config, 10).schedule.kind, "linear")
        self.assertIsNone(read_config(config, 10, brings_optimizer=True).schedule)
        self.assertIsNone(read_config(config, brings_schedule=True).schedule)
        own = dict(config, scheduler={"type": "WarmupDecayLR", "params": {"total_num_steps": "auto"}})
        self.refused(own, "scheduler.params.total_num_steps", brings_optimizer=True)
        self.assertEqual(read_config(own, 10, brings_optimizer=True).schedule.kind, "WarmupDecayLR")
        self.assertIsNone(read_config(own, brings_optimizer=True, brings_schedule=True).schedule)

    def test_suggestions_are_those_of_the_program(self):
        """The table is that of tests/runtime/config/preset_config_test.cpp."""
        rows = (ROOT / "tests/runtime/config/suggestion_cases.tsv").read_text().splitlines()
        self.assertGreaterEqual(len(rows), 25)
        for row in rows:
            section, key, wanted = row.split("\t")
            config = {key: 1}
            for name in reversed(section.split(".") if section else []):
                config = {name: config}
            with self.assertRaises(terrace.ConfigError) as caught:
                read_config(config)
            self.assertIn("unknown key", caught.exception.reason)
            self.assertEqual(
                caught.exception.advice, wanted or "docs/config.md lists every key and what it may be", row
            )
        error = self.refused({"data_types": {"keep_in_fp32_modules": ["norm"]}}, "data_types.keep_in_fp32_modules")
        self.assertIn("convert the model yourself", error.reason)

    def test_degrees_of_parallelism_are_one(self):
        for config in (
            {"tensor_parallel": {"tp": {"tp_size": 2}}},
            {"pipeline": {"stages": "4"}},
            {"expert_parallel": {"autoep_size": 8}},
            {"sequence_parallel_size": 2},
        ):
            self.refused(config, next(iter(config)))
        for config in (
            {"tensor_parallel": {"autotp_size": 0}},
            {"pipeline": {"stages": "auto"}},
            {"sequence_parallel_size": 1},
            {"gradient_allreduce_op": "mean"},
        ):
            read_config(config, 10)

    def test_what_would_change_numbers_is_refused(self):
        for path, value in (
            ("terrace.gradient_group", 2),
            ("zero_optimization.zero_quantized_weights", True),
            ("zero_optimization.zero_quantized_gradients", True),
        ):
            section, key = path.split(".")
            self.refused({section: {key: value}}, path)
        read_config({"zero_optimization": {"zero_quantized_weights": False, "mics_shard_size": 4}})

    def test_every_key_is_a_text(self):
        for config, subject in (
            ({5: 3}, "5"),
            ({None: 3}, "None"),
            ({"optimizer": {"params": {("lr",): 1}}}, "optimizer.params.('lr',)"),
            ({"comms_config": {(1, 2): {}}}, "comms_config.(1, 2)"),
            ({"terrace": {"parameter_groups": [{b"lr": 1}]}}, "terrace.parameter_groups.b'lr'"),
        ):
            self.refused(config, subject)

    def test_batch_sizes_give_each_other(self):
        for config, wanted in (
            ({}, (1, 1, 1)),
            ({"train_batch_size": 8}, (8, 8, 1)),
            ({"train_batch_size": 8, "gradient_accumulation_steps": 4}, (8, 2, 4)),
            ({"train_batch_size": 8, "train_micro_batch_size_per_gpu": 2}, (8, 2, 4)),
            ({"train_micro_batch_size_per_gpu": 3, "gradient_accumulation_steps": 2}, (6, 3, 2)),
            ({"train_batch_size": "auto"}, (1, 1, 1)),
        ):
            read = read_config(config, 10)
            self.assertEqual(
                (read.train_batch_size, read.train_micro_batch_size_per_gpu, read.gradient_accumulation_steps), wanted
            )
            self.assertEqual(read.store_options["accumulation_steps"], wanted[2])
        for terrace_keys, others in (({"micro_batches": 4}, {}), ({"micro_batches": 4}, {"train_batch_size": 8})):
            read = read_config({"terrace": terrace_keys, "train_micro_batch_size_per_gpu": 2, **others})
            self.assertEqual((read.train_batch_size, read.gradient_accumulation_steps), (8, 4))
            self.assertEqual(read.without_effect, [])
        self.refused({"terrace": {"micro_batches": 4}, "gradient_accumulation_steps": 2}, "terrace.micro_batches")
        self.refused({"train_batch_size": 7, "train_micro_batch_size_per_gpu": 2}, "train_batch_size")
        self.refused(
            {"train_batch_size": 8, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2},
            "train_batch_size",
        )

    def test_stages_allow_what_they_say(self):
        offload = {"device": "cpu"}
        self.refused(
            {"zero_optimization": {"stage": 2, "offload_param": offload}}, "zero_optimization.offload_param.device"
        )
        self.refused(
            {"zero_optimization": {"offload_optimizer": offload}}, "zero_optimization.offload_optimizer.device"
        )
        self.refused(
            {"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}}},
            "zero_optimization.offload_param.nvme_path",
        )
        both = {
            "stage": 3,
            "offload_param": {"device": "nvme", "nvme_path": "/a"},
            "offload_optimizer": {"device": "nvme", "nvme_path": ["/a"], "pin_memory": False},
        }
        options = read_config({"zero_optimization": both}).store_options
        self.assertEqual((options["nvme_paths"], options["no_host_lock"], options["durable"]), (["/a"], True, True))
        in_host_memory = read_config(
            {"zero_optimization": {"stage": 2, "offload_optimizer": offload}, "terrace": {"durable": True}}
        )
        self.assertEqual((in_host_memory.store_options["durable"], in_host_memory.without_effect), (False, []))
        both["offload_optimizer"]["nvme_path"] = "/b"
        self.refused({"zero_optimization": both}, "zero_optimization.offload_optimizer.nvme_path")
        old = read_config({"zero_optimization": {"stage": 2, "cpu_offload": True}}).store_options
        self.assertEqual((old["parameters"], old["states"]), ("device", "cpu"))
        self.refused(
            {"zero_optimization": {"stage": 2, "cpu_offload": True, "offload_optimizer": {"device": "none"}}},
            "zero_optimization.offload_optimizer.device",
        )

    def test_precision_and_its_moments(self):
        self.assertEqual(read_config({"bf16": {"enabled": "auto"}}, 9).precision, "bf16")
        both = {"bf16": {"enabled": "auto"}, "fp16": {"enabled": True, "loss_scale": 8}}
        self.assertEqual(read_config(both, 9).precision, "fp16")
        self.assertEqual(read_config(both, 9).loss_scale.loss_scale, 8)
        self.refused({"bf16": {"enabled": True}, "fp16": {"enabled": True}}, "fp16.enabled")
        small = {"bf16": {"enabled": True, "bf16_optimizer_states": True}}
        self.assertEqual(read_config(small).store_options["moment_type"], "bf16")
        for kind in ("fp32", "bf16", "int8"):
            self.assertEqual(read_config({"terrace": {"state_type": kind}}).store_options["moment_type"], kind)
        self.refused({"terrace": {"state_type": "int4"}}, "terrace.state_type")
        self.refused({**small, "terrace": {"state_type": "int8"}}, "terrace.state_type")
        self.refused({"data_types": {"grad_accum_dtype": "bf16"}}, "data_types.grad_accum_dtype")

    def test_optimizers_have_their_own_keys_and_defaults(self):
        def optimizer(kind, **params):
            return read_config({"optimizer": {"type": kind, "params": params}}).optimizer

        self.assertEqual(optimizer("AdamW"), terrace.Optimizer("adamw"))
        self.assertEqual(optimizer("adam", adam_w_mode=False).kind, "adam")
        self.assertEqual(optimizer("Lion"), terrace.Optimizer("lion"))
        self.assertEqual(optimizer("Adagrad"), terrace.Optimizer("adagrad", lr=0.01))
        self.assertEqual(optimizer("SGD", momentum=0.9, nesterov=True).momentum, 0.9)
        self.assertEqual(optimizer("AdamW", lr="auto", betas="auto").lr, 5e-5)
        self.refused({"optimizer": {"type": "AdamW", "params": {"momentum": 0.5}}}, "optimizer.params.momentum")
        self.refused({"optimizer": {"type": "SGD", "params": {"nesterov": True}}}, "optimizer.params.nesterov")
        self.refused({"optimizer": {"type": "Adam8bit"}}, "optimizer.type")
        self.refused({"optimizer": {"params": {"betas": [0.9]}}}, "optimizer.params.betas")

    def test_values_have_their_ranges(self):
        for config, subject in (
            ({"gradient_clipping": -1}, "gradient_clipping"),
            ({"gradient_clipping": True}, "gradient_clipping"),
            ({"train_batch_size": 1.5}, "train_batch_size"),
            ({"optimizer": {"params": {"betas": [0.9, 1.0]}}}, "optimizer.params.betas"),
            ({"terrace": {"host_memory": "1 GiBB"}}, "terrace.host_memory"),
            ({"zero_optimization": {"stage": 4}}, "zero_optimization.stage"),
            ({"terrace": {"frozen": "*"}}, "terrace.frozen"),
            ({"terrace": {"lora": {}}}, "terrace.lora"),
        ):
            self.refused(config, subject)
        options = read_config({"terrace": {"host_memory": "1.5GiB"}, "zero_optimization": {"sub_group_size": 5e8}})
        self.assertEqual((options.store_options["host_bytes"], options.sub_group_size), (3 << 29, 500_000_000))

    def test_chunks_are_no_larger_than_a_sub_group(self):
        config = read_config(
            {"zero_optimization": {"sub_group_size": 5000}, "terrace": {"device_memory": "4MiB", "host_memory": "8MiB"}}
        )
        described = [terrace.Tensor("w", (64, 1024))]
        self.assertEqual(config.options_for(described)["chunk_elements"], 4096)
        with terrace.Store(described, config.device(), **config.options_for(described)) as store:
            self.assertEqual(store.plan.chunk_elements, 4096)
        self.assertNotIn("chunk_elements", read_config({}).options_for(tensors(), terrace.SimulatedDevice(MIB)))


class Schedules(unittest.TestCase):
    def schedule(self, kind, total=None, **params):
        return read_config({"scheduler": {"type": kind, "params": params}}, total).schedule

    def test_each_follows_its_formula(self):
        warmup = self.schedule("WarmupLR", warmup_num_steps=10, warmup_type="linear", warmup_max_lr=1.0)
        self.assertEqual([warmup.lr(k) for k in (0, 1, 6, 11, 99)], [0.0, 0.0, 0.5, 1.0, 1.0])
        logs = self.schedule("WarmupLR", warmup_num_steps=10, warmup_max_lr=1.0)
        self.assertEqual(logs.lr(5), 1 / math.log(10) * math.log(5.0))
        decay = self.schedule("WarmupDecayLR", warmup_num_steps=2, total_num_steps=6, warmup_max_lr=1.0)
        self.assertEqual([decay.lr(k) for k in (3, 5, 7, 9)], [1.0, 0.5, 0.0, 0.0])
        cosine = self.schedule("WarmupCosineLR", 6, warmup_num_steps=2, cos_min_ratio=0.5)
        self.assertEqual(cosine.lr(99, base_lr=2.0), 1.0)
        self.assertEqual(self.schedule("linear", 4).lr(1, base_lr=1.0), 0.75)
        stairs = self.schedule(
            "LRRangeTest", lr_range_test_min_lr=0.5, lr_range_test_step_size=2, lr_range_test_staircase=True
        )
        self.assertEqual([stairs.lr(k) for k in range(5)], [0.5, 0.5, 1.0, 1.0, 1.5])
        cycle = self.schedule("OneCycle", cycle_min_lr=0.0, cycle_max_lr=1.0, cycle_first_step_size=4)
        self.assertEqual([cycle.lr(k) for k in (0, 1, 2, 4, 6, 8, 20)], [0.0, 0.25, 0.5, 1.0, 0.5, 0.0, 0.0])
        self.assertEqual([cycle.betas(k)[0] for k in (0, 4, 20)], [0.8, 0.8, 0.9])

    def test_schedules_that_end_need_an_end(self):
        with self.assertRaisesRegex(terrace.ConfigError, "total_num_steps"):
            self.schedule("linear")
        with self.assertRaisesRegex(terrace.ConfigError, "cycle_min_lr"):
            self.schedule("OneCycle")
        with self.assertRaisesRegex(terrace.ConfigError, "it belongs to LRRangeTest"):
            self.schedule("WarmupLR", lr_range_test_min_lr=1.0)

    def test_a_group_without_a_rate_is_refused(self):
        schedule = self.schedule("WarmupLR", warmup_num_steps=2, warmup_max_lr=[1.0, 2.0])
        self.assertEqual([schedule.lr(9, group) for group in (0, 1)], [1.0, 2.0])
        with self.assertRaisesRegex(terrace.ConfigError, "parameter group 2"):
            schedule.lr(9, 2)

    def test_what_has_no_key_of_its_own_is_a_warning(self):
        config = read_config({"scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": 5}}})
        self.assertRegex(config.warnings[0], "less than the 1000 steps of warm-up")
        self.assertEqual(config.values["scheduler.params.total_num_steps"], 5)

    def test_the_optimizer_takes_what_they_set(self):
        rates = {"cycle_min_lr": 0.5, "cycle_max_lr": 1}
        config = read_config({"scheduler": {"type": "OneCycle", "params": rates}})
        self.assertEqual(config.optimizer_at(0), terrace.Optimizer(lr=0.5, betas=(0.8, 0.99)))
        self.assertEqual(config.optimizer_at(1000).lr, 0.75)
        self.assertEqual(read_config({}).optimizer_at(7), terrace.Optimizer())


if __name__ == "__main__":
    unittest.main()
