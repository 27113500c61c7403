"""What programs of PyTorch do around a drop-in optimizer whose states ranks share: as in one process, and with whole
states on every rank."""

import contextlib
import unittest
import warnings

import terrace
from dropin_ranks import RanksTestCase, bits_of, ddp_network, of_ranks, rank_batch, train_ddp
from dropin_training import loss_of, network, torch
from terrace.torch import OffloadAdamW
from torch.nn.parallel import DistributedDataParallel

SETTINGS = {"lr": 1e-2, "weight_decay": 0.1}


def clipped(rank, count, make):
    model = ddp_network()
    norms = []

    def clip():
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.2).item())

    losses, _ = train_ddp(model, make(model.parameters()), rank, count, 8, before_step=clip)
    return losses, norms, bits_of(model)


def scaled(rank, count, make):
    """One of the steps overflows, on one rank alone before gradients are averaged."""
    model = ddp_network()
    optimizer = make(model.parameters())
    scaler = torch.amp.GradScaler(device="cpu", init_scale=2.0**10, growth_interval=5)
    scales = []
    for step in range(10):
        optimizer.zero_grad()
        loss = loss_of(model, rank_batch(step, rank, count))
        scaler.scale(loss * (float("inf") if step == 4 and rank == 1 else 1)).backward()
        if step % 2:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    return scales, bits_of(model)


def infinite(rank, count, make):
    """Without a scaler nothing changes on any rank, and it is said."""
    model = ddp_network()
    optimizer = make(model.parameters())
    train_ddp(model, optimizer, rank, count, 2)
    before = bits_of(model)
    loss_of(model, rank).backward()
    model.module[4].weight.grad[2, 69] = float("nan")  # in the share of the last rank
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        optimizer.step()
    told = [str(one.message) for one in caught if "changed nothing" in str(one.message)]
    return len(told), optimizer.last_update.applied, bits_of(model) == before


def closures(rank, count, make):
    model, seen = ddp_network(), []
    optimizer = make(model.parameters())
    optimizer.register_step_post_hook(lambda *_: seen.append("after"))

    def closure():
        optimizer.zero_grad(set_to_none=False)
        loss = loss_of(model, rank_batch(3, rank, count))
        loss.backward()
        return loss

    returned = [optimizer.step(closure).item() for _ in range(4)]
    optimizer.zero_grad(set_to_none=False)
    optimizer.step()
    return returned, seen, bits_of(model)


def grown(rank, count, make):
    """A group is added after three steps, and a frozen parameter thaws after six; shares move between ranks then."""
    model = network()
    model[2].weight.requires_grad_(False)
    optimizer = make([{"params": model[0].parameters()}, {"params": model[2].parameters(), "lr": 5e-3}])
    ranked = DistributedDataParallel(model)
    losses = train_ddp(ranked, optimizer, rank, count, 3)[0]
    optimizer.add_param_group({"params": model[4].parameters(), "weight_decay": 0.2})
    losses += train_ddp(ranked, optimizer, rank, count, 3, first=3)[0]
    model[2].weight.requires_grad_(True)
    ranked = DistributedDataParallel(model)
    losses += train_ddp(ranked, optimizer, rank, count, 3, first=6)[0]
    model[0].weight.requires_grad_(False)
    ranked = DistributedDataParallel(model)
    losses += train_ddp(ranked, optimizer, rank, count, 3, first=9)[0]
    return losses, bits_of(model)


def grown_16(rank, count, make):
    """The same of 16-bit parameters, whose masters move too."""
    model, more = network(torch.bfloat16), torch.nn.Parameter(torch.ones(9000))
    ranked = DistributedDataParallel(model)
    optimizer = make([{"params": list(model.parameters())}])
    losses = train_ddp(ranked, optimizer, rank, count, 4)[0]
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(9000, dtype=torch.bfloat16))]})
    optimizer.param_groups.reverse()
    optimizer.param_groups.append({**optimizer.param_groups[0], "params": [more]})
    losses += train_ddp(ranked, optimizer, rank, count, 4, first=4)[0]
    return losses, bits_of(model)


def accumulated(rank, count, make):
    model = ddp_network()
    optimizer = make(model.parameters())
    for step in range(5):
        optimizer.zero_grad()
        for micro_batch in range(3):
            with model.no_sync() if micro_batch < 2 else contextlib.nullcontext():
                (loss_of(model, rank_batch(step, rank, count, micro_batch)) / 3).backward()
        optimizer.step()
    return bits_of(model)


class Branches(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(2)
        self.parts = torch.nn.ModuleList(torch.nn.Linear(80, 80) for _ in range(4))

    def forward(self, inputs, chosen):
        for number in chosen:
            inputs = self.parts[number](inputs)
        return inputs


def unused(rank, count, make):
    """Each rank meets other parts, and one that none has met is left alone."""
    model = Branches()
    ranked = DistributedDataParallel(model, find_unused_parameters=True)
    optimizer = make(model.parameters())
    for step in range(6):
        optimizer.zero_grad()
        chosen = [0, 1 + (rank + step) % 2] if step % 3 else [0]
        ranked(torch.ones(3, 80) * (step + rank + 1), chosen).square().mean().backward()
        optimizer.step()
    counts = [optimizer._states.steps()[id(parameter)] for parameter in model.parameters()]
    return counts, bits_of(model)


CASES = (clipped, scaled, infinite, closures, grown, grown_16, accumulated, unused)


def all_cases(rank, count):
    found = {}
    for case in CASES:
        found[case.__name__] = [
            case(rank, count, lambda given, ranks=ranks: OffloadAdamW(given, ranks=ranks, **SETTINGS))
            for ranks in ("share", "whole")
        ]
    torch_losses = clipped(rank, count, lambda given: torch.optim.AdamW(given, **SETTINGS))
    return found, torch_losses


def stepping_alone(rank, count):
    """A step in no_sync(), whose gradients are the rank's own; the next step is right."""
    model = ddp_network()
    optimizer = OffloadAdamW(model.parameters(), **SETTINGS)
    train_ddp(model, optimizer, rank, count, 2)
    before = bits_of(model)
    with model.no_sync():
        loss_of(model, rank).backward()
    try:
        optimizer.step()
        told = None
    except terrace.MisuseError as error:
        told = error.subject, error.reason, error.advice
    unchanged = bits_of(model) == before
    train_ddp(model, optimizer, rank, count, 2, first=2)
    reference = ddp_network()
    train_ddp(reference, OffloadAdamW(reference.parameters(), ranks="whole", **SETTINGS), rank, count, 4)
    return told, unchanged, bits_of(model) == bits_of(reference)


class Programs(RanksTestCase):
    def test_they_do_what_they_do_with_whole_states(self):
        for count in (2, 3):
            of_all = of_ranks(count, all_cases, count)
            for rank, (found, torch_clipped) in enumerate(of_all):
                for name, (share, whole) in found.items():
                    with self.subTest(count=count, rank=rank, case=name):
                        self.assertEqual(share, whole)
                (losses, norms, _), _ = found["clipped"]
                for mine, its in zip([*losses, *norms], [*torch_clipped[0], *torch_clipped[1]]):
                    self.assertAlmostEqual(mine / its, 1, delta=2e-5)
            first = of_all[0][0]
            self.assertEqual(first["infinite"][0], (1, False, True))
            self.assertEqual(first["scaled"][0][0][4], first["scaled"][0][0][3] / 2)
            self.assertEqual(first["unused"][0][0], [6, 6, 4, 4, 4, 4, 0, 0])
            for name in ("scaled", "grown", "accumulated", "unused"):
                self.assert_all_equal([found[name][0][-1] for found, _ in of_all])

    def test_a_step_with_gradients_of_one_rank_is_refused_on_all(self):
        for told, unchanged, goes_on in of_ranks(2, stepping_alone, 2):
            self.assertIn("gradients of rank 1", told[0])
            self.assertIn("no_sync", told[2])
            self.assertTrue(unchanged)
            self.assertTrue(goes_on)


if __name__ == "__main__":
    unittest.main()
