"""Averages of weights in a store of their own: the bits of torch's AveragedModel, wherever they lie and after a kill."""

import copy
import os
import pathlib
import shutil
import signal
import tempfile
import unittest
import unittest.mock

from support_torch import (
    EngineTest,
    Gpt,
    Mlp,
    batch_of,
    config_of,
    engine_of,
    isolated,
    loss_of,
    masters,
    seeded,
    terrace,
    torch,
)
from terrace.torch.engine.saved import averages, checkpoint
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, get_swa_multi_avg_fn

PLACES = (("cpu", "cpu"), ("nvme", "nvme"), ("cpu", "nvme"), ("device", "device"))


class Masters(torch.nn.Module):
    """The fp32 masters of an engine as a model of torch, for torch's own averages."""

    def __init__(self, engine):
        super().__init__()
        for one in engine._tracked:
            self.register_parameter(one.name.replace(".", "_"), torch.nn.Parameter(engine.master(one.name)))


def step(engine, number):
    engine.backward(loss_of(engine, batch_of(engine.module, number)))
    engine.step()


def bits(average):
    return {name: value.view(torch.int32).clone() for name, value in average.named_parameters()}


def alike(one, other):
    return set(one) == set(other) and all(torch.equal(one[name], other[name]) for name in one)


class Averages(EngineTest):
    def setUp(self):
        averages.PART_ELEMENTS = 5000  # several parts a tensor, of odd lengths

    def beside_torch(self, decay, precision="fp32", every=1):
        """Bits of the average, and of torch's."""
        engine = engine_of(seeded(Gpt), config_of(precision=precision))
        average = engine.averaged(decay, every=every)
        function = get_swa_multi_avg_fn() if decay is None else get_ema_multi_avg_fn(decay)
        plain = AveragedModel(Masters(engine), multi_avg_fn=function)
        for number in range(5):
            step(engine, number)
            if (number + 1) % every == 0:
                plain.update_parameters(Masters(engine))
        self.assertEqual(average.n_averaged, 5 // every)
        expected = {name: value.detach() for name, value in plain.module.named_parameters()}
        return bits(average), {
            one.name: expected[one.name.replace(".", "_")].view(torch.int32) for one in engine._tracked
        }

    @isolated
    def test_it_has_the_bits_of_torch(self):
        plain = [(decay, {}) for decay in (0.9, 0.3, 0.0, 1.0, None)]
        for decay, more in [*plain, (0.9, {"precision": "bf16"}), (0.9, {"every": 2})]:
            with self.subTest(decay=decay, **more):
                found, expected = self.beside_torch(decay, **more)
                self.assertTrue(alike(found, expected))

    def trained(self, places, folder, steps=3, decay=0.9, **more):
        engine = engine_of(seeded(Mlp, 160), config_of(*places, folder=folder, **more))
        average = engine.averaged(decay)
        for number in range(steps):
            step(engine, number)
        return engine, average

    @isolated
    def test_no_placement_changes_a_bit_of_it_or_of_the_training(self):
        alone = engine_of(seeded(Mlp, 160))
        for number in range(3):
            step(alone, number)
        found = []
        for places in PLACES:
            with tempfile.TemporaryDirectory() as folder:
                engine, average = self.trained(places, folder)
                found.append(bits(average))
                self.assertEqual(masters(engine), masters(alone), places)
                elements = sum(value.numel() for value in found[-1].values())
                taken = average.plan
                if places[1] == "nvme":
                    self.assertGreaterEqual(taken.file_bytes, 4 * elements)
                    self.assertEqual(os.path.isdir(os.path.join(folder, "average")), True)
                else:
                    self.assertGreaterEqual(taken.host_bytes, 4 * elements)
                    self.assertEqual(taken.file_bytes, 0)
                engine.close()
                self.assertFalse([name for _, _, names in os.walk(folder) for name in names])
        for other in found[1:]:
            self.assertTrue(alike(other, found[0]))

    @isolated
    def test_evaluations_see_it_and_the_training_goes_on_as_if_nothing_was(self):
        for precision in ("fp32", "bf16"):
            engine = engine_of(seeded(Gpt), config_of(precision=precision))
            other = engine_of(seeded(Gpt), config_of(precision=precision))
            average = engine.averaged(0.5)
            for number in range(2):
                step(engine, number)
                step(other, number)
            expected = copy.deepcopy(engine.module)
            expected.load_state_dict(dict(average.named_parameters()), strict=False)
            tokens = batch_of(engine.module, 7)
            with torch.no_grad():
                trained = engine(tokens)
                with average.swapped():
                    difference = (engine(tokens) - expected(tokens)).abs().max()  # bf16: torch rounds ties to even
                    self.assertLessEqual(difference.item(), 0.0 if precision == "fp32" else 0.02)
                    self.assertFalse(torch.equal(engine(tokens), trained))
                    with torch.enable_grad():
                        self.assertIn("swapped", self.raised(terrace.MisuseError, step, engine, 3).advice)
                    engine.zero_grad()
                    for call in (
                        lambda: engine.save_checkpoint("/nowhere"),
                        lambda: list(average.named_parameters()),
                        lambda: average.update_parameters(),
                        lambda: average.close(),
                        lambda: average.swapped().__enter__(),
                    ):
                        self.raised(terrace.MisuseError, call)
                self.assertTrue(torch.equal(engine(tokens), trained))
            self.assertEqual(masters(engine), masters(other))
            for number in range(2, 4):
                step(engine, number)
                step(other, number)
            self.assertEqual(masters(engine), masters(other))

    @isolated
    def test_an_exception_in_an_evaluation_swaps_back(self):
        engine, average = self.trained(("cpu", "cpu"), None)
        before, kept = masters(engine), bits(average)
        with self.assertRaises(ZeroDivisionError), average.swapped():
            raise ZeroDivisionError
        self.assertEqual(masters(engine), before)
        self.assertTrue(alike(bits(average), kept))

    @isolated
    def test_a_step_that_was_not_applied_is_not_followed(self):
        engine, average = self.trained(("cpu", "cpu"), None)
        kept = bits(average)
        with self.assertWarns(UserWarning):
            (loss_of(engine, batch_of(engine.module, 0)) * float("nan")).backward()
            engine.step()
        self.assertEqual(average.n_averaged, 3)
        self.assertTrue(alike(bits(average), kept))

    @isolated
    def test_it_follows_by_hand(self):
        engine = engine_of(seeded(Mlp))
        average = engine.averaged(None, every=0)
        self.raised(terrace.MisuseError, lambda: list(average.named_parameters()))
        step(engine, 0)
        self.assertEqual(average.n_averaged, 0)
        average.update_parameters()
        self.assertEqual(
            {name: value.tolist() for name, value in average.named_parameters()},
            {one.name: engine.master(one.name).tolist() for one in engine._tracked},
        )

    @isolated
    def test_it_is_in_files_of_weights(self):
        with tempfile.TemporaryDirectory() as folder:
            engine, average = self.trained(("cpu", "cpu"), None)
            engine.save_safetensors(folder, averaged=True)
            model = seeded(Mlp, 160)
            terrace.torch.load(model, folder)
            for name, value in average.named_parameters():
                self.assertTrue(torch.equal(model.get_parameter(name), value), name)
            average.close()
            self.assertIsNone(engine.average)
            self.raised(terrace.MisuseError, engine.save_safetensors, folder, averaged=True)
            step(engine, 4)

    @isolated
    def test_it_goes_on_from_a_checkpoint_at_another_place(self):
        with tempfile.TemporaryDirectory() as folder:
            engine, average = self.trained(("cpu", "cpu"), None)
            engine.save_checkpoint(f"{folder}/saved", "one")
            other, others = self.trained(("nvme", "nvme"), folder, steps=1)
            other.load_checkpoint(f"{folder}/saved", "one")
            self.assertEqual(others.n_averaged, 3)
            for number in range(3, 5):
                step(engine, number)
                step(other, number)
            self.assertTrue(alike(bits(others), bits(average)))

    @isolated
    def test_a_checkpoint_without_it_and_an_engine_without_it_are_told_of(self):
        with tempfile.TemporaryDirectory() as folder:
            engine, average = self.trained(("cpu", "cpu"), None)
            engine.save_checkpoint(folder, "with")
            average.close()
            engine.save_checkpoint(folder, "without")
            with self.assertWarnsRegex(UserWarning, "engine.averaged before load_checkpoint"):
                engine.load_checkpoint(folder, "with")
            average = engine.averaged(0.9)
            average.update_parameters()
            with self.assertWarnsRegex(UserWarning, "begins anew"):
                engine.load_checkpoint(folder, "without")
            self.assertEqual(average.n_averaged, 0)
            other = engine_of(seeded(Mlp, 96))
            other.averaged(0.9)
            self.raised(terrace.ConfigError, other.load_checkpoint, folder, "with")

    # --- Commits ---

    def durable(self, folder, **more):
        return config_of("nvme", "nvme", folder=folder, durable=True, commit_every_steps=2, **more)

    def killed(self, folder, after):
        """A run that is killed after so many steps, with commits at every second."""
        child = os.fork()
        if not child:
            engine = engine_of(seeded(Mlp, 160), self.durable(folder))
            engine.averaged(0.9)
            for number in range(after):
                step(engine, number)
            engine.store.finish_commit()
            os.kill(os.getpid(), signal.SIGKILL)
        self.assertEqual(os.waitpid(child, 0)[1], signal.SIGKILL)

    @isolated
    def test_a_run_that_was_killed_goes_on_bit_for_bit(self):
        with tempfile.TemporaryDirectory() as whole, tempfile.TemporaryDirectory() as folder:
            engine = engine_of(seeded(Mlp, 160), self.durable(whole))
            average = engine.averaged(0.9)
            for number in range(8):
                step(engine, number)
            for after in (3, 6):
                self.killed(folder, after)
                again = engine_of(seeded(Mlp, 160), self.durable(folder), resume=True)
                others = again.averaged(0.9)
                first = again.global_steps
                self.assertEqual((first, others.n_averaged), (after // 2 * 2, after // 2 * 2))
                for number in range(first, 8):
                    step(again, number)
                self.assertTrue(alike(bits(others), bits(average)))
                again.store.keep_tier(False)
                again.close()

    @isolated
    def test_a_kill_between_the_file_and_the_commit_leaves_the_commit_before(self):
        with tempfile.TemporaryDirectory() as folder:
            child = os.fork()
            if not child:
                engine = engine_of(seeded(Mlp, 160), self.durable(folder))
                engine.averaged(0.9)
                begin = engine.store.begin_commit

                def killed(*arguments):
                    if engine.global_steps == 4:  # the file of this commit is there
                        os.kill(os.getpid(), signal.SIGKILL)
                    begin(*arguments)

                engine.store.begin_commit = killed
                for number in range(9):
                    step(engine, number)
                os._exit(1)
            self.assertEqual(os.waitpid(child, 0)[1], signal.SIGKILL)
            stranger = pathlib.Path(folder, "terrace-average", "average-0000000000000009", "notes")
            stranger.parent.mkdir()
            stranger.write_text("of somebody else")
            files = f"{folder}/terrace-average"
            self.assertEqual(len(os.listdir(files)), 3)
            again = engine_of(seeded(Mlp, 160), self.durable(folder), resume="auto")
            self.assertEqual((again.global_steps, again.averaged(0.9).n_averaged), (2, 2))
            for number in range(2, 9):
                step(again, number)
            again.finish_commit()
            self.assertLessEqual(len(os.listdir(files)), 3)
            self.assertTrue(stranger.exists())

    @isolated
    def test_a_commit_that_fails_leaves_the_average_of_the_one_before(self):
        """Until another commit is durable a crash goes on from that one, and needs its average."""
        with tempfile.TemporaryDirectory() as folder:
            engine = engine_of(seeded(Mlp, 160), config_of("nvme", "nvme", folder=folder, durable=True))
            engine.averaged(0.9)
            begin = engine.store.begin_commit
            for number in range(2):
                step(engine, number)
                engine.commit()
                engine.finish_commit()
            files = pathlib.Path(folder, "terrace-average")
            last = max(path.name for path in files.iterdir())

            def failing(*_):
                raise terrace.IoError("cannot begin a commit", folder, "as if", "try again")

            for number in range(2, 5):
                step(engine, number)
                engine.store.begin_commit = failing
                self.raised(terrace.IoError, engine.commit)
                self.assertIn(last, [path.name for path in files.iterdir()])
            engine.store.begin_commit = begin
            for _ in range(2):
                engine.commit()
                engine.finish_commit()
            self.assertNotIn(last, [path.name for path in files.iterdir()])
            self.assertEqual(len(list(files.iterdir())), 2)

    @isolated
    def test_the_state_of_a_commit_is_packed_once(self):
        with tempfile.TemporaryDirectory() as folder:
            engine = engine_of(seeded(Mlp, 160), self.durable(folder))
            engine.averaged(0.9)
            step(engine, 0)
            with unittest.mock.patch.object(checkpoint, "pickled", wraps=checkpoint.pickled) as pickled:
                engine.commit()
                engine.finish_commit()
            self.assertEqual(pickled.call_count, 1)

    @isolated
    def test_a_file_that_is_damaged_or_gone_is_named(self):
        with tempfile.TemporaryDirectory() as folder:
            self.killed(folder, 2)
            files = f"{folder}/terrace-average"
            place = f"{files}/{os.listdir(files)[0]}"
            path = f"{place}/average.safetensors"
            with open(path, "r+b") as file:
                file.seek(-1000, os.SEEK_END)
                byte = file.read(1)
                file.seek(-1000, os.SEEK_END)
                file.write(bytes([byte[0] ^ 4]))
            engine = engine_of(seeded(Mlp, 160), self.durable(folder), resume=True)
            self.assertIn(path, self.raised(terrace.CorruptError, engine.averaged, 0.9).subject)
            os.rename(place, f"{folder}/aside")
            os.symlink(place, place)
            self.assertIn("symbolic links", self.raised(terrace.IoError, engine.averaged, 0.9).reason)
            os.unlink(place)
            self.assertEqual(self.raised(terrace.ConfigError, engine.averaged, 0.9).subject, place)
            self.assertIsNone(engine.average)
            with tempfile.TemporaryDirectory() as other:  # whole, and of another commit
                self.killed(other, 4)
                shutil.copytree(f"{other}/terrace-average/average-0000000000000002", place)
            self.raised(terrace.ConfigError, engine.averaged, 0.9)
            self.assertIsNone(engine.average)
            step(engine, 2)

    @isolated
    def test_after_a_step_the_average_of_a_commit_is_not_taken_up(self):
        with tempfile.TemporaryDirectory() as folder:
            self.killed(folder, 2)
            engine = engine_of(seeded(Mlp, 160), self.durable(folder), resume=True)
            step(engine, 2)
            self.raised(terrace.MisuseError, engine.averaged, 0.9)
            self.assertEqual(len(os.listdir(f"{folder}/terrace-average")), 1)

    @isolated
    def test_settings_that_cannot_be_are_refused(self):
        engine = engine_of(seeded(Mlp))
        for arguments in ({"decay": 1.5}, {"decay": -0.1}, {"every": -1}, {"every": 0.5}, {"host_memory": 4096}):
            self.raised((terrace.ConfigError, terrace.CapacityError), engine.averaged, **arguments)
        engine.averaged()
        self.raised(terrace.MisuseError, engine.averaged)


if __name__ == "__main__":
    unittest.main()
