"""State dicts of drop-in optimizers whose states ranks share: whole, in torch's layout, for any number of ranks."""

import io
import os
import pathlib
import signal
import unittest

import terrace
import torch.distributed as dist
import torch.distributed.checkpoint.state_dict as torch_states
from dropin_ranks import RanksTestCase, barrier, bits_of, of_ranks
from dropin_training import bits, loss_of, network, torch, worst
from terrace.torch import OffloadAdamW, OffloadSGD
from torch.nn.parallel import DistributedDataParallel

SETTINGS = {"lr": 1e-2, "weight_decay": 0.1}


def train(model, optimizer, steps, first=0):
    """Every rank has the same batches, so that any number of them does the same arithmetic."""
    losses = []
    for step in range(first, first + steps):
        optimizer.zero_grad()
        loss = loss_of(model, step)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def made(dtype, path=None, kind=OffloadAdamW, **options):
    model = network(dtype)
    options = {**SETTINGS, **({"states": "nvme", "path": path} if path else {}), **options}
    return model, kind(model.parameters(), **options)


def saved(rank, count, folder, dtype, to):
    """A checkpoint of weights and states after five steps, as bytes; the losses and bits of four steps after it."""
    model, optimizer = made(dtype, folder)
    train(model, optimizer, 5)
    optimizer.consolidate_state_dict(to)
    checkpoint = None
    if to is None or to == rank or count == 1:
        file = io.BytesIO()
        torch.save((model.state_dict(), optimizer.state_dict()), file)
        checkpoint = file.getvalue()
    after = train(model, optimizer, 4, first=5)
    barrier(count)
    return checkpoint, after, bits_of(model)


def gone_on(rank, count, folder, dtype, checkpoint, kind=OffloadAdamW):
    weights, states = torch.load(io.BytesIO(checkpoint), weights_only=True)
    model, optimizer = made(dtype, folder, kind, **({"lr": 123.0} if kind is OffloadAdamW else {}))
    model.load_state_dict(weights)
    optimizer.load_state_dict(states)
    losses = train(model, optimizer, 4, first=5)
    shares = optimizer._states.group is not None
    barrier(count)
    return shares, losses, bits_of(model)


def with_torch(checkpoint):
    """torch's AdamW goes on from the states, and gives its own."""
    weights, states = torch.load(io.BytesIO(checkpoint), weights_only=True)
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=123.0)
    model.load_state_dict(weights)
    optimizer.load_state_dict(states)
    file = io.BytesIO()
    torch.save((model.state_dict(), optimizer.state_dict()), file)
    return train(model, optimizer, 4, first=5), file.getvalue()


def asked(rank, count):
    """What state_dict() does before and after it is consolidated, and hooks."""
    model, optimizer = made(torch.bfloat16)
    empty = optimizer.state_dict()["state"]
    train(model, optimizer, 2)
    told = []
    for attempt in (optimizer.state_dict, lambda: optimizer.state[model[0].weight]):
        try:
            attempt()
        except terrace.MisuseError as error:
            told.append(error.advice)
    optimizer.register_state_dict_post_hook(lambda _, state: {**state, "more": 1})
    optimizer.consolidate_state_dict(to=1)
    try:
        state = optimizer.state_dict()
        mine = [state["more"], *bits(state["state"][2].values())]
    except terrace.MisuseError:
        mine = None
    optimizer.consolidate_state_dict(to=None)
    whole = [bits(state.values()) for state in optimizer.state_dict()["state"].values()]
    train(model, optimizer, 1, first=2)
    try:
        optimizer.state_dict()
        is_stale = False
    except terrace.MisuseError:
        is_stale = True
    return empty, told, mine, whole, is_stale, len(optimizer.state)


def through_torch_checkpoint(rank, count):
    """get_optimizer_state_dict and set_optimizer_state_dict, by the names of parameters."""
    model, optimizer = made(torch.float32)
    ranked = DistributedDataParallel(model)
    options = torch_states.StateDictOptions(full_state_dict=True)
    train(model, optimizer, 3)
    with optimizer.collective_state_dict():
        states = torch_states.get_optimizer_state_dict(ranked, optimizer, options=options)
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    wanted = train(model, optimizer, 3, first=3), bits_of(model)
    model, optimizer = made(torch.float32, lr=5.0)
    ranked = DistributedDataParallel(model)
    model.load_state_dict(weights)
    with optimizer.collective_state_dict():
        torch_states.set_optimizer_state_dict(ranked, optimizer, states, options=options)
    found = train(model, optimizer, 3, first=3), bits_of(model)
    return sorted(states["state"])[0], optimizer._states.group is not None, wanted == found


def killed(rank, count, folder, at):
    """Rank 1 is killed within a step, behind a checkpoint; the others end with an error."""
    model, optimizer = made(torch.float32, folder)
    train(model, optimizer, 5)
    optimizer.consolidate_state_dict(0)
    if rank == 0:
        torch.save((model.state_dict(), optimizer.state_dict()), at)
    dist.barrier()
    if rank == 1:
        optimizer._states.store.update = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    try:
        train(model, optimizer, 1, first=5)
    except RuntimeError:
        os.kill(os.getpid(), signal.SIGKILL)  # as torchrun ends the others
    return "the death was not seen"


class States(RanksTestCase):
    def test_any_number_of_ranks_goes_on_bit_by_bit(self):
        for dtype, folder in ((torch.float32, None), (torch.bfloat16, None), (torch.bfloat16, self.folder)):
            of_all = {count: of_ranks(count, saved, count, folder, dtype, 0) for count in (1, 2, 3)}
            checkpoint, losses, found = of_all[1][0]
            for ranks in of_all.values():
                self.assertTrue(ranks[0][0])
                for rank in ranks[1:]:
                    self.assertIsNone(rank[0])
                self.assert_all_equal([rank[1:] for rank in ranks])
                self.assertEqual(ranks[0][1:], (losses, found))
            for before in (1, 2, 3):
                for after in (1, 2, 3):
                    with self.subTest(dtype=dtype, folder=folder, before=before, after=after):
                        ranks = of_ranks(after, gone_on, after, folder, dtype, of_all[before][0][0])
                        self.assertEqual([rank[0] for rank in ranks], [after > 1] * after)
                        self.assert_all_equal([rank[1:] for rank in ranks])
                        self.assertEqual(ranks[0][1:], (losses, found))
        self.assertEqual(os.listdir(self.folder), [])

    def test_states_go_to_torch_and_back(self):
        checkpoint, losses, _ = of_ranks(2, saved, 2, None, torch.float32, None)[1]
        ((its_losses, its_states),) = of_ranks(1, lambda _: with_torch(checkpoint))
        self.assertLess(worst(its_losses, losses), 1e-6)
        for _, back, _ in of_ranks(2, gone_on, 2, None, torch.float32, its_states):
            self.assertEqual(back, losses)

    def test_they_are_asked_for_on_all_ranks(self):
        first, second = of_ranks(2, asked, 2)
        for empty, told, _, whole, is_stale, count in (first, second):
            self.assertEqual(empty, {})
            self.assertEqual(len(told), 2)
            self.assertIn("consolidate_state_dict()", told[0])
            self.assertTrue(is_stale)
            self.assertEqual(count, 6)
            self.assertEqual(whole, first[3])
        self.assertIsNone(first[2])
        self.assertEqual(second[2], [1, *second[3][2]])

    def test_checkpoints_of_torch_take_and_give_them(self):
        for name, shares, is_same in of_ranks(2, through_torch_checkpoint, 2):
            self.assertEqual(name, "0.bias")
            self.assertTrue(shares)
            self.assertTrue(is_same)

    def test_a_killed_rank_costs_the_steps_since_the_checkpoint(self):
        at = pathlib.Path(self.folder, "checkpoint")
        with self.assertRaisesRegex(AssertionError, "it has ended with 9"):
            of_ranks(2, killed, 2, self.folder, at)
        left = sorted(os.listdir(self.folder))
        self.assertEqual(left, ["checkpoint", "optimizer-0-rank-0-of-2", "optimizer-0-rank-1-of-2"])
        _, losses, found = of_ranks(1, saved, 1, None, torch.float32, 0)[0]
        for rank in of_ranks(2, gone_on, 2, self.folder, torch.float32, at.read_bytes()):
            self.assertEqual(rank, (True, losses, found))
        self.assertEqual(os.listdir(self.folder), ["checkpoint"])

    def test_what_cannot_be_loaded_changes_nothing(self):
        for kept, told in of_ranks(2, loading_another, 2):
            self.assertTrue(kept)
            self.assertIn("keeps no", told)


def loading_another(rank, count):
    model, optimizer = made(torch.float32)
    train(model, optimizer, 2)
    other, sgd = made(torch.float32, kind=OffloadSGD, momentum=0.9)
    train(other, sgd, 1)
    sgd.consolidate_state_dict(to=None)
    optimizer.consolidate_state_dict(to=None)
    before = optimizer.state_dict()
    try:
        optimizer.load_state_dict(sgd.state_dict())
        told = None
    except terrace.ConfigError as error:
        told = error.reason
    optimizer.consolidate_state_dict(to=None)
    after = optimizer.state_dict()
    same = [bits(after["state"][key].values()) == bits(state.values()) for key, state in before["state"].items()]
    return all(same) and after["param_groups"] == before["param_groups"], told


if __name__ == "__main__":
    unittest.main()
