"""Optimizer steps of torch.optim.AdamW, DeepSpeedCPUAdam (where it can be imported) and terrace.torch.OffloadAdamW
over the same parameters and gradients, in one process and by turns.

    python bench/compare/torch/dropin.py                  # 100 M parameters in 96 tensors, states in memory
    python bench/compare/torch/dropin.py --nvme /mnt/nvme --host-mib 256

With --nvme the states of another optimizer are on that drive. Its rate is that of a file read and written there
past the page cache, just before the steps; the last line has the time that the bytes of a step take at this rate.
"""

import argparse
import concurrent.futures
import mmap
import os
import time

import torch
from terrace.torch import OffloadAdamW

MIB = 1 << 20


def parameters_of(elements, tensors, seed=1):
    generator = torch.Generator().manual_seed(seed)
    made = []
    for _ in range(tensors):
        parameter = torch.nn.Parameter(torch.randn(elements // tensors, generator=generator) * 0.02)
        parameter.grad = torch.randn(parameter.shape, generator=generator) * 1e-3
        made.append(parameter)
    return made


def copies_of(parameters):
    """The same values and, without a copy, the same gradients."""
    made = []
    for parameter in parameters:
        made.append(torch.nn.Parameter(parameter.detach().clone()))
        made[-1].grad = parameter.grad
    return made


def drive_rate(folder, size=1024 * MIB, block=4 * MIB, depth=8):
    """Bytes per second of a drive: half read and half written, `depth` blocks at a time, as in a step."""
    path = os.path.join(folder, "rate.tmp")
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_DIRECT, 0o600)

    def move(start):
        buffer = mmap.mmap(-1, block)
        for first in range(start * block, size, depth * block):
            os.preadv(descriptor, [buffer], first)
            os.pwritev(descriptor, [buffer], first)

    try:
        with concurrent.futures.ThreadPoolExecutor(depth) as pool:
            os.posix_fallocate(descriptor, 0, size)
            list(pool.map(move, range(depth)))  # blocks are there before they are timed
            begun = time.perf_counter()
            list(pool.map(move, range(depth)))
            return 2 * size / (time.perf_counter() - begun)
    finally:
        os.close(descriptor)
        os.unlink(path)


def contenders(flags):
    base = parameters_of(flags.million * 1_000_000, flags.tensors)
    settings = {"lr": 1e-4, "weight_decay": 0.01}
    made = {"torch fused": torch.optim.AdamW(copies_of(base), fused=True, **settings)}
    if flags.foreach:
        made["torch foreach"] = torch.optim.AdamW(copies_of(base), foreach=True, **settings)
    try:
        from deepspeed.ops.adam import DeepSpeedCPUAdam

        made["DeepSpeedCPUAdam"] = DeepSpeedCPUAdam(copies_of(base), adamw_mode=True, **settings)
    except Exception as error:  # It compiles its kernel when it is first used, and fails in many ways.
        print(f"DeepSpeedCPUAdam is left out: {type(error).__name__}: {str(error).splitlines()[0]}")
    made["Terrace cpu"] = OffloadAdamW(copies_of(base), threads=flags.threads, **settings)
    if flags.nvme:
        host = flags.host_mib * MIB if flags.host_mib else None
        made["Terrace nvme"] = OffloadAdamW(
            copies_of(base), states="nvme", path=flags.nvme, host_bytes=host, threads=flags.threads, **settings
        )
    return made


def timed(optimizer):
    begun, processor = time.perf_counter(), time.process_time()
    optimizer.step()
    return 1e3 * (time.perf_counter() - begun), 1e3 * (time.process_time() - processor)


def moved_bytes(optimizer):
    """What the last step has read and written on drives."""
    return sum(value for key, value in optimizer.step_counters().items() if key.endswith(("_read", "_write")))


def median(values):
    return sorted(values)[len(values) // 2]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--million", type=int, default=100, help="parameters, in millions")
    parser.add_argument("--tensors", type=int, default=96)
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--threads", type=int, default=0, help="of Terrace; 0: one per core")
    parser.add_argument("--foreach", action="store_true", help="torch's foreach implementation too")
    parser.add_argument("--nvme", help="a folder on a drive, for a second optimizer of Terrace")
    parser.add_argument("--host-mib", type=int, help="host memory with --nvme; default: what it plans")
    flags = parser.parse_args()

    optimizers = contenders(flags)
    for optimizer in optimizers.values():
        timed(optimizer)
    rate = drive_rate(flags.nvme) if flags.nvme else None
    walls, processors = {name: [] for name in optimizers}, {name: [] for name in optimizers}
    for _ in range(flags.steps):
        for name, optimizer in optimizers.items():
            wall, processor = timed(optimizer)
            walls[name].append(wall)
            processors[name].append(processor)
    peers = [name for name in optimizers if not name.startswith("Terrace")]
    least, middle = (min(of(walls[name]) for name in peers) for of in (min, median))
    print(f"{flags.million} M parameters in {flags.tensors} tensors, {flags.steps} steps, ms")
    print(f"{'':18}{'least':>9}{'median':>9}{'processor':>11}{'of the best peer (least, median)':>36}")
    for name in optimizers:
        ratios = f"{min(walls[name]) / least:.2f}, {median(walls[name]) / middle:.2f}"
        figures = f"{min(walls[name]):9.1f}{median(walls[name]):9.1f}{median(processors[name]):11.1f}"
        print(f"{name:18}{figures}{ratios:>36}")
    if flags.nvme:
        moved = moved_bytes(optimizers["Terrace nvme"])
        bound = 1e3 * moved / rate
        print(
            f"drive: {rate / MIB:.0f} MiB/s; a step moves {moved / MIB:.0f} MiB, {bound:.0f} ms at that rate; "
            f"steps take {min(walls['Terrace nvme']) / bound:.2f} (least), "
            f"{median(walls['Terrace nvme']) / bound:.2f} (median) of it"
        )


if __name__ == "__main__":
    main()
