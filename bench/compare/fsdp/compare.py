"""Terrace beside PyTorch's FSDP with parameters, gradients and optimizer in CPU memory, on the same GPU at the same device
memory: a model of Llama's shape in bf16, trained with Adam; tokens in a second of both, in turns.

FSDP2 (`fully_shard` of every layer with CPUOffloadPolicy, fp32 parameters computed with in bf16), activations checkpointed by
layer, Adam on the CPU, `fused=True`. Its device memory is held to the budget by the allocator of torch; a run that does not
fit says so.

    python compare.py build/release/tools/terrace FOLDER [--model llama-2-7b] [--device-memory-gib 12] [--rounds 3]

--device cpu tries the script where there is no GPU, with the simulated device and a small model: its figures mean nothing.
"""

import argparse
import array
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

WARM_UP = 5  # steps: Terrace has chosen its mode of the update by then
# layers, width, heads, key-value heads, hidden, vocabulary
SHAPES = {"llama-2-7b": (32, 4096, 32, 32, 11008, 32000), "smollm2-135m": (30, 576, 9, 3, 1536, 49152)}


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("terrace", type=lambda text: Path(text).resolve())
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", default="llama-2-7b", choices=SHAPES)
    parser.add_argument("--layers", type=int, help="instead of the model's own")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--device-memory-gib", type=float, default=12)
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--micro-batch", type=int, default=4)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peer", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


def make_model(options):
    import torch
    from torch import nn

    layers, width, heads, key_value_heads, hidden, vocabulary = SHAPES[options.model]
    head = width // heads

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
            self.q = nn.Linear(width, width, bias=False)
            self.k = nn.Linear(width, key_value_heads * head, bias=False)
            self.v = nn.Linear(width, key_value_heads * head, bias=False)
            self.o = nn.Linear(width, width, bias=False)
            self.gate, self.up = nn.Linear(width, hidden, bias=False), nn.Linear(width, hidden, bias=False)
            self.down = nn.Linear(hidden, width, bias=False)

        def forward(self, x, cos, sin):
            batch, tokens, _ = x.shape
            y = self.norm1(x)
            q, k, v = (part.view(batch, tokens, -1, head).transpose(1, 2) for part in (self.q(y), self.k(y), self.v(y)))
            q, k = (
                torch.cat(
                    (
                        t[..., : head // 2] * cos - t[..., head // 2 :] * sin,
                        t[..., head // 2 :] * cos + t[..., : head // 2] * sin,
                    ),
                    -1,
                )
                for t in (q, k)
            )
            seen = nn.functional.scaled_dot_product_attention(
                q, k, v, is_causal=True, enable_gqa=key_value_heads != heads
            )
            x = x + self.o(seen.transpose(1, 2).reshape(batch, tokens, width))
            y = self.norm2(x)
            return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens = nn.Embedding(vocabulary, width)
            self.layers = nn.ModuleList(Layer() for _ in range(options.layers or layers))
            self.norm = nn.RMSNorm(width)
            self.head = nn.Linear(width, vocabulary, bias=False)

        def forward(self, ids, targets, cos, sin):
            x = self.tokens(ids)
            for layer in self.layers:
                x = torch.utils.checkpoint.checkpoint(layer, x, cos, sin, use_reentrant=False)
            # In pieces, as a user with little device memory would: logits of the whole batch are the largest tensor.
            x, sum_of_losses = self.norm(x).flatten(0, 1), 0
            for piece, wanted in zip(x.split(1024), targets.flatten().split(1024)):

                def loss(piece, wanted):
                    return nn.functional.cross_entropy(self.head(piece).float(), wanted, reduction="sum")

                sum_of_losses = sum_of_losses + torch.utils.checkpoint.checkpoint(
                    loss, piece, wanted, use_reentrant=False
                )
            return sum_of_losses / targets.numel()

    return Model(), vocabulary, head


def peer(options):
    """One run of FSDP; prints the tokens in a second."""
    import torch
    import torch.distributed as dist
    import torch.utils.checkpoint
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy, fully_shard

    on_gpu = options.device == "cuda"
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29555")
    dist.init_process_group("cpu:gloo,cuda:nccl" if on_gpu else "gloo", rank=0, world_size=1)
    if on_gpu:
        budget = options.device_memory_gib * 2**30
        torch.cuda.set_per_process_memory_fraction(min(1.0, budget / torch.cuda.get_device_properties(0).total_memory))
    mesh = dist.init_device_mesh(options.device, (1,))
    model, vocabulary, head = make_model(options)
    precision = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    offload = CPUOffloadPolicy() if on_gpu else OffloadPolicy()
    for part in [*model.layers, model]:
        fully_shard(part, mesh=mesh, mp_policy=precision, offload_policy=offload)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    angles = torch.outer(torch.arange(options.context), 1e4 ** (-torch.arange(0, head, 2) / head)).to(options.device)
    cos, sin = angles.cos().bfloat16(), angles.sin().bfloat16()
    seconds = []
    for _ in range(options.steps + WARM_UP):
        ids = torch.randint(vocabulary, (options.micro_batch, options.context + 1)).to(options.device)
        begun = time.perf_counter()
        model(ids[:, :-1], ids[:, 1:], cos, sin).backward()
        optimizer.step()
        optimizer.zero_grad()
        if on_gpu:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begun)
    peak = torch.cuda.max_memory_reserved() if on_gpu else 0
    print(json.dumps({"seconds": statistics.median(seconds[WARM_UP:]), "device_peak": peak}))
    dist.destroy_process_group()


def run_peer(options):
    done = subprocess.run([sys.executable, __file__, *sys.argv[1:], "--peer"], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit("FSDP does not fit or failed:\n" + done.stderr[-3000:])
    return json.loads(done.stdout.splitlines()[-1])


def run_terrace(options, scratch):
    log = scratch / "steps.jsonl"
    log.unlink(missing_ok=True)
    command = [
        options.terrace,
        "train",
        "--device",
        "cuda" if options.device == "cuda" else "simulated",
        "--model",
        options.model,
        *(["--layers", options.layers] if options.layers else []),
        "--config",
        scratch / "ds.json",
        "--data",
        scratch / "tokens.bin",
        "--validation-fraction",
        "0",
        "--context",
        options.context,
        "--micro-batch",
        options.micro_batch,
        "--steps",
        options.steps + WARM_UP,
        "--offload-param",
        "cpu",
        "--offload-optimizer",
        "cpu",
        "--device-memory",
        f"{int(options.device_memory_gib * 1024)}MiB",
        "--log",
        log,
        "--json",
    ]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stderr)
    steps = [json.loads(line) for line in log.read_text().splitlines()]
    peak = next(tier["peak_bytes"] for tier in json.loads(done.stdout)["tiers"] if tier["tier"] == "device")
    return {
        "seconds": statistics.median([step["seconds"] for step in steps if step["event"] == "step"][WARM_UP:]),
        "device_peak": peak,
    }


def main():
    options = parse()
    if options.peer:
        return peer(options)
    tokens = options.micro_batch * options.context
    ratios = []
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="fsdp-") as scratch:
        scratch = Path(scratch)
        (scratch / "ds.json").write_text(json.dumps({"bf16": {"enabled": True}, "gradient_clipping": 0}))
        chosen = random.Random(7)
        array.array("H", (chosen.randrange(32000) for _ in range(1 << 20))).tofile((scratch / "tokens.bin").open("wb"))
        for _ in range(options.rounds):
            ours, theirs = run_terrace(options, scratch), run_peer(options)
            ratios.append(theirs["seconds"] / ours["seconds"])
            for name, run in (("Terrace", ours), ("FSDP", theirs)):
                print(
                    f"{name:8} {run['seconds']:.3f} s/step, {tokens / run['seconds']:,.1f} tokens/s, "
                    f"{run['device_peak'] / 2**30:.2f} GiB of device memory",
                    flush=True,
                )
    print(f"Terrace is {statistics.median(ratios):.2f} times as fast ({min(ratios):.2f} to {max(ratios):.2f})")


if __name__ == "__main__":
    main()
