"""What ranks exchange for a chunk of bf16 elements, over gloo in torch: `torchrun --nproc-per-node N gloo.py ROUNDS [MIB]`.
compare.py runs it beside compare_mpi, and says what the lines are; here they are gloo_reduce_scatter (of the elements in fp32),
gloo_reduce_scatter_bf16, which does not give the same sums, gloo_gather and gloo_late."""

import datetime
import resource
import sys
import time

import torch
import torch.distributed as dist

REPEATS = 8


def processor_seconds():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def time_of(body, repeats):
    processor, begin = processor_seconds(), time.perf_counter()
    for _ in range(repeats):
        body()
    return (time.perf_counter() - begin) / repeats, (processor_seconds() - processor) / repeats


def say(name, used, processor_share=1):
    most, total = torch.tensor([float(used[0])]), torch.tensor([float(used[1])])
    dist.all_reduce(most, dist.ReduceOp.MAX)
    dist.all_reduce(total)
    if dist.get_rank() == 0:
        print(name, f"{most.item():.6f} {total.item() * processor_share:.6f}", flush=True)


def main():
    rounds, mib = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 16
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
    ranks, elements = dist.get_world_size(), mib * 2**20 // 2
    wide, narrow = torch.rand(elements), torch.rand(elements).bfloat16()
    own_wide, own_narrow = torch.empty(elements // ranks), torch.empty(elements // ranks, dtype=torch.bfloat16)
    whole = torch.empty(elements, dtype=torch.bfloat16)
    contenders = {
        "gloo_reduce_scatter": lambda: dist.reduce_scatter_tensor(own_wide, wide),
        "gloo_reduce_scatter_bf16": lambda: dist.reduce_scatter_tensor(own_narrow, narrow),
        "gloo_gather": lambda: dist.all_gather_into_tensor(whole, own_narrow),
    }
    for round in range(-1, rounds):
        for name, body in contenders.items():
            dist.barrier()
            used = time_of(body, REPEATS)
            if round >= 0:
                say(name, used)
    dist.barrier()
    last = dist.get_rank() + 1 == ranks
    if last:
        time.sleep(3)
    used = time_of(contenders["gloo_gather"], 1)
    say("gloo_late", (0, 0) if last else used, 1 / (ranks - 1))
    dist.destroy_process_group()


main()
