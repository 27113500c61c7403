"""Trainings that are killed again and again, and go on with --resume auto: every step and the final state must be those of a
run that nobody killed. The moments are spread over what a run does: its start, the taking up of what was there, steps,
commits, checkpoints, the end. Some are asked to stop first, and killed or asked again while they do."""

import os
import shutil
import signal
import subprocess
import time

from trials.calm import demand_status, events_of
from trials.campaign import Campaign, Group, add_options
from trials.setting import TIMEOUT_SECONDS, Failure, Setting, environment

AIMS = ("any", "start", "steps", "commit", "checkpoint", "end")
KILLS_OF_GROUP = 5
GOOD = ("killed, resumed identical",)

# What a run is sent, one after the other; the first may be SIGTERM or SIGINT, which ask it to save and stop.
SIGNALS = {
    "SIGKILL": (signal.SIGKILL,),
    "SIGTERM": (signal.SIGTERM,),
    "SIGTERM, SIGKILL": (signal.SIGTERM, signal.SIGKILL),
    "SIGTERM, SIGTERM": (signal.SIGTERM, signal.SIGTERM),
    "SIGINT, SIGINT": (signal.SIGINT, signal.SIGINT),
}


class Chain:
    """One training, killed again and again until it is done."""

    def __init__(self, setting, folder, chance):
        self.steps = setting.steps
        self.folder = folder
        self.chance = chance
        self.log = folder / "log.jsonl"
        self.saved = folder / "saved"
        more = ["--save", str(self.saved), "--log", str(self.log), "--resume", "auto"]
        self.forms = [one.flags(folder) + more for one in setting.forms()]
        self.start_seconds = 0.06
        self.whole_seconds = 1.0
        (folder / "runtime").mkdir(mode=0o700)

    def tier_is_committing(self):
        places = ("nvme*/terrace-tier/*", "nvme*/terrace-second-*/terrace-tier/*")
        try:
            return any(path.name.endswith((".new", ".partial")) for one in places for path in self.folder.glob(one))
        except FileNotFoundError:  # a folder that went meanwhile
            return False

    def checkpoint_is_saved(self):
        try:
            return any(name.startswith(".") for name in os.listdir(self.saved))
        except FileNotFoundError:
            return False

    def phase(self, known_events, attempt):
        """What the run was doing when it was killed, as far as what it left tells."""
        committing, saving = self.tier_is_committing(), self.checkpoint_is_saved()
        events = events_of(self.log)[known_events:]
        if not any(event["event"] == "start" for event in events):
            return "resume" if attempt > 0 else "init"
        if committing:
            return "manifest of a commit"
        if saving:
            return "checkpoint"
        return "end" if events and events[-1]["step"] >= self.steps else "steps"

    def wait_for(self, run, holds, seconds):
        """Polls until it holds; False when the run or the time is over."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and run.poll() is None:
            if holds():
                return True
            time.sleep(0.0001)
        return False

    def wait_for_aim(self, run, aim, known_events):
        done = lambda: max((e["step"] for e in events_of(self.log)[known_events:]), default=0)
        started = lambda: any(e["event"] == "start" for e in events_of(self.log)[known_events:])
        if aim == "any":
            time.sleep(self.chance.uniform(0, 1.1 * self.whole_seconds))
        elif aim == "start":
            time.sleep(self.chance.uniform(0, self.start_seconds))
        elif aim == "steps":
            self.wait_for(run, started, 20)
            time.sleep(self.chance.uniform(0, self.whole_seconds - self.start_seconds))
        elif aim == "commit":
            self.wait_for(run, started, 20)
            time.sleep(self.chance.uniform(0, (self.whole_seconds - self.start_seconds) / 2))
            self.wait_for(run, self.tier_is_committing, 2)
            if self.chance.random() < 0.3:
                time.sleep(0.002)
        elif aim == "checkpoint":
            self.wait_for(run, self.checkpoint_is_saved, 20)
            time.sleep(self.chance.uniform(0, 0.01))
        else:
            self.wait_for(run, lambda: done() >= self.steps - 1, 20)
            time.sleep(self.chance.uniform(0, 0.05))

    def attempt(self, number, aim=None, signals=()):
        """Runs once; returns the phase in which it was ended, or None when it was complete before. A run that was asked
        to stop may also have stopped as asked, with exit status 0."""
        known = len(events_of(self.log))
        with open(self.folder / f"stderr-{number}", "w") as stderr:
            begin = time.monotonic()
            run = subprocess.Popen(
                self.chance.choice(self.forms),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                env=environment(self.folder / "runtime"),
            )
            if aim is not None:
                self.wait_for_aim(run, aim, known)
            for index, sent in enumerate(signals):
                if index > 0:
                    time.sleep(self.chance.uniform(0, 0.02))
                run.send_signal(sent)
            try:
                status = run.wait(TIMEOUT_SECONDS)
            except subprocess.TimeoutExpired:
                run.kill()
                run.wait()
                raise Failure("HANG", f"attempt {number} hangs") from None
        if status == 0:
            self.whole_seconds = max(0.2, time.monotonic() - begin)
            return None
        said = (self.folder / f"stderr-{number}").read_text()
        if status == 1 and signals[:1] != (signal.SIGKILL,) and "training was stopped after" in said:
            return "stopping as asked"
        demand_status(status, tuple(statuses_of(signals)), said)
        return self.phase(known, number)


def statuses_of(signals):
    """How a run may end that was sent these: by one of them, or with the exit status for the second of its kind."""
    for sent in signals:
        yield -sent
        if sent != signal.SIGKILL:
            yield 128 + sent


class Kills(Group):
    """Trainings, each of its own setting, until there were as many kills as this group is to make."""

    def run(self):
        kills = 0
        for chain in range(self.limit * 4):
            kills += self.chain(self.folder / f"chain-{chain}", self.limit - kills)
            if kills >= self.limit:
                return

    def chain(self, folder, most_kills):
        """Kills one training a few times and lets it end; returns how many kills there were."""
        setting = Setting(
            self.campaign.place.terrace,
            self.campaign.place.text,
            self.campaign.options.steps,
            self.campaign.place.factors.draw(self.chance),
        )
        folder.mkdir()
        ends, commands = [], []
        try:
            chain = Chain(setting, folder, self.chance)
            commands.extend(chain.forms)
            number = 0
            for number in range(min(most_kills, self.chance.randint(2, 8))):
                signals = self.chance.choice(self.campaign.options.signals)
                phase = chain.attempt(number, self.chance.choice(AIMS), SIGNALS[signals])
                if phase is None:
                    break
                ends.append({**setting.choice, "signals": signals, "while it was at": phase})
            if chain.attempt(number + 1) is not None:
                raise Failure("FAILED RESUME", "a run that nothing ended stopped before its last step")
            calm = self.campaign.place.calm.of(setting)
            lost_steps = calm.compare_log(chain.log)
            calm.compare_saved(setting, chain.saved)
            calm.compare_tier(folder)
            for choice in ends:
                self.count(GOOD[0], choice)
            with self.campaign.lock:
                self.campaign.lost_steps += lost_steps
            shutil.rmtree(folder)
        except Failure as failure:
            self.say(failure, ends[-1] if ends else setting.choice, commands, folder)
        return len(ends)


class KillCampaign(Campaign):
    def __init__(self, options):
        super().__init__("kills", options, Kills, KILLS_OF_GROUP, GOOD, shown=("while it was at", "signals"))
        self.lost_steps = []

    def end(self, seconds):
        status = super().end(seconds)
        print(
            f"steps trained again after a kill: {sum(self.lost_steps) / max(1, len(self.lost_steps)):.2f} on average, "
            f"{max(self.lost_steps, default=0)} at most"
        )
        return status


def add_parser(subcommands):
    parser = subcommands.add_parser("kills", help="kill -9 and second signals at random moments", description=__doc__)
    add_options(parser, count=500, steps=30)
    parser.set_defaults(campaign=lambda options: KillCampaign(options).run(), signals=list(SIGNALS))
