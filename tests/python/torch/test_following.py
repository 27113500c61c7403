"""Who follows a run of the engine: the log of its steps, `terrace ctl` and what its answers do, and a training that is the
same whether anybody looks."""

import contextlib
import json
import os
import pathlib
import resource
import socket
import subprocess
import tempfile
import threading
import warnings

from support_torch import (
    EngineTest,
    Gpt,
    Mlp,
    batch_of,
    config_of,
    engine_of,
    isolated,
    loss_of,
    masters,
    seeded,
    terrace,
    train,
    unittest,
)


class Following(EngineTest):
    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory()
        self.addCleanup(self.scratch.cleanup)
        self.folder = pathlib.Path(self.scratch.name)
        self.log = self.folder / "steps.jsonl"
        (self.folder / "nvme").mkdir()

    def lines(self, event=None):
        found = [json.loads(line) for line in self.log.read_text().splitlines()]
        return [line for line in found if event is None or line["event"] == event]

    def reported(self, *options):
        """What `terrace report` says of the log."""
        program = os.environ.get("TERRACE_PROGRAM", "")
        if not os.path.exists(program):
            self.skipTest("TERRACE_PROGRAM does not name the program terrace")
        command = [program, "report", str(self.log), *options]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    def durable(self, **section):
        section = {"durable": True, "commit_every_steps": 0, "commit_every_seconds": 0, **section}
        return config_of(states="nvme", folder=self.folder / "nvme", **section)

    @isolated
    def test_every_step_has_a_line_with_what_the_loop_saw(self):
        with engine_of(seeded(Mlp), config_of(accumulation=2), step_log=self.log, total_steps=9) as engine:
            told = train(engine, 3)
        start = self.lines()[0]
        self.assertEqual((start["event"], start["step"], start["steps"]), ("start", 0, 9))
        self.assertIn("Mlp", start["model"])
        steps = self.lines("step")
        self.assertEqual([line["step"] for line in steps], [1, 2, 3])
        for line, (losses, norm) in zip(steps, told):
            self.assertAlmostEqual(line["loss"], sum(losses) / 2, delta=1e-6 * abs(line["loss"]))
            self.assertEqual(line["gradient_norm"], norm)
            self.assertEqual(line["lr"], 1e-2)
            self.assertEqual(line["skipped"], False)
            self.assertGreater(line["h2d_bytes"], 0)
            self.assertGreater(line["update_seconds"], 0)
            # Every nanosecond has one cause.
            self.assertAlmostEqual(sum(line["time_ns"].values()) * 1e-9, line["seconds"], delta=1e-9)
        self.assertEqual(self.lines()[-1], {"event": "end", "step": 3, "stopped_by": None})

    @isolated
    def test_the_program_makes_the_report_and_the_page_of_the_log(self):
        with engine_of(seeded(Gpt), self.durable(), step_log=self.log, total_steps=9) as engine:
            train(engine, 3, run=engine)
            engine.commit()
        page = self.folder / "run.html"
        report = json.loads(self.reported("--json", "--page", str(page)))
        steps = self.lines("step")
        self.assertEqual((report["steps"], report["planned_steps"], report["completed_steps"]), (3, 9, 3))
        self.assertEqual(report["tokens"], sum(line["tokens"] for line in steps))
        self.assertEqual(report["last_training_loss"], steps[-1]["loss"])
        self.assertEqual([tier["tier"] for tier in report["tiers"]], ["device", "host", "nvme"])
        self.assertTrue(all(tier["peak_bytes"] > 0 for tier in report["tiers"]))
        self.assertGreater(report["process_pss_bytes"], 0)
        links = {link["link"]: link for link in report["links"]}
        for name in ("h2d", "d2h", "record_read", "record_write"):
            self.assertEqual(links[name]["bytes"], sum(line[name + "_bytes"] for line in steps))
        self.assertGreater(links["h2d"]["least_bytes_per_step"], 0)
        # The page has the same, and the configuration of the run.
        text = page.read_text().split('id="data">', 1)[1].split("</script>")[0]
        data = json.loads(text)
        self.assertEqual(data["state"], "complete")
        self.assertEqual(data["totals"]["steps"], 3)
        self.assertEqual(data["series"]["loss"]["mean"], [line["loss"] for line in steps])
        self.assertEqual([tier["name"] for tier in data["memory"]["tiers"]], ["device", "host", "nvme"])
        self.assertIn("optimizer.params.lr", [row[0] for row in data["header"]["configuration"]])

    @isolated
    def test_the_report_of_what_is_no_text_speaks_of_steps(self):
        with engine_of(seeded(Mlp), step_log=self.log) as engine:
            train(engine, 2, run=engine)
        last = self.reported().splitlines()[-2:]
        self.assertRegex(last[0], r"^2 steps done, 2 in this run: .*, [\d.e+]+ steps/s$")
        self.assertEqual(last[1], f"training loss of step 2: {self.lines('step')[-1]['loss']:.4f}")

    @isolated
    def test_tokens_are_those_of_batches_of_token_ids(self):
        with engine_of(seeded(Gpt), step_log=self.log) as engine:
            train(engine, 2, run=engine)
        self.assertEqual([line["tokens"] for line in self.lines("step")], [24, 24])
        self.assertTrue(all(line["forward_seconds"] > 0 for line in self.lines("step")))

    @isolated
    def test_a_loop_of_torch_alone_is_followed_too(self):
        with engine_of(seeded(Mlp), step_log=self.log) as engine:
            for step in range(2):
                loss_of(engine.module, batch_of(engine.module, step)).backward()
                engine.optimizer.step()
                engine.optimizer.zero_grad()
        self.assertEqual([line["step"] for line in self.lines("step")], [1, 2])
        self.assertEqual([line["loss"] for line in self.lines("step")], [None, None])  # nobody has said it

    @isolated
    def test_nobody_who_looks_changes_a_number(self):
        alone = engine_of(seeded(Mlp))
        followed = engine_of(seeded(Mlp), step_log=self.log, control=self.folder / "control")
        self.assertEqual(train(alone, 3), train(followed, 3))
        self.assertEqual(masters(alone), masters(followed))

    @isolated
    def test_monitors_of_the_configuration_get_the_scalars_of_every_update(self):
        monitors = {
            name: {"enabled": True, "output_path": str(self.folder), "job_name": name}
            for name in ("tensorboard", "csv_monitor")
        }
        config = dict(
            config_of(accumulation=2), train_micro_batch_size_per_gpu=4, wall_clock_breakdown=True, **monitors
        )
        with engine_of(seeded(Mlp), config) as engine:
            told = train(engine, 3)
        files = {path.name: path.read_text().split() for path in (self.folder / "csv_monitor").rglob("*.csv")}
        self.assertEqual(
            sorted(name.removeprefix("Train_Samples_") for name in files),
            [f"elapsed_time_ms_{part}.csv" for part in ("backward", "forward", "step")]
            + ["gradient_norm.csv", "lr.csv", "train_loss.csv"],
        )
        norms = [row.split(",") for row in files["Train_Samples_gradient_norm.csv"][-3:]]
        self.assertEqual([row[0] for row in norms], ["8", "16", "24"])  # sequences seen
        for row, (_, norm) in zip(norms, told):
            self.assertAlmostEqual(float(row[1]), norm, delta=1e-6 * norm)
        self.assertTrue(list((self.folder / "tensorboard").rglob("events.out.tfevents*")))
        # Those of another run are not mixed with these: its first step is refused, and nothing of it is done.
        model = seeded(Mlp)
        other = engine_of(model, config)
        self.raised(terrace.ConfigError, train, other, 1)
        other.close(keep_values=True)
        self.assertEqual(train(engine_of(model), 1), train(engine_of(seeded(Mlp)), 1))

    @isolated
    def test_a_checkpoint_goes_on_in_the_files_of_its_run(self):
        monitor = {"csv_monitor": {"enabled": True, "output_path": str(self.folder), "job_name": "csv"}}
        config = dict(config_of(), train_micro_batch_size_per_gpu=4, **monitor)
        with engine_of(seeded(Mlp), config, step_log=self.log) as engine:
            train(engine, 2)
            engine.save_checkpoint(self.folder / "saves")
            train(engine, 1, first=2)
        with engine_of(seeded(Mlp), config, step_log=self.log) as engine:
            engine.load_checkpoint(self.folder / "saves")
            train(engine, 2, first=2)
        rows = next((self.folder / "csv").rglob("*_lr.csv")).read_text().split()[1:]
        self.assertEqual([row.split(",")[0] for row in rows], ["4", "8", "12", "16"])
        self.assertEqual([line["step"] for line in self.lines("start")], [0, 2])
        self.assertEqual([line["step"] for line in self.lines("step")], [1, 2, 3, 3, 4])

    @isolated
    def test_commits_and_checkpoints_have_lines(self):
        with engine_of(seeded(Mlp), self.durable(), step_log=self.log) as engine:
            train(engine, 1)
            engine.commit()
            engine.finish_commit()
            train(engine, 1, first=1)
            engine.save_checkpoint(self.folder / "saves")
        self.assertEqual(self.lines("commit"), [{"event": "commit", "step": 1}])
        self.assertEqual(
            self.lines("checkpoint"),
            [{"event": "checkpoint", "step": 2, "folder": str(self.folder / "saves" / "global_step2")}],
        )

    @isolated
    def test_a_run_that_is_resumed_goes_on_in_the_file(self):
        with engine_of(seeded(Mlp), self.durable(), step_log=self.log) as engine:
            train(engine, 2)
            engine.commit()
        with engine_of(seeded(Mlp), self.durable(), step_log=self.log, resume=True) as engine:
            train(engine, 1, first=2)
        self.assertEqual([line["step"] for line in self.lines("start")], [0, 2])
        self.assertEqual([line["step"] for line in self.lines("step")], [1, 2, 3])

    @isolated
    def test_a_run_that_fails_says_so_in_its_last_line(self):
        with self.assertRaises(ZeroDivisionError), engine_of(seeded(Mlp), step_log=self.log) as engine:
            train(engine, 1)
            1 / 0  # noqa: B018
        last = self.lines()[-1]
        self.assertEqual((last["event"], last["step"]), ("failed", 1))
        self.assertIn("ZeroDivisionError", last["failure"])
        self.assertTrue(last["survives"])

    @isolated
    def test_a_log_that_cannot_be_opened_is_an_error_and_leaves_the_model(self):
        model = seeded(Mlp)
        error = self.raised(terrace.IoError, engine_of, model, step_log=self.folder / "nowhere" / "log")
        self.assertIn("nowhere", error.subject)
        self.assertEqual(train(engine_of(model), 1), train(engine_of(seeded(Mlp)), 1))

    @isolated
    def test_a_log_that_takes_no_more_ends_and_the_training_goes_on(self):
        said = []
        alone = engine_of(seeded(Mlp))
        engine = engine_of(seeded(Mlp), step_log=self.log, log=lambda level, line: said.append((level, line)))
        told = train(engine, 1)
        most = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
        resource.setrlimit(resource.RLIMIT_FSIZE, (self.log.stat().st_size + 10, most))
        told += train(engine, 2, first=1)
        self.assertEqual(told, train(alone, 3))
        self.assertEqual(len([line for level, line in said if level == "error" and "not followed" in line]), 1, said)

    @isolated
    def test_a_log_that_takes_no_more_costs_no_checkpoint_and_no_commit(self):
        for keep in ("checkpoint", "commit"):
            said = []
            engine = engine_of(
                seeded(Mlp),
                self.durable(),
                step_log=self.log,
                discard_commits=True,
                log=lambda level, line, said=said: said.append((level, line)),
            )
            train(engine, 1)
            engine.commit({"number": 1})
            first = engine.finish_commit()
            full = os.open("/dev/full", os.O_WRONLY)
            for number in os.listdir("/proc/self/fd"):
                with contextlib.suppress(OSError):
                    if os.readlink(f"/proc/self/fd/{number}") == str(self.log):
                        os.dup2(full, int(number))
            if keep == "checkpoint":
                engine.save_checkpoint(self.folder / "saves")
            else:
                engine.commit({"number": 2})
                self.assertEqual(engine.client_state, {"number": 2})
                self.assertEqual(engine.finish_commit(), first + 1)
            self.assertEqual(len([line for level, line in said if "not followed" in line]), 1, said)
            train(engine, 1, first=1)
            engine.close()
        self.assertTrue((self.folder / "saves" / "global_step1" / "manifest.json").exists())


class Control(EngineTest):
    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory()
        self.addCleanup(self.scratch.cleanup)
        self.folder = pathlib.Path(self.scratch.name)
        (self.folder / "nvme").mkdir()

    def engine(self, **named):
        config = config_of(
            states="nvme", folder=self.folder / "nvme", durable=True, commit_every_steps=0, commit_every_seconds=0
        )
        return engine_of(seeded(Mlp), config, control=self.folder / "control", **named)

    def ask(self, engine, step, **request):
        """The answer to a request, while the engine trains from `step` on; and how many steps it took."""
        answer = []

        def wait():
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(str(next((self.folder / "control").glob("*"))))
                client.sendall(json.dumps({"terrace": 1, **request}).encode() + b"\n")
                answer.append(json.loads(client.makefile().readline()))

        thread = threading.Thread(target=wait)
        thread.start()
        steps = 0
        while thread.is_alive():
            train(engine, 1, first=step + steps)
            steps += 1
        thread.join()
        return answer[0], steps

    @isolated
    def test_status_budget_save_and_stop(self):
        with warnings.catch_warnings(record=True) as said, self.engine() as engine:
            warnings.simplefilter("always")
            train(engine, 2)
            done = 2
            answer, steps = self.ask(engine, done, command="status")
            done += steps
            self.assertTrue(answer["ok"], answer)
            self.assertIn("Mlp", answer["status"]["model"])
            self.assertGreaterEqual(answer["status"]["step"], 2)
            least = engine.store.host_budget[1]
            answer, steps = self.ask(engine, done, command="set", key="host-memory", value=least)
            done += steps
            self.assertTrue(answer["ok"], answer)
            self.assertEqual(engine.store.host_budget[0], least)
            self.assertEqual(engine.store.last_commit, 0)
            answer, steps = self.ask(engine, done, command="save")
            done += steps
            self.assertEqual((answer["ok"], answer["commit"], answer["checkpoint"]), (True, True, False))
            train(engine, 1, first=done)
            self.assertGreater(engine.finish_commit(), 0)
            self.assertFalse(engine.stop_requested)
            answer, steps = self.ask(engine, done + 1, command="stop")
            self.assertTrue(answer["ok"], answer)
            train(engine, 1, first=done + steps + 1)
            self.assertTrue(engine.stop_requested)
        self.assertTrue(any("engine.stop_requested" in str(one.message) for one in said))
        self.assertEqual(list((self.folder / "control").iterdir()), [])

    @isolated
    def test_a_save_that_nothing_could_keep_is_refused(self):
        with engine_of(seeded(Mlp), control=self.folder / "control") as engine:
            train(engine, 1)
            answer, _ = self.ask(engine, 1, command="save")
        self.assertFalse(answer["ok"])

    @isolated
    def test_a_child_of_a_fork_leaves_the_run_alone(self):
        with self.engine() as engine:
            train(engine, 1)
            child = os.fork()
            if not child:
                del engine
                os._exit(0)
            self.assertEqual(os.waitpid(child, 0)[1], 0)
            answer, _ = self.ask(engine, 1, command="status")
            self.assertTrue(answer["ok"])


if __name__ == "__main__":
    unittest.main()
