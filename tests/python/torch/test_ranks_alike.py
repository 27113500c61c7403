"""What all ranks give alike, or one for all: settings of an update, values that are written, a checkpoint that is loaded."""

import os
import tempfile
import unittest

from ranks_torch import RanksTest, config_of, engine_of, masters, seeded, terrace, together, torch, train_ranks
from support_torch import Mlp, batch_of, loss_of

# "last.weight" is the store's, and a bias lies in torch's memory.
LARGE, SMALL = "last.weight", "last.bias"


def engine(**settings):
    return engine_of(seeded(Mlp), config_of(**settings), persistence_threshold=128)


def parameter(engine, name):
    return dict(engine.module.named_parameters())[name]


class Alike(RanksTest):
    def errors(self, body, count=2):
        ends = together(count, body)
        for rank, end in enumerate(ends):
            self.assertIsInstance(end.error, terrace.ConfigError, f"rank {rank}: {end.text}{end.value}")
        return [str(end.error) for end in ends]

    def test_settings_of_an_update_that_differ_are_named_and_nothing_is_updated(self):
        def slower(engine, rank):
            engine.optimizer.param_groups[0]["lr"] = 0.01 * (1 + rank)

        def other_decay(engine, rank):
            engine.optimizer.param_groups[-1]["weight_decay"] = 0.5 * rank

        def clipped(engine, rank):
            if rank:
                engine.clip_grad_norm_(0.25)

        for change, words in (
            (slower, "rank 1 has other ones than rank 0: lr 0.02 instead of 0.01"),
            (other_decay, "rank 1 has other ones than rank 0: another weight_decay of a parameter group"),
            (clipped, "rank 1 has other ones than rank 0: clip_norm 0.25 instead of 1"),
        ):
            for exchange in ("pulled", "symmetric"):

                def on(rank, change=change, exchange=exchange):
                    made = engine(rank_exchange=exchange)
                    train_ranks(made, 1)
                    before = masters(made)
                    change(made, rank)
                    with self.assertRaises(terrace.ConfigError) as caught:
                        train_ranks(made, 1, 1)
                    self.assertEqual((masters(made), made.global_steps), (before, 1))
                    change(made, 0)
                    made.zero_grad()
                    train_ranks(made, 2, 1)
                    return str(caught.exception), masters(made)

                (text, ends), (other_text, other_ends) = self.on_ranks(2, on)
                self.assertIn(words, text)
                self.assertEqual((text, ends), (other_text, other_ends))

    def test_one_rank_writes_for_all(self):
        def on(rank):
            made = engine()
            both = [parameter(made, LARGE), parameter(made, SMALL)]
            with terrace.zero.GatheredParameters(both, modifier_rank=1):
                if rank == 1:
                    with torch.no_grad():
                        both[0].fill_(5.0)
                        both[1].fill_(7.0)
            values = [made.master(name).unique().tolist() for name in (LARGE, SMALL)]
            with made.gathered(LARGE):
                values.append(both[0].detach().unique().tolist())
            train_ranks(made, 1)
            return values, masters(made)

        found = self.on_ranks(3, on)
        self.assertEqual(found[0][0], [[5.0], [7.0], [5.0]])
        self.assertEqual(found[0], found[1])
        self.assertEqual(found[0], found[2])

    def test_what_no_engine_has_is_written_by_one_too(self):
        def on(rank):
            model = seeded(Mlp)
            with terrace.zero.GatheredParameters(model.last.weight, modifier_rank=0):
                if rank == 0:
                    with torch.no_grad():
                        model.last.weight.fill_(3.0)
            made = engine_of(model)  # which refuses values that differ
            return made.master(LARGE).unique().tolist()

        self.assertEqual(self.on_ranks(2, on), [[3.0]] * 2)

    def test_values_that_differ_are_written_by_none(self):
        def gathered(engine, rank):
            with engine.gathered([LARGE, SMALL], write=True), torch.no_grad():
                parameter(engine, LARGE).fill_(1.0)
                parameter(engine, SMALL).fill_(float(rank))

        def loaded(engine, rank):
            state = {name: torch.full_like(one, 2.0 + rank) for name, one in engine.module.state_dict().items()}
            engine.load_state_dict(state)

        def loaded_in_part(engine, rank):
            state = {name: one.clone() for name, one in engine.module.state_dict().items()}
            if rank:
                del state[LARGE]
            engine.load_state_dict(state, strict=False)

        for write, words in (
            (gathered, ("cannot write values", SMALL, "modifier_rank")),
            (loaded, ("cannot load a state dict", "layers.0.weight")),
            (loaded_in_part, ("cannot load a state dict", LARGE, "nothing on rank 1")),
        ):

            def on(rank, write=write):
                made = engine()
                before = masters(made)
                with self.assertRaises(terrace.ConfigError) as caught:
                    write(made, rank)
                self.assertEqual(masters(made), before)
                train_ranks(made, 1)
                return str(caught.exception)

            for text in self.on_ranks(2, on):
                for word in words:
                    self.assertIn(word, text)

    def test_what_is_in_no_store_is_written_alike_too(self):
        def gathered(engine, rank):
            with engine.gathered(engine.module.norm, write=True), torch.no_grad():
                engine.module.norm.weight.fill_(1.0 + rank)

        def loaded(engine, rank):
            state = {name: one.clone() for name, one in engine.module.state_dict().items()}
            state["norm.weight"] += rank
            engine.load_state_dict(state)

        for write, words in ((gathered, "cannot write values"), (loaded, "values for norm.weight")):

            def on(rank, write=write):
                model = seeded(Mlp)
                model.norm.requires_grad_(False)
                write(engine_of(model), rank)

            for text in self.errors(on):
                self.assertIn(words, text)

    def test_optimizer_states_that_differ_are_loaded_by_none(self):
        def on(rank):
            made = engine()
            train_ranks(made, 1)
            state = made.optimizer.state_dict()
            for one in state["state"].values():
                one["step"] = one["step"] + 5 * rank
            with self.assertRaises(terrace.ConfigError) as caught:
                made.optimizer.load_state_dict(state)
            train_ranks(made, 1, 1)
            return str(caught.exception), masters(made)

        (text, ends), (_, other_ends) = self.on_ranks(2, on)
        self.assertIn("6 steps, values", text)
        self.assertEqual(ends, other_ends)

    def test_steps_of_tensors_that_differ_in_the_store_are_found(self):
        def on(rank):
            made = engine()
            train_ranks(made, 1)
            made.store.set_tensor_steps([1 + rank] * len(made.store.tensor_steps))
            train_ranks(made, 1, 1)

        for text in self.errors(on):
            self.assertIn("rank 1 has written others than rank 0", text)

    def test_the_same_values_are_written_without_a_word(self):
        def on(rank):
            made = engine()
            state = {name: torch.full_like(one, 0.5) for name, one in made.module.state_dict().items()}
            made.load_state_dict(state)
            with made.gathered(LARGE, write=True), torch.no_grad():
                parameter(made, LARGE).fill_(0.25)
            train_ranks(made, 1)
            return masters(made)

        one, two = self.on_ranks(1, on)[0], self.on_ranks(2, on)
        self.assertEqual(two[0], two[1])
        self.assertEqual(one.keys(), two[0].keys())

    def test_the_next_update_finds_values_that_differ_in_the_store(self):
        def on(rank):
            made = engine()
            train_ranks(made, 1)
            made.store.write_values(SMALL, [float(rank)] * 8)
            train_ranks(made, 1)

        for text in self.errors(on):
            self.assertIn("since the update before, rank 1 has written others than rank 0", text)

    def test_a_rank_that_does_not_exist_writes_nothing(self):
        def on(rank):
            made = engine()
            with made.gathered(LARGE, write=True, modifier_rank=2):
                pass

        for text in self.errors(on):
            self.assertIn("modifier_rank", text)
            self.assertIn("from 0 to 1", text)

    def test_a_checkpoint_that_one_rank_does_not_see_is_loaded_by_none(self):
        with tempfile.TemporaryDirectory() as folder:

            def on(rank):
                made = engine()
                train_ranks(made, 1)
                made.save_checkpoint(folder)
                return made.load_checkpoint(folder if rank == 0 else os.path.join(folder, "elsewhere"))

            for text in self.errors(on):
                self.assertIn("cannot load a checkpoint", text)
                self.assertIn("there is none on rank 1", text)

    def test_two_checkpoints_are_not_loaded_as_one(self):
        with tempfile.TemporaryDirectory() as folder:

            def on(rank):
                made = engine()
                for tag in ("first", "second"):
                    train_ranks(made, 1)
                    made.save_checkpoint(folder, tag)
                return made.load_checkpoint(folder, tag=("first", "second")[rank])

            for text in self.errors(on):
                self.assertIn("the checkpoint: first", text)

    def test_data_end_with_whole_updates_on_any_number_of_ranks(self):
        data = [torch.randn(32, generator=torch.Generator().manual_seed(number)) for number in range(85)]

        class Losing(Mlp):
            def forward(self, x):
                return super().forward(x).square().mean()

        class Streamed(torch.utils.data.IterableDataset):
            def __iter__(self):
                return iter(data)

        def batches(count, given, said):
            def on(rank):
                config = dict(config_of(), train_batch_size=24, train_micro_batch_size_per_gpu=4)
                del config["gradient_accumulation_steps"]
                lines = []
                made = engine_of(
                    seeded(Losing), config, training_data=given, log=lambda level, line: lines.append(line)
                )
                found = [made.train_batch().item() for _ in range(5)], masters(made)
                made.close()
                told = sum("the last 4 of every pass over the data are left out" in line for line in lines)
                return (*found, told == (said and rank == 0))

            return on

        for given, is_said in ((data, True), (Streamed(), False)):
            one = self.on_ranks(1, batches(1, given, is_said))[0]
            self.assertTrue(one[2])
            for count in (2, 3):
                for losses, ends, is_told in self.on_ranks(count, batches(count, given, is_said)):
                    self.assertEqual((losses, ends), one[:2], (count, type(given)))
                    self.assertTrue(is_told)

    def test_data_of_less_than_an_update_are_refused_by_ranks(self):
        def on(rank):
            config = dict(config_of(), train_batch_size=24, train_micro_batch_size_per_gpu=4)
            del config["gradient_accumulation_steps"]
            return engine_of(seeded(Mlp), config, training_data=list(range(20)))

        for text in self.errors(on):
            self.assertIn("the data make 5 batches, and an update takes 6", text)

    def test_a_schedule_that_follows_the_loss_of_each_rank_is_found(self):
        def on(rank):
            made = engine()
            plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(made.optimizer, patience=0, factor=0.5)
            for step in range(3):
                loss = loss_of(made.module, batch_of(made.module, step, rank), made)
                made.backward(loss)
                made.step()
                plateau.step(1.0 if rank else float(-step))

        for text in self.errors(on):
            self.assertIn("lr", text)


if __name__ == "__main__":
    unittest.main()
