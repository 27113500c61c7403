"""Which ranks share the states of a drop-in optimizer: those that train one model. Nobody is broken silently, and none
waits for one that has failed."""

import unittest
from unittest import mock

import terrace
import torch.distributed as dist
from dropin_ranks import RanksTestCase, bits_of, ddp_network, of_ranks, train_ddp, warned
from dropin_training import loss_of, network, torch
from terrace.torch import OffloadAdamW
from terrace.torch.optimizer import agreement


def alone(model, optimizer, steps, first=0):
    for step in range(first, first + steps):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        optimizer.step()
    return bits_of(model)


def own_models(rank, count):
    """What ranks have told, and whether the numbers are those of one process: other shapes, values or gradients."""
    told, right = [], []

    def compare(make, first):
        model, reference = make(), make()
        with warned() as texts:
            found = alone(model, OffloadAdamW(model.parameters(), lr=1e-2), 3, first)
        told.append(texts)
        wanted = alone(reference, OffloadAdamW(reference.parameters(), lr=1e-2, ranks="whole"), 3, first)
        right.append(found == wanted)

    def wider():
        model = network()
        return torch.nn.Sequential(*model, torch.nn.Linear(3, 3)) if rank else model

    def moved():
        model = network()
        with torch.no_grad():
            model[0].weight.mul_(1 + rank)
        return model

    compare(wider, 0)
    compare(moved, 0)
    compare(network, 10 * rank)  # the same model, and batches of its own: an ensemble, or local steps
    return told, right


def insisting(rank, count):
    model = network()
    optimizer = OffloadAdamW(model.parameters(), lr=1e-2, ranks="share")
    before = bits_of(model)
    loss_of(model, rank).backward()
    try:
        optimizer.step()
    except terrace.MisuseError as error:
        return error.reason, error.advice, bits_of(model) == before
    return None


def one_does_not_come(rank, count):
    """Rank 1 has no optimizer."""
    if rank == 1:
        dist.barrier()
        return None
    model = network()
    with mock.patch.object(agreement, "WAIT_SECONDS", 0.2), warned() as texts:
        alone(model, OffloadAdamW(model.parameters(), lr=1e-2), 2)
    dist.barrier()
    return texts


def one_comes_late(rank, count):
    """Those who have waited have decided for the one that was late, too."""
    model = network()
    optimizer = OffloadAdamW(model.parameters(), lr=1e-2)
    if rank == 1:
        dist.barrier()
    with mock.patch.object(agreement, "WAIT_SECONDS", 0.2), warned() as texts:
        alone(model, optimizer, 1)
    if rank == 0:
        dist.barrier()
    return texts, alone(model, optimizer, 1, first=1)


def one_fails(rank, count):
    """Before its update, and in it."""
    told = []
    model = ddp_network()
    optimizer = OffloadAdamW(model.parameters(), lr=1e-2)
    train_ddp(model, optimizer, rank, count, 2)
    before = bits_of(model)
    for place, failure in (("begin_step", ArithmeticError("mine")), ("update", terrace.IoError("a", "b", "c", "d"))):
        broken = mock.patch.object(optimizer._states.store, place, side_effect=failure)
        try:
            if rank == 1:
                with broken:
                    train_ddp(model, optimizer, rank, count, 1, first=2)
            else:
                train_ddp(model, optimizer, rank, count, 1, first=2)
        except (ArithmeticError, terrace.Error) as error:
            told.append((type(error).__name__, str(error)))
        if place == "begin_step":
            unchanged = bits_of(model) == before
    return told, unchanged


def in_backward(rank, count):
    with torch.no_grad():
        parameters = list(network().parameters())
    try:
        OffloadAdamW(parameters, hand_over="backward")
        refused = None
    except terrace.ConfigError as error:
        refused = error.reason
    model = network()
    optimizer = OffloadAdamW(model.parameters(), lr=1e-2, hand_over="backward", ranks="whole")
    return refused, alone(model, optimizer, 2)


def subgroups(rank, count):
    """Two models, each of two ranks of three: pairs share, whatever the others do."""
    pair, single = dist.new_group([0, 2]), dist.new_group([1])
    model = network()
    group = single if rank == 1 else pair
    optimizer = OffloadAdamW(model.parameters(), lr=1e-2, process_group=group)
    found = alone(model, optimizer, 3)
    dist.barrier()
    return optimizer._states.group is not None, found


def without_a_group(rank, count):
    try:
        OffloadAdamW(network().parameters(), ranks="share")
    except terrace.ConfigError as error:
        return error.reason
    return None


class Ways(RanksTestCase):
    def test_ranks_with_models_of_their_own_keep_them_and_say_so(self):
        for told, right in of_ranks(2, own_models, 2):
            self.assertEqual(right, [True] * 3)
            for texts, reason in zip(told, ("names or shapes", "values of", "gradients of")):
                self.assertEqual(len(texts), 1, texts)
                self.assertIn(f"every rank keeps all of its optimizer states: {reason}", texts[0])
                self.assertIn('ranks="whole"', texts[0])

    def test_insisting_on_shares_is_an_error_there(self):
        for reason, advice, unchanged in of_ranks(2, insisting, 2):
            self.assertIn("gradients of rank 1", reason)
            self.assertIn("DistributedDataParallel", advice)
            self.assertTrue(unchanged)
        (reason,) = of_ranks(1, without_a_group, 1)
        self.assertIn("not initialized", reason)

    def test_a_rank_that_does_not_come_is_not_waited_for_for_ever(self):
        texts, _ = of_ranks(2, one_does_not_come, 2)
        self.assertIn("rank 1 has not made a step", texts[0])
        (first, found), (late, its) = of_ranks(2, one_comes_late, 2)
        self.assertEqual(found, its)
        for texts in (first, late):
            self.assertIn("rank 1 has not made a step", texts[0])

    def test_a_failure_of_one_rank_ends_the_step_on_all(self):
        (others, unchanged), (its, _) = of_ranks(2, one_fails, 2)
        self.assertEqual([kind for kind, _ in its], ["ArithmeticError", "IoError"])
        self.assertEqual([kind for kind, _ in others], ["PeerError", "PeerError"])
        self.assertIn("rank 1", others[0][1])
        self.assertIn("nothing has been updated", others[0][1])
        self.assertIn("go on from a checkpoint", others[1][1])
        self.assertTrue(unchanged)

    def test_gradients_that_leave_in_the_backward_pass_are_refused(self):
        found = of_ranks(2, in_backward, 2)
        for refused, _ in found:
            self.assertIn("not averaged", refused)
        self.assert_all_equal([bits for _, bits in found])

    def test_ranks_of_a_process_group_share(self):
        found = of_ranks(3, subgroups, 3)
        self.assertEqual([shared for shared, _ in found], [True, False, True])
        self.assert_all_equal([bits for _, bits in found])


if __name__ == "__main__":
    unittest.main()
