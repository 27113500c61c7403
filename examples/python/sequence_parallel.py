"""One long sequence on several processes, as DeepSpeed-Ulysses has it (Jacobs et al., arXiv:2309.14509): each process computes
its part of the tokens, and torch's all-to-all gives it all tokens of its part of the heads for attention. Terrace needs to
know nothing of it: the processes are ranks of one training, which divide parameters and states.

    torchrun --nproc-per-node 2 examples/python/sequence_parallel.py --nvme-path /mnt/nvme
"""

import argparse

import terrace
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

WORDS, WIDTH, HEADS, LAYERS, CONTEXT = 64, 128, 8, 4, 256


class AllToAll(torch.autograd.Function):
    """Part r goes to process r, and so does its gradient back."""

    @staticmethod
    def forward(context, parts):
        arrived = torch.empty_like(parts)
        dist.all_to_all_single(arrived, parts.contiguous())
        return arrived

    @staticmethod
    def backward(context, gradient):
        return AllToAll.forward(context, gradient)


def exchanged(x, gives, takes):
    """Divides dimension `gives` among all processes, and joins what they give along dimension `takes`."""
    if not dist.is_initialized():
        return x
    arrived = AllToAll.apply(torch.stack(x.chunk(dist.get_world_size(), gives)))
    return torch.cat(list(arrived), takes)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.before_attention, self.before_mlp = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        heads = self.attention(self.before_attention(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        query, key, value = exchanged(heads, 2, 3)  # of (query, batch, heads, tokens, width)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(exchanged(mixed, 2, 1).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.before_mlp(x))))


class Gpt(nn.Module):
    """Takes tokens and their places, and the tokens that follow them."""

    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList([Block() for _ in range(LAYERS)])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens, places, following):
        x = self.words(tokens) + self.places(places)
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1).float(), following.flatten())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--nvme-path", help="a folder on an NVMe drive; without it all is in host memory")
    arguments = parser.parse_args()
    if dist.is_torchelastic_launched():
        dist.init_process_group("gloo")
    processes = dist.get_world_size() if dist.is_initialized() else 1
    rank = dist.get_rank() if dist.is_initialized() else 0
    place = {"device": "nvme", "nvme_path": arguments.nvme_path} if arguments.nvme_path else {"device": "cpu"}
    torch.manual_seed(1)
    engine, _, _, _ = terrace.initialize(
        model=Gpt(),
        config={
            "train_micro_batch_size_per_gpu": 2,
            "gradient_accumulation_steps": 1,
            "gradient_clipping": 1.0,
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
            "zero_optimization": {"stage": 3, "offload_param": place, "offload_optimizer": place},
            "terrace": {"host_memory": "64MiB"},
        },
    )
    own = slice(rank * CONTEXT // processes, (rank + 1) * CONTEXT // processes)
    for step in range(arguments.steps):
        text = (torch.arange(2)[:, None] * 7 + step + torch.arange(CONTEXT + 1)) % WORDS
        loss = engine(text[:, :-1][:, own], torch.arange(CONTEXT)[own], text[:, 1:][:, own])
        engine.backward(loss)
        engine.step()
        mean = loss.detach().clone()
        terrace.comm.all_reduce(mean, "avg")
        if rank == 0 and (step % 5 == 0 or step + 1 == arguments.steps):
            print(f"step {step}: loss {mean.item():.4f}, norm {engine.get_global_grad_norm():.4f}")
    engine.close()
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
