"""What ranks exchange for a chunk of 16 MiB of bf16 elements: Terrace's communicator beside MPI's collectives and torch's gloo,
by turns on one machine. Prints the median and the best time of each, and the processor time of all its threads on all ranks.

    python compare.py build/dev/bench/compare_mpi [--python PYTHON_WITH_TORCH] [--ranks 2 4] [--turns 3] [--rounds 5]

Without --python nothing is compared with gloo. compare_mpi.cpp says what the lines are.
"""

import argparse
import collections
import os
import statistics
import subprocess
from pathlib import Path

HERE = Path(__file__).parent


def lines_of(command):
    environment = {
        **os.environ,
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run([str(word) for word in command], env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(done.stdout + done.stderr)
    return done.stdout.splitlines()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=Path)
    parser.add_argument("--python")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=5, help="of a turn")
    parser.add_argument("--mib", type=int, default=16)
    flags = parser.parse_args()
    for ranks in flags.ranks:
        figures = collections.defaultdict(list)
        remarks = set()
        commands = [
            ["mpirun", "--oversubscribe", "--bind-to", "none", "-n", ranks, flags.program, flags.rounds, flags.mib]
        ]
        if flags.python:
            commands.append(
                [
                    flags.python,
                    "-m",
                    "torch.distributed.run",
                    "--nproc-per-node",
                    ranks,
                    HERE / "gloo.py",
                    flags.rounds,
                    flags.mib,
                ]
            )
        for _ in range(flags.turns):
            for command in commands:
                for line in lines_of(command):
                    if line.startswith("#"):
                        remarks.add(line[2:])
                        continue
                    name, seconds, processor = line.split()
                    figures[name].append((float(seconds), float(processor)))
        print(f"{ranks} ranks, {flags.mib} MiB; {'; '.join(sorted(remarks))}")
        print(f"{'':26}{'median ms':>11}{'best ms':>9}{'processor ms, median':>22}{'best':>8}")
        for name, of_name in figures.items():
            seconds, processor = zip(*of_name)
            print(
                f"{name:26}{1e3 * statistics.median(seconds):11.2f}{1e3 * min(seconds):9.2f}"
                f"{1e3 * statistics.median(processor):22.2f}{1e3 * min(processor):8.2f}"
            )


main()
