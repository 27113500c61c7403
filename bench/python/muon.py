#!/usr/bin/env python3
"""Measures what a step of Muon takes beside one of AdamW, both with optimizer states on nvme, and beside torch.optim.Muon.

    TERRACE_LIBRARY=build/dev/capi/libterrace.so PYTHONPATH=python python3 bench/python/muon.py /tmp/bench

The model is a row of blocks of matrices in bf16. The engine has the host memory that --host says, --rounds times each way in
turns, each run in a process of its own: two steps and then five, of which the table has the fastest. Bytes are of the
counters of the store, of a step and of each trained parameter; memory is what the process held at most (VmHWM) less what it
had when torch and the model were there. The way torch trains the same matrices with momentum and masters in fp32."""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import time
from statistics import median

WAYS = ("Muon", "AdamW", "torch")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--host", default="160MiB")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    if options.way:
        print(json.dumps(measured(options)))
        return
    rounds = [[run(way) for way in WAYS] for _ in range(options.rounds)]
    print("| way | parameters | s per step | of these the update | read, written per parameter | peak, MiB |")
    print("|---|---|---|---|---|---|")
    for place, way in enumerate(WAYS):
        of = [one[place] for one in rounds]
        step, update, peak = (median(one[name] for one in of) for name in ("step", "update", "peak"))
        read, written = of[0]["bytes"]
        print(
            f"| {way} | {of[0]['parameters']:,} | {step:.2f} | {update:.2f} | {read:.1f}, {written:.1f} | {peak:.0f} |"
        )


def run(way):
    command = [sys.executable, __file__, *sys.argv[1:], "--way", way]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def peak_mib():
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM:")) / 1024


def model_of(options):
    import torch

    width = options.width
    torch.manual_seed(1)
    layers = [
        torch.nn.Linear(*sizes) for _ in range(options.layers) for sizes in ((width, 4 * width), (4 * width, width))
    ]
    return torch.nn.Sequential(*[one for layer in layers for one in (layer, torch.nn.Tanh())])


def measured(options):
    import torch

    torch.set_num_threads(2)
    model = model_of(options)
    parameters = sum(one.numel() for one in model.parameters())
    before, steps = peak_mib(), []
    x = torch.randn(64, options.width, dtype=torch.bfloat16)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        make = torch_step if options.way == "torch" else engine_step
        step, bytes_of_step = make(model, options, folder)
        for _ in range(7):
            begun = time.perf_counter()
            update = step(x)
            steps.append((time.perf_counter() - begun, update))
        moved = [one / parameters for one in bytes_of_step()]
    best = min(steps[2:])
    return {"parameters": parameters, "step": best[0], "update": best[1], "bytes": moved, "peak": peak_mib() - before}


def engine_step(model, options, folder):
    import terrace

    config = {
        "bf16": {"enabled": True},
        "optimizer": {"type": options.way, "params": {"lr": 1e-3}},
        "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "nvme", "nvme_path": folder}},
        "terrace": {"host_memory": options.host, "durable": False, "threads": 2},
    }
    engine = terrace.initialize(model=model, config=config, log=lambda *_: None)[0]

    def step(x):
        engine.backward(engine(x).float().square().mean())
        begun = time.perf_counter()
        engine.step()
        return time.perf_counter() - begun

    def bytes_of_step():
        counters = engine.store.step_counters()
        return tuple(
            sum(counters[f"{what}_{way}"] for what in ("record", "gradient", "param")) for way in ("read", "write")
        )

    return step, bytes_of_step


def torch_step(model, options, folder):
    import torch

    masters = [torch.nn.Parameter(one.detach().clone()) for one in model.parameters()]
    model.bfloat16()
    optimizers = (
        torch.optim.Muon([one for one in masters if one.dim() == 2], lr=1e-3),
        torch.optim.AdamW([one for one in masters if one.dim() == 1], lr=1e-3),
    )

    def step(x):
        model(x).float().square().mean().backward()
        begun = time.perf_counter()
        for master, one in zip(masters, model.parameters()):
            master.grad, one.grad = one.grad.float(), None
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        with torch.no_grad():
            for master, one in zip(masters, model.parameters()):
                one.copy_(master)
        return time.perf_counter() - begun

    return step, lambda: (0, 0)


if __name__ == "__main__":
    main()
