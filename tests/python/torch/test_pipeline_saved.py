"""Checkpoints of a pipeline: they go on with any number of stages, and a save that is cut short leaves the one before."""

import json
import os
import tempfile
import unittest

from pipe_models import MICRO_BATCHES, PipelineTest, gpt, precise, together, train
from support_torch import config_of, engine_of, masters, terrace


def run(stages, data, folder, first, steps, model, precision, save_as=None, load=None):
    """body(rank): what a training has to tell that loads one checkpoint and saves another one."""

    def body(rank):
        with tempfile.TemporaryDirectory() as drive:
            config = precise(config_of("cpu", "nvme", drive, MICRO_BATCHES // data, 0.1, precision), precision)
            engine = engine_of(gpt(stages, **model), config, persistence_threshold=0)
            if load is not None:
                path, state = engine.load_checkpoint(folder, load)
                assert state == {"at": first}, (path, state)
            told = train(engine, steps, first)
            if save_as is not None:
                engine.save_checkpoint(folder, save_as, {"at": first + steps})
            found = masters(engine)
            engine.close()
            return told, found

    return body


class Saved(PipelineTest):
    def ends_of(self, count, body):
        found, told = {}, None
        for told_here, values in self.on_ranks(count, body):
            told = told or told_here
            self.assertEqual(repr(told_here), repr(told))
            found.update(values)
        return told, found

    def test_any_number_of_stages_goes_on_with_the_same_bits(self):
        frozen = {"frozen": (2, 3), "drops": True}  # the second of four stages trains nothing
        for model, precision in (({}, "fp32"), ({"is_tied": True}, "bf16"), (frozen, "fp32")):
            # With dropout the processes of a stage draw by themselves.
            sizes = [(1, 1), (2, 1), (3, 1 if "drops" in model else 2), (4, 1)]
            with tempfile.TemporaryDirectory() as folder:
                more = (model, precision)
                whole, ends = self.ends_of(1, run(1, 1, folder, 0, 4, *more))
                for (stages, data), (others, others_data) in zip(sizes, sizes[1:] + sizes[:1]):
                    tag = f"of {stages}"
                    self.ends_of(stages * data, run(stages, data, folder, 0, 2, *more, save_as=tag))
                    found = self.ends_of(others * others_data, run(others, others_data, folder, 2, 2, *more, load=tag))
                    with self.subTest(saved=stages, loaded=others, **model):
                        self.assertEqual(repr(found), repr((whole[2:], ends)))

    def test_a_save_that_fails_leaves_the_one_before(self):
        with tempfile.TemporaryDirectory() as folder:

            def body(rank):
                with tempfile.TemporaryDirectory() as drive:
                    engine = engine_of(gpt(2), config_of("cpu", "nvme", drive, MICRO_BATCHES), persistence_threshold=0)
                    told = train(engine, 1)
                    engine.save_checkpoint(folder, "kept")
                    train(engine, 1, 1)
                    if rank == 1:
                        engine.save_part = lambda *_: (_ for _ in ()).throw(terrace.IoError("a", "b", "full", "c"))
                    for tag in ("kept", "never"):
                        try:
                            engine.save_checkpoint(folder, tag)
                        except terrace.Error as error:
                            said = str(error)
                    terrace.comm.barrier()
                    left = sorted(os.listdir(folder)), len(os.listdir(os.path.join(folder, "kept")))
                    assert left == (["kept", "latest"], 2), left
                    path, _ = engine.load_checkpoint(folder)
                    steps = engine.global_steps
                    engine.save_part = type(engine).save_part.__get__(engine)
                    engine.save_checkpoint(folder, "kept")
                    engine.close()
                    return said, path, steps, told

            for said, path, steps, _ in self.on_ranks(2, body):
                self.assertIn("full", said)
                self.assertEqual((path, steps), (os.path.join(folder, "kept"), 1))
            place = os.path.join(folder, "kept")
            with open(os.path.join(place, "stages.json")) as file:
                facts = json.load(file)
            self.assertEqual(
                sorted(os.listdir(place)), sorted([facts["states"], "stages.json"])
            )  # nothing is left over
            with open(os.path.join(folder, "latest")) as file:
                self.assertEqual(file.read(), "kept")

    def test_a_tag_of_another_number_of_stages_is_refused_before_anything_is_written(self):
        def saved(stages):
            def body(rank):
                engine = engine_of(gpt(stages), config_of(accumulation=MICRO_BATCHES), persistence_threshold=0)
                train(engine, 1)
                try:
                    engine.save_checkpoint(folder, "tag")
                except terrace.Error as error:
                    return error
                finally:
                    engine.close()

            return body

        def there():
            return sorted((place, len(files)) for place, _, files in os.walk(folder))

        for first, second in ((1, 2), (2, 1)):
            with tempfile.TemporaryDirectory() as folder:
                self.assertEqual(set(self.on_ranks(first, saved(first))), {None})
                before = there()
                for error in self.on_ranks(second, saved(second)):
                    self.assert_four_parts(error)
                    self.assertIn(os.path.join(folder, "tag"), str(error))
                    if second == 1 or isinstance(error, terrace.ConfigError):  # else it has the words of the first
                        self.assertRegex(error.advice, "give another tag|save under another name")
                self.assertEqual(there(), before)

    def test_what_is_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            os.makedirs(os.path.join(folder, "other", "thing"))

            def body(rank):
                engine = engine_of(gpt(2), config_of(accumulation=MICRO_BATCHES), persistence_threshold=0)
                train(engine, 1)
                found = []
                for call in (
                    lambda: engine.save_checkpoint(folder, "other"),
                    lambda: engine.save_checkpoint(folder, f"tag {rank}"),
                    lambda: engine.load_checkpoint(folder, "other"),
                ):
                    try:
                        call()
                        found.append("")
                    except terrace.Error as error:
                        found.append(str(error))
                engine.close()
                return found

            for end in together(2, body):
                self.assertEqual(end.text, "")
                self.assertIn("there is something else of this name", end.value[0])
                self.assertIn("its tag", end.value[1])
                self.assertTrue(end.value[2])


if __name__ == "__main__":
    unittest.main()
