"""Optimizer steps on two ranks that hold equal gradients, over gloo: torch's AdamW with states whole on every rank, torch's
ZeroRedundancyOptimizer, and terrace.torch.OffloadAdamW, whose states the ranks share; and training steps over FSDP2 with
CPUOffloadPolicy and torch's AdamW beside OffloadAdamW. All by turns, in the same two processes, each with one thread.

    python bench/compare/optimizers/ranks.py [--million 24] [--rounds 7] [--nvme FOLDER]

Prints the medians of each in milliseconds, of the slower rank: of the clock, and of the processor over all threads, which
other work on the machine changes less. Then what the states take of a rank: the growth of its resident memory in the first
step, and the bytes of its files.
"""

import argparse
import os
import socket
import statistics
import subprocess
import sys
import time

RANKS = 2
MIB = 1 << 20


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--million", type=int, default=24, help="parameters")
    parser.add_argument("--tensors", type=int, default=48)
    parser.add_argument("--width", type=int, default=1024, help="of the 12 layers over FSDP2")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--nvme", help="a folder for one more contender of each kind, whose states are there")
    parser.add_argument("--host-mib", type=int, default=32, help="host memory of those")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--port", help=argparse.SUPPRESS)
    return parser.parse_args()


def resident_bytes():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def nvme_options(flags):
    return {"states": "nvme", "path": flags.nvme, "host_bytes": flags.host_mib * MIB, "threads": 1}


def over_plain_parameters(flags):
    """{name: (step, optimizer)} over parameters that every rank has whole."""
    import torch
    from terrace.torch import OffloadAdamW
    from torch.distributed.optim import ZeroRedundancyOptimizer

    gradients = []

    def parameters():
        size = flags.million * 1_000_000 // flags.tensors
        made = [torch.nn.Parameter(torch.full((size,), 0.02)) for _ in range(flags.tensors)]
        generator = torch.Generator().manual_seed(1)
        while len(gradients) < len(made):
            gradients.append(torch.randn(size, generator=generator) * 1e-3)
        for parameter, gradient in zip(made, gradients):
            parameter.grad = gradient
        return made

    def zero(given):
        return ZeroRedundancyOptimizer(given, torch.optim.AdamW, lr=1e-4, fused=True)

    makers = {
        "torch AdamW, whole on each rank": lambda given: torch.optim.AdamW(given, lr=1e-4, fused=True),
        "ZeroRedundancyOptimizer of it": zero,
        "Terrace, whole on each rank": lambda given: OffloadAdamW(given, lr=1e-4, threads=1, ranks="whole"),
        "Terrace, shares on cpu": lambda given: OffloadAdamW(given, lr=1e-4, threads=1, ranks="share"),
    }
    if flags.nvme:
        makers["Terrace, shares on nvme"] = lambda given: OffloadAdamW(given, ranks="share", **nvme_options(flags))
    for name, make in makers.items():
        optimizer = make(parameters())
        yield name, optimizer.step, optimizer


def over_fsdp(flags):
    import torch
    from terrace.torch import OffloadAdamW
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard

    mesh = init_device_mesh("cpu", (RANKS,))
    inputs = torch.randn(64, flags.width, generator=torch.Generator().manual_seed(1))

    def trainer(make, **policy):
        torch.manual_seed(7)
        model = torch.nn.Sequential(*(torch.nn.Linear(flags.width, flags.width) for _ in range(12)))
        for layer in model:
            fully_shard(layer, mesh=mesh, **policy)
        fully_shard(model, mesh=mesh, **policy)
        optimizer = make(model.parameters())

        def step():
            optimizer.zero_grad()
            model(inputs).square().mean().backward()
            optimizer.step()

        return step, optimizer

    offload = {"offload_policy": CPUOffloadPolicy(pin_memory=False)}
    makers = {
        "FSDP2, CPUOffloadPolicy, torch AdamW": (lambda given: torch.optim.AdamW(given, lr=1e-4, fused=True), offload),
        "FSDP2, Terrace on cpu": (lambda given: OffloadAdamW(given, lr=1e-4, threads=1), {}),
    }
    if flags.nvme:
        makers["FSDP2, Terrace on nvme"] = (lambda given: OffloadAdamW(given, **nvme_options(flags)), {})
    for name, (make, policy) in makers.items():
        yield name, *trainer(make, **policy)


def file_bytes(optimizer):
    states = getattr(optimizer, "_states", None)
    return 0 if states is None or states.store is None else states.store.plan.file_bytes


def rank(flags):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=flags.port, GLOO_SOCKET_IFNAME="lo")
    import torch
    import torch._dynamo  # which the first optimizer imports
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=flags.rank, world_size=RANKS)
    contenders, grown = {}, {}
    for name, step, optimizer in (*over_plain_parameters(flags), *over_fsdp(flags)):
        if name.startswith("FSDP2"):  # a pass without a step first: what it leaves is no state
            own, optimizer.step = optimizer.step, lambda: None
            step()
            optimizer.step = own
        before = resident_bytes()
        step()
        grown[name] = (resident_bytes() - before) / MIB, file_bytes(optimizer) / MIB
        step()
        contenders[name] = step, []
    for _ in range(flags.rounds):
        for step, times in contenders.values():
            dist.barrier()
            begun, used = time.perf_counter(), time.process_time()
            step()
            times.append((time.perf_counter() - begun, time.process_time() - used))
    for name, (_, times) in contenders.items():
        medians = [statistics.median(each) * 1e3 for each in zip(*times)]
        slower = torch.tensor([*medians, *grown[name]], dtype=torch.float64)
        dist.all_reduce(slower, op=dist.ReduceOp.MAX)
        if flags.rank == 0:
            took = f"{slower[0]:8.1f} ms, of the processor {slower[1]:8.1f} ms"
            print(f"{name:38} {took} {slower[2]:8.1f} MiB more in memory {slower[3]:8.1f} MiB in files")
    dist.barrier()
    contenders.clear()
    dist.destroy_process_group()


def main():
    flags = parse()
    if flags.rank is not None:
        return rank(flags)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    begin = [sys.executable, "-W", "ignore", __file__, *sys.argv[1:], "--port", port]
    ranks = [subprocess.Popen([*begin, "--rank", str(number)]) for number in range(RANKS)]
    sys.exit(max(one.wait() for one in ranks))


if __name__ == "__main__":
    main()
