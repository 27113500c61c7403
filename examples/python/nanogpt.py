"""A small GPT on the text of this file and its neighbours, with parameters and optimizer states on nvme.

python examples/python/nanogpt.py --nvme-path /mnt/nvme --steps 200
"""

import argparse
import pathlib
import tempfile

import terrace
import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.attention(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    def __init__(self, width=128, layers=3, heads=4, length=64):
        super().__init__()
        self.table, self.places = nn.Embedding(256, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256, bias=False)
        self.head.weight = self.table.weight
        nn.init.normal_(self.table.weight, std=0.02)

    def forward(self, tokens):
        x = self.table(tokens) + self.places(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nvme-path", default=tempfile.gettempdir())
    parser.add_argument("--steps", type=int, default=30)
    arguments = parser.parse_args()
    nvme = {"device": "nvme", "nvme_path": arguments.nvme_path}
    config = {
        "gradient_clipping": 1.0,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "weight_decay": 0.1}},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 10}},
        "zero_optimization": {"stage": 3, "offload_param": nvme, "offload_optimizer": nvme},
        "terrace": {"device_memory": "4MiB", "host_memory": "16MiB", "durable": False},
    }
    text = "".join(path.read_text() for path in sorted(pathlib.Path(__file__).parent.glob("*.py")))
    data = torch.tensor(list(text.encode()))
    torch.manual_seed(1)
    with terrace.initialize(model=Gpt(), config=config)[0] as engine:
        average = engine.averaged(decay=0.8)  # of the weights, on nvme as the optimizer states
        for step in range(arguments.steps):
            at = torch.randint(len(data) - 65, (4, 1)) + torch.arange(65)
            logits = engine(data[at][:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), data[at][:, 1:].flatten())
            engine.backward(loss)
            engine.step()
            if step % 10 == 0 or step + 1 == arguments.steps:
                print(f"step {step + 1}: loss {loss.item():.4f}, gradient norm {engine.get_global_grad_norm():.4f}")
        at = torch.arange(0, len(data) - 65, 65)[:, None] + torch.arange(65)
        with average.swapped(), torch.no_grad():
            logits = engine(data[at][:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), data[at][:, 1:].flatten())
        print(f"all of the text, with averaged weights: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
