"""Calm runs, and the comparison of what another run left with theirs, bit for bit."""

import json
import random
import signal
import subprocess
import threading

from trials.setting import TIMEOUT_SECONDS, Failure, environment


def make_text(path):
    words = "the water of a river runs down to the sea and comes back as rain".split()
    chosen = random.Random(7)
    path.write_text("".join(chosen.choice(words) + (".\n" if i % 11 == 10 else " ") for i in range(4000)))


def run(flags, folder, seconds=TIMEOUT_SECONDS):
    """Runs to the end; returns the exit status and stderr. A run that takes too long is killed, and is a Failure."""
    (folder / "runtime").mkdir(mode=0o700, exist_ok=True)
    try:
        ended = subprocess.run(flags, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=seconds,
                               env=environment(folder / "runtime"), errors="replace")
    except subprocess.TimeoutExpired:
        raise Failure("HANG", f"no end within {seconds} s")
    return ended.returncode, ended.stderr


def demand_status(status, allowed, stderr):
    if status not in allowed:
        name = signal.Signals(-status).name if status < 0 else status
        raise Failure("BAD EXIT", f"ended with {name}: " + stderr[-2000:])


def events_of(path):
    """The objects of a log of steps; half a line of a killed run is passed over."""
    events = []
    if path.exists():
        for line in path.read_text().split("\n"):
            try:
                events.append(json.loads(line))
            except json.JSONDecodeError:
                pass
    return events


def numbers_of(event):
    return tuple(event[key] for key in ("loss", "gradient_norm", "lr", "tokens", "skipped", "loss_scale"))


def state_of(folder):
    """The bytes of a checkpoint but for its manifest, which may name settings."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.suffix == ".bin"}


class Calm:
    """What a run left that nothing disturbed, with everything in memory."""

    def __init__(self, setting, folder):
        folder.mkdir()
        self.last_step = setting.steps
        flags = setting.calm_flags(folder) + ["--save", str(folder / "saved"), "--log", str(folder / "log.jsonl")]
        status, stderr = run(flags, folder)
        if status != 0:
            raise Failure("BAD EXIT", "a calm run failed: " + stderr)
        self.steps = {e["step"]: numbers_of(e) for e in events_of(folder / "log.jsonl") if e["event"] == "step"}
        self.state = state_of(folder / "saved" / f"step-{setting.steps:08d}")
        if len(self.steps) != setting.steps or not self.state:
            raise Failure("BAD EXIT", "the calm run is not complete")

    def compare_log(self, path, durable_leads=True, complete=True):
        """Every step of every run that wrote the log must be that of the calm run, and follow the step before it; what was
        durable must lead on unless the disk lied. Returns the steps that each resumed run had to train again."""
        done, durable, lost_steps, first = 0, 0, [], True
        for event in events_of(path):
            kind, step = event["event"], event["step"]
            if kind == "start":
                if durable_leads and step < durable:
                    raise Failure("LOST", f"resumed at step {step} although step {durable} was durable")
                if not first:
                    lost_steps.append(max(0, done - step))
                done, first = step, False
            elif kind == "step":
                if step != done + 1:
                    raise Failure("WRONG", f"step {step} after step {done}")
                if numbers_of(event) != self.steps[step]:
                    raise Failure("WRONG", f"step {step} gave {numbers_of(event)}, not {self.steps[step]}")
                done = step
            elif kind in ("epoch", "checkpoint"):
                durable = max(durable, step)
        if complete and done != self.last_step:
            raise Failure("WRONG", f"the log ends at step {done}")
        return lost_steps

    def compare_state(self, saved):
        last = saved / f"step-{self.last_step:08d}"
        if not last.is_dir():
            raise Failure("WRONG", f"{last.name} is missing")
        if state_of(last) != self.state:
            raise Failure("WRONG", "the final state differs")


class CalmRuns:
    """One calm run for all settings of the same numbers, made when it is first asked for; used by several threads."""

    def __init__(self, folder):
        self.folder = folder
        self.runs = {}
        self.lock = threading.Lock()

    def of(self, setting):
        with self.lock:
            key = (setting.steps, setting.numbers())
            if key not in self.runs:
                self.runs[key] = Calm(setting, self.folder / f"calm-{len(self.runs)}")
            return self.runs[key]
