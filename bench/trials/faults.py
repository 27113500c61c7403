"""Trainings in which transfers go wrong on purpose (docs/faults.md): each must end well with the right numbers or fail
with exit status 1, and then go on from what is left to the same numbers."""

import re
import shutil

from trials.calm import demand_status, run
from trials.campaign import Campaign, Group, add_options
from trials.setting import Failure, Setting

CASES_OF_GROUP = 5
FILES = ("records.tier", "params.tier", "grads.tier", "frozen.tier", "acts.tier")

# What goes wrong: the words of --inject, of which direction, how often it is drawn, and whether the disk lies: then what was
# durable may be gone.
KINDS = {
    "EIO": ("error=EIO", ("read", "write"), 3, False),
    "ENOSPC": ("error=ENOSPC", ("write",), 2, False),
    "short": ("short=4096", ("read", "write"), 1, False),
    "corrupt": ("corrupt", ("read",), 3, False),
    "torn": ("torn=4096", ("write",), 1, True),
    "lost": ("lost", ("write",), 1, True),
    "slow": ("delay=3ms", ("read", "write"), 1, False),
}
HIDDEN = ("short", "slow")  # the run goes on, and not one bit of it is different

GOOD = ("ended well, nothing hit", "ended well", "failed, resumed identical", "failed, lost data refused")


class Faults(Group):
    """One setting and one kind of transfers, of which a first run counts how many there are; then a fault per case."""

    def run(self):
        setting, where, transfers = self.draw()
        for case in range(self.limit):
            folder = self.folder / f"case-{case}"
            folder.mkdir()
            kinds = {name: share for name, (_, ways, share, _) in KINDS.items() if where[0] in ways}
            kind = self.chance.choices(list(kinds), list(kinds.values()))[0]
            when = self.chance.choice(["at", "from"])
            n = self.chance.randint(1, transfers)
            spec = ",".join([*where, KINDS[kind][0], f"{when}={n}"])
            choice = dict(setting.choice, kind=kind, when=when, where=" ".join(where))
            commands = []
            try:
                flags = setting.flags(folder) + ["--save", str(folder / "saved"), "--log", str(folder / "log.jsonl")]
                self.count(self.case(setting, flags, folder, kind, spec, commands), choice)
                shutil.rmtree(folder)
            except Failure as failure:
                self.say(failure, choice, commands, folder)

    def draw(self):
        """A setting that has transfers of the kind that is drawn with it, and how many."""
        for attempt in range(20):
            setting = Setting(
                self.campaign.place.terrace,
                self.campaign.place.text,
                self.campaign.options.steps,
                self.campaign.place.factors.draw(self.chance),
            )
            direction = self.chance.choice(["read", "write"])
            where = [direction] + ([f"file={self.chance.choice(FILES)}"] if self.chance.random() < 0.8 else [])
            folder = self.folder / f"count-{attempt}"
            folder.mkdir()
            command = []
            try:
                command = setting.flags(folder) + [
                    "--save",
                    str(folder / "saved"),
                    "--log",
                    str(folder / "log.jsonl"),
                    "--inject",
                    ",".join([*where, "delay=1us"]),
                ]
                transfers = self.transfers(setting, folder, command)
                shutil.rmtree(folder)
                if transfers:
                    return setting, where, transfers
            except Failure as failure:
                self.say(failure, setting.choice, [command], folder)
        raise RuntimeError("no setting with such transfers was found")

    def transfers(self, setting, folder, command):
        status, stderr = run(command, folder)
        demand_status(status, (0, 1), stderr)
        if status == 1:
            raise Failure("FAILED FOR NOTHING", stderr[-1000:])
        self.compare(setting, folder, True)
        return transfers_that_went_wrong(stderr)

    def case(self, setting, flags, folder, kind, spec, commands):
        commands.append(flags + ["--inject", spec])
        status, stderr = run(commands[-1], folder)
        demand_status(status, (0, 1), stderr)
        hit = transfers_that_went_wrong(stderr)  # not said by a run that failed before its first step
        if status == 0:
            try:
                self.compare(setting, folder, True)
            except Failure as failure:
                raise Failure("SILENT", f"exit status 0, and {failure}") from None
            return "ended well" if hit else "ended well, nothing hit"
        if hit == 0 or kind in HIDDEN:
            raise Failure("FAILED FOR NOTHING", f"although {hit} transfers failed: {stderr[-1000:]}")
        disk_lies = KINDS[kind][3]
        commands.append(flags + ["--resume", "auto"])
        status, stderr = run(commands[-1], folder)
        demand_status(status, (0, 1), stderr)
        if status == 1:
            if disk_lies:
                return "failed, lost data refused"
            raise Failure("FAILED RESUME", stderr[-1000:])
        self.compare(setting, folder, not disk_lies)
        return "failed, resumed identical"

    def compare(self, setting, folder, durable_leads):
        calm = self.campaign.place.calm.of(setting)
        calm.compare_log(folder / "log.jsonl", durable_leads)
        calm.compare_saved(setting, folder / "saved")
        calm.compare_tier(folder)


def transfers_that_went_wrong(stderr):
    said = re.search(r"--inject made (\d+) transfers go wrong", stderr)
    return int(said.group(1)) if said else None


def add_parser(subcommands):
    parser = subcommands.add_parser(
        "faults", help="transfers that fail, are short, torn, lost, slow or come back wrong", description=__doc__
    )
    add_options(parser, count=3000, steps=12)
    parser.set_defaults(campaign=campaign)


def campaign(options):
    options.set.append("disk=as it is")  # a rate is an --inject as well
    return Campaign("faults", options, Faults, CASES_OF_GROUP, GOOD, shown=("kind",)).run()
