#!/usr/bin/env python3
"""Measures what a training with long sequences takes, by where the inputs of its blocks wait for the backward pass: the
most memory that the process holds, and the time of a step.

    TERRACE_LIBRARY=build/dev/capi/libterrace.so PYTHONPATH=python python3 bench/python/saved_activations.py /tmp/bench

The model is a small transformer whose blocks are computed again in the backward pass. The ways none, cpu and nvme are values
of terrace.offload_activations; with nvme host memory has room for two inputs. The way save_on_cpu is torch's, around the
forward pass, and leaves the inputs to torch otherwise. That of transformers (offload=True of its checkpointing) is the same
function with page-locked memory, which torch has on machines with an accelerator alone: so it is not among them.

Each run is a process of its own that makes three steps, and the ways take turns, --rounds times. The memory is VmHWM less
what the process had before its first step, the time that of the faster one of the last two steps; the table has the medians
of the rounds. Without a GPU the device is host memory too: there cpu moves bytes within it, and nvme alone can take less.
The losses of all ways have to be the same, bit for bit."""

import argparse
import contextlib
import json
import pathlib
import subprocess
import sys
import time
from statistics import median

WAYS = ("none", "cpu", "nvme", "save_on_cpu")
MIB = 1 << 20


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--tokens", default="4096,16384")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    if options.way:
        print(json.dumps(measured(options)))
        return
    for tokens in options.tokens.split(","):
        report(tokens, [[run(options, way, tokens) for way in WAYS] for _ in range(options.rounds)])


def run(options, way, tokens):
    sizes = ["--layers", str(options.layers), "--width", str(options.width), "--tokens", tokens]
    command = [sys.executable, __file__, str(options.folder), "--way", way, *sizes]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def report(tokens, rounds):
    print(f"{tokens} tokens\n| way | peak beside the model, MiB | s per step | moved down and up, MiB | nvme, MiB |")
    print("|---|---|---|---|---|")
    for place, way in enumerate(WAYS):
        runs = [one[place] for one in rounds]
        first = runs[0]
        assert all(one["losses"] == rounds[0][0]["losses"] for one in runs), f"the losses of {way} are others"
        moved = f"{first['down'] / MIB:.0f}, {first['up'] / MIB:.0f}"
        print(
            f"| {way} | {median(one['peak'] for one in runs) / MIB:.0f} | {median(one['seconds'] for one in runs):.2f} | "
            f"{moved} | {first['written'] / MIB:.0f} |"
        )


def model_of(width, layers):
    from torch import nn
    from torch.nn import functional as F
    from torch.utils.checkpoint import checkpoint

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.second_norm = nn.LayerNorm(width), nn.LayerNorm(width)
            self.attention, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

        def forward(self, x):
            parts = self.attention(self.norm(x)).unflatten(-1, (3, 8, width // 8)).movedim(2, 0).transpose(2, 3)
            mixed = F.scaled_dot_product_attention(*parts, is_causal=True)
            x = x + self.out(mixed.transpose(1, 2).flatten(2))
            return x + self.down(F.gelu(self.up(self.second_norm(x))))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(256, width)
            self.blocks = nn.ModuleList([Block() for _ in range(layers)])

        def forward(self, words):
            x = self.table(words)
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=False)
            return x.square().mean()

    return Model()


def engine_of(options):
    import terrace
    import torch

    in_store = options.way if options.way in ("cpu", "nvme") else "none"
    optimizer = {"device": "cpu", "nvme_path": str(options.folder)} if in_store == "nvme" else {"device": "cpu"}
    config = {
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
        "zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}, "offload_optimizer": optimizer},
        "terrace": {"offload_activations": in_store, "host_memory": "8GiB", "chunk_elements": 1 << 18},
    }
    if in_store == "nvme":  # room for two inputs
        probe = {**config, "terrace": {**config["terrace"], "host_memory": 1}}
        try:
            terrace.initialize(model=model_of(options.width, options.layers), config=probe)
        except terrace.CapacityError as error:
            input_bytes = -(-int(options.tokens) * options.width * 4 // (1 << 18)) << 18
            config["terrace"]["host_memory"] = error.least_bytes + 2 * input_bytes
    torch.manual_seed(1)
    return terrace.initialize(model=model_of(options.width, options.layers), config=config)[0]


def measured(options):
    import torch

    engine = engine_of(options)
    words = torch.randint(0, 256, (1, int(options.tokens)))
    before, losses, times = memory("VmRSS"), [], []
    reset_peak()
    for _ in range(3):
        begun = time.perf_counter()
        hooks = torch.autograd.graph.save_on_cpu() if options.way == "save_on_cpu" else contextlib.nullcontext()
        with hooks:
            loss = engine(words)
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
        del loss
        times.append(time.perf_counter() - begun)
    counters = engine.store.step_counters()
    return {
        "losses": losses,
        "seconds": min(times[1:]),
        "peak": memory("VmHWM") - before,
        "down": counters["activation_d2h"],
        "up": counters["activation_h2d"],
        "written": counters["activation_write"],
    }


def memory(name):
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(name + ":")) * 1024


def reset_peak():
    with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")


if __name__ == "__main__":
    main()
