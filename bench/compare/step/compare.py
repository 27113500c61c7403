"""Compares the optimizer step of `terrace bench step` with DeepSpeed's own NVMe swapper, on one disk.

    python compare.py TERRACE FOLDER [--parameters N] [--rounds N] [--search-parameters N]

DeepSpeed's side is its classes: PipelinedOptimizerSwapper (and PartitionedOptimizerSwapper, which the search tries as well)
over fp32 master weights and moments in sub-groups, driven as its ZeRO stage 3 drives them: gradients as fp32 files written
before the step and read in it, gradients scaled, DeepSpeedCPUAdam, the fresh parameters cast to bf16 in memory. A second
variant has its fp32 gradients in memory the whole time, at no cost. A short search finds its settings first: sub-groups,
threads, block size, queue depth, overlap, which directions are pipelined.

Terrace's side is `terrace bench step` with parameters in memory: bf16 gradients in memory, records on disk.

Then rounds, in each of which every contender runs once, in an order that turns. Of each round come ratios, and of them the
median with its 90 % interval (bootstrap). What DeepSpeed spends on writing gradient files during backward is shown beside
the step and is no part of the ratios. The exit code is 1 unless all targets are met.
"""

import argparse
import itertools
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

# (name, flags of `terrace bench step`, target against gradients on disk, target against gradients in memory)
TERRACE = [
    ("C = 0", ["--checksums", "0"], 1.7, 1.2),
    ("C = 0, checksums, other slots", ["--durable"], 1.6, None),
    ("C = S/2", ["--checksums", "0", "--cached-fraction", "1/2"], 3.0, 2.3),
    ("C = S/2, checksums, other slots", ["--durable", "--cached-fraction", "1/2"], None, None),
]
DEEPSPEED = ["nvme", "memory"]  # where gradients are
GIB = 1 << 30


# ---- DeepSpeed, in a process of its own for each settings ----


class Peer:
    """The states of one model behind DeepSpeed's swapper."""

    def __init__(self, settings, parameters, folder):
        import deepspeed.comm
        import torch
        import torch.distributed
        from deepspeed.ops.adam import DeepSpeedCPUAdam
        from deepspeed.runtime.swap_tensor.partitioned_optimizer_swapper import PartitionedOptimizerSwapper
        from deepspeed.runtime.swap_tensor.pipelined_optimizer_swapper import PipelinedOptimizerSwapper
        from deepspeed.runtime.zero.offload_config import DeepSpeedZeroOffloadOptimizerConfig

        self.torch = torch
        torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=0, world_size=1)
        deepspeed.comm.init_distributed(dist_backend="gloo", auto_mpi_discovery=False)
        count = settings["sub_groups"]
        self.numel = parameters // count // 4096 * 4096
        self.groups = []
        for g in range(count):
            group = torch.nn.Parameter(torch.empty(0))
            group.ds_id = f"group{g}"
            self.groups.append(group)
        self.optimizer = DeepSpeedCPUAdam([{"params": self.groups}], lr=1e-3, weight_decay=0.01, adamw_mode=True)
        for options in self.optimizer.param_groups:
            options["params"] = []
        config = DeepSpeedZeroOffloadOptimizerConfig(
            device="nvme",
            nvme_path=folder,
            buffer_count=settings["buffers"],
            pipeline_read=settings["pipeline_read"],
            pipeline_write=settings["pipeline_write"],
        )
        aio = dict(
            block_size=settings["block"],
            queue_depth=settings["depth"],
            intra_op_parallelism=settings["threads"],
            single_submit=False,
            overlap_events=settings["overlap"],
            use_gds=False,
        )
        kind = PipelinedOptimizerSwapper if config.pipeline else PartitionedOptimizerSwapper
        self.swapper = kind(
            swap_config=config,
            aio_config=aio,
            base_folder=folder,
            optimizer=self.optimizer,
            largest_numel=self.numel,
            device="cpu",
            dtype=torch.float32,
            timers=None,
        )
        self.bf16 = [torch.zeros(self.numel, dtype=torch.bfloat16) for _ in self.groups]
        self.gradients_in = settings["gradients"]
        self.gradient = torch.randn(self.numel) * 1e-3
        if self.gradients_in == "memory":  # one for each group, as a run would have
            self.gradients = [self.gradient.clone() for _ in self.groups]
        source = torch.randn(self.numel) * 0.03
        for group in self.groups:
            self.swapper.initialize_parameters([group], [source])

    def backward(self):
        """Writes the gradient files; returns seconds."""
        begun = time.perf_counter()
        if self.gradients_in == "nvme":
            for group in self.groups:
                self.swapper.swap_out_gradients(group, [0], [self.gradient])
            self.swapper.flush_gradients()
        return time.perf_counter() - begun

    def step(self):
        begun, cpu = time.perf_counter(), time.process_time()
        for g, group in enumerate(self.groups):
            following = self.groups[g + 1] if g + 1 < len(self.groups) else None
            self.swapper.swap_in_optimizer_state(group, following)
            if self.gradients_in == "memory":
                group.grad = self.gradients[g]
            group.grad.mul_(1.0)  # stage 3 unscales and clips here
            self.optimizer.param_groups[0]["params"] = [group]
            self.optimizer.step()
            self.optimizer.param_groups[0]["params"] = []
            self.bf16[g].copy_(group.data)
            self.swapper.swap_out_optimizer_state(group, following is not None)
            group.grad = None
        return time.perf_counter() - begun, time.process_time() - cpu

    def memory_bytes(self):
        with open("/proc/self/smaps_rollup") as rollup:
            return sum(int(line.split()[1]) * 1024 for line in rollup if line.startswith("Pss:"))


def serve(settings, parameters, folder):
    """Answers each line of stdin with one backward pass and one step."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the library prints to stdout
    peer = Peer(json.loads(settings), int(parameters), folder)
    for _ in range(2):  # the first makes the moments and their files
        peer.backward()
        peer.step()
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for _ in sys.stdin:
        written = peer.backward()
        seconds, cpu = peer.step()
        print(
            json.dumps({"seconds": seconds, "cpu": cpu, "backward": written, "memory": peer.memory_bytes()}),
            file=answers,
            flush=True,
        )


class DeepSpeed:
    def __init__(self, settings, parameters, folder):
        self.folder = tempfile.mkdtemp(prefix="terrace-compare-step-", dir=folder)
        self.errors = tempfile.TemporaryFile("w+")
        with_ninja = dict(os.environ, PATH=f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}")
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--serve", json.dumps(settings), str(parameters), self.folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            env=with_ninja,
        )
        line = self.process.stdout.readline()
        if not line:
            self.errors.seek(0)
            text = self.errors.read()[-2000:]
            self.close()
            raise RuntimeError(text)

    def run(self):
        print("step", file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("DeepSpeed's process has ended")
        return json.loads(line)

    def close(self):
        self.process.stdin.close()
        self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def grid():
    for groups, threads, block in itertools.product((8, 16, 32), (1, 2, 4), (1 << 20, 8 << 20)):
        yield dict(
            sub_groups=groups,
            threads=threads,
            block=block,
            depth=32,
            overlap=True,
            pipeline_read=True,
            pipeline_write=True,
            buffers=12,
        )


def variants(best):
    yield dict(best, depth=128)
    yield dict(best, depth=8)
    yield dict(best, overlap=False)
    yield dict(best, pipeline_write=False)
    yield dict(best, pipeline_read=False)
    yield dict(best, pipeline_read=False, pipeline_write=False)


def search(gradients, parameters, folder):
    """The fastest settings, by the median of two steps; the best three again with three more."""
    found = {}

    def measure(settings, steps):
        settings = dict(settings, gradients=gradients)
        try:
            peer = DeepSpeed(settings, parameters, folder)
        except RuntimeError as error:
            print(f"  {settings}: {str(error).strip().splitlines()[-1:]}", file=sys.stderr)
            return
        try:
            found.setdefault(json.dumps(settings), []).extend(peer.run()["seconds"] for _ in range(steps))
        except RuntimeError as error:
            print(f"  {settings}: {error}", file=sys.stderr)
        finally:
            peer.close()

    for settings in grid():
        measure(settings, 2)
    middle = lambda key: statistics.median(found[key])
    for key in sorted(found, key=middle)[:3]:
        measure(json.loads(key), 3)
    for settings in variants(json.loads(min(found, key=middle))):
        measure(settings, 4)
    best = min((k for k in found if len(found[k]) >= 4), key=middle)
    return json.loads(best)


# ---- Terrace ----


def run_terrace(program, flags, parameters, folder):
    nvme = tempfile.mkdtemp(prefix="terrace-compare-step-", dir=folder)
    try:
        done = subprocess.run(
            [
                program,
                "bench",
                "step",
                "--nvme-path",
                nvme,
                "--parameters",
                str(parameters),
                "--rounds",
                "2",
                "--json",
                *flags,
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        if done.returncode != 0:
            sys.exit(done.stderr)
        report = json.loads(done.stdout)
        return {
            "seconds": report["seconds"],
            "cpu": report["cpu_seconds"],
            "memory": report["process_bytes"],
            "bytes": report["nvme_bytes"],
        }
    finally:
        shutil.rmtree(nvme, ignore_errors=True)


# ---- rounds ----


def interval(values, seed=1, count=4000):
    """The 90 % interval of the median, by bootstrap."""
    draw = random.Random(seed)
    medians = sorted(statistics.median(draw.choices(values, k=len(values))) for _ in range(count))
    return medians[int(0.05 * count)], medians[int(0.95 * count) - 1]


def median_of(rounds, name, what):
    return statistics.median(r[name][what] for r in rounds)


def verdicts(rounds):
    met = True
    rows = []
    for name, _, on_disk, in_memory in TERRACE:
        for gradients, target in zip(DEEPSPEED, (on_disk, in_memory)):
            ratios = [r[gradients]["seconds"] / r[name]["seconds"] for r in rounds]
            ratio, (low, high) = statistics.median(ratios), interval(ratios)
            verdict = (
                "" if target is None else ("met" if ratio >= target else "within noise" if high >= target else "MISSED")
            )
            met = met and verdict in ("", "met")
            rows.append(
                f"| {name} | {gradients} | {ratio:.2f} [{low:.2f}, {high:.2f}] | "
                f"{'' if target is None else target} | {verdict} |"
            )
    return met, rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("terrace", help="the program")
    parser.add_argument("folder", help="where files are made; they are removed at the end")
    parser.add_argument("--parameters", type=int, default=400_000_000)
    parser.add_argument("--search-parameters", type=int, help="of the search for DeepSpeed's settings (default: all)")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--settings", type=json.loads, help="DeepSpeed's, as JSON, instead of a search")
    options = parser.parse_args()
    peers, rounds = {}, []
    try:
        for gradients in DEEPSPEED:
            begun = time.perf_counter()
            best = (
                dict(options.settings, gradients=gradients)
                if options.settings
                else search(gradients, options.search_parameters or options.parameters, options.folder)
            )
            print(
                f"DeepSpeed, gradients in {gradients}: {json.dumps(best)}  ({time.perf_counter() - begun:.0f} s of search)",
                flush=True,
            )
            peers[gradients] = DeepSpeed(best, options.parameters, options.folder)
        contenders = [(g, peers[g].run) for g in DEEPSPEED] + [
            (name, lambda flags=flags: run_terrace(options.terrace, flags, options.parameters, options.folder))
            for name, flags, _, _ in TERRACE
        ]
        for r in range(options.rounds):
            turned = contenders[r % len(contenders) :] + contenders[: r % len(contenders)]
            rounds.append({name: run() for name, run in turned})
            print(
                f"round {r + 1}: " + ", ".join(f"{n} {rounds[-1][n]['seconds']:.3f} s" for n, _ in contenders),
                file=sys.stderr,
                flush=True,
            )
    finally:
        for peer in peers.values():
            peer.close()
    print(f"\n{options.parameters:,} parameters, medians of {options.rounds} rounds\n")
    print("| | seconds | processor s | memory of the process |")
    print("|---|---|---|---|")
    for gradients in DEEPSPEED:
        print(
            f"| DeepSpeed, gradients in {gradients} | {median_of(rounds, gradients, 'seconds'):.3f} | "
            f"{median_of(rounds, gradients, 'cpu'):.2f} | {median_of(rounds, gradients, 'memory') / GIB:.2f} GiB |"
        )
    for name, *_ in TERRACE:
        print(
            f"| Terrace, {name} | {median_of(rounds, name, 'seconds'):.3f} | {median_of(rounds, name, 'cpu'):.2f} | "
            f"{median_of(rounds, name, 'memory') / GIB:.2f} GiB |"
        )
    print(
        f"\nDeepSpeed's gradient files in backward: {median_of(rounds, 'nvme', 'backward'):.3f} s on top, of every step.\n"
    )
    met, rows = verdicts(rounds)
    print("| Terrace | DeepSpeed's gradients in | times as fast, 90 % | target | |")
    print("|---|---|---|---|---|")
    print("\n".join(rows))
    sys.exit(0 if met else 1)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(*sys.argv[2:])
    else:
        main()
