"""A forward and backward pass on the processor: Terrace's operations beside torch, by turns, with everything in memory.

    python compare.py COMPUTE_STEP [--models gpt2-85m ...] [--tokens 256 1024 4096] [--threads 1 2] [--types fp32 bf16]
        [--rounds 5]

Both have parameters and gradients of the type and keep their activations; torch computes in the type of the parameters, and
Terrace multiplies matrices in it. Prints the median seconds of each with the least and the most, and the ratio of the medians:
above 1 Terrace is the faster one.
"""

import argparse
import json
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import torch
from torch import nn

GPT2 = {"model_type": "gpt2", "n_layer": 12, "n_head": 12, "n_embd": 768, "n_positions": 4096}
MODELS = {
    "gpt2-85m": GPT2 | {"vocab_size": 256},
    "gpt2-124m": GPT2 | {"vocab_size": 50257},
    "llama-160m": {
        "model_type": "llama",
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "hidden_size": 768,
        "intermediate_size": 3072,
        "vocab_size": 32000,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
    },
}


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=lambda text: Path(text).resolve())
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--tokens", nargs="+", type=int, default=[256, 1024, 4096])
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--types", nargs="+", default=["fp32", "bf16"], choices=["fp32", "bf16"])
    parser.add_argument("--rounds", type=int, default=5)
    return parser.parse_args()


def heads_of(x, heads):
    return x.view(1, x.shape[1], heads, -1).transpose(1, 2)


def attention(q, k, v):
    y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    return y.transpose(1, 2).reshape(1, y.shape[2], -1)


class Gpt2Layer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.heads, width = config["n_head"], config["n_embd"]
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x, turn):
        parts = self.qkv(self.norm1(x)).split(x.shape[2], 2)
        x = x + self.out(attention(*(heads_of(part, self.heads) for part in parts)))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x)), approximate="tanh"))


class LlamaLayer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.heads, width, hidden = config["num_attention_heads"], config["hidden_size"], config["intermediate_size"]
        self.norm1, self.norm2 = nn.RMSNorm(width, eps=1e-5), nn.RMSNorm(width, eps=1e-5)
        self.q, self.k, self.v, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up = nn.Linear(width, hidden, bias=False), nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x, turn):
        y = self.norm1(x)
        q, k, v = (heads_of(linear(y), self.heads) for linear in (self.q, self.k, self.v))
        x = x + self.out(attention(turn(q), turn(k), v))
        y = self.norm2(x)
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))


class Rotation(nn.Module):
    def __init__(self, tokens, size):
        super().__init__()
        angles = torch.outer(torch.arange(tokens), 10000.0 ** (-torch.arange(0, size, 2) / size)).repeat(1, 2)
        self.register_buffer("cosines", angles.cos())
        self.register_buffer("sines", angles.sin())

    def forward(self, x):
        low, high = x.chunk(2, -1)
        return x * self.cosines + torch.cat((-high, low), -1) * self.sines


class TorchModel(nn.Module):
    def __init__(self, config, tokens):
        super().__init__()
        gpt2 = config["model_type"] == "gpt2"
        width, layers = (
            (config["n_embd"], config["n_layer"]) if gpt2 else (config["hidden_size"], config["num_hidden_layers"])
        )
        self.table = nn.Embedding(config["vocab_size"], width)
        self.places = nn.Embedding(config["n_positions"], width) if gpt2 else None
        self.turn = None if gpt2 else Rotation(tokens, width // config["num_attention_heads"])
        self.layers = nn.ModuleList((Gpt2Layer if gpt2 else LlamaLayer)(config) for _ in range(layers))
        self.norm = nn.LayerNorm(width) if gpt2 else nn.RMSNorm(width, eps=1e-5)
        self.head = nn.Linear(width, config["vocab_size"], bias=False)
        if gpt2:
            self.head.weight = self.table.weight

    def forward(self, ids, targets):
        x = self.table(ids)
        if self.places is not None:
            x = x + self.places.weight[: ids.shape[1]]
        for layer in self.layers:
            x = layer(x, self.turn)
        return nn.functional.cross_entropy(self.head(self.norm(x)).flatten(0, 1), targets.flatten())


class Torch:
    def __init__(self, config, dtype, threads, tokens):
        torch.set_num_threads(threads)
        torch.manual_seed(7)
        self.model = TorchModel(config, tokens).to(torch.float32 if dtype == "fp32" else torch.bfloat16)
        self.ids, self.targets = (torch.randint(config["vocab_size"], (1, tokens)) for _ in range(2))

    def step(self):
        begin = time.perf_counter()
        self.model(self.ids, self.targets).backward()
        seconds = time.perf_counter() - begin
        self.model.zero_grad(set_to_none=False)
        return seconds


class Terrace:
    def __init__(self, program, config, dtype, threads, tokens, folder):
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(config))
        self.process = subprocess.Popen(
            [program, path, dtype, str(threads), str(tokens)], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def step(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        seconds, self.loss, self.work_bytes = (float(word) for word in self.process.stdout.readline().split())
        return seconds

    def end(self):
        self.process.stdin.close()
        self.process.wait()


def text_of(times):
    return f"{statistics.median(times):7.3f} ({min(times):.3f} to {max(times):.3f})"


def main():
    options = parse()
    print(f"torch {torch.__version__}, {options.rounds} rounds behind a first one\n")
    print(
        "model       type  threads  tokens  Terrace, s                torch, s                  torch / Terrace  work memory"
    )
    for name in options.models:
        for tokens in options.tokens:
            for dtype in options.types:
                for threads in options.threads:
                    with tempfile.TemporaryDirectory() as folder:
                        terrace = Terrace(options.program, MODELS[name], dtype, threads, tokens, folder)
                        peer = Torch(MODELS[name], dtype, threads, tokens)
                        rounds = [(terrace.step(), peer.step()) for _ in range(options.rounds + 1)][1:]
                        terrace.end()
                    ours, theirs = zip(*rounds)
                    ratio = statistics.median(theirs) / statistics.median(ours)
                    print(
                        f"{name:<11} {dtype}  {threads:<7}  {tokens:<6}  {text_of(ours):<25} {text_of(theirs):<25} "
                        f"{ratio:<15.2f}  {terrace.work_bytes / 2**20:.0f} MiB",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
