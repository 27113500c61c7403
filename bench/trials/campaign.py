"""What the campaigns of bench/attack have in common: groups of cases, each drawn from a seed and its number alone, two at a
time, counted, and said so that one of them can be repeated."""

import concurrent.futures
import os
import random
import shlex
import shutil
import sys
import threading
import time
import traceback
from pathlib import Path

from trials.calm import CalmRuns, make_text
from trials.setting import Factors


def add_place_options(parser):
    parser.add_argument("terrace")
    parser.add_argument("folder", type=Path, help="on the kind of disk that is meant")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--set", action="append", default=[], metavar="FACTOR=VALUE", help="hold a factor to a value")


def add_options(parser, count, steps):
    add_place_options(parser)
    parser.add_argument("--count", type=int, default=count, help=f"cases (default {count})")
    parser.add_argument("--steps", type=int, default=steps, help=f"of a training (default {steps})")
    parser.add_argument("--jobs", type=int, default=2, help="trainings at a time (default 2)")
    parser.add_argument("--only", type=int, metavar="GROUP", help="repeat one group of cases")


class Place:
    """The program under trial, a folder of this campaign, and the calm runs in it."""

    def __init__(self, options, name):
        self.terrace = str(Path(options.terrace).resolve())
        options.folder.mkdir(parents=True, exist_ok=True)
        self.folder = options.folder.resolve() / f"{name}-{os.getpid()}"
        self.folder.mkdir()
        self.text = self.folder / "text.txt"
        make_text(self.text)
        self.factors = Factors(self.terrace, options.set)
        self.calm = CalmRuns(self.folder)


class Counts:
    """Cases by outcome, and by outcome for each value of each factor."""

    def __init__(self, good, shown=()):
        self.good = good
        self.shown = shown  # factors of which every value is listed, also when nothing is bad
        self.outcomes = {}
        self.by_value = {}
        self.lock = threading.Lock()

    def add(self, outcome, choice):
        with self.lock:
            self.outcomes[outcome] = self.outcomes.get(outcome, 0) + 1
            for item in choice.items():
                counts = self.by_value.setdefault(item, {})
                counts[outcome] = counts.get(outcome, 0) + 1

    def cases(self):
        return sum(self.outcomes.values())

    def bad(self):
        return {outcome: count for outcome, count in self.outcomes.items() if outcome not in self.good}

    def print(self):
        for outcome in list(self.good) + sorted(self.bad()):
            print(f"  {outcome:40} {self.outcomes.get(outcome, 0):6}")
        outcomes = sorted(self.bad())
        print(f"{'by factor':36} {'cases':>6} " + " ".join(f"{outcome:>18}" for outcome in outcomes))
        for (factor, value), counts in sorted(self.by_value.items()):
            if outcomes or factor in self.shown:
                bad = " ".join(f"{counts.get(outcome, 0):18}" for outcome in outcomes)
                print(f"  {factor + ': ' + value:34} {sum(counts.values()):6} {bad}")


class Group:
    """Some cases with one setting. A campaign derives from it, and fills `run()`."""

    def __init__(self, campaign, number, limit):
        self.campaign = campaign
        self.number = number
        self.limit = limit  # cases
        self.chance = random.Random(f"{campaign.options.seed}:{number}")
        self.folder = campaign.place.folder / f"group-{number}"

    def count(self, outcome, choice):
        self.campaign.counts.add(outcome, choice)

    def say(self, failure, choice, commands, folder):
        """A case that went wrong, with all that it takes to see it again."""
        self.count(failure.kind, choice)
        lines = [
            f"{failure.kind}: {failure}",
            f"  repeat with: --seed {self.campaign.options.seed} --only {self.number}",
            f"  kept: {folder}",
        ]
        self.campaign.say("\n".join(lines + ["  " + shlex.join(command) for command in commands]))


class Campaign:
    def __init__(self, name, options, group, cases_of_group, good, shown=()):
        self.name = name
        self.options = options
        self.group = group
        self.cases_of_group = cases_of_group
        self.place = Place(options, name)
        self.counts = Counts(good, shown)
        self.lock = threading.Lock()

    def say(self, text):
        with self.lock:
            print(text, flush=True)

    def run_group(self, number, limit):
        try:
            group = self.group(self, number, limit)
            group.folder.mkdir()
            group.run()
            if not any(group.folder.iterdir()):
                group.folder.rmdir()
        except Exception:  # a defect of the campaign itself must not pass for a good case
            self.counts.add("CAMPAIGN FAILED", {})
            self.say(f"group {number}: {traceback.format_exc()}")

    def run(self):
        begin = time.monotonic()
        numbers = (
            [self.options.only]
            if self.options.only is not None
            else range((self.options.count + self.cases_of_group - 1) // self.cases_of_group)
        )
        with concurrent.futures.ThreadPoolExecutor(self.options.jobs) as pool:
            running = [pool.submit(self.run_group, number, self.limit_of(number)) for number in numbers]
            for done, _ in enumerate(concurrent.futures.as_completed(running)):
                if sys.stderr.isatty():
                    print(f"\r{done + 1} of {len(running)} groups", end="", file=sys.stderr, flush=True)
        return self.end(time.monotonic() - begin)

    def limit_of(self, number):
        if self.options.only is not None:
            return self.cases_of_group
        return min(self.cases_of_group, self.options.count - number * self.cases_of_group)

    def end(self, seconds):
        print(
            f"\n{self.name}, seed {self.options.seed}: {self.counts.cases()} cases of {self.options.steps} steps, "
            f"{len(self.place.calm.runs)} calm runs to compare with, {seconds:.0f} s"
        )
        self.counts.print()
        bad = self.counts.bad()
        print(
            "not as it should be: " + ", ".join(f"{count} {outcome}" for outcome, count in sorted(bad.items()))
            if bad
            else "every step and every final state is that of a run that nothing disturbed, bit for bit"
        )
        if not bad:
            shutil.rmtree(self.place.folder)
        return 1 if bad or self.counts.cases() == 0 else 0
