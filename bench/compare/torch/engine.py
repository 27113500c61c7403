"""Steps of models trained by terrace.initialize, beside plain torch with clipping and fused AdamW and, where they
are asked for, DeepSpeed ZeRO-3 and PyTorch's FSDP2 on one rank, both with CPU offload.

    python bench/compare/torch/engine.py                    # 148 leaf modules, 3 M parameters, batch 1 x 32
    python bench/compare/torch/engine.py --size 100 --steps 12 --peers deepspeed fsdp
    python bench/compare/torch/engine.py --size 100 --steps 8 --peers deepspeed --nvme /mnt/nvme
    python bench/compare/torch/engine.py --size 14 --steps 40 --peers deepspeed fsdp --parts

All models are in one process and take steps by turns. Processor time is that of the calling thread, which runs the
hooks, for forward and backward, and that of the whole process for steps. What hooks cost is what forward and
backward take beyond torch's, divided by the leaf modules; the library's leases and hand-overs are part of it.
"A third" is a device with a third of the memory that the parameters take. DeepSpeed's is the default accelerator
for CPUs, whose parameters and states are offloaded to the same memory. --parts adds where the processor time of a step
goes, which other work on the machine changes little: the table of docs/step_time.md that docs/pictures/make draws.
"""

import argparse
import os
import time
import warnings

import terrace
import torch
from torch import nn
from torch.nn import functional as F

# Layers, width, heads, words, places, batch, by millions of parameters. The modules of the first are many and
# small.
SIZES = {
    3: (24, 96, 4, 1024, 32, 1),
    14: (7, 384, 6, 1024, 128, 4),
    100: (12, 768, 12, 9216, 128, 4),
}
WARM_UP_STEPS = 3
MIB = 1 << 20


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.before_attention = nn.LayerNorm(width)
        self.attention = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.before_mlp = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        batch, places, width = x.shape
        heads = self.attention(self.before_attention(x)).view(batch, places, 3 * self.heads, width // self.heads)
        q, k, v = heads.transpose(1, 2).chunk(3, dim=1)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, places, width))
        return x + self.down(F.gelu(self.up(self.before_mlp(x))))


class Gpt(nn.Module):
    def __init__(self, size):
        super().__init__()
        layers, width, heads, words, places, _ = SIZES[size]
        self.table = nn.Embedding(words, width)
        self.places = nn.Embedding(places, width)
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, tokens):
        x = self.table(tokens) + self.places(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def model_of(size):
    torch.manual_seed(7)
    return Gpt(size)


def leaves_of(model):
    """The modules with parameters of their own."""
    return sum(bool(module._parameters) for module in model.modules())


class Plain:
    def __init__(self, size):
        self.run = model_of(size)
        self._optimizer = torch.optim.AdamW(self.run.parameters(), lr=1e-4, fused=True)

    def backward(self, loss):
        loss.backward()

    def step(self):
        nn.utils.clip_grad_norm_(self.run.parameters(), 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad()


def config_of(place, folder=None, **more):
    path = {"nvme_path": folder} if place == "nvme" else {}
    return {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_clipping": 1.0,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "weight_decay": 0.01}},
        "zero_optimization": {
            "stage": 3,
            "offload_param": {"device": place, **path},
            "offload_optimizer": {"device": place, **path},
            **more,
        },
    }


class Terrace:
    def __init__(self, flags, place, units, of_parameters=1.0, folder=None):
        model = model_of(flags.size)
        config = config_of(place, folder)
        config["terrace"] = {"threads": flags.threads, "durable": False}
        if place != "nvme":
            config["terrace"]["host_memory"] = f"{max(256, 32 * flags.size)}MiB"
        elif flags.host_mib:
            config["terrace"]["host_memory"] = f"{flags.host_mib}MiB"
        if of_parameters < 1:
            bytes_ = sum(4 * one.numel() for one in model.parameters())
            config["terrace"]["device_memory"] = int(bytes_ * of_parameters)
        self.run = terrace.initialize(
            model=model, config=config, units=units, persistence_threshold=0, log=lambda level, line: None
        )[0]
        self.backward, self.step = self.run.backward, self.run.step


class DeepSpeed:
    def __init__(self, flags, place, folder=None):
        import deepspeed

        config = config_of(place, folder, stage3_param_persistence_threshold=0)
        config.update(
            train_batch_size=1,
            aio={"block_size": MIB, "queue_depth": 32, "single_submit": False, "overlap_events": True},
        )
        if place == "nvme":
            largest = max(one.numel() for one in model_of(flags.size).parameters())
            config["zero_optimization"]["offload_param"].update(buffer_count=8, buffer_size=largest + 1024)
            config["zero_optimization"]["offload_optimizer"].update(
                buffer_count=5, pipeline_read=True, pipeline_write=True
            )
            config["zero_optimization"]["sub_group_size"] = 20_000_000
        self.run = deepspeed.initialize(model=model_of(flags.size), config=config)[0]
        self.backward, self.step = self.run.backward, self.run.step


class Fsdp(Plain):
    """FSDP2: blocks and the whole model are sharded, and lie in host memory."""

    def __init__(self, flags):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard

        mesh, policy = init_device_mesh("cpu", (1,)), CPUOffloadPolicy(pin_memory=False)
        model = model_of(flags.size)
        for module in [*model.blocks, model]:
            fully_shard(module, mesh=mesh, offload_policy=policy)
        self.run = model
        self._optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)


def join_group_of_one():
    for name, value in (
        ("MASTER_ADDR", "127.0.0.1"),
        ("MASTER_PORT", "29561"),
        ("RANK", "0"),
        ("WORLD_SIZE", "1"),
        ("LOCAL_RANK", "0"),
        ("DS_ACCELERATOR", "cpu"),
    ):
        os.environ.setdefault(name, value)
    torch.distributed.init_process_group("gloo")


def contenders(flags):
    made = {"torch fused": Plain(flags.size)}
    if flags.nvme:
        made["Terrace nvme"] = Terrace(flags, "nvme", "auto", 1 / 3, flags.nvme)
    else:
        made["Terrace device, blocks"] = Terrace(flags, "none", "auto")
        made["Terrace cpu, blocks"] = Terrace(flags, "cpu", "auto")
        made["Terrace cpu, a third"] = Terrace(flags, "cpu", "auto", 1 / 3)
        if flags.size == 3:
            made["Terrace device, leaves"] = Terrace(flags, "none", "leaf")
            made["Terrace cpu, leaves"] = Terrace(flags, "cpu", "leaf")
    if flags.peers:
        join_group_of_one()
    if "deepspeed" in flags.peers:
        place = "nvme" if flags.nvme else "cpu"
        made[f"DeepSpeed {place}"] = DeepSpeed(flags, place, flags.nvme)
    if "fsdp" in flags.peers:
        made["FSDP2 cpu"] = Fsdp(flags)
    return made


def timed(one, tokens):
    """Microseconds of forward and backward, and then of a whole step, by the wall and of processors; behind them those of
    processors in forward, backward and the rest."""
    wall, thread, process = time.perf_counter(), time.thread_time(), [time.process_time()]
    loss = F.cross_entropy(one.run(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    process.append(time.process_time())
    one.backward(loss)
    passes = time.perf_counter() - wall, time.thread_time() - thread
    process.append(time.process_time())
    one.step()
    step = time.perf_counter() - wall, time.process_time() - process[0]
    process.append(time.process_time())
    parts = [end - begin for begin, end in zip(process, process[1:])]
    return [1e6 * value for value in (*passes, *step, *parts)], loss.item()


def median(values):
    return sorted(values)[len(values) // 2]


def spread(values, plain, leaves):
    """The least and the largest of what medians over fifths of the run are beyond torch's."""
    fifth = max(len(values) // 5, 1)
    starts = range(0, len(values) - fifth + 1, fifth)
    parts = [(median(values[at : at + fifth]) - median(plain[at : at + fifth])) / leaves for at in starts]
    return f"({min(parts):.0f} to {max(parts):.0f})"


def print_table(found, leaves):
    plain = list(zip(*found["torch fused"]))
    print(
        f"{'':22}{'step, ms: least':>16}{'median':>9}{'processor':>11}{'of torch':>10}"
        f"{'hooks, us: least':>18}{'median':>9}{'processor: least':>18}{'median':>9}{'(spread)':>14}"
    )
    for name, rows in found.items():
        passes, thread, step, process = list(zip(*rows))[:4]
        ratio = median(process) / median(plain[3])
        line = f"{min(step) / 1e3:16.1f}{median(step) / 1e3:9.1f}{median(process) / 1e3:11.1f}{ratio:10.2f}"
        if name != "torch fused":
            hooks = [
                (of(times) - of(ours)) / leaves
                for times, ours in ((passes, plain[0]), (thread, plain[1]))
                for of in (min, median)
            ]
            line += "{:18.1f}{:9.1f}{:18.1f}{:9.1f}".format(*hooks) + f"{spread(thread, plain[1], leaves):>14}"
        print(f"{name:22}{line}")


def print_parts(found):
    """A table of Markdown, of medians in milliseconds: the parts add up to the step but for their noise."""
    print("| | forward | backward | clipping and optimizer | step |\n|---|---|---|---|---|")
    for name, rows in found.items():
        *_, step, forward, backward, rest = zip(*rows)
        print(
            f"| {name} | " + " | ".join(f"{median(part) / 1e3:.0f}" for part in (forward, backward, rest, step)) + " |"
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--threads", type=int, default=1, help="of Terrace; 0: one per core")
    parser.add_argument("--torch-threads", type=int, default=1)
    parser.add_argument("--size", type=int, choices=SIZES, default=3, help="millions of parameters")
    parser.add_argument("--peers", nargs="*", choices=("deepspeed", "fsdp"), default=())
    parser.add_argument("--nvme", help="a folder on a drive, for parameters and states of Terrace and DeepSpeed")
    parser.add_argument("--host-mib", type=int, help="host memory of Terrace with --nvme; default: what it plans")
    parser.add_argument(
        "--parts", action="store_true", help="the processor time of a step's parts, as a table of Markdown"
    )
    flags = parser.parse_args()

    torch.set_num_threads(flags.torch_threads)
    warnings.simplefilter("ignore")
    models = contenders(flags)
    generator = torch.Generator().manual_seed(1)
    *_, words, places, batch = SIZES[flags.size]
    batches = [torch.randint(0, words, (batch, places + 1), generator=generator) for _ in range(8)]
    found, losses = {name: [] for name in models}, {}
    for number in range(flags.steps + WARM_UP_STEPS):
        for name, one in models.items():
            figures, losses[name] = timed(one, batches[number % 8])
            if number >= WARM_UP_STEPS:
                found[name].append(figures)
    leaves = leaves_of(models["torch fused"].run)
    parameters = sum(one.numel() for one in models["torch fused"].run.parameters())
    print(
        f"{leaves} leaf modules, {parameters / 1e6:.1f} M parameters, batch {batch} x {places}, "
        f"{flags.steps} steps, load {os.getloadavg()[0]:.1f}"
    )
    print_table(found, leaves)
    if flags.parts:
        print_parts(found)
    print("last loss: " + ", ".join(f"{name} {loss:.6f}" for name, loss in losses.items()))


if __name__ == "__main__":
    main()
