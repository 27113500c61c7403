"""Under DistributedDataParallel ranks share the states of a drop-in optimizer, and no bit depends on it."""

import os
import subprocess
import sys
import unittest
from unittest import mock

from dropin_ranks import RanksTestCase, barrier, bits_of, ddp_network, of_ranks, train_ddp
from dropin_training import ROOT, bits, torch
from terrace.torch import OffloadAdagrad, OffloadAdamW, OffloadLion, OffloadSGD
from terrace.torch.optimizer import gathering, together

KINDS = (
    (OffloadAdamW, {"lr": 1e-2, "weight_decay": 0.1}),
    (OffloadLion, {"lr": 1e-3}),
    (OffloadAdagrad, {"lr": 1e-2}),
    (OffloadSGD, {"lr": 1e-2, "momentum": 0.9}),
    (OffloadSGD, {"lr": 1e-2}),
)


def trained(rank, count, dtype, kind, options):
    model = ddp_network(dtype)
    optimizer = kind(model.parameters(), **options)
    losses, norms = train_ddp(model, optimizer, rank, count, 5)
    shared = optimizer._states.group is not None
    return shared, losses, norms, bits_of(model)


def all_trained(rank, count, folder, long):
    """Every case with shares, and with whole states on every rank. Runs of `long` elements are not packed."""
    found, gathering._LONG = [], long
    for dtype, (kind, options), more in (
        *((torch.float32, kind, {}) for kind in KINDS),
        (torch.float32, KINDS[0], {"max_grad_norm": 0.3}),
        (torch.bfloat16, KINDS[0], {"max_grad_norm": 0.3}),
        (torch.bfloat16, KINDS[0], {"states": "nvme", "path": folder}),
        (torch.bfloat16, KINDS[0], {"states": "nvme", "path": folder, "state_bits": 8}),
        (torch.float32, KINDS[1], {"state_bits": 8}),
        (torch.float32, KINDS[0], {"states": "nvme", "path": [folder], "max_grad_norm": 0.3}),
    ):
        found.append([trained(rank, count, dtype, kind, {**options, **more, "ranks": r}) for r in ("share", "whole")])
    return found


class SameBits(RanksTestCase):
    def test_they_are_those_of_whole_states_on_every_rank(self):
        for count, long in ((2, 1 << 16), (2, 1), (3, 1 << 16), (3, 100)):
            of_all = of_ranks(count, all_trained, count, self.folder, long)
            for number, cases in enumerate(zip(*of_all)):
                with self.subTest(count=count, long=long, case=number):
                    for rank, (share, whole) in enumerate(cases):
                        self.assertTrue(share[0])
                        self.assertFalse(whole[0])
                        self.assertEqual(share[1:], whole[1:], f"rank {rank}")
                    self.assert_all_equal([share[2:] for share, _ in cases])


class Shares(RanksTestCase):
    def test_memory_and_bytes_moved_are_divided_by_the_ranks(self):
        (whole,) = of_ranks(1, moved, 1, self.folder)
        self.assertEqual(whole[0], sum(SIZES))
        self.assertEqual(whole[1], {"record_read": 8 * sum(SIZES), "record_write": 8 * sum(SIZES)})
        for count in (2, 3):
            found = of_ranks(count, moved, count, self.folder)
            for elements, counters, in_memory, _ in found:
                self.assertEqual(elements, sum(SIZES) // count)
                self.assertEqual(counters, {key: value // count for key, value in whole[1].items()})
                self.assertLess(in_memory, whole[2] // count + (96 << 10))
            self.assertEqual([one[3] for one in found], [[f"optimizer-0-rank-{r}-of-{count}"] for r in range(count)])
        self.assertEqual(os.listdir(self.folder), [])

    def test_a_rank_whose_share_does_not_come_is_seen(self):
        """The law of same bits, broken on purpose."""
        found = of_ranks(2, trained_without_gathering, 2)
        self.assertNotEqual(found[0], found[1])

    def test_the_comparison_runs(self):
        flags = ("--million", "1", "--tensors", "3", "--width", "64", "--rounds", "1", "--nvme", self.folder)
        program = ROOT / "bench" / "compare" / "optimizers" / "ranks.py"
        done = subprocess.run([sys.executable, program, *flags], capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, 0, done.stderr)
        for name in ("ZeroRedundancyOptimizer", "Terrace, shares on nvme", "FSDP2, Terrace on nvme"):
            self.assertIn(name, done.stdout)

    def test_parameters_of_any_layout_and_size(self):
        for count in (2, 3):
            found = of_ranks(count, odd_parameters, count)
            self.assert_all_equal([share for share, _ in found])
            self.assertEqual(*found[0])


SIZES = (4096 * 8, 4096 * 15, 4096 * 1)  # tiles that 2 and 3 divide


def moved(rank, count, folder):
    """Elements with states, bytes that a step moves and that stay in memory, and the folders on the drive."""

    def stepped(**options):
        parameters = [torch.nn.Parameter(torch.ones(size)) for size in SIZES]
        optimizer = OffloadAdamW(parameters, **options)
        for _ in range(2):
            for parameter in parameters:
                parameter.grad = torch.ones_like(parameter)
            optimizer.step()
        return optimizer

    on_drive = stepped(states="nvme", path=folder, host_bytes=160 << 10)
    counters = {key: on_drive.step_counters()[key] for key in ("record_read", "record_write")}
    elements = sum(slot.part.elements for slot in on_drive._states.slots.values())
    folders = [name for name in os.listdir(folder) if count == 1 or f"rank-{rank}-" in name]
    in_memory = stepped()._states.store.plan.host_bytes
    barrier(count)
    del on_drive
    return elements, counters, in_memory, folders


def trained_without_gathering(rank, count):
    model = ddp_network()
    optimizer = OffloadAdamW(model.parameters(), lr=1e-2)

    def own_alone(group, tensors, runs):
        kept = [tensor.detach().clone() for tensor in tensors]
        gathering.gather_runs(group, tensors, runs)
        if rank == 1:
            for tensor, before in zip(tensors, kept):
                tensor.detach().copy_(before)

    with mock.patch.object(together, "gather_runs", own_alone):
        train_ddp(model, optimizer, rank, count, 2)
    return bits_of(model)


def odd_parameters(rank, count):
    """With shares, and whole."""

    def run(ranks):
        generator = torch.Generator().manual_seed(3)
        parameters = [
            torch.nn.Parameter(made)
            for made in (
                torch.randn((), generator=generator),
                torch.randn(0, 4),
                torch.randn(130, 70, generator=generator).t(),
                torch.randn(5, generator=generator).bfloat16(),
                torch.randn(16, 8, 6, 6, generator=generator).contiguous(memory_format=torch.channels_last),
            )
        ]
        strides = [parameter.stride() for parameter in parameters]
        optimizer = OffloadAdamW(parameters, lr=1e-2, ranks=ranks, max_grad_norm=1.0)
        for step in range(4):
            optimizer.zero_grad()
            sum((parameter.float() * (step + 1)).sin().square().sum() for parameter in parameters).backward()
            optimizer.step()
            with torch.no_grad():
                parameters[2].mul_(0.5)
        assert strides == [parameter.stride() for parameter in parameters]
        return bits(parameters), optimizer.last_update.gradient_norm

    return run("share"), run("whole")


if __name__ == "__main__":
    unittest.main()
