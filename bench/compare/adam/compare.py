#!/usr/bin/env python3
"""The optimizer step of a bf16 model with fp32 master weights, beside DeepSpeed's CPUAdam and torch's AdamW.

    compare.py KERNELS [--parameters 128M] [--threads 1 2] [--rounds 7] [--peers deepspeed fused foreach]

The same work for everyone: bf16 gradients come in, are unscaled, AdamW updates fp32 masters and moments, bf16
parameters go out. A peer does it in four passes (cast, unscale, its step, cast back), each with its own fastest
operation; Terrace in one. In every round everybody runs once, one after the other, with as many threads. Needs torch
and deepspeed (which compiles its operation on first use) and 20 bytes of memory per parameter and peer.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

UNITS = {"K": 10**3, "M": 10**6, "G": 10**9}


def count(text):
    return int(text[:-1]) * UNITS[text[-1]] if text[-1] in UNITS else int(text)


def peer(name, parameters, threads):
    """Runs in a process of its own: one line with seconds for every line that it reads."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the libraries print is no answer
    import torch

    torch.set_num_threads(threads)
    master = torch.nn.Parameter(torch.full((parameters,), 0.5))
    gradient16 = torch.full((parameters,), 0.01, dtype=torch.bfloat16)
    parameter16 = torch.zeros(parameters, dtype=torch.bfloat16)
    master.grad = torch.zeros(parameters)
    settings = dict(lr=1e-4, weight_decay=0.01)
    if name == "deepspeed":
        from deepspeed.ops.adam import DeepSpeedCPUAdam

        optimizer = DeepSpeedCPUAdam([master], adamw_mode=True, **settings)
    else:
        optimizer = torch.optim.AdamW([master], fused=name == "fused", foreach=name == "foreach", **settings)

    @torch.no_grad()
    def step():
        begin = time.perf_counter()
        master.grad.copy_(gradient16)
        master.grad.mul_(0.5)
        optimizer.step()
        parameter16.copy_(master)
        return time.perf_counter() - begin

    step()
    step()
    print("ready", file=answers, flush=True)
    for _ in sys.stdin:
        print(step(), file=answers, flush=True)


class Peer:
    def __init__(self, name, parameters, threads):
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--peer", name, "--parameters", str(parameters), "--threads", str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": str(threads)},
        )
        if self.process.stdout.readline() != "ready\n":
            sys.exit(f"{name} cannot run here: see `{sys.executable} {__file__} --peer {name} --threads 1`")

    def seconds(self):
        print("step", file=self.process.stdin, flush=True)
        return float(self.process.stdout.readline())

    def end(self):
        self.process.stdin.close()
        self.process.wait()


def terrace(program, parameters, threads, master):
    """Seconds of a step, and the kernel's share of the bandwidth of simple in-place kernels."""
    command = [
        program,
        f"--parameters={parameters}",
        f"--threads={threads}",
        f"--benchmark_filter=read_modify_write|update/adamw/{master}/fp32_moments/",
        "--benchmark_format=json",
        "--benchmark_min_time=0.1",
    ]
    run = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    *streams, kernel = json.loads(run.stdout)["benchmarks"]  # the last set of instructions is the fastest
    bandwidth = max(one["bytes_per_second"] for one in streams if one["name"].startswith("read"))
    return kernel["per_parameter"] * parameters, kernel["bytes_per_second"] / bandwidth


def report(threads, parameters, seconds, shares):
    print(f"\n{threads} thread{'s' if threads > 1 else ''}, {parameters:,} parameters, medians (least to most)")
    for name, values in seconds.items():
        ns = sorted(value / parameters * 1e9 for value in values)
        ratios = sorted(value / ours for value, ours in zip(values, seconds["terrace"]))
        line = f"  {name:16} {statistics.median(ns):7.3f} ns per parameter ({ns[0]:.3f} to {ns[-1]:.3f})"
        print(line + f"   {statistics.median(ratios):5.2f} x terrace ({ratios[0]:.2f} to {ratios[-1]:.2f})")
    print(
        f"  terrace's share of the read-modify-write bandwidth: {statistics.median(shares):.3f} "
        f"({min(shares):.3f} to {max(shares):.3f})",
        flush=True,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kernels", nargs="?")
    parser.add_argument("--parameters", type=count, default=count("128M"))
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--peers", nargs="+", default=["deepspeed", "fused", "foreach"])
    parser.add_argument("--peer", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.peer:
        return peer(arguments.peer, arguments.parameters, arguments.threads[0])
    if not arguments.kernels:
        parser.error("KERNELS, the program optimizer_kernels, is missing")
    parameters = -(-arguments.parameters // 4096) * 4096
    for threads in arguments.threads:
        peers = {name: Peer(name, parameters, threads) for name in arguments.peers}
        seconds = {name: [] for name in ["terrace", "terrace, compact", *peers]}
        shares = []
        for _ in range(arguments.rounds):
            plain, share = terrace(arguments.kernels, parameters, threads, "whole")
            shares.append(share)
            seconds["terrace"].append(plain)
            seconds["terrace, compact"].append(terrace(arguments.kernels, parameters, threads, "compact")[0])
            for name, one in peers.items():
                seconds[name].append(one.seconds())
        report(threads, parameters, seconds, shares)
        for one in peers.values():
            one.end()


if __name__ == "__main__":
    main()
