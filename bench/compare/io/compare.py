"""Compares `terrace bench io` with fio and with DeepSpeed's aio handle, on one file, with O_DIRECT.

    python compare.py TERRACE FOLDER [--short] [--pairs N] [--against fio huge deepspeed] [--reserve-huge-pages N]

For each mode (read, write, mixed half and half) it first looks for the best settings of either in a small grid, that of
the peer several times as large, then runs pairs, Terrace and the peer in turns and each first in every other pair,
over the same bytes of the same file, and prints the median of the pairs' ratios with its 90 % interval (bootstrap),
and the processor seconds per GB of both. The closing table is against the targets: at least fio's throughput at
no more processor time, and 1.3 times DeepSpeed's: met, missed, or within noise when the median is below the target
and the interval reaches it. The exit code is 1 unless all are met.

fio gets io_uring with and without registered buffers and files, libaio, kernel-side submission and polling where the
kernel takes them, and two jobs. Its buffers lie in 4 KiB pages unless the system has explicit huge pages free
(vm.nr_hugepages); then they are in its grid, and the grid is searched twice: without them, as the machine is for
a user who has set up nothing, and with them. --reserve-huge-pages N (root) reserves N for the time of the run.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path

MODES = ("read", "write", "mixed")
FIO_NAMES = {"read": "read", "write": "write", "mixed": "rw"}
FIXED = ["--fixedbufs=1", "--registerfiles=1"]
NR_HUGE = Path("/proc/sys/vm/nr_hugepages")
TARGET_FIO, TARGET_DEEPSPEED = 1.0, 1.3
NEARLY = 0.99
PEERS = ["fio", "huge", "deepspeed"]
MIB = 1 << 20


class Run:
    """What one measured run came to."""

    def __init__(self, rate, cpu):
        self.rate, self.cpu = rate, cpu  # GB/s, processor seconds per GB


def child_output(command, **more):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **more)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


class Program:
    """What is measured. Settings are anything that JSON takes."""

    def __init__(self, total):
        self.total, self.best = total, {}

    def settings(self):
        """The grid."""

    def variants(self, best):
        """What is tried on top of the best of the grid."""
        return []

    def run_with(self, mode, settings, total):
        """One run. RuntimeError where this kernel, disk or user cannot."""

    def run(self, mode):
        return self.run_with(mode, self.best[mode], self.total)

    def search(self, mode, options):
        """Keeps the best settings: all of the grid once, the finalists and the best one's variants in three longer runs. Of
        those within NEARLY of the fastest, which more runs could not tell apart, the one that costs least."""
        rates, costs = {}, {}

        def measure(settings, times, total):
            found = rates.setdefault(json.dumps(settings), [])
            try:
                for _ in range(times):
                    run = self.run_with(mode, settings, total)
                    found.append(run.rate)
                    costs.setdefault(json.dumps(settings), []).append(run.cpu)
            except RuntimeError:
                found.append(0.0)

        for settings in self.settings():
            measure(settings, 1, options.search_bytes)
        finalists = sorted(rates, key=lambda s: -rates[s][0])[: options.finalists]
        for settings in finalists:
            rates.pop(settings), costs.pop(settings, None)  # a short run says little of a fast one
            measure(json.loads(settings), 3, options.final_bytes)
        middle = lambda s: statistics.median(rates[s])
        first = max(finalists, key=middle)
        variants = [json.dumps(v) for v in self.variants(json.loads(first))]
        for settings in variants:
            measure(json.loads(settings), 3, options.final_bytes)
        known = finalists + [v for v in variants if 0.0 not in rates[v]]
        fastest = max(middle(s) for s in known)
        best = min(
            (s for s in known if middle(s) >= NEARLY * fastest), key=lambda s: statistics.median(costs.get(s, [0.0]))
        )
        if 0.0 in rates[best]:
            raise RuntimeError(f"{self.name} cannot {mode} with any settings")
        self.best[mode] = json.loads(best)
        return best.translate(str.maketrans("", "", '{}[]",'))


class Terrace(Program):
    name = "Terrace"

    def __init__(self, program, path, total):
        super().__init__(total)
        self.program, self.path = program, path

    def settings(self):
        for block in ("512k", "1m", "2m"):
            for depth in ("8", "16", "32"):
                yield ["--bs", block, "--iodepth", depth]

    def run_with(self, mode, settings, total):
        job = json.loads(
            child_output(
                [
                    self.program,
                    "bench",
                    "io",
                    "--filename",
                    self.path,
                    "--overwrite",
                    "--rw",
                    mode,
                    "--io-size",
                    str(total),
                    "--json",
                    *settings,
                ]
            )
        )["jobs"][0]
        moved = job["read"]["io_bytes"] + job["write"]["io_bytes"]
        assert moved >= total, moved
        return Run(job["terrace"]["gb_per_second"], job["terrace"]["cpu_seconds_per_gb"])


class Fio(Program):
    def __init__(self, path, file_bytes, total, huge):
        super().__init__(total)
        self.path, self.file_bytes, self.huge = path, file_bytes, huge
        self.name = "fio, huge pages" if huge else "fio"

    def settings(self):
        blocks, depths = ("256k", "512k", "1m", "2m"), ("8", "16", "32")
        for block in blocks:
            for depth in depths:
                size = [f"--bs={block}", f"--iodepth={depth}"]
                for kind in (["--ioengine=io_uring"], ["--ioengine=io_uring", *FIXED], ["--ioengine=libaio"]):
                    yield kind + size + (["--iomem=mmaphuge"] if self.huge else [])

    def variants(self, best):
        if "--ioengine=io_uring" in best:
            yield best + ["--sqthread_poll=1"]
            yield best + ["--hipri=1"]
        half = self.file_bytes // 2
        yield best + ["--numjobs=2", f"--size={half}", f"--offset_increment={half}"]

    def run_with(self, mode, settings, total):
        each = total // 2 if "--numjobs=2" in settings else total
        command = [
            "fio",
            "--name=peer",
            f"--filename={self.path}",
            f"--size={self.file_bytes}",
            "--direct=1",
            f"--io_size={each}",
            f"--rw={FIO_NAMES[mode]}",
            "--rwmixread=50",
            "--scramble_buffers=0",
            "--group_reporting",
            "--thread",
            "--output-format=json",
            *settings,
        ]
        before = os.times()
        text = child_output(command)
        after = os.times()
        job = json.loads(text[text.index("{") :])["jobs"][0]
        if job["error"] != 0:
            raise RuntimeError(f"fio: error {job['error']}")
        moved = job["read"]["io_bytes"] + job["write"]["io_bytes"]
        if "--numjobs=2" in settings or "--sqthread_poll=1" in settings:
            # Neither the jobs' shares nor the kernel's thread can be told from what it prints: all of the process.
            cpu = after.children_user + after.children_system - before.children_user - before.children_system
        else:
            cpu = (job["usr_cpu"] + job["sys_cpu"]) / 100 * job["job_runtime"] / 1e3
        rate = (job["read"]["bw_bytes"] + job["write"]["bw_bytes"]) / 1e9
        return Run(rate, cpu / (moved / 1e9))


# ---- DeepSpeed, in a process of its own that lives as long as the comparison ----


def serve_deepspeed(path, file_bytes):
    """Reads one JSON request a line: settings, mode, bytes; answers with seconds and processor seconds."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the library prints to stdout
    import resource

    import torch
    from deepspeed.ops.op_builder import AsyncIOBuilder

    library = AsyncIOBuilder().load(verbose=False)
    print(json.dumps({"ready": True}), file=answers, flush=True)

    def make(s):
        handle = library.aio_handle(
            s["block_size"], s["queue_depth"], s["single_submit"], s["overlap_events"], s["intra_op_parallelism"]
        )
        buffer = handle.new_cpu_locked_tensor(s["buffer_bytes"], torch.empty(0, dtype=torch.uint8))
        buffer.fill_(7)
        return handle, buffer

    for line in sys.stdin:
        request = json.loads(line)
        s, mode, total = request["settings"], request["mode"], request["bytes"]
        # New memory for every run, as each run of the other programs has: how fast it is depends on where it lies.
        used = [make(s) for _ in range(2 if mode == "mixed" else 1)]
        (reader, read_buffer), writer = used[0], used[-1]
        step = s["buffer_bytes"]
        before, begun = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
        moved = offset = 0
        while moved < total:
            if mode == "mixed":  # each direction has its half of the file
                half = file_bytes // 2
                at = offset % (half - step + 1) // 4096 * 4096
                reader.async_pread(read_buffer, path, at)
                writer[0].async_pwrite(writer[1], path, half + at)
                reader.wait()
                writer[0].wait()
                moved += 2 * step
            else:
                at = offset % (file_bytes - step + 1) // 4096 * 4096
                (reader.async_pread if mode == "read" else reader.async_pwrite)(read_buffer, path, at)
                reader.wait()
                moved += step
            offset += step
        seconds = time.perf_counter() - begun
        after = resource.getrusage(resource.RUSAGE_SELF)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        for handle, buffer in used:
            handle.free_cpu_locked_tensor(buffer)
        print(json.dumps({"rate": moved / seconds / 1e9, "cpu": cpu / (moved / 1e9)}), file=answers, flush=True)


class DeepSpeed(Program):
    name = "DeepSpeed"

    def __init__(self, path, file_bytes, total):
        super().__init__(total)
        command = [sys.executable, __file__, "--serve-deepspeed", path, str(file_bytes)]
        with_ninja = dict(os.environ, PATH=f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}")
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=with_ninja
        )
        if not self.process.stdout.readline():
            raise RuntimeError(
                "DeepSpeed's async_io does not load: python -c 'from deepspeed.ops.op_builder import "
                "AsyncIOBuilder; AsyncIOBuilder().load()' says why"
            )

    def settings(self):
        for buffer_bytes in (16 * MIB, 128 * MIB, 512 * MIB):
            for block in (MIB, 8 * MIB):
                for threads in (1, 2, 4):
                    if block * threads <= buffer_bytes:
                        yield dict(
                            buffer_bytes=buffer_bytes,
                            block_size=block,
                            queue_depth=32,
                            intra_op_parallelism=threads,
                            single_submit=False,
                            overlap_events=True,
                        )

    def variants(self, best):
        yield dict(best, block_size=256 << 10)
        yield dict(best, queue_depth=128)
        yield dict(best, queue_depth=8)
        yield dict(best, overlap_events=False)
        yield dict(best, single_submit=True)
        yield dict(best, intra_op_parallelism=8)

    def run_with(self, mode, settings, total):
        total = max(total, 1 << 30)  # the largest buffers are half of this
        print(json.dumps(dict(settings=settings, mode=mode, bytes=total)), file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        if not line:
            sys.exit("DeepSpeed's process has ended")
        answer = json.loads(line)
        return Run(answer["rate"], answer["cpu"])


# ---- pairs ----


def interval(values, seed=1, count=4000):
    """The 90 % interval of the median, by bootstrap."""
    draw = random.Random(seed)
    medians = sorted(statistics.median(draw.choices(values, k=len(values))) for _ in range(count))
    return medians[int(0.05 * count)], medians[int(0.95 * count) - 1]


def pairs_of(ours, theirs, mode, count):
    ours.run(mode)
    theirs.run(mode)  # neither begins cold
    pairs = []
    for i in range(count):
        order = (ours, theirs) if i % 2 == 0 else (theirs, ours)
        runs = {side.name: side.run(mode) for side in order}
        pairs.append((runs[ours.name], runs[theirs.name]))
    return pairs


def compare(ours, theirs, mode, options, rows):
    for side in (theirs,) if mode in ours.best else (ours, theirs):
        begun = time.perf_counter()
        found = side.search(mode, options)
        print(f"{mode}: best of {side.name}: {found}  ({time.perf_counter() - begun:.0f} s of search)", flush=True)
    pairs = pairs_of(ours, theirs, mode, options.pairs)
    ratios = [a.rate / b.rate for a, b in pairs]
    low, high = interval(ratios)
    mine, other = (
        [statistics.median(getattr(p[side], what) for p in pairs) for what in ("rate", "cpu")] for side in (0, 1)
    )
    target = TARGET_DEEPSPEED if isinstance(theirs, DeepSpeed) else TARGET_FIO
    ratio = statistics.median(ratios)
    cheap = mine[1] <= other[1] or isinstance(theirs, DeepSpeed)
    met = ratio >= target and cheap
    verdict = "met" if met else "within noise" if high >= target and cheap else "MISSED"
    rows.append(
        f"| {mode} | {theirs.name} | {mine[0]:.2f} | {other[0]:.2f} | {ratio:.2f} [{low:.2f}, {high:.2f}] | "
        f"{target:.1f} | {mine[1]:.4f} | {other[1]:.4f} | {verdict} |"
    )
    print(rows[-1], flush=True)
    return met


def lay_out(program, path, file_bytes):
    """A file of its own, all of it written once."""
    fd = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    try:
        os.posix_fallocate(fd, 0, file_bytes)
    finally:
        os.close(fd)
    child_output([program, "bench", "io", "--filename", path, "--overwrite", "--rw", "write", "--bs", "1MiB"])


def free_huge_bytes():
    words = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return int(words["HugePages_Free"]) * int(words["Hugepagesize"].split()[0]) * 1024


def reserve_huge_pages(count):
    """Returns how many there were before, to be put back."""
    before = NR_HUGE.read_text().strip()
    NR_HUGE.write_text(str(max(count, int(before))))
    return before


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("terrace", help="the program")
    parser.add_argument("folder", help="where the file is made; it is removed at the end")
    parser.add_argument("--short", action="store_true", help="1 GiB and 5 pairs: about six minutes")
    parser.add_argument("--pairs", type=int)
    parser.add_argument("--modes", nargs="+", choices=MODES, default=MODES)
    parser.add_argument(
        "--against",
        nargs="+",
        choices=PEERS,
        default=PEERS,
        help="huge: fio with explicit huge pages, where some are reserved",
    )
    parser.add_argument("--reserve-huge-pages", type=int, default=0, metavar="N")
    options = parser.parse_args()
    file_bytes = (1 << 30) if options.short else (2 << 30)
    run_bytes = 3 * file_bytes  # so that a millisecond more or less inside a program's own time does not show
    options.pairs = options.pairs or (5 if options.short else 15)
    options.search_bytes = (1 << 28) if options.short else (1 << 29)
    options.final_bytes = 4 * options.search_bytes
    options.finalists = 3 if options.short else 5
    path = os.path.join(options.folder, f"terrace-compare-io-{os.getpid()}")
    before = reserve_huge_pages(options.reserve_huge_pages) if options.reserve_huge_pages else None
    rows, met, begun = [], True, time.perf_counter()
    try:
        lay_out(options.terrace, path, file_bytes)
        ours = Terrace(options.terrace, path, run_bytes)
        peers = []
        if "fio" in options.against:
            peers.append(Fio(path, file_bytes, run_bytes, huge=False))
        if "huge" in options.against and free_huge_bytes() >= 96 * MIB:
            peers.append(Fio(path, file_bytes, run_bytes, huge=True))
        if "deepspeed" in options.against:
            peers.append(DeepSpeed(path, file_bytes, file_bytes))
        for peer in peers:
            for mode in options.modes:
                met = compare(ours, peer, mode, options, rows) and met
    finally:
        Path(path).unlink(missing_ok=True)
        if before is not None:
            NR_HUGE.write_text(before)
    print(
        f"\n{options.pairs} pairs of {run_bytes / 1e9:.1f} GB a run (DeepSpeed {file_bytes / 1e9:.1f}), "
        f"{time.perf_counter() - begun:.0f} s in all\n"
    )
    print("| mode | against | Terrace GB/s | theirs | ratio, 90 % | target | CPU s per GB | theirs | |")
    print("|---|---|---|---|---|---|---|---|---|")
    print("\n".join(rows))
    sys.exit(0 if met else 1)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve-deepspeed"]:
        serve_deepspeed(sys.argv[2], int(sys.argv[3]))
    else:
        main()
