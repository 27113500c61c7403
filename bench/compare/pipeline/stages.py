"""One case of compare.py, started in two processes: trains, and the last process prints what it found as JSON."""

import json
import resource
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

WORDS, CONTEXT, BATCH, WARM, SEED = 1024, 128, 2, 3, 1234


class Embedding(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, width), nn.Embedding(CONTEXT, width)

    def forward(self, tokens):
        return self.words(tokens) + self.places.weight


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        heads = self.attention(self.before_attention(x)).unflatten(-1, (3, 8, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.before_mlp(x))))


class Head(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.words = nn.LayerNorm(width), nn.Linear(width, WORDS, bias=False)

    def forward(self, x):
        return self.words(self.norm(x))


def layers_of(layers, width):
    """(class, arguments) of each."""
    return [(Embedding, (width,)), *[(Block, (width,))] * layers, (Head, (width,))]


def seeded(place, kind, arguments):
    torch.manual_seed(SEED + place)
    return kind(*arguments)


def loss_of(logits, labels):
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def batches(step, micro_batches):
    generator = torch.Generator().manual_seed(step)
    text = torch.randint(0, WORDS, (micro_batches * BATCH, CONTEXT + 1), generator=generator)
    return text[:, :-1].contiguous(), text[:, 1:].contiguous()


def terrace_steps(place, layers, width, micro_batches, folder, budgets):
    import terrace
    from terrace import pipe

    limits = dict(zip(("device_memory", "host_memory"), budgets)) if place == "budgets" else {}
    place = "nvme" if limits else place
    rest = {"device": "none"} if place == "device" else {"device": place, **({"nvme_path": folder} if folder else {})}
    states = {"device": "cpu"} if place == "device" else rest
    offload = {"stage": 3, "offload_param": rest, "offload_optimizer": states}
    more = {"zero_optimization": offload, "terrace": {"threads": 1, **limits}}
    return engine_steps(terrace, pipe, layers, width, micro_batches, **more)


def torch_steps(layers, width, micro_batches):
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    found, rank = layers_of(layers, width), dist.get_rank()
    middle = 1 + layers // 2
    own = range(middle) if rank == 0 else range(middle, len(found))
    model = nn.Sequential(*(seeded(place, *found[place]) for place in own))
    schedule = Schedule1F1B(PipelineStage(model, rank, 2, torch.device("cpu")), micro_batches, loss_fn=loss_of)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)

    def step(number):
        tokens, labels = batches(number, micro_batches)
        losses = []
        if rank == 0:
            schedule.step(tokens)
        else:
            schedule.step(target=labels, losses=losses)
        optimizer.step()
        optimizer.zero_grad()
        return torch.stack(losses).mean().item() if losses else 0.0

    return step


def deepspeed_steps(layers, width, micro_batches):
    import deepspeed
    from deepspeed import pipe

    deepspeed.init_distributed("gloo")

    return engine_steps(deepspeed, pipe, layers, width, micro_batches, steps_per_print=10**9)


def engine_steps(package, pipe, layers, width, micro_batches, **more):
    """Of either package, by one script."""
    model = pipe.PipelineModule(
        [pipe.LayerSpec(kind, *arguments) for kind, arguments in layers_of(layers, width)],
        num_stages=2,
        loss_fn=loss_of,
        seed_layers=True,
        base_seed=SEED,
        partition_method="type:Block",
    )
    config = {
        "train_micro_batch_size_per_gpu": BATCH,
        "gradient_accumulation_steps": micro_batches,
        "gradient_clipping": 0.0,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "weight_decay": 0.01, "torch_adam": True}},
        **more,
    }
    engine, *_ = package.initialize(model=model, config=config)

    def step(number):
        tokens, labels = batches(number, micro_batches)
        return engine.train_batch(iter(zip(tokens.split(BATCH), labels.split(BATCH)))).item()

    return step


def main():
    case, steps, layers, width, micro_batches, folder, *budgets = sys.argv[1:]
    steps, layers, width, micro_batches = int(steps), int(layers), int(width), int(micro_batches)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    name, _, place = case.partition(" ")
    if name == "terrace":
        step = terrace_steps(place, layers, width, micro_batches, folder, budgets)
    else:
        step = {"torch": torch_steps, "deepspeed": deepspeed_steps}[name](layers, width, micro_batches)
    times, loss = [], 0.0
    for number in range(steps):
        dist.barrier()
        began = time.perf_counter()
        loss = step(number)
        dist.barrier()
        times.append(time.perf_counter() - began)
    memory = torch.tensor([resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024])
    dist.all_reduce(memory)
    if dist.get_rank() == 1:
        median = sorted(times[WARM:])[len(times[WARM:]) // 2]
        rate = micro_batches * BATCH * CONTEXT / median
        print(json.dumps({"rate": rate, "memory": memory.item(), "loss": loss}), flush=True)


if __name__ == "__main__":
    main()
