"""Training steps of one model of Llama's shape on one GPU: terrace.initialize with parameters and optimizer states in
host memory, PyTorch's FSDP2 with CPU offload, and torch alone with everything on the GPU, each in a process of its
own, by turns.

    python bench/compare/torch/gpu.py --layers 8 --device-memory-gib 4 --rounds 3

All train bf16 weights of the same model with Adam; Terrace and FSDP2 keep fp32 masters, torch alone has none.
Activations are checkpointed by layer. GPU memory is what all of a process takes, by the driver.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "fsdp"))
import compare

WARM_UP = 2
CONTENDERS = ("terrace", "fsdp", "torch")


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="llama-2-7b", choices=compare.SHAPES)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--device-memory-gib", type=float, default=4, help="of Terrace, for parameters")
    parser.add_argument("--nvme", help="a folder: Terrace's states go there")
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--micro-batch", type=int, default=4)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--contenders", nargs="+", default=CONTENDERS, choices=CONTENDERS)
    parser.add_argument("--run", choices=CONTENDERS, help=argparse.SUPPRESS)
    return parser.parse_args()


def with_terrace(model, options):
    import terrace

    states = {"device": "nvme", "nvme_path": options.nvme} if options.nvme else {"device": "cpu"}
    config = {
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
        "zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}, "offload_optimizer": states},
        "terrace": {"device_memory": f"{int(options.device_memory_gib * 1024)}MiB"},
    }
    engine, optimizer, _, _ = terrace.initialize(model=model, config=config, device="cuda")
    return engine, optimizer


def with_fsdp(model, options):
    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29555")
    dist.init_process_group("cpu:gloo,cuda:nccl", rank=0, world_size=1)
    mesh = dist.init_device_mesh("cuda", (1,))
    precision = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    for part in [*model.layers, model]:
        fully_shard(part, mesh=mesh, mp_policy=precision, offload_policy=CPUOffloadPolicy())
    return model, torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)


def with_torch(model, options):
    import torch

    model = model.to("cuda", torch.bfloat16)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)


def run(options):
    import torch
    import torch.utils.checkpoint

    free = torch.cuda.mem_get_info()[0]
    torch.manual_seed(7)
    model, vocabulary, head = compare.make_model(options)
    make = {"terrace": with_terrace, "fsdp": with_fsdp, "torch": with_torch}[options.run]
    model, optimizer = make(model, options)
    angles = torch.outer(torch.arange(options.context), 1e4 ** (-torch.arange(0, head, 2) / head)).cuda()
    cos, sin = angles.cos().bfloat16(), angles.sin().bfloat16()
    seconds, losses = [], []
    for _ in range(options.steps + WARM_UP):
        ids = torch.randint(vocabulary, (options.micro_batch, options.context + 1)).cuda()
        torch.cuda.synchronize()
        begun = time.perf_counter()
        loss = model(ids[:, :-1], ids[:, 1:], cos, sin)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begun)
        losses.append(loss.item())
    used = free - torch.cuda.mem_get_info()[0]
    print(json.dumps({"seconds": seconds[WARM_UP:], "gpu_bytes": used, "losses": losses}))
    sys.stdout.flush()
    os._exit(0)


def main():
    options = parse()
    if options.run:
        return run(options)
    medians = {name: [] for name in options.contenders}
    tokens = options.micro_batch * options.context
    for _ in range(options.rounds):
        for name in options.contenders:
            done = subprocess.run(
                [sys.executable, __file__, *sys.argv[1:], "--run", name], capture_output=True, text=True
            )
            if done.returncode != 0:
                print(f"{name} failed:\n{done.stderr[-3000:]}", flush=True)
                continue
            told = json.loads(done.stdout.splitlines()[-1])
            medians[name].append(statistics.median(told["seconds"]))
            print(
                f"{name:8} {medians[name][-1]:.3f} s/step ({min(told['seconds']):.3f} to {max(told['seconds']):.3f}), "
                f"{tokens / medians[name][-1]:,.0f} tokens/s, {told['gpu_bytes'] / 2**30:.2f} GiB of the GPU, "
                f"losses {told['losses'][0]:.4f} to {told['losses'][-1]:.4f}",
                flush=True,
            )
    ours = medians.get("terrace")
    for name, theirs in medians.items():
        if name != "terrace" and ours and theirs:
            print(f"Terrace's step takes {statistics.median(ours) / statistics.median(theirs):.2f} of {name}'s")


if __name__ == "__main__":
    main()
