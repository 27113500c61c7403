"""Ranks train one GPT-2 of torch in fp32 on processors: terrace.initialize beside DistributedDataParallel, FSDP2 and
DeepSpeed's ZeRO over gloo, with one thread and the same batches for each rank.

    python torch_ranks.py [--ranks 2] [--rounds 9] [--layers 12] [--width 768] [--heads 12] [--cases NAME...]

Every case has its processes, which wait while others train: a round is one step of each case, so that what else the
machine does meets all alike. Tokens per second are those of all ranks; ratios are of steps of the same round. What
crossed the loopback device is counted there (`unshare -n` gives the comparison one of its own), and what ranks of
Terrace read out of each other's memory by its own counters. The passes of a rank are counted in processor time of the
thread that calls them: "hooks" is what they take beyond those of "plain", which is torch alone, for each module that
has parameters.
"""

import argparse
import contextlib
import multiprocessing
import os
import socket
import statistics
import sys
import time
import warnings
from pathlib import Path

import torch
import torch._dynamo  # which optimizers import: once, for all ranks
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy, fully_shard

VOCABULARY = 50257
WARM_UP = 2
MIB = 1 << 20
CASES = ["plain", "ddp", "fsdp2", "fsdp2 offload", "zero 2", "zero 3"]
TERRACE = ["terrace 2", "terrace 3", "terrace 3 leaves", "terrace 2 pulled", "terrace 3 pulled"]


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--micro-batch", type=int, default=1)
    every = TERRACE + CASES
    parser.add_argument(
        "--cases",
        nargs="+",
        default=[*TERRACE[:2], *CASES[1:4]],
        choices=every,
        metavar="NAME",
        help=f"of {', '.join(every)}",
    )
    return parser.parse_args()


# --- One rank of one case ---


class Layer(nn.Module):
    def __init__(self, options):
        super().__init__()
        width, self.heads = options.width, options.heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, tokens, width = x.shape
        q, k, v = (
            part.view(batch, tokens, self.heads, -1).transpose(1, 2) for part in self.qkv(self.norm1(x)).split(width, 2)
        )
        seen = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Model(nn.Module):
    def __init__(self, options):
        super().__init__()
        torch.manual_seed(7)
        self.tokens, self.places = nn.Embedding(VOCABULARY, options.width), nn.Embedding(options.context, options.width)
        nn.init.normal_(self.tokens.weight, std=0.02)
        self.layers = nn.ModuleList(Layer(options) for _ in range(options.layers))
        self.norm = nn.LayerNorm(options.width)

    def forward(self, ids, targets):
        x = self.tokens(ids) + self.places.weight
        for layer in self.layers:
            x = layer(x)
        logits = nn.functional.linear(self.norm(x), self.tokens.weight)
        return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def config_of(options, **more):
    """For DeepSpeed and Terrace."""
    return {
        "train_micro_batch_size_per_gpu": options.micro_batch,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
        **more,
    }


def engine_of_terrace(options, name):
    import terrace

    placed = {"stage": int(name.split()[1]), "offload_optimizer": {"device": "cpu"}}
    if placed["stage"] == 3:
        placed["offload_param"] = {"device": "cpu"}
    own = {"threads": 1, "rank_exchange": "pulled" if "pulled" in name else "symmetric"}
    units = "leaf" if "leaves" in name else "auto"
    config = config_of(options, zero_optimization=placed, terrace=own)
    return terrace.initialize(model=Model(options), config=config, units=units, log=lambda level, line: None)[0]


def engine_of_deepspeed(options, name):
    import deepspeed

    deepspeed.ops.__compatible_ops__.clear()  # nothing is compiled, and gloo carries what ranks exchange
    config = config_of(options, zero_force_ds_cpu_optimizer=False, zero_optimization={"stage": int(name.split()[1])})
    config["optimizer"]["params"]["torch_adam"] = True
    model = Model(options)
    return deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)[0]


def passes_and_update(options, name):
    """What goes forward and backward with a batch and returns the loss, and what updates then."""
    if name.startswith(("terrace", "zero")):
        make = engine_of_terrace if name.startswith("terrace") else engine_of_deepspeed
        engine = make(options, name)

        def pass_through(*batch):
            loss = engine(*batch)
            engine.backward(loss)
            return loss

        return pass_through, engine.step, getattr(engine, "store", None)
    model = Model(options)
    if name == "ddp":
        model = torch.nn.parallel.DistributedDataParallel(model)
    elif name.startswith("fsdp2"):
        offload = CPUOffloadPolicy(pin_memory=False) if name == "fsdp2 offload" else OffloadPolicy()
        mesh = torch.distributed.init_device_mesh("cpu", (options.ranks,))
        for part in [*model.layers, model]:
            fully_shard(part, mesh=mesh, offload_policy=offload)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def pass_through(*batch):
        loss = model(*batch)
        loss.backward()
        return loss

    def update():
        optimizer.step()
        optimizer.zero_grad()

    return pass_through, update, None


def resident_bytes(what):
    status = Path("/proc/self/status").read_text()
    return 1024 * next(int(line.split()[1]) for line in status.splitlines() if line.startswith(what))


def rank_main(options, name, variables, asked):
    """A step for every message, and its figures for each."""
    os.environ.update(variables)
    os.dup2(2, 1)  # libraries print
    warnings.simplefilter("ignore")
    if options.ranks > 1 and not name.startswith("terrace"):
        torch.distributed.init_process_group("gloo")
    pass_through, update, store = passes_and_update(options, name)
    batches = torch.Generator().manual_seed(100 + int(variables["RANK"]))
    asked.send("made")
    number = 0
    while asked.recv():
        if number == WARM_UP:
            Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        number += 1
        ids = torch.randint(VOCABULARY, (options.micro_batch, options.context + 1), generator=batches)
        thread, process = time.thread_time(), time.process_time()
        loss = pass_through(ids[:, :-1], ids[:, 1:])
        thread = time.thread_time() - thread
        update()
        process = time.process_time() - process
        taken = store.step_counters() if store is not None else {}
        asked.send(
            {
                "thread": thread,
                "process": process,
                "loss": loss.item(),
                "peak": resident_bytes("VmHWM"),
                "taken": taken.get("gather_in", 0) + taken.get("exchange_in", 0),
            }
        )
    os._exit(0)  # without the farewells of process groups


# --- All of them ---


def free_port():
    with contextlib.closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def loopback_bytes():
    lines = Path("/proc/net/dev").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.strip().startswith("lo:"))


class Case:
    """The processes of a case, with the variables that torchrun sets; forked, so that torch is imported once."""

    def __init__(self, options, name):
        self.rounds, self._ranks, self._pipes = [], [], []
        common = {
            "WORLD_SIZE": options.ranks,
            "LOCAL_WORLD_SIZE": options.ranks,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": free_port(),
            "DS_ACCELERATOR": "cpu",
        }
        for rank in range(options.ranks):
            variables = {key: str(value) for key, value in {**common, "RANK": rank, "LOCAL_RANK": rank}.items()}
            own, other = multiprocessing.Pipe()
            self._pipes.append(own)
            self._ranks.append(multiprocessing.Process(target=rank_main, args=(options, name, variables, other)))
            self._ranks[-1].start()
            other.close()  # so that the end of the rank is seen

    def wait(self):
        return [one.recv() for one in self._pipes]

    def step(self):
        crossed, begun = loopback_bytes(), time.perf_counter()
        for one in self._pipes:
            one.send(True)
        figures = self.wait()
        seconds = time.perf_counter() - begun
        self.rounds.append({"seconds": seconds, "loopback": loopback_bytes() - crossed, "ranks": figures})

    def end(self):
        for one in self._ranks:
            one.kill()


def tell(options, cases):
    tokens = options.ranks * options.micro_batch * options.context
    leaves = 6 * options.layers + 2  # the embedding of places is read by the model
    of = [name for name in ("ddp", "fsdp2", "fsdp2 offload") if name in cases]

    def seconds(name):
        return [one["seconds"] for one in cases[name].rounds[WARM_UP:]]

    def of_ranks(name, key):
        return [[rank[key] for rank in one["ranks"]] for one in cases[name].rounds[WARM_UP:]]

    plain = statistics.median(map(sum, of_ranks("plain", "thread"))) if "plain" in cases else None
    print(
        f"{options.ranks} ranks, {options.layers} x {options.width}, {options.micro_batch} x {options.context} tokens "
        f"each, {options.rounds} rounds, load {os.getloadavg()[0]:.1f}"
    )
    for name, case in cases.items():
        rates = [tokens / one for one in seconds(name)]
        ratios = [statistics.median(b / a for a, b in zip(seconds(name), seconds(other))) for other in of]
        loopback = statistics.median(one["loopback"] for one in case.rounds[WARM_UP:])
        line = (
            f"{name:17}{statistics.median(rates):8.1f} tokens/s ({min(rates):.1f} to {max(rates):.1f})"
            + "".join(f", {ratio:.2f} of {other}" for ratio, other in zip(ratios, of))
            + f"; processors {statistics.median(map(sum, of_ranks(name, 'process'))):.2f} s"
            + f"; MB: loopback {loopback / 1e6:.1f}, taken {sum(of_ranks(name, 'taken')[-1]) / 1e6:.1f}"
            + f"; peak MiB {', '.join(f'{peak / MIB:.0f}' for peak in of_ranks(name, 'peak')[-1])}"
            + f"; loss {statistics.mean(of_ranks(name, 'loss')[-1]):.6f}"
        )
        if plain is not None:
            beyond = statistics.median(map(sum, of_ranks(name, "thread"))) - plain
            line += f"; hooks {1e6 * beyond / options.ranks / leaves:.0f} us"
        print(line, flush=True)


def main():
    options = parse()
    multiprocessing.set_start_method("fork")
    torch.set_num_threads(1)
    cases = {}
    try:
        for name in options.cases:
            case = cases[name] = Case(options, name)
            try:
                case.wait()
            except EOFError:  # its ranks have said why
                cases.pop(name).end()
        for number in range(options.rounds + WARM_UP):
            for case in cases.values():
                case.step()
            told = ", ".join(f"{name} {case.rounds[-1]['seconds']:.2f} s" for name, case in cases.items())
            print(f"round {number + 1 - WARM_UP}, load {os.getloadavg()[0]:.1f}: {told}", file=sys.stderr, flush=True)
        tell(options, cases)
    finally:
        for case in cases.values():
            case.end()


main()
