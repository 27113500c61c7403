"""The runs that pictures are made of. Each takes Runs, which knows the program and a folder that is removed at the end."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from drawing import ROOT, THEMES

QUICKSTART = ROOT / "python/terrace/quickstart.json"


class Runs:
    def __init__(self, program, folder):
        self.program = str(Path(program).resolve())
        self.folder = Path(folder)
        self.text = self.folder / "text"
        self.text.mkdir()
        for page in sorted((ROOT / "docs").glob("*.md")):
            shutil.copy(page, self.text)

    def call(self, command, **environment):
        subprocess.run(
            [str(word) for word in command], check=True, stdout=subprocess.DEVNULL, env=dict(os.environ, **environment)
        )

    def train(self, name, *flags, before=()):
        """Trains on the pages of docs/ and returns the lines of the log. `before` stands before `train`."""
        log = self.folder / f"{name}.jsonl"
        self.call([self.program, *before, "train", "--data", self.text, "--log", log, *flags])
        return lines_of(log)


def lines_of(log):
    return [json.loads(line) for line in log.read_text().splitlines()]


def last(lines, event):
    return [line for line in lines if line["event"] == event][-1]


def run_memory(runs):
    """The quickstart: 22.3 M parameters in budgets that are smaller than they and a third of their states."""
    log = runs.folder / "quickstart.jsonl"
    runs.call(
        [
            sys.executable,
            "-m",
            "terrace.quickstart",
            "--steps",
            40,
            "--log",
            log,
            "--report",
            runs.folder / "quickstart.html",
        ],
        PYTHONPATH=str(ROOT / "python"),
        TERRACE_PROGRAM=runs.program,
    )
    lines = lines_of(log)
    return {"picture": last(lines, "picture")["picture"], "tiers": last(lines, "memory")["tiers"]}


def run_losses(runs):
    """A small model with everything on the device, in host memory and on nvme, and there with two ranks. The budgets with nvme
    hold no state: it comes from there in every step, and with one rank so do parameters and gradients."""
    curves = []
    for name, place, host_memory, before in (
        ("all on the device", "none", "16MiB", ()),
        ("all in host memory", "cpu", "16MiB", ()),
        ("all on nvme", "nvme", "1MiB", ()),
        ("all on nvme, two ranks", "nvme", "900KiB", ("launch", "-n", 2, "--")),
    ):
        key = name.replace(" ", "-").replace(",", "")
        nvme = runs.folder / key
        nvme.mkdir()
        home = {"device": place, **({"nvme_path": str(nvme)} if place == "nvme" else {})}
        config = {
            "train_batch_size": 4,
            "train_micro_batch_size_per_gpu": 2,
            "bf16": {"enabled": True},
            "optimizer": {"type": "AdamW", "params": {"lr": 2e-3}},
            "zero_optimization": {"stage": 3, "offload_param": home, "offload_optimizer": home},
        }
        (runs.folder / f"{key}.json").write_text(json.dumps(config))
        shape = ("--model", "gpt2", "--layers", 2, "--width", 64, "--heads", 4, "--context", 64, "--steps", 150)
        budgets = (
            "--device-memory",
            "32MiB" if place == "none" else "1600KiB",
            "--host-memory",
            host_memory,
            "--threads",
            1,
        )
        lines = runs.train(key, *shape, *budgets, "--config", runs.folder / f"{key}.json", before=before)
        curves.append((name, [line["loss"] for line in lines if line["event"] == "step"]))
    return {"curves": curves}


def run_ranks(runs):
    """Four ranks on two hosts, each a network namespace of this machine (bench/on_hosts: root, ip, Open MPI)."""
    config = {
        "train_batch_size": 8,
        "train_micro_batch_size_per_gpu": 2,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}, "offload_optimizer": {"device": "cpu"}},
    }
    file, log, trace = (runs.folder / name for name in ("ranks.json", "ranks.jsonl", "trace.json"))
    file.write_text(json.dumps(config))
    shape = ("--model", "gpt2", "--layers", 4, "--width", 128, "--heads", 4, "--context", 64, "--steps", 6)
    budgets = ("--device-memory", "4MiB", "--host-memory", "24MiB", "--threads", 1)
    train = ("train", *shape, *budgets, "--data", runs.text, "--config", file, "--log", log, "--trace", trace)
    launch = (runs.program, "launch", "--hostfile", "hosts", "--", *train, "--trace-steps", 5)
    runs.call([ROOT / "bench/on_hosts", runs.folder / "hosts", 2, 2, "--", *launch])
    step = next(line for line in lines_of(log) if line["event"] == "step" and line["step"] == 5)
    check_ranks(step, json.loads(trace.read_text())["traceEvents"])
    return step


def check_ranks(step, events):
    """The log has what the first rank received. A picture that says so of all needs them to be alike: the trace knows."""
    for lane in ("gather", "exchange"):
        received = {}
        for event in events:
            if event.get("args", {}).get("link") == lane and event["args"]["step"] == step["step"]:
                received[event["pid"]] = received.get(event["pid"], 0) + event["args"]["bytes"]
        if len(received) != 4 or set(received.values()) != {step[f"{lane}_in_bytes"]}:
            sys.exit(
                f"ranks did not receive alike: {received} bytes of {lane}, and {step[f'{lane}_in_bytes']} in the log"
            )


def photograph_page(runs, folder):
    """The top of the page of a run whose parameters and states are on nvme, as a browser shows it in either colours."""
    nvme, page = runs.folder / "nvme", runs.folder / "run.html"
    nvme.mkdir()
    shape = ("--model", "gpt2", "--layers", 4, "--width", 128, "--heads", 4, "--context", 128, "--steps", 300)
    kept = ("--eval-every", 50, "--commit-every", 60, "--report", page, "--config", QUICKSTART, "--nvme-path", nvme)
    runs.train("page", *shape, *kept, "--device-memory", "4MiB", "--host-memory", "8MiB")
    for theme in THEMES:
        runs.call(
            "chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --window-size=900,920".split()
            + [f"--blink-settings=preferredColorScheme={THEMES[::-1].index(theme)}", "--virtual-time-budget=8000"]
            + [f"--screenshot={folder / f'report_{theme}.png'}", page.as_uri()]
        )
