"""What the hooks of terrace.initialize cost per leaf module and step: a GPT whose modules are many and small,
beside plain torch with clipping and fused AdamW and, where it can be imported, DeepSpeed ZeRO-3 with CPU offload.

    python bench/compare/torch/hooks.py                   # 148 leaf modules, 3 M parameters, batch 1 x 32
    python bench/compare/torch/hooks.py --deepspeed --steps 60

All models are in one process and take steps by turns. Processor time is that of the calling thread, which runs the
hooks, for forward and backward, and that of the whole process for steps. What hooks cost is what forward and
backward take beyond torch's, divided by the leaf modules; the library's leases and hand-overs are part of it.
"""

import argparse
import os
import time
import warnings

import torch
from torch import nn
from torch.nn import functional as F

import terrace

LAYERS, WIDTH, HEADS, WORDS, PLACES = 24, 96, 4, 1024, 64
WARM_UP_STEPS = 5


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.before_attention = nn.LayerNorm(WIDTH)
        self.attention = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.before_mlp = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        batch, places, _ = x.shape
        heads = self.attention(self.before_attention(x)).view(batch, places, 3 * HEADS, WIDTH // HEADS)
        q, k, v = heads.transpose(1, 2).chunk(3, dim=1)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, places, WIDTH))
        return x + self.down(F.gelu(self.up(self.before_mlp(x))))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(WORDS, WIDTH)
        self.places = nn.Embedding(PLACES, WIDTH)
        self.blocks = nn.ModuleList([Block() for _ in range(LAYERS)])
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens):
        x = self.table(tokens) + self.places(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def model_of():
    torch.manual_seed(7)
    return Gpt()


def leaves_of(model):
    """The modules with parameters of their own."""
    return sum(bool(module._parameters) for module in model.modules())


class Plain:
    def __init__(self):
        self.run = model_of()
        self._optimizer = torch.optim.AdamW(self.run.parameters(), lr=1e-4, fused=True)

    def backward(self, loss):
        loss.backward()

    def step(self):
        nn.utils.clip_grad_norm_(self.run.parameters(), 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad()


def config_of(parameters, states, **more):
    return {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_clipping": 1.0,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "weight_decay": 0.01}},
        "zero_optimization": {
            "stage": 3,
            "offload_param": {"device": parameters},
            "offload_optimizer": {"device": states},
            **more,
        },
    }


class Terrace:
    def __init__(self, place, units, threads):
        config = config_of(place, place)
        config["terrace"] = {"threads": threads, "host_memory": "256MiB"}
        self.run = terrace.initialize(model=model_of(), config=config, units=units, persistence_threshold=0)[0]
        self.backward, self.step = self.run.backward, self.run.step


class DeepSpeed:
    def __init__(self):
        for name, value in (("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "29561"), ("RANK", "0"),
                            ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0"), ("DS_ACCELERATOR", "cpu")):
            os.environ.setdefault(name, value)
        import deepspeed

        deepspeed.init_distributed("gloo")
        config = dict(config_of("cpu", "cpu", stage3_param_persistence_threshold=0), train_batch_size=1)
        self.run = deepspeed.initialize(model=model_of(), config=config)[0]
        self.backward, self.step = self.run.backward, self.run.step


def contenders(flags):
    made = {
        "torch fused": Plain(),
        "Terrace device, leaves": Terrace("none", "leaf", flags.threads),
        "Terrace device, blocks": Terrace("none", "auto", flags.threads),
        "Terrace cpu, leaves": Terrace("cpu", "leaf", flags.threads),
        "Terrace cpu, blocks": Terrace("cpu", "auto", flags.threads),
    }
    if flags.deepspeed:
        made["DeepSpeed cpu"] = DeepSpeed()
    return made


def timed(one, tokens):
    """Microseconds of forward and backward, and then of a whole step: by the wall, and of processors."""
    wall, thread, process = time.perf_counter(), time.thread_time(), time.process_time()
    loss = F.cross_entropy(one.run(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    one.backward(loss)
    passes = time.perf_counter() - wall, time.thread_time() - thread
    one.step()
    step = time.perf_counter() - wall, time.process_time() - process
    return [1e6 * value for value in passes + step], loss.item()


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
    print(f"{'':22}{'step, ms: least':>16}{'median':>9}{'processor':>11}{'of torch':>10}"
          f"{'hooks, us: least':>18}{'median':>9}{'processor: least':>18}{'median':>9}{'(spread)':>14}")
    for name, rows in found.items():
        passes, thread, step, process = zip(*rows)
        ratio = median(process) / median(plain[3])
        line = f"{min(step) / 1e3:16.1f}{median(step) / 1e3:9.1f}{median(process) / 1e3:11.1f}{ratio:10.2f}"
        if name != "torch fused":
            hooks = [(of(times) - of(ours)) / leaves
                     for times, ours in ((passes, plain[0]), (thread, plain[1])) for of in (min, median)]
            line += "{:18.1f}{:9.1f}{:18.1f}{:9.1f}".format(*hooks) + f"{spread(thread, plain[1], leaves):>14}"
        print(f"{name:22}{line}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--threads", type=int, default=1, help="of Terrace; 0: one per core")
    parser.add_argument("--torch-threads", type=int, default=1)
    parser.add_argument("--deepspeed", action="store_true", help="beside DeepSpeed ZeRO-3 too")
    flags = parser.parse_args()

    torch.set_num_threads(flags.torch_threads)
    warnings.simplefilter("ignore")
    models = contenders(flags)
    generator = torch.Generator().manual_seed(1)
    batches = [torch.randint(0, WORDS, (1, 33), generator=generator) for _ in range(8)]
    found, losses = {name: [] for name in models}, {}
    for number in range(flags.steps + WARM_UP_STEPS):
        for name, one in models.items():
            figures, losses[name] = timed(one, batches[number % 8])
            if number >= WARM_UP_STEPS:
                found[name].append(figures)
    leaves = leaves_of(models["torch fused"].run)
    parameters = sum(one.numel() for one in models["torch fused"].run.parameters())
    print(f"{leaves} leaf modules, {parameters / 1e6:.1f} M parameters, {flags.steps} steps, "
          f"load {os.getloadavg()[0]:.1f}")
    print_table(found, leaves)
    print("last loss: " + ", ".join(f"{name} {loss:.6f}" for name, loss in losses.items()))


if __name__ == "__main__":
    main()
