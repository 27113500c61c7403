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
        ended = subprocess.run(
            flags,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=seconds,
            env=environment(folder / "runtime"),
            errors="replace",
        )
    except subprocess.TimeoutExpired:
        raise Failure("HANG", f"no end within {seconds} s") from None
    return ended.returncode, ended.stderr


def demand_status(status, allowed, stderr):
    if status not in allowed:
        name = signal.Signals(-status).name if status < 0 else status
        raise Failure("BAD EXIT", f"ended with {name}: " + stderr[-2000:])


def events_of(path):
    """The objects of a log of steps; half a line of a killed run is passed over. A run that begins may make the file and
    remove it again, to see whether it can."""
    events = []
    try:
        text = path.read_text()
    except FileNotFoundError:
        return events
    for line in text.split("\n"):
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


def weights_of(saved):
    return (saved / "weights" / "model.safetensors").read_bytes()


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
        self.weights = weights_of(folder / "saved")
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
            elif kind in ("commit", "checkpoint"):
                durable = max(durable, step)
        if complete and done != self.last_step:
            raise Failure("WRONG", f"the log ends at step {done}")
        return lost_steps

    def compare_saved(self, setting, saved):
        """What a complete run leaves in the folder of its checkpoints."""
        last = saved / f"step-{self.last_step:08d}"
        if not last.is_dir():
            raise Failure("WRONG", f"{last.name} is missing")
        if state_of(last) != self.state:
            raise Failure("WRONG", "the final state differs")
        latest = (saved / "latest").read_text().strip() if (saved / "latest").exists() else "missing"
        if latest != last.name:
            raise Failure("STALE", f"latest is {latest}, not {last.name}")
        if setting.choice["weights folder"] != "none" and (
            not (saved / "weights").is_dir() or weights_of(saved) != self.weights
        ):
            raise Failure("STALE", f"weights are not those of {last.name}")
        left = sorted(
            path.name
            for path in saved.iterdir()
            if path.name not in ("latest", "weights") and not path.name.startswith("step-")
        )
        if left:
            raise Failure("LITTER", f"a complete run left {' '.join(left)} in {saved}")

    def compare_tier(self, folder):
        """What a complete and saved run leaves on nvme: nothing."""
        left = sorted(str(path.relative_to(folder)) for path in folder.glob("nvme*/*"))
        if left:
            raise Failure("LITTER", f"a complete run left {' '.join(left)}")


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
