"""One long training that commits every 2 steps while its host budget changes and checkpoints are asked for about once a
second, beside a writer that keeps the disk busy. Its losses must be those of a calm run beside it, also after it was
stopped and resumed, and its memory, descriptors and threads must not grow: the last quarter is held against the second, the
most of its memory and the least of the others, of which a checkpoint takes some for a moment."""

import json
import os
import random
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path

from trials.calm import demand_status, numbers_of, run
from trials.campaign import Place, add_place_options
from trials.setting import TIMEOUT_SECONDS, Failure, Setting, environment

STEPS = 100_000_000  # never reached
STEPS_AFTER_RESUME = 20
WRITER_BYTES = 8 << 20
WRITER_PAUSE_SECONDS = 0.2
RESIDENT_GROWTH_BYTES = 2 << 20  # of the log's and the allocator's pages; what leaks with every step is far more
LOOKS_TO_JUDGE = 100  # of what may grow; a shorter run ends before it has done everything once
CHOICE = {
    "engine": "io_uring",
    "threads": "2",
    "paths": "two",
    "parameters": "nvme",
    "states": "plain",
    "update": "next_forward",
    "host memory": "ample",
    "device memory": "least",
    "activations": "none",
    "order": "batch",
    "commit": "every 2 steps",
    "checkpoints": "at the end",
    "weights folder": "none",
    "accumulation": "2",
    "precision": "bf16",
    "clipping": "1",
    "optimizer": "AdamW",
    "weights": "all",
    "disk": "as it is",
}


class Writer(threading.Thread):
    """Writes and syncs a file in turns of a few MiB, as another job on the same disk does."""

    def __init__(self, path):
        super().__init__(daemon=True)
        self.path = path
        self.ended = threading.Event()
        self.written_bytes = 0

    def run(self):
        data = bytes(WRITER_BYTES)
        while not self.ended.wait(WRITER_PAUSE_SECONDS):
            with open(self.path, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            self.written_bytes += WRITER_BYTES


class Steps:
    """The steps of a log that grows, taken up from where the last look ended."""

    def __init__(self, path):
        self.path = path
        self.offset = 0
        self.numbers = {}
        self.commits = 0
        self.checkpoints = 0

    def look(self):
        try:
            file = open(self.path, "rb")
        except FileNotFoundError:
            return
        with file:
            file.seek(self.offset)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self.offset += len(line)
                event = json.loads(line)
                if event["event"] == "step":
                    numbers = numbers_of(event)
                    if self.numbers.setdefault(event["step"], numbers) != numbers:
                        raise Failure("WRONG", f"step {event['step']} gave other numbers the second time")
                self.commits += event["event"] == "commit"
                self.checkpoints += event["event"] == "checkpoint"

    def last(self):
        return max(self.numbers, default=0)


def name_of(task):
    """Of a thread; empty when it has just ended."""
    try:
        return (task / "comm").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


class Job:
    """A training in a process of its own."""

    def __init__(self, flags, folder):
        (folder / "runtime").mkdir(mode=0o700, exist_ok=True)
        self.environment = environment(folder / "runtime")
        self.stderr = folder / "stderr"
        with open(self.stderr, "w") as stderr:
            self.process = subprocess.Popen(
                flags, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=stderr, env=self.environment
            )

    def usage(self):
        """Bytes resident, descriptors, and threads that are the program's own: the kernel begins and ends those that carry
        out io_uring's transfers as it likes."""
        proc = Path("/proc") / str(self.process.pid)
        status = dict(line.split(":", 1) for line in (proc / "status").read_text().splitlines())
        names = [name_of(task) for task in (proc / "task").iterdir()]
        threads = sum(not name.startswith("iou-wrk") for name in names if name)
        return int(status["VmRSS"].split()[0]) * 1024, len(os.listdir(proc / "fd")), threads

    def control(self, terrace, *words):
        return subprocess.run(
            [terrace, "ctl", str(self.process.pid), *words, "--json"],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            env=self.environment,
        )

    def stop(self):
        """Asks it to stop, which is exit status 1; a run may not end before."""
        if self.process.poll() is not None:
            raise Failure("BAD EXIT", f"it ended by itself with {self.process.returncode}: {self.said()}")
        self.process.send_signal(signal.SIGTERM)
        try:
            demand_status(self.process.wait(TIMEOUT_SECONDS), (1,), self.said())
        except subprocess.TimeoutExpired:
            raise Failure("HANG", "it does not stop") from None
        if "training was stopped after" not in self.said():
            raise Failure("BAD EXIT", "it failed: " + self.said())

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def said(self):
        return self.stderr.read_text()[-2000:]


class Soak:
    def __init__(self, options):
        self.options = options
        self.chance = random.Random(options.seed)
        self.place = Place(options, "soak")
        self.place.factors.hold("disk", "as it is")
        choice = {}
        for factor, value in CHOICE.items():
            values = self.place.factors.table[factor]
            choice[factor] = value if value in values else next(iter(values))
        self.setting = Setting(self.place.terrace, self.place.text, STEPS, choice)
        self.folder = self.place.folder / "soaked"
        self.calm_folder = self.place.folder / "calm"
        self.folder.mkdir()
        self.calm_folder.mkdir()
        self.flags = self.setting.flags(self.folder) + [
            "--save",
            str(self.folder / "saved"),
            "--keep-last",
            "2",
            "--log",
            str(self.folder / "log.jsonl"),
            "--resume",
            "auto",
        ]
        self.steps = Steps(self.folder / "log.jsonl")
        self.calm_steps = Steps(self.calm_folder / "log.jsonl")
        self.asked = {"set host-memory": 0, "save": 0, "refused": 0}
        self.usages = []

    def run(self):
        writer = Writer(self.folder / "competitor")
        writer.start()
        job = Job(self.flags, self.folder)
        calm = Job(self.setting.calm_flags(self.calm_folder) + ["--log", str(self.calm_steps.path)], self.calm_folder)
        try:
            self.soak(job)
            job.stop()
            self.resume()
            self.wait_for_calm(calm)
            self.compare()
        finally:
            job.kill()
            calm.kill()
            writer.ended.set()
            writer.join()
        self.say(writer)
        self.demand_flat()
        shutil.rmtree(self.place.folder)

    def soak(self, job):
        until = time.monotonic() + self.options.minutes * 60
        least, most = self.budgets(job)
        while time.monotonic() < until:
            time.sleep(self.chance.uniform(0.2, 1.8) if self.options.minutes >= 1 else 0.2)
            if job.process.poll() is not None:
                raise Failure("BAD EXIT", f"it ended by itself with {job.process.returncode}: {job.said()}")
            self.ask(
                job,
                ("set", "host-memory", str(self.chance.randint(least, most)))
                if self.chance.random() < 0.7
                else ("save",),
            )
            self.usages.append(job.usage())
            self.steps.look()

    def budgets(self, job):
        """Bounds of the budgets that are asked for, of which some are a little below the least and are refused."""
        until = time.monotonic() + TIMEOUT_SECONDS
        while time.monotonic() < until and job.process.poll() is None:
            answer = job.control(self.place.terrace, "status")
            if answer.returncode == 0:
                status = json.loads(answer.stdout)
                status = status.get("status", status)
                least, most = status["least_host_bytes"], status["most_host_bytes"]
                if least < most:  # known from the first step on
                    return least - (most - least) // 10, most
            time.sleep(0.05)
        raise Failure("BAD EXIT", "it does not answer: " + job.said())

    def ask(self, job, words):
        answer = job.control(self.place.terrace, *words)
        if answer.returncode == 0:
            self.asked[" ".join(words[:2])] += 1
        elif words[0] == "set" and answer.returncode in (1, 2) and "the host budget cannot change" in answer.stderr:
            self.asked["refused"] += 1
        else:
            raise Failure("BAD EXIT", f"terrace ctl {' '.join(words)} ended with {answer.returncode}: {answer.stderr}")

    def resume(self):
        self.steps.look()
        last = self.steps.last() + STEPS_AFTER_RESUME
        at = self.flags.index("--steps")
        status, stderr = run(self.flags[: at + 1] + [str(last)] + self.flags[at + 2 :], self.folder)
        demand_status(status, (0,), stderr)
        self.steps.look()
        if self.steps.last() != last:
            raise Failure("WRONG", f"resumed, it ended at step {self.steps.last()} and not {last}")

    def wait_for_calm(self, calm):
        begin = time.monotonic()
        while self.calm_steps.last() < self.steps.last():
            if calm.process.poll() is not None:
                raise Failure("BAD EXIT", "the calm run ended: " + calm.said())
            if time.monotonic() - begin > self.options.minutes * 60 + TIMEOUT_SECONDS:
                raise Failure("HANG", "the calm run never comes so far")
            time.sleep(0.2)
            self.calm_steps.look()
        calm.stop()

    def compare(self):
        for step in range(1, self.steps.last() + 1):
            gave, calm = self.steps.numbers.get(step), self.calm_steps.numbers[step]
            if gave != calm:
                raise Failure("WRONG", f"step {step} gave {gave}, not {calm}")

    def quarters(self):
        """Of each quarter of the looks the most bytes resident, and the least descriptors and threads."""
        length = len(self.usages) // 4
        quarters = [list(zip(*self.usages[at : at + length])) for at in range(0, 4 * length, max(1, length))]
        return [(max(resident), min(descriptors), min(threads)) for resident, descriptors, threads in quarters]

    def say(self, writer):
        print(
            f"soak, seed {self.options.seed}: {self.steps.last()} steps in {self.options.minutes:g} min and "
            f"{STEPS_AFTER_RESUME} after they were resumed, {self.steps.commits} commits, "
            f"{self.steps.checkpoints} checkpoints; {writer.written_bytes >> 20} MiB of another writer"
        )
        print("  asked: " + ", ".join(f"{count} {words}" for words, count in self.asked.items()))
        print(f"{'quarter':22} resident KiB  descriptors  threads")
        for number, (resident, descriptors, threads) in enumerate(self.quarters(), 1):
            print(f"  {number:<20} {resident // 1024:12} {descriptors:12} {threads:8}")
        print("every step is that of a run that nothing disturbed, bit for bit")

    def demand_flat(self):
        if len(self.usages) < LOOKS_TO_JUDGE:
            return
        quarters = self.quarters()
        (resident, descriptors, threads), last = quarters[1], quarters[3]
        if last[0] > resident + RESIDENT_GROWTH_BYTES or last[1] > descriptors or last[2] > threads:
            raise Failure("GROWTH", f"resident bytes, descriptors, threads were {quarters[1]}, and are {last}")


def add_parser(subcommands):
    parser = subcommands.add_parser(
        "soak", help="one long run whose budget changes beside a busy disk", description=__doc__
    )
    add_place_options(parser)
    parser.add_argument("--minutes", type=float, default=60)
    parser.set_defaults(campaign=campaign)


def campaign(options):
    soak = Soak(options)
    try:
        soak.run()
        return 0
    except Failure as failure:
        print(f"{failure.kind}: {failure}\n  kept: {soak.place.folder}")
        return 1
