"""BLOOM's attention with ALiBi on several processes that share its heads, each with parameters and states of its part in
host memory or on an NVMe drive: torch's parallelize_module divides the layers, Terrace moves what each process has.

    torchrun --nproc-per-node 2 examples/python/tensor_parallel.py --nvme-path /mnt/nvme
    torchrun --nproc-per-node 4 examples/python/tensor_parallel.py --tensor-parallel 2

Without --tensor-parallel all processes share one copy of the model; else so many do, and the copies divide the batch.
"""

import argparse
import math

import terrace
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional as F

WORDS, WIDTH, HEADS, LAYERS, CONTEXT = 64, 128, 8, 4, 32


def slopes_of(heads):
    """Of heads in their order, as in Press et al., arXiv:2108.12409, for a power of two of them."""
    return torch.tensor([2.0 ** (-8.0 * (head + 1) / heads) for head in range(heads)])


class Attention(nn.Module):
    """`first` of the heads is the first one that this process has, of `heads`."""

    def __init__(self, first, heads):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.dense = nn.Linear(WIDTH, WIDTH)
        self.heads = heads
        distance = torch.arange(CONTEXT)[None, :] - torch.arange(CONTEXT)[:, None]
        bias = slopes_of(HEADS)[first : first + heads, None, None] * distance
        self.register_buffer("bias", bias.masked_fill(distance > 0, -math.inf), persistent=False)

    def forward(self, x):
        query, key, value = (
            layer(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        length = query.shape[2]
        bias = self.bias[:, :length, :length].to(query.dtype)
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=bias)
        return self.dense(mixed.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, first, heads):
        super().__init__()
        self.before_attention, self.before_mlp = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = Attention(first, heads)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        x = x + self.attention(self.before_attention(x))
        return x + self.down(F.gelu(self.up(self.before_mlp(x))))


class Bloom(nn.Module):
    def __init__(self, first, heads):
        super().__init__()
        self.words, self.after_words = nn.Embedding(WORDS, WIDTH), nn.LayerNorm(WIDTH)
        self.blocks = nn.ModuleList([Block(first, heads) for _ in range(LAYERS)])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens):
        x = self.after_words(self.words(tokens[:, :-1]))
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1).float(), tokens[:, 1:].flatten())


def build(mesh):
    """All processes make the same weights; each keeps its shards of them."""
    place, count = (0, 1) if mesh is None else (mesh.get_local_rank(), mesh.size())
    torch.manual_seed(1)
    model = Bloom(place * HEADS // count, HEADS // count)
    if mesh is not None:
        plan = {f"attention.{name}": ColwiseParallel() for name in ("query", "key", "value")}
        plan.update({"attention.dense": RowwiseParallel(), "up": ColwiseParallel(), "down": RowwiseParallel()})
        for block in model.blocks:
            parallelize_module(block, mesh, plan)
    return model


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--tensor-parallel", type=int, default=0, help="processes that share one copy of the model")
    parser.add_argument("--nvme-path", help="a folder on an NVMe drive; without it all is in host memory")
    arguments = parser.parse_args()
    if dist.is_torchelastic_launched():
        dist.init_process_group("gloo")
    processes = dist.get_world_size() if dist.is_initialized() else 1
    shared = arguments.tensor_parallel or processes
    mesh = None
    if processes > 1:
        mesh = init_device_mesh("cpu", (processes // shared, shared), mesh_dim_names=("data", "tensor"))["tensor"]
    place = {"device": "nvme", "nvme_path": arguments.nvme_path} if arguments.nvme_path else {"device": "cpu"}
    engine, _, _, _ = terrace.initialize(
        model=build(mesh),
        model_parallel_size=shared,
        config={
            "train_batch_size": 8,
            "gradient_accumulation_steps": 1,
            "gradient_clipping": 1.0,
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
            "zero_optimization": {"stage": 3, "offload_param": place, "offload_optimizer": place},
            "terrace": {"host_memory": "64MiB"},
        },
    )
    copies = processes // shared
    copy = 0 if not dist.is_initialized() else dist.get_rank() // shared
    for step in range(arguments.steps):
        starts = torch.arange(8)[copy::copies, None] * 7 + step
        loss = engine((starts + torch.arange(CONTEXT)) % WORDS)
        engine.backward(loss)
        engine.step()
        if engine.global_rank == 0 and (step % 5 == 0 or step + 1 == arguments.steps):
            print(f"step {step}: loss {loss.item():.4f}, norm {engine.get_global_grad_norm():.4f}")
    engine.close()
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
