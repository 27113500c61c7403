"""Over FSDP2 each rank updates its shards where they lie: the bits of an optimizer that has all parameters whole."""

import os
import unittest
import warnings

import terrace
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.distributed.checkpoint.state_dict as torch_states
from dropin_ranks import RanksTestCase, barrier, of_ranks, rank_batch
from dropin_training import bits, loss_of, network, torch
from terrace.torch import OffloadAdamW, OffloadLion, OffloadSGD
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

SETTINGS = {"lr": 1e-2, "weight_decay": 0.1}
# FSDP2 cuts columns where every rank gets as many.
COLUMNS = {"shard_placement_fn": lambda parameter: Shard(int(parameter.dim() > 1 and parameter.shape[1] % 6 == 0))}
HALF = {"mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)}


def mesh_of(*shape):
    return init_device_mesh("cpu", shape, mesh_dim_names=("replicas", "shards")[-len(shape) :])


def sharded(mesh, dtype=torch.float32, **options):
    """The network with a head of one row, of which most ranks have nothing."""
    model = network(dtype)
    torch.manual_seed(3)
    model.append(torch.nn.Linear(3, 1).to(dtype))
    for layer in model:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


def whole(tensors):
    return [tensor.full_tensor().detach().clone() for tensor in tensors]


def beside_whole(rank, count, mesh, dtype, options, kind, given):
    """Bits of the parameters, and of those that an optimizer over whole copies makes with the same gradients; the
    norms of both."""
    model = sharded(mesh, dtype, **options)
    optimizer = kind(model.parameters(), **given)
    copies = [torch.nn.Parameter(one) for one in whole(model.parameters())]
    given = {key: value for key, value in given.items() if key not in ("states", "path")}
    reference = kind(copies, ranks="whole", **given)
    norms = []
    for step in range(4):
        optimizer.zero_grad()
        loss_of(model, rank_batch(step, rank, count)).backward()
        for copy, one in zip(copies, model.parameters()):
            copy.grad = one.grad.full_tensor()
        optimizer.step()
        reference.step()
        norms.append((optimizer.last_update.gradient_norm, reference.last_update.gradient_norm))
    barrier(count)
    return bits(whole(model.parameters())), bits(copies), norms


def all_beside_whole(rank, count, folder):
    line = (count,)
    cases = [
        (line, torch.float32, {}, OffloadAdamW, SETTINGS),
        (line, torch.float32, {}, OffloadLion, {"lr": 1e-3}),
        (line, torch.float32, {}, OffloadSGD, {"lr": 1e-2}),
        (line, torch.bfloat16, {}, OffloadAdamW, {**SETTINGS, "max_grad_norm": 0.2}),
        (line, torch.float32, HALF, OffloadAdamW, {**SETTINGS, "max_grad_norm": 0.2}),
        (line, torch.float32, COLUMNS, OffloadAdamW, SETTINGS),
        (line, torch.bfloat16, {}, OffloadAdamW, {**SETTINGS, "states": "nvme", "path": folder}),
    ]
    if count == 4:
        cases = [
            ((2, 2), torch.float32, {}, OffloadAdamW, {**SETTINGS, "max_grad_norm": 0.2}),
            ((2, 2), torch.bfloat16, {}, OffloadAdamW, SETTINGS),
        ]
    return [beside_whole(rank, count, mesh_of(*shape), *rest) for shape, *rest in cases]


def programs(rank, count):
    """What a program meets: torch's clipping, a scaler, an infinite gradient, no_sync, a failure of one rank."""
    model = sharded(mesh_of(count))
    optimizer = OffloadAdamW(model.parameters(), **SETTINGS)
    reference_model = sharded(mesh_of(count))
    reference = torch.optim.AdamW(reference_model.parameters(), **SETTINGS)
    worst = 0
    for step in range(6):
        for one, its in ((model, optimizer), (reference_model, reference)):
            its.zero_grad()
            one.set_requires_gradient_sync(False)
            loss_of(one, rank_batch(step, rank, count, 1)).backward()
            one.set_requires_gradient_sync(True)
            loss_of(one, rank_batch(step, rank, count)).backward()
            torch.nn.utils.clip_grad_norm_(one.parameters(), 0.3)
            its.step()
    for mine, its in zip(whole(model.parameters()), whole(reference_model.parameters())):
        worst = max(worst, (mine - its).abs().max().item())
    before = bits(whole(model.parameters()))
    loss_of(model, rank).backward()
    if rank == 0:
        model[0].weight.grad.to_local()[3, 3] = float("inf")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        optimizer.step()
    told = sum("changed nothing" in str(one.message) for one in caught)
    applied = optimizer.last_update.applied
    if rank == 1:
        optimizer._states.store.begin_step = lambda: 1 / 0
    try:
        optimizer.step()
    except (ZeroDivisionError, terrace.PeerError) as error:
        failed = type(error).__name__
    return worst, told, applied, failed, bits(whole(model.parameters())) == before


def scaled(rank, count):
    model = sharded(mesh_of(count))
    optimizer = OffloadAdamW(model.parameters(), **SETTINGS)
    scaler = torch.amp.GradScaler(device="cpu", init_scale=2.0**10, growth_interval=5)
    scales = []
    for step in range(8):
        optimizer.zero_grad()
        loss = loss_of(model, rank_batch(step, rank, count))
        scaler.scale(loss * (float("inf") if step == 4 and rank == 1 else 1)).backward()
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    return scales, bits(whole(model.parameters()))


SHAPES = ((7, 5), (1, 3), (64,), (130, 9))


def stepped(optimizer, parameters, first, steps):
    """Gradients that are the same however the parameters are spread."""
    for step in range(first, first + steps):
        generator = torch.Generator().manual_seed(step)
        for parameter in parameters:
            gradient = torch.randn(parameter.shape, generator=generator).to(parameter.dtype)
            parameter.grad = distribute_tensor(gradient, parameter.device_mesh, parameter.placements)
        optimizer.step()
    return bits(whole(parameters))


class Spread(torch.nn.Module):
    """Parameters of several shapes over a mesh, of 16 bits."""

    def __init__(self, mesh, placements):
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        for number, shape in enumerate(SHAPES):
            made = torch.randn(shape, generator=generator).bfloat16()
            self.register_parameter(f"p{number}", torch.nn.Parameter(distribute_tensor(made, mesh, placements)))


def spread(count, path=None, lr=1e-2):
    """Over all ranks, and of four as two replicas."""
    mesh = mesh_of(2, 2) if count == 4 else mesh_of(count)
    model = Spread(mesh, [Replicate(), Shard(0)] if count == 4 else [Shard(0)])
    options = {"states": "nvme", "path": path} if path else {}
    return model, OffloadAdamW(model.parameters(), lr=lr, **options)


def saved(rank, count, folder):
    model, optimizer = spread(count, folder)
    parameters = list(model.parameters())
    stepped(optimizer, parameters, 0, 3)
    states = torch_states.get_optimizer_state_dict(model, optimizer)
    dcp.save({"model": model.state_dict(), "optimizer": states}, checkpoint_id=f"{folder}/of-{count}")
    found = stepped(optimizer, parameters, 3, 3)
    whole_states = optimizer.state_dict()["state"][3]
    kinds = {key: type(value).__name__ for key, value in whole_states.items()}
    local = whole_states["exp_avg"].to_local().shape[0]
    barrier(count)
    return found, kinds, local


def gone_on(rank, count, folder, before):
    model, optimizer = spread(count, folder, lr=5.0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    states = torch_states.get_optimizer_state_dict(model, optimizer)
    checkpoint = {"model": model.state_dict(), "optimizer": states}
    dcp.load(checkpoint, checkpoint_id=f"{folder}/of-{before}")
    model.load_state_dict(checkpoint["model"])
    torch_states.set_optimizer_state_dict(model, optimizer, checkpoint["optimizer"])
    found = stepped(optimizer, list(model.parameters()), 3, 3)
    barrier(count)
    return found


def exchanged_with_whole(rank, count):
    """States of whole tensors, as one process saves them, go in; and come out by full_state_dict."""
    parameters = [torch.nn.Parameter(one) for one in whole(spread(count)[0].parameters())]
    alone = OffloadAdamW(parameters, lr=1e-2, ranks="whole")
    for step in range(3):
        for parameter in parameters:
            parameter.grad = torch.full_like(parameter, 0.1 * (step + 1))
        alone.step()
    states = alone.state_dict()
    model, optimizer = spread(count, lr=7.0)
    with torch.no_grad():
        for mine, its in zip(model.parameters(), parameters):
            mine.copy_(distribute_tensor(its.detach(), mine.device_mesh, mine.placements))
    optimizer.load_state_dict(states)
    options = torch_states.StateDictOptions(full_state_dict=True)
    back = torch_states.get_optimizer_state_dict(model, optimizer, options=options)
    same = [
        bits(back["state"][f"p{number}"][key] for key in ("exp_avg", "exp_avg_sq", "master"))
        == bits(state[key] for key in ("exp_avg", "exp_avg_sq", "master"))
        for number, state in states["state"].items()
    ]
    return same, optimizer.param_groups[0]["lr"]


def refused(rank, count):
    told = []

    def attempt(make):
        try:
            make()
            told.append(None)
        except terrace.ConfigError as error:
            told.append((error.reason, error.advice))

    model = sharded(mesh_of(count))
    attempt(lambda: OffloadAdamW(model.parameters(), hand_over="backward"))
    attempt(lambda: OffloadAdamW(model.parameters(), ranks="share"))
    for use_orig_params in (False, True):
        flat = FullyShardedDataParallel(network(), device_id=torch.device("cpu"), use_orig_params=use_orig_params)
        attempt(lambda flat=flat: OffloadAdamW(flat.parameters()))
    mixed = [*model.parameters(), torch.nn.Parameter(torch.ones(3))]
    for parameter in mixed:
        parameter.grad = torch.ones_like(parameter)
    attempt(OffloadAdamW(mixed, max_grad_norm=1.0).step)
    OffloadAdamW(mixed).step()
    return told


class OverFsdp(RanksTestCase):
    def test_bits_are_those_of_whole_parameters(self):
        for count in (2, 3, 4):
            of_all = of_ranks(count, all_beside_whole, count, self.folder)
            for number, ranks in enumerate(zip(*of_all)):
                with self.subTest(count=count, case=number):
                    self.assert_all_equal([found for found, _, _ in ranks])
                    for found, wanted, norms in ranks:
                        self.assertEqual(found, wanted)
                        for mine, its in norms:
                            self.assertAlmostEqual(mine / its, 1, delta=1e-14)
        self.assertEqual(os.listdir(self.folder), [])

    def test_programs_do_what_they_do_with_torch(self):
        found = of_ranks(2, programs, 2)
        self.assertEqual([rank[3] for rank in found], ["PeerError", "ZeroDivisionError"])
        for worst, told, applied, _, unchanged in found:
            self.assertLess(worst, 2e-6)
            self.assertEqual((told, applied, unchanged), (1, False, True))

    def test_a_scaler_skips_on_all_ranks(self):
        for scales, found in (ranks := of_ranks(2, scaled, 2)):
            self.assertEqual(scales[4], scales[3] / 2)
            self.assertEqual(found, ranks[0][1])

    def test_checkpoints_of_torch_go_on_with_any_number_of_ranks(self):
        counts = (1, 2, 3, 4)
        of_all = {count: of_ranks(count, in_a_group, count, saved, self.folder) for count in counts}
        ((wanted, _, _),) = of_all[1]
        for count, ranks in of_all.items():
            self.assert_all_equal([found for found, _, _ in ranks])
            self.assertEqual(ranks[0][0], wanted)
            self.assertEqual({kinds["exp_avg"] for _, kinds, _ in ranks}, {"DTensor"})
            shards = 2 if count == 4 else count
            self.assertEqual(sum(rows for _, _, rows in ranks[:shards]), 130)
        for before, after in ((1, 3), (2, 1), (2, 2), (3, 2), (3, 4), (4, 3)):
            with self.subTest(before=before, after=after):
                for found in of_ranks(after, in_a_group, after, gone_on, self.folder, before):
                    self.assertEqual(found, wanted)

    def test_states_of_whole_parameters_go_in_and_come_out(self):
        for same, rate in of_ranks(2, exchanged_with_whole, 2):
            self.assertEqual((same, rate), ([True] * 4, 1e-2))

    def test_what_cannot_be_done_is_refused(self):
        for told in of_ranks(2, refused, 2):
            self.assertIn("not averaged", told[0][0])
            self.assertIn("DTensors", told[1][0])
            for flattened in told[2:4]:
                self.assertIn("flattened", flattened[0])
                self.assertIn("fully_shard", flattened[1])
            self.assertIn("clip_grad_norm_", told[4][1])


def in_a_group(rank, count, act, *arguments):
    """Also of one rank, which DTensors want."""
    if count == 1:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    return act(rank, count, *arguments)


if __name__ == "__main__":
    unittest.main()
