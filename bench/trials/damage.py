"""Trainings that were killed and of which a file is then damaged at rest, in the tier or in a checkpoint: bits flipped,
files cut, pages zeroed, exchanged or taken from an earlier moment, files removed. What resumes must refuse, or end with the
numbers of a run that nothing disturbed. Where it refused before its first step, putting the file back must make it go
on."""

import shutil
import signal
import subprocess
import time

from trials.calm import demand_status, events_of, run
from trials.campaign import Campaign, Group, add_options
from trials.setting import TIMEOUT_SECONDS, Failure, Setting, environment

CASES_OF_GROUP = 10
PAGE = 4096
GOOD = ("went on, identical", "refused", "refused, went on when put back")


def flip(chance, path, earlier):
    bytes = bytearray(path.read_bytes())
    if bytes:
        bytes[chance.randrange(len(bytes))] ^= 1 << chance.randrange(8)
    path.write_bytes(bytes)


def truncate(chance, path, earlier):
    size = path.stat().st_size
    keep = chance.randrange(size) if size else 0
    with open(path, "r+b") as file:
        file.truncate(keep // PAGE * PAGE if chance.random() < 0.5 else keep)


def lengthen(chance, path, earlier):
    with open(path, "ab") as file:
        file.write(chance.randbytes(chance.choice([1, 512, PAGE, 12 * PAGE])))


def zero(chance, path, earlier):
    write_page(path, chance.randrange(pages_of(path)), bytes(PAGE))


def exchange(chance, path, earlier):
    """A run of pages with another one of the same file, as writes that went to each other's place."""
    count = pages_of(path)
    length = chance.choice([1, 2, 12])
    first, second = chance.randrange(count), chance.randrange(count)
    for page in range(min(length, count - max(first, second))):
        a, b = read_page(path, first + page), read_page(path, second + page)
        write_page(path, first + page, b)
        write_page(path, second + page, a)


def replay_pages(chance, path, earlier):
    """A run of pages as they were at an earlier moment, as writes that were lost."""
    if earlier.exists():
        first = chance.randrange(pages_of(path))
        for page in range(first, min(first + chance.choice([1, 2, 12, 100]), pages_of(path), pages_of(earlier))):
            write_page(path, page, read_page(earlier, page))


def replay_file(chance, path, earlier):
    if earlier.exists():
        shutil.copy2(earlier, path)


def remove(chance, path, earlier):
    path.unlink()


DAMAGES = {
    "flip": flip,
    "truncate": truncate,
    "lengthen": lengthen,
    "zero": zero,
    "exchange": exchange,
    "replay pages": replay_pages,
    "replay file": replay_file,
    "remove": remove,
}


def pages_of(path):
    return max(1, (path.stat().st_size + PAGE - 1) // PAGE)


def read_page(path, page):
    with open(path, "rb") as file:
        file.seek(page * PAGE)
        return file.read(PAGE)


def write_page(path, page, data):
    """No file becomes longer by it."""
    with open(path, "r+b") as file:
        file.seek(page * PAGE)
        file.write(data[: max(0, path.stat().st_size - page * PAGE)])


def files_at_rest(folder):
    """Names below the folder of what belongs to the state, as text, the same in each copy of it."""
    files = [
        path
        for top in (*folder.glob("nvme*/terrace-tier"), folder / "saved")
        if top.is_dir()
        for path in top.rglob("*")
        if path.is_file()
    ]
    return sorted(str(path.relative_to(folder)) for path in files)


def copy_state(source, target):
    """All but the sockets of dead jobs."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("runtime"))


class Damage(Group):
    """A training that was killed twice, with a copy of what it left each time; then per case damage to a copy of the
    second."""

    def run(self):
        setting = Setting(
            self.campaign.place.terrace,
            self.campaign.place.text,
            self.campaign.options.steps,
            self.campaign.place.factors.draw(self.chance),
        )
        earlier, later = self.folder / "earlier", self.folder / "later"
        first = self.chance.randint(2, setting.steps // 2)
        try:
            self.kill_at(setting, earlier, first)
            copy_state(earlier, later)
            self.kill_at(setting, later, self.chance.randint(first + 1, setting.steps - 1))
        except Failure as failure:
            self.say(failure, setting.choice, [setting.flags(later)], self.folder)
            return
        for case in range(self.limit):
            self.case(setting, earlier, later, self.folder / f"case-{case}")
        if not list(self.folder.glob("case-*")):
            shutil.rmtree(earlier)
            shutil.rmtree(later)

    def kill_at(self, setting, folder, step):
        (folder / "runtime").mkdir(mode=0o700, parents=True, exist_ok=True)
        begun = subprocess.Popen(
            self.flags(setting, folder),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment(folder / "runtime"),
        )
        until = time.monotonic() + TIMEOUT_SECONDS
        while begun.poll() is None and max((e["step"] for e in events_of(folder / "log.jsonl")), default=0) < step:
            time.sleep(0.001)
            if time.monotonic() > until:
                begun.kill()
                raise Failure("HANG", f"step {step} is never reached")
        begun.send_signal(signal.SIGKILL)
        demand_status(begun.wait(), (-signal.SIGKILL, 0), "before anything was damaged")

    def flags(self, setting, folder):
        return setting.flags(folder) + [
            "--save",
            str(folder / "saved"),
            "--log",
            str(folder / "log.jsonl"),
            "--resume",
            "auto",
        ]

    def case(self, setting, earlier, later, folder):
        names = files_at_rest(later)
        if not names:
            self.count(GOOD[0], setting.choice)
            return
        copy_state(later, folder)
        name = self.chance.choices(names, [0.2 if kind_of(name) in ("lock", "space") else 1 for name in names])[0]
        damage = self.chance.choice(list(DAMAGES))
        seed = self.chance.random()
        choice = {**setting.choice, "damage": damage, "file": kind_of(name)}
        commands = [["#", damage, name]]
        try:
            self.chance.seed(seed)
            DAMAGES[damage](self.chance, folder / name, earlier / name)
            commands.append(self.flags(setting, folder))
            self.count(self.outcome(setting, folder, later, name, commands[-1]), choice)
            shutil.rmtree(folder)
        except Failure as failure:
            self.say(failure, choice, commands, folder)

    def outcome(self, setting, folder, later, name, flags):
        known = len(events_of(folder / "log.jsonl"))
        status, stderr = run(flags, folder)
        demand_status(status, (0, 1, 2), stderr)
        calm = self.campaign.place.calm.of(setting)
        calm.compare_log(folder / "log.jsonl", durable_leads=False, complete=status == 0)
        if status == 0:
            calm.compare_saved(setting, folder / "saved")
            return GOOD[0]
        if "terrace: error:" not in stderr:
            raise Failure("BAD EXIT", f"exit status {status} without a reason: {stderr[-1000:]}")
        if len(events_of(folder / "log.jsonl")) > known:
            return GOOD[1]
        return self.outcome_of_putting_back(setting, folder, later, name, flags)

    def outcome_of_putting_back(self, setting, folder, later, name, flags):
        shutil.copy2(later / name, folder / name)
        status, stderr = run(flags, folder)
        demand_status(status, (0, 1, 2), stderr)
        if status != 0:
            raise Failure("DESTROYED", "what was refused does not go on when the file is put back: " + stderr[-1000:])
        calm = self.campaign.place.calm.of(setting)
        calm.compare_log(folder / "log.jsonl")
        calm.compare_saved(setting, folder / "saved")
        return GOOD[2]


def kind_of(name):
    """A name without numbers: `records.tier`, `commit.manifest`, `step/states.bin`."""
    parts = [part for part in name.split("/") if part not in ("nvme", "nvme2", "terrace-tier", "saved")]
    return "/".join("".join(c for c in part if not c.isdigit()).replace("-.", ".").rstrip("-") for part in parts)


def add_parser(subcommands):
    parser = subcommands.add_parser(
        "damage", help="files of tiers and checkpoints that are damaged at rest", description=__doc__
    )
    add_options(parser, count=1000, steps=12)
    parser.set_defaults(campaign=campaign)


def campaign(options):
    return Campaign("damage", options, Damage, CASES_OF_GROUP, GOOD, shown=("damage", "file")).run()
