#!/usr/bin/env python3
"""Runs the scripts of examples/deepspeed with DeepSpeed and with Terrace, in one process on the processor, and shows the
losses of both (README.md)."""

import argparse
import os
import pathlib
import re
import socket
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[3]
FOLDER = ROOT / "examples" / "deepspeed"
SCRIPTS = {
    "cifar.py": ["--passes", "3"],
    "bert.py": ["--deepspeed", "--deepspeed_config", str(FOLDER / "bert.json"), "--max_steps", "24"],
    "hello.py": ["--checkpoint_dir", "FOLDER", "--num_iterations", "32", "--checkpoint_every", "16"],
}
# DeepSpeed shuffles training_data, and Terrace does not: both take it in its order here. What DeepSpeed compiles to copy
# between processes is left out, because there is one.
PREFACE = """
import sys, torch.utils.data, deepspeed.runtime.dataloader as loaders
loaders.RandomSampler = lambda data_source: torch.utils.data.SequentialSampler(data_source)
sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None
"""
ALONE = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


def losses(python, script, arguments, environment):
    with tempfile.TemporaryDirectory() as folder:
        command = [python, script, *(folder if one == "FOLDER" else one for one in arguments)]
        run = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True)
    if run.returncode:
        sys.exit(f"{script} has failed:\n{run.stdout[-2000:]}\n{run.stderr[-4000:]}")
    return [float(found) for found in re.findall(r"loss ([0-9.]+)", run.stdout)]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--deepspeed-python", required=True, help="an interpreter that has torch and deepspeed")
    parser.add_argument("scripts", nargs="*", default=list(SCRIPTS))
    arguments = parser.parse_args()
    for name in arguments.scripts:
        with tempfile.TemporaryDirectory() as folder:
            script = os.path.join(folder, name)
            text = (FOLDER / name).read_text().replace("terrace.compat.deepspeed", "deepspeed")
            pathlib.Path(script).write_text(PREFACE + text)
            theirs = losses(
                arguments.deepspeed_python,
                script,
                SCRIPTS[name],
                {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1", "MASTER_PORT": free_port(), **ALONE},
            )
        ours = losses(sys.executable, str(FOLDER / name), SCRIPTS[name], {"OMP_NUM_THREADS": "1"})
        if len(ours) != len(theirs):
            sys.exit(f"{name}: {len(theirs)} losses of DeepSpeed, and {len(ours)} of Terrace")
        for number, (one, other) in enumerate(zip(theirs, ours)):
            print(f"{name} {number:3}: DeepSpeed {one:.6f}, Terrace {other:.6f}, {abs(one - other) / one:.1e} apart")
        most = max(abs(one - other) / one for one, other in zip(theirs, ours))
        print(f"{name}: {len(ours)} losses, at most {most:.1e} apart")


if __name__ == "__main__":
    main()
