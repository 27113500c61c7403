"""`wandb` and `comet` of the configuration: the scalars of csv_monitor, to packages that play theirs."""

import os
import pathlib
import sys
import tempfile
import unittest

from played_services import Played
from ranks_torch import RanksTest, train_ranks
from support_torch import Mlp, config_of, engine_of, isolated, masters, seeded, terrace, train

LOSS = "Train/Samples/train_loss"


class Services(RanksTest):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)
        self.said = []

    def play(self, **named):
        sys.path.insert(0, str(self.folder))
        for package in ("wandb", "comet_ml"):
            sys.modules.pop(package, None)
        return Played(self.folder, **named)

    def config(self, accumulation=1, **sections):
        return dict(config_of(accumulation=accumulation), train_micro_batch_size_per_gpu=4, **sections)

    def engine(self, *arguments, log=None, **named):
        return engine_of(*arguments, log=log or (lambda level, line: self.said.append(line)), **named)

    @isolated
    def test_wandb_gets_what_the_files_get(self):
        played = self.play()
        csv = {"enabled": True, "output_path": str(self.folder), "job_name": "csv"}
        wandb = {"enabled": True, "group": "g", "team": "t", "project": "p"}
        config = self.config(2, csv_monitor=csv, wandb=wandb, wall_clock_breakdown=True)
        with self.engine(seeded(Mlp), config) as engine:
            train(engine, 3)
            engine.following.evaluated(0.5)
        self.assertEqual(
            [one["given"] for one in played.calls("init")], [{"project": "p", "group": "g", "entity": "t"}]
        )
        told = [(one["step"], one["scalars"]) for one in played.calls("log")]
        self.assertEqual([step for step, _ in told], [8, 16, 24, 24])  # sequences seen
        tags = {tag for _, scalars in told for tag in scalars}
        files = {path.stem: path.read_text().split()[-3:] for path in (self.folder / "csv").rglob("*.csv")}
        self.assertEqual({tag.replace("/", "_") for tag in tags}, set(files))
        for tag in tags - {"Validation/Samples/loss"}:
            rows = [f"{step},{scalars[tag]}" for step, scalars in told if tag in scalars]
            for row, line in zip(rows, files[tag.replace("/", "_")], strict=True):
                self.assertEqual([float(part) for part in row.split(",")], [float(part) for part in line.split(",")])
        self.assertEqual([one["exit_code"] for one in played.calls("finish")], [0])
        self.assertEqual(self.said, [])

    @isolated
    def test_comet_gets_them_at_its_interval(self):
        played = self.play()
        given = {
            "samples_log_interval": 8,
            "project": "p",
            "workspace": "w",
            "api_key": "a secret",
            "experiment_name": "n",
            "experiment_key": "k" * 32,
            "online": False,
            "mode": "create",
        }
        log = self.folder / "steps.jsonl"
        with self.engine(seeded(Mlp), self.config(comet=dict(given, enabled=True)), step_log=log) as engine:
            train(engine, 5)
        names = ("project", "workspace", "api_key", "experiment_key", "mode", "online")
        self.assertEqual([one["given"] for one in played.calls("init")], [{name: given[name] for name in names}])
        self.assertEqual([one["name"] for one in played.calls("name")], ["n"])
        self.assertEqual([one["step"] for one in played.calls("log")], [4, 12, 20])
        self.assertTrue(all(LOSS in one["scalars"] for one in played.calls("log")))
        self.assertEqual(len(played.calls("finish")), 1)
        (config,) = played.calls("config")
        self.assertEqual(config["values"]["optimizer.params.lr"], 1e-2)
        for text in (log.read_text(), str(config)):
            self.assertIn("comet.project", text)
            self.assertNotIn("a secret", text)

    @isolated
    def test_what_is_left_out_is_the_services_to_know(self):
        played = self.play()
        both = {"wandb": {"enabled": True}, "comet": {"enabled": True, "project": None}}
        with self.engine(seeded(Mlp), self.config(monitor=both)) as engine:
            train(engine, 1)
        given = [one["given"] for one in played.calls("init")]
        self.assertEqual(given, [{"project": "deepspeed", "group": None, "entity": None}, {"mode": "get_or_create"}])
        self.assertEqual(len(played.calls("log")), 2)

    @isolated
    def test_a_package_that_is_missing_is_an_error_before_anything_is_done(self):
        os.chdir(self.folder)
        sys.path.insert(0, "")
        for section, package in (("wandb", "wandb"), ("comet", "comet_ml")):
            for is_empty in (False, True):
                sys.modules.pop(package, None)
                if is_empty:  # as wandb leaves it in the working folder
                    (self.folder / package).mkdir()
                    sys.path[:] = [
                        "",
                        *[path for path in sys.path if not os.path.exists(f"{path}/{package}/__init__.py")],
                    ]
                else:
                    sys.modules[package] = None  # what cannot be imported, even where it is installed
                model = seeded(Mlp)
                # Nothing is planned yet: what does not fit is not said.
                config = dict(config_of(host_memory="1KiB"), **{section: {"enabled": True}})
                error = self.raised(terrace.ConfigError, engine_of, model, config)
                self.assertEqual(error.subject, f"{section}.enabled")
                self.assertIn(f"the package {package} is not installed", error.reason)
                self.assertEqual(error.advice, f'pip install {package}, or set "enabled": false in {section}')
                for is_on in ({"enabled": False}, {"project": "p"}):
                    self.assertEqual(engine_of(seeded(Mlp), self.config(**{section: is_on})).config.without_effect, [])
                self.assertEqual(train(engine_of(model), 1), train(engine_of(seeded(Mlp)), 1))

    @isolated
    def test_a_service_that_does_not_let_the_user_in_is_an_error_and_leaves_the_model(self):
        self.play(refuses=True)
        model = seeded(Mlp)
        error = self.raised(terrace.ConfigError, engine_of, model, self.config(wandb={"enabled": True}))
        self.assertEqual((error.subject, error.reason), ("wandb.enabled", "RuntimeError: nobody is logged in"))
        self.assertIn("wandb login", error.advice)
        self.assertEqual(train(engine_of(model), 1), train(engine_of(seeded(Mlp)), 1))

    @isolated
    def test_a_service_that_fails_is_named_once_and_the_training_goes_on(self):
        played = self.play(fails_at=8)
        both = {name: {"enabled": True, "samples_log_interval": 0} for name in ("comet",)}
        alone = engine_of(seeded(Mlp), self.config())
        with self.engine(seeded(Mlp), self.config(wandb={"enabled": True}, **both)) as engine:
            self.assertEqual(train(engine, 4), train(alone, 4))
            self.assertEqual(masters(engine), masters(alone))
        steps = [one["step"] for one in played.calls("log")]
        self.assertEqual(steps, [4, 4, 8, 8, 12, 16])  # comet's go on
        self.assertEqual(len(self.said), 1, self.said)
        self.assertIn("nothing more goes to wandb", self.said[0])
        self.assertIn("the service is gone", self.said[0])

    @isolated
    def test_a_run_that_fails_ends_as_failed_there(self):
        played = self.play()
        with (
            self.assertRaises(ZeroDivisionError),
            self.engine(seeded(Mlp), self.config(wandb={"enabled": True})) as engine,
        ):
            train(engine, 1)
            1 / 0  # noqa: B018
        self.assertEqual([one["exit_code"] for one in played.calls("finish")], [1])

    @isolated
    def test_a_run_of_the_program_is_taken_and_left_to_it(self):
        played = self.play()
        import wandb

        wandb.run = wandb.Run()
        with self.engine(seeded(Mlp), self.config(wandb={"enabled": True})) as engine:
            train(engine, 1)
            wandb.run.log({"mine": 1.0}, step=9)
            train(engine, 2, first=1)
        self.assertEqual([one["call"] for one in played.calls()], ["config", "log", "log", "log", "log"])
        self.assertEqual([one["step"] for one in played.calls("log")], [4, 9, 9, 12])  # none behind another

    @isolated
    def test_a_checkpoint_goes_on_behind_the_sequences_seen(self):
        played = self.play()
        config = self.config(wandb={"enabled": True})
        with self.engine(seeded(Mlp), config) as engine:
            train(engine, 2)
            engine.save_checkpoint(self.folder / "saves")
        with self.engine(seeded(Mlp), config) as engine:
            engine.load_checkpoint(self.folder / "saves")
            train(engine, 1, first=2)
        self.assertEqual([one["step"] for one in played.calls("log")], [4, 8, 12])

    def test_of_several_ranks_the_first_one_sends(self):
        def body(rank):
            played = self.play()
            if rank:
                sys.modules["comet_ml"] = None  # the first rank alone needs it
            both = {"wandb": {"enabled": True}, "comet": {"enabled": True, "samples_log_interval": 0}}
            with engine_of(seeded(Mlp), self.config(2, **both), log=lambda level, line: None) as engine:
                train_ranks(engine, 2)
            return played.calls() if not rank else None

        calls = self.on_ranks(2, body)[0]
        self.assertEqual({one["rank"] for one in calls}, {"0"})
        logged = [one for one in calls if one["call"] == "log"]
        self.assertEqual([one["step"] for one in logged], [16, 16, 32, 32])
        self.assertEqual(logged[0]["scalars"][LOSS], logged[1]["scalars"][LOSS])

    def test_what_the_first_rank_cannot_reach_ends_all_of_them(self):
        def body(rank):
            self.play(refuses=True)
            model = seeded(Mlp)
            kind = terrace.PeerError if rank else terrace.ConfigError
            error = self.raised(kind, engine_of, model, self.config(2, wandb={"enabled": True}))
            return error.subject, error.reason

        ends = self.on_ranks(2, body)
        self.assertEqual(ends[0], ("wandb.enabled", "RuntimeError: nobody is logged in"))
        self.assertEqual(ends[1][0], "rank 0 of 2")


if __name__ == "__main__":
    unittest.main()
