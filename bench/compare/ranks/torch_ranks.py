"""Two ranks train a GPT-2 in fp32 on processors: `mpirun -n 2 terrace train` beside torch with gloo, DDP and FSDP2, by turns, with
one thread and the same batch for each rank. Prints the tokens per second of all ranks, over the steps behind the first two, and
the bytes that crossed the loopback device in a step, for all ranks together; for Terrace those that its ranks took from each other,
too, which by default pass through memory.

    python torch_ranks.py TERRACE FOLDER [--ranks 2] [--rounds 3] [--layers 12] [--width 768] [--heads 12] [--cases NAME...]

`--cases deepspeed` tries DeepSpeed's stage 2 on processors, too. Everything that others send over the loopback device counts:
`unshare -n` gives the comparison one of its own.
"""

import argparse
import array
import collections
import json
import os
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path

VOCABULARY = 50257
WARM_UP = 2
CASES = ["stage 2", "stage 3", "ddp", "fsdp2", "fsdp2 offload"]


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("terrace", type=lambda text: Path(text).resolve())
    parser.add_argument("folder", type=lambda text: Path(text).resolve())
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=4, help="behind the first two")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--micro-batch", type=int, default=2)
    parser.add_argument("--cases", nargs="+", default=CASES, choices=[*CASES, "deepspeed"])
    parser.add_argument("--peer", help=argparse.SUPPRESS)
    return parser.parse_args()


def loopback_bytes():
    for line in Path("/proc/net/dev").read_text().splitlines():
        if line.strip().startswith("lo:"):
            return int(line.split()[1])
    return 0


def make_model(options):
    import torch
    from torch import nn

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            width = options.width
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x):
            batch, tokens, width = x.shape
            q, k, v = (
                part.view(batch, tokens, options.heads, -1).transpose(1, 2)
                for part in self.qkv(self.norm1(x)).split(width, 2)
            )
            seen = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(seen.transpose(1, 2).reshape(batch, tokens, width))
            return x + self.down(nn.functional.gelu(self.up(self.norm2(x)), approximate="tanh"))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.places = (
                nn.Embedding(VOCABULARY, options.width),
                nn.Embedding(options.context, options.width),
            )
            self.layers = nn.ModuleList(Layer() for _ in range(options.layers))
            self.norm = nn.LayerNorm(options.width)

        def forward(self, ids, targets):
            x = self.tokens(ids) + self.places.weight
            for layer in self.layers:
                x = layer(x)
            logits = nn.functional.linear(self.norm(x), self.tokens.weight)
            return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

    torch.manual_seed(7)
    return Model()


def wrapped(options, model):
    """The model as the case has it, and one step of it on a batch."""
    import torch

    if options.peer == "deepspeed":
        import deepspeed

        engine, *_ = deepspeed.initialize(
            model=model,
            model_parameters=model.parameters(),
            config={
                "train_micro_batch_size_per_gpu": options.micro_batch,
                "zero_optimization": {"stage": 2},
                "zero_force_ds_cpu_optimizer": False,
                "optimizer": {"type": "AdamW", "params": {"torch_adam": True}},
            },
        )

        def step(*batch):
            engine.backward(engine(*batch))
            engine.step()

        return step
    if options.peer == "ddp":
        model = torch.nn.parallel.DistributedDataParallel(model)
    else:
        from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy, fully_shard

        offload = CPUOffloadPolicy(pin_memory=False) if options.peer == "fsdp2 offload" else OffloadPolicy()
        mesh = torch.distributed.init_device_mesh("cpu", (options.ranks,))
        for part in [*model.layers, model]:
            fully_shard(part, mesh=mesh, offload_policy=offload)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step(*batch):
        model(*batch).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def peer(options):
    """One rank of one run of torch; the first prints seconds and bytes of a step."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    step = wrapped(options, make_model(options))
    seconds, begun_bytes = [], 0
    for number in range(options.steps + WARM_UP):
        if number == WARM_UP:
            dist.barrier()
            begun_bytes = loopback_bytes()
        ids = torch.randint(VOCABULARY, (options.micro_batch, options.context + 1))
        begun = time.perf_counter()
        step(ids[:, :-1], ids[:, 1:])
        seconds.append(time.perf_counter() - begun)
    dist.barrier()
    if dist.get_rank() == 0:
        crossed = (loopback_bytes() - begun_bytes) / options.steps
        print(json.dumps({"seconds": seconds[WARM_UP:], "loopback": crossed}))
    dist.destroy_process_group()


def output_of(command):
    environment = {
        **os.environ,
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMP_NUM_THREADS": "1",
        "DS_ACCELERATOR": "cpu",
    }
    done = subprocess.run([str(word) for word in command], env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(done.stdout[-1000:] + done.stderr[-3000:])
    return done.stdout


def run_peer(options, case):
    lines = output_of(
        [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--nproc-per-node",
            options.ranks,
            __file__,
            *sys.argv[1:],
            "--peer",
            case,
        ]
    ).splitlines()
    return {**json.loads(next(line for line in reversed(lines) if line.startswith("{"))), "taken": None}


def run_terrace(options, case):
    log, config = options.folder / "steps.jsonl", options.folder / "ds.json"
    log.unlink(missing_ok=True)
    stage = {"stage": 2, "offload_optimizer": {"device": "cpu"}}
    if case == "stage 3":
        stage = {"stage": 3, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}}
    config.write_text(json.dumps({"train_micro_batch_size_per_gpu": options.micro_batch, "zero_optimization": stage}))
    crossed = loopback_bytes()
    output_of(
        [
            "mpirun",
            "--oversubscribe",
            "--bind-to",
            "none",
            "-n",
            options.ranks,
            options.terrace,
            "train",
            "--model",
            "gpt2",
            "--layers",
            options.layers,
            "--width",
            options.width,
            "--heads",
            options.heads,
            "--context",
            options.context,
            "--config",
            config,
            "--data",
            options.folder / "tokens.bin",
            "--validation-fraction",
            0,
            "--threads",
            1,
            "--steps",
            options.steps + WARM_UP,
            "--log",
            log,
        ]
    )
    crossed = loopback_bytes() - crossed
    steps = [json.loads(line) for line in log.read_text().splitlines()]
    steps = [step for step in steps if step["event"] == "step"][WARM_UP:]
    taken = [options.ranks * (step["gather_in_bytes"] + step["exchange_in_bytes"]) for step in steps]
    return {
        "seconds": [step["seconds"] for step in steps],
        "loopback": crossed / (options.steps + WARM_UP),
        "taken": statistics.median(taken),
    }


def main():
    options = parse()
    if options.peer:
        return peer(options)
    options.folder.mkdir(parents=True, exist_ok=True)
    chosen = random.Random(7)
    with (options.folder / "tokens.bin").open("wb") as file:
        array.array("H", (chosen.randrange(VOCABULARY) for _ in range(1 << 20))).tofile(file)
    runs = collections.defaultdict(list)
    for _ in range(options.rounds):
        for case in options.cases:
            try:
                runs[case].append((run_terrace if case.startswith("stage") else run_peer)(options, case))
            except RuntimeError as failure:
                print(f"{case} fails: {failure}", flush=True)
                continue
            print(f"{case}: {statistics.median(runs[case][-1]['seconds']):.2f} s a step", file=sys.stderr, flush=True)
    tokens = options.ranks * options.micro_batch * options.context
    for case, of_case in runs.items():
        rates = [tokens / seconds for run in of_case for seconds in run["seconds"]]
        taken = of_case[0]["taken"]
        print(
            f"{case:14} {statistics.median(rates):8.1f} tokens/s ({min(rates):.1f} to {max(rates):.1f}); loopback "
            f"{statistics.median(run['loopback'] for run in of_case) / 1e6:8.1f} MB a step"
            + (f", taken from other ranks {taken / 1e6:.1f} MB" if taken is not None else "")
        )


main()
