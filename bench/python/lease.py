#!/usr/bin/env python3
"""lease.py: what a lease of resident tensors costs from Python, the best of many rounds, in microseconds.

    TERRACE_LIBRARY=build/release/capi/libterrace.so PYTHONPATH=python python3 bench/python/lease.py

The first column opens and closes a lease by Store.open_lease() and close_lease(), the second one by a block
`with lease:` that is kept, and the third one by `with store.lease(key, names):`.
"""

import time

import terrace

ROUNDS, LEASES = 60, 2000


def best_of(call):
    """Microseconds of a call."""
    best = float("inf")
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        for _ in range(LEASES):
            call()
        best = min(best, time.perf_counter() - begin)
    return best / LEASES * 1e6


def measure(store, names):
    ids, count = store.ids(names), len(names)
    open_lease, close_lease, kept = store.open_lease, store.close_lease, store.lease("kept", names, "inference")

    def by_numbers():
        close_lease(open_lease(b"numbers", 2, ids, count))

    def by_kept_block():
        with kept:
            pass

    def by_block():
        with store.lease("block", names, "inference"):
            pass

    return [best_of(call) for call in (by_numbers, by_kept_block, by_block)]


def main():
    tensors = [terrace.Tensor(f"tensor{number}", (16, 16)) for number in range(12)]
    with terrace.Store(tensors, terrace.SimulatedDevice(1 << 20), host_bytes=8 << 20) as store:
        store.fill_with(lambda tensor, first, values: None)
        store.begin_evaluation()
        print("tensors  numbers  kept block    block")
        for count in (1, 2, 12):
            times = measure(store, [tensor.name for tensor in tensors[:count]])
            print(f"{count:7}  {times[0]:7.2f}  {times[1]:10.2f}  {times[2]:7.2f}")


if __name__ == "__main__":
    main()
