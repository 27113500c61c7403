#!/usr/bin/env python3
"""compare.py [--turns N] [--steps N] [--layers N] [--width N] [--micro-batches N] [--only CASE...]: a model in two stages on two
processes of this machine, by turns: Terrace, torch.distributed.pipelining and DeepSpeed's PipelineModule, all over gloo, in fp32
with AdamW. Prints tokens per second, the median of the turns and the least and most; the memory of both processes at most; and
the loss of the last step.

    TERRACE_LIBRARY=build/dev/capi/libterrace.so PYTHONPATH=python build/python/bin/python bench/compare/pipeline/compare.py

A turn is one run of each case, in another order every time. Cases whose package is not installed are left out, and that is said.
"terrace device" has all in memory as the others do; "terrace cpu" and "terrace nvme" have parameters and states there, and
"terrace budgets" has them on nvme with no more than --budgets DEVICE HOST of memory for each process."""

import argparse
import importlib.util
import json
import os
import pathlib
import statistics
import subprocess
import sys

CASES = ("terrace device", "terrace cpu", "torch", "deepspeed")
ON_NVME = ("terrace nvme", "terrace budgets")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--micro-batches", type=int, default=8)
    parser.add_argument("--nvme-path", help="adds the cases terrace nvme and terrace budgets, in this folder")
    parser.add_argument("--budgets", nargs=2, default=["24MiB", "96MiB"])
    parser.add_argument("--only", nargs="*", choices=(*CASES, *ON_NVME))
    options = parser.parse_args()
    cases = list(options.only or CASES) + (list(ON_NVME) if options.nvme_path and not options.only else [])
    if "deepspeed" in cases and importlib.util.find_spec("deepspeed") is None:
        print("deepspeed is not installed: its case is left out", file=sys.stderr)
        cases.remove("deepspeed")
    found = {case: [] for case in cases}
    for turn in range(options.turns):
        for place in range(len(cases)):
            case = cases[(place + turn) % len(cases)]
            found[case].append(run(case, options))
            print(turn, case, found[case][-1], file=sys.stderr)
    print("| | tokens/s, median (least to most) | memory of both at most | loss of the last step |")
    print("|---|---|---|---|")
    for case, turns in found.items():
        rates = sorted(turn["rate"] for turn in turns)
        memory = statistics.median(turn["memory"] for turn in turns)
        losses = sorted({f"{turn['loss']:.5f}" for turn in turns})
        print(
            f"| {case} | {statistics.median(rates):.0f} ({rates[0]:.0f} to {rates[-1]:.0f}) | {memory / 2**20:.0f} MiB | "
            f"{', '.join(losses)} |"
        )


def run(case, options):
    sizes = [
        options.steps,
        options.layers,
        options.width,
        options.micro_batches,
        options.nvme_path or "",
        *options.budgets,
    ]
    script = pathlib.Path(__file__).with_name("stages.py")
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [sys.executable, "-W", "ignore", *launcher, script, case, *sizes]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "DS_ACCELERATOR": "cpu", "DS_BUILD_OPS": "0"}
    done = subprocess.run([str(word) for word in command], env=environment, capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"rate"')]
    if not lines:  # DeepSpeed may abort at its end, when it has told
        raise SystemExit(f"{case} failed\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    return json.loads(lines[-1])


if __name__ == "__main__":
    main()
