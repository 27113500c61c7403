"""What several ranks of terrace.initialize tell beside their numbers, and other programs than that of test_ranks.py: all is as of
one rank."""

import json
import os
import tempfile
import unittest

from ranks_torch import (
    RanksTest,
    batch_of,
    config_of,
    engine_of,
    loss_of,
    masters,
    seeded,
    terrace,
    torch,
    train_ranks,
)
from support_torch import Gpt, Mlp

MICRO_BATCHES = 6  # of a step, over all ranks


class Programs(RanksTest):
    def test_frozen_parameters_and_buffers_are_those_of_the_first(self):
        def train(count):
            def on(rank):
                model = seeded(Mlp)
                model.layers[1].requires_grad_(False)
                model.register_buffer("angle", torch.full((8,), float(rank)))
                engine = engine_of(model, config_of(accumulation=MICRO_BATCHES // count))
                told = train_ranks(engine, 2)
                ends = masters(engine), engine.master("last.weight").sum().item(), model.angle.tolist()
                engine.close()
                return told, ends

            return on

        one = self.on_ranks(1, train(1))[0]
        for count in (2, 3):
            for _, ends in self.on_ranks(count, train(count)):
                self.assertEqual(ends, one[1])

    def test_adapters_and_what_they_generate_are_those_of_one_rank(self):
        try:
            import peft
            from hf_models import llama
        except ImportError:
            self.skipTest("peft is not installed")
        adapters = peft.LoraConfig(
            r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], lora_dropout=0.0, task_type="CAUSAL_LM"
        )

        def train(count):
            def on(rank):
                model = peft.get_peft_model(seeded(llama), adapters)
                engine = engine_of(model, config_of(accumulation=2 // count))
                norms = []
                for step in range(2):
                    for k in range(2 // count):
                        seed = torch.Generator().manual_seed(2 * step + k * count + rank)
                        ids = torch.randint(3, 64, (2, 12), generator=seed)
                        engine.backward(engine(input_ids=ids, labels=ids).loss)
                        engine.step()
                    norms.append(engine.get_global_grad_norm())
                prompt = torch.arange(3, 9).reshape(1, 6)
                with torch.no_grad():
                    said = engine.module.generate(input_ids=prompt, max_new_tokens=4, do_sample=False).tolist()
                told = norms, said, masters(engine), sum(one.is_trainable for one in engine._tracked)
                engine.close()
                return told

            return on

        one = self.on_ranks(1, train(1))[0]
        self.assertEqual(one[3], 8)  # of two layers
        self.assertEqual(self.on_ranks(2, train(2)), [one, one])

    def test_a_loop_of_plain_torch_trains_the_mean_of_all(self):
        def plain(count):
            def on(rank):
                model = seeded(Mlp)
                optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
                engine, optimizer, _, _ = terrace.initialize(
                    model=model, optimizer=optimizer, config=config_of(clip=0.0)
                )
                norms = []
                for step in range(3):
                    losses = [
                        loss_of(model, batch_of(model, step, number)) for number in range(rank, 2, count) if count == 2
                    ] or [sum(loss_of(model, batch_of(model, step, number)) for number in range(2)) / 2]
                    losses[0].backward()
                    optimizer.step()
                    optimizer.zero_grad()
                    norms.append(engine.get_global_grad_norm())
                engine.close()
                return norms

            return on

        one = self.on_ranks(1, plain(1))[0]
        for norms in self.on_ranks(2, plain(2)):
            for norm, other in zip(norms, one):
                self.assertLess(abs(norm - other), 1e-5 * other)

    def test_evaluations_and_values_are_alike_on_all(self):
        def on(rank):
            engine = engine_of(seeded(Gpt), config_of(accumulation=2))
            train_ranks(engine, 1)
            with torch.no_grad():
                found = engine(batch_of(engine.module, 50)).sum().item()
            with engine.gathered(engine.module.blocks[0], write=True), torch.no_grad():
                engine.module.blocks[0].up.weight.mul_(2)
            state = {name: value.sum().item() for name, value in engine.module.state_dict().items()}
            train_ranks(engine, 1, 1)
            ranks = engine.global_rank, engine.local_rank, engine.world_size
            ends = masters(engine)
            engine.close()
            return found, state, ends, ranks

        found = self.on_ranks(3, on)
        self.assertEqual([one[3] for one in found], [(0, 0, 3), (1, 1, 3), (2, 2, 3)])
        for one in found:
            self.assertEqual(one[:3], found[0][:3])

    def test_what_is_beside_an_engine_is_exchanged_too(self):
        def on(rank):
            terrace.init_distributed()
            summed, told = torch.full((2, 3), float(rank + 1)), torch.full((4,), rank, dtype=torch.int64)
            terrace.comm.all_reduce(summed)
            terrace.comm.broadcast(told, src=1)
            terrace.comm.barrier()
            return summed.tolist(), told.tolist(), terrace.comm.is_first(), terrace.comm.get_local_rank()

        found = self.on_ranks(3, on)
        for rank, (summed, told, is_first, local) in enumerate(found):
            self.assertEqual((summed, told), ([[6.0] * 3] * 2, [1] * 4))
            self.assertEqual((is_first, local), (rank == 0, rank))

    def test_train_batch_deals_the_data_and_gives_the_mean_of_all(self):
        class Losing(Mlp):
            def forward(self, x):
                return super().forward(x).square().mean()

        data = [torch.randn(32, generator=torch.Generator().manual_seed(number)) for number in range(24)]

        def batches(count):
            def on(rank):
                config = dict(config_of(), train_batch_size=12, train_micro_batch_size_per_gpu=2)
                del config["gradient_accumulation_steps"]
                engine = engine_of(seeded(Losing), config, training_data=data)
                found = [engine.train_batch().item() for _ in range(3)], masters(engine), engine.get_batch_info()
                engine.close()
                return found

            return on

        one = self.on_ranks(1, batches(1))[0]
        for count in (2, 3):
            for losses, ends, batch in self.on_ranks(count, batches(count)):
                self.assertEqual((losses, ends), one[:2])
                self.assertEqual(batch, (12, 2, 6 // count))

    def test_the_log_of_steps_is_the_first_ones_and_of_all(self):
        def logged(count, folder):
            def on(rank):
                log = os.path.join(folder, "steps.jsonl")
                config = config_of(accumulation=MICRO_BATCHES // count)
                engine = engine_of(seeded(Gpt), config, step_log=log)
                train_ranks(engine, 2)
                engine.close()
                with open(log) as file:
                    steps = [json.loads(line) for line in file]
                return [(one["loss"], one["tokens"], one["gradient_norm"]) for one in steps if "loss" in one]

            return on

        with tempfile.TemporaryDirectory() as folder:
            one = self.on_ranks(1, logged(1, folder))[0]
        self.assertEqual(len(one), 2)
        for count in (2, 3):
            with tempfile.TemporaryDirectory() as folder:
                found = self.on_ranks(count, logged(count, folder))[0]
            for (loss, *rest), (other, *others) in zip(found, one):
                self.assertLess(abs(loss - other), 1e-6 * other)
                self.assertEqual(rest, others)


if __name__ == "__main__":
    unittest.main()
