"""What an engine refuses, it refuses with an error of four parts, and nothing has changed."""

import errno
import os
import pathlib
import resource
import tempfile

from support_torch import EngineTest, Mlp, config_of, engine_of, isolated, seeded, terrace, torch, train


class Saves(EngineTest):
    @isolated
    def test_a_file_that_cannot_grow_is_named_with_the_reason(self):
        engine = engine_of(seeded(Mlp))
        everything = resource.getrlimit(resource.RLIMIT_FSIZE)
        with tempfile.TemporaryDirectory() as folder:
            for save in (engine.save_safetensors, engine.save_16bit_model):
                resource.setrlimit(resource.RLIMIT_FSIZE, (512, everything[1]))
                try:
                    error = self.raised(terrace.IoError, save, folder)
                finally:
                    resource.setrlimit(resource.RLIMIT_FSIZE, everything)
                self.assertEqual(error.reason, os.strerror(errno.EFBIG))
                self.assertEqual(os.path.dirname(error.subject), folder)
                self.assertIn("model.safetensors", error.subject)
                self.assertEqual(os.listdir(folder), [])
            engine.save_safetensors(folder)
            self.assertEqual(os.listdir(folder), ["model.safetensors"])

    @isolated
    def test_a_configuration_that_cannot_be_written_is_named_with_the_reason(self):
        class Configuration:
            def save_pretrained(self, folder):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        engine = engine_of(seeded(Mlp))
        engine.module.config = Configuration()
        with tempfile.TemporaryDirectory() as folder:
            error = self.raised(terrace.IoError, engine.save_safetensors, folder)
            self.assertEqual((error.subject, error.reason), (folder, os.strerror(errno.ENOSPC)))

    @isolated
    def test_weights_of_another_model_are_not_written_over(self):
        engine = engine_of(seeded(Mlp))
        with tempfile.TemporaryDirectory() as folder:
            other = pathlib.Path(folder) / "model.safetensors"
            engine.save_16bit_model(folder)
            engine.save_safetensors(folder, shard_bytes=1 << 10)
            engine.save_safetensors(folder)
            self.assertEqual(os.listdir(folder), [other.name])
            for weights in ("precious", ""):
                other.write_text(weights)
                self.raised(terrace.ConfigError, engine.save_safetensors, folder)
                self.raised(terrace.ConfigError, engine.save_safetensors, folder, shard_bytes=1 << 10)
                self.assertEqual((os.listdir(folder), other.read_text()), ([other.name], weights))
        with tempfile.TemporaryDirectory() as folder:
            engine.save_checkpoint(folder, "one")
            self.raised(terrace.ConfigError, engine.save_safetensors, os.path.join(folder, "one"))
            self.assertEqual(engine.load_checkpoint(folder, "one")[0], os.path.join(folder, "one"))


class Commits(EngineTest):
    @isolated
    def test_a_client_state_that_is_refused_leaves_the_one_before(self):
        circle = []
        circle.append(circle)
        deep = []
        for _ in range(100000):
            deep = [deep]
        with tempfile.TemporaryDirectory() as folder:
            config = config_of("nvme", "nvme", folder, durable=True, commit_every_steps=1, commit_every_seconds=0)
            engine = engine_of(seeded(Mlp), config)
            engine.averaged(0.5)
            engine.commit({"epoch": 1})
            engine.finish_commit()
            averages = os.listdir(os.path.join(folder, "terrace-average"))
            for refused in ({"best": torch.ones(2)}, circle, deep, {"notes": "x" * (1 << 20)}):
                error = self.raised(terrace.ConfigError, engine.commit, refused)
                self.assertEqual(error.subject, "client_state")
                self.assertEqual(engine.client_state, {"epoch": 1})
                self.assertEqual(os.listdir(os.path.join(folder, "terrace-average")), averages)
            self.assertIn("has room for", error.reason)
            train(engine, 2)
            engine.finish_commit()
            engine.close()
            engine = engine_of(seeded(Mlp), config, resume=True)
            self.assertEqual((engine.client_state, engine.global_steps), ({"epoch": 1}, 2))
            engine.store.keep_tier(False)
            engine.close()


class Arguments(EngineTest):
    @isolated
    def test_what_names_no_device_is_refused(self):
        for device in ("foo", "", 1.5, "cpu:x", ["cpu"]):
            with self.subTest(device):
                self.raised(terrace.ConfigError, engine_of, seeded(Mlp), device=device)

    @isolated
    def test_settings_of_a_drop_in_optimizer_that_are_no_numbers_are_refused(self):
        refused = {
            "lr": ("a", None, b"1", [0.1]),
            "eps": ("a",),
            "weight_decay": (None,),
            "betas": ("ab", 5, (0.9,), (0.9, "x"), None),
            "max_grad_norm": ("a", None, -1),
            "accumulation_steps": ("a", None, 0, 1.5),
            "threads": ("a", -1),
            "host_bytes": ("a", -1),
            "path": (5, [5]),
        }
        for name, values in refused.items():
            for value in values:
                with self.subTest(name=name, value=value):
                    more = {"states": "nvme"} if name == "path" else {}
                    parameters = seeded(Mlp).parameters()
                    error = self.raised(
                        terrace.ConfigError, terrace.torch.OffloadAdamW, parameters, **{name: value}, **more
                    )
                    self.assertEqual(error.subject, name)
        momentum = {"momentum": 0.9, "dampening": "a"}
        self.raised(terrace.ConfigError, terrace.torch.OffloadSGD, seeded(Mlp).parameters(), **momentum)

    @isolated
    def test_what_is_no_parameter_is_refused(self):
        engine = engine_of(seeded(Mlp))
        for none in (None, 5, [None], [engine.module, 5]):
            with self.subTest(none):
                self.raised(terrace.ConfigError, engine.gathered(none).__enter__)
                self.raised(terrace.ConfigError, engine.master, none)
        first, *_ = parameters = list(engine.module.parameters())
        with engine.gathered([engine.module, first]):  # modules in a list have their values too
            self.assertFalse(any(one.isnan().any() for one in parameters))

    @isolated
    def test_what_names_no_folder_is_refused(self):
        engine = engine_of(seeded(Mlp))
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            for none in ("", None, b"bytes", 5):
                for call in (
                    lambda: engine.save_checkpoint(none, "t"),
                    lambda: engine.load_checkpoint(none, "t"),
                    lambda: engine.load_checkpoint(none),
                    lambda: engine.save_safetensors(none),
                    lambda: engine.save_16bit_model(none),
                ):
                    self.raised(terrace.ConfigError, call)
            self.raised(terrace.ConfigError, engine.save_16bit_model, folder, None)
            self.assertEqual(os.listdir(folder), [])
            engine.save_checkpoint(".", "t")
            engine.save_checkpoint(pathlib.Path(folder), 5)
            self.assertEqual(sorted(os.listdir(folder)), ["5", "latest", "t"])
            self.assertEqual(engine.load_checkpoint(pathlib.Path(folder), 5)[0], os.path.join(folder, "5"))
            os.chdir("/")

    @isolated
    def test_what_is_no_tag_or_cannot_be_saved_is_refused(self):
        class Unwilling:
            def __reduce__(self):
                raise ZeroDivisionError("not this one")

        engine = engine_of(seeded(Mlp))
        with tempfile.TemporaryDirectory() as folder:
            for tag in (b"bytes", True, ["t"], object()):
                self.raised(terrace.ConfigError, engine.save_checkpoint, folder, tag)
                self.raised(terrace.ConfigError, engine.load_checkpoint, folder, tag)
            for value in (lambda: 1, open, Unwilling(), Mlp):
                error = self.raised(terrace.ConfigError, engine.save_checkpoint, folder, "t", {"f": value})
                self.assertIn("client_state", error.subject)
            self.assertEqual(os.listdir(folder), [])
