"""Models of transformers whose passes differ from rank to rank: experts that get no token, uneven lengths, text without
images, generate. The numbers are those of one rank with the same micro-batches."""

import unittest

import hf_models
from hf_models import ROUND, SMALL, transformers
from ranks_torch import RanksTest, config_of, engine_of, masters, seeded, torch

MICRO_BATCHES = 6
STEPS = 2
IMAGE = 3


def llava():
    small = {name: value for name, value in SMALL.items() if "position" not in name and name != "vocab_size"}
    return transformers.LlavaForConditionalGeneration(
        transformers.LlavaConfig(
            vision_config=transformers.CLIPVisionConfig(**small, image_size=8, patch_size=4, projection_dim=32),
            text_config=transformers.LlamaConfig(**SMALL, **ROUND),
            image_token_index=IMAGE,
        )
    )


def words(generator, count):
    return torch.randint(4, 64, (1, count), generator=generator)


def tokens_for_experts(generator, number, ranks):
    """One token goes to two of four experts."""
    tokens = words(generator, 2 + number % 2)
    return {"input_ids": tokens, "labels": tokens}


def uneven_pair(generator, number, ranks):
    return {"input_ids": words(generator, 2 + 3 * number), "labels": words(generator, 9 - number)}


def text_with_images(generator, number, ranks):
    """The first rank has text alone."""
    text = words(generator, 3 + number)
    if number % ranks == 0:
        return {"input_ids": text, "labels": text}
    tokens = torch.cat([torch.full((1, 4), IMAGE), text], 1)
    pixels = torch.randn(1, 3, 8, 8, generator=generator)
    return {"input_ids": tokens, "labels": tokens, "pixel_values": pixels}


class Models(RanksTest):
    def compare(self, make, batch, evaluate=None):
        """`evaluate(engine, number)` between steps: of one rank for all numbers, else for the number of the rank."""
        for count in (2, 3):

            def on(rank, ranks, count=count):
                engine = engine_of(seeded(make), config_of(accumulation=MICRO_BATCHES // ranks, rank_exchange="pulled"))
                told = {}
                for step in range(STEPS):
                    for number in range(rank, MICRO_BATCHES, ranks):
                        generator = torch.Generator().manual_seed(100 * step + number)
                        loss = engine(**batch(generator, number, count)).loss
                        engine.backward(loss)
                        engine.step()
                        told[step, number] = loss.item()
                    for number in range(count) if evaluate and ranks == 1 else [rank] if evaluate else []:
                        told[step, "evaluated", number] = evaluate(engine, number)
                told["norm"] = engine.get_global_grad_norm()
                ends = masters(engine)
                engine.close()
                return told, ends

            told, ends = self.on_ranks(1, lambda rank: on(0, 1))[0]
            found = self.on_ranks(count, lambda rank: on(rank, count))
            with self.subTest(ranks=count):
                self.assertEqual({key: value for one, _ in found for key, value in one.items()}, told)
                for one, others in found:
                    self.assertEqual(one["norm"], told["norm"])
                    self.assertEqual(others, ends)

    def test_experts_that_no_token_of_a_rank_reaches(self):
        self.compare(hf_models.mixtral, tokens_for_experts)

    def test_an_encoder_and_a_decoder_with_uneven_lengths(self):
        self.compare(hf_models.t5, uneven_pair)

    def test_a_vision_tower_that_text_does_not_use(self):
        self.compare(llava, text_with_images)

    def test_generate_with_another_length_on_each_rank(self):
        def generate(engine, number):
            found = engine.module.generate(
                torch.full((1, 2), 5), max_new_tokens=2 + 4 * number, do_sample=False, eos_token_id=None
            )
            return found.tolist()

        def batch(generator, number, ranks):
            tokens = words(generator, 4)
            return {"input_ids": tokens, "labels": tokens}

        self.compare(hf_models.gpt2, batch, generate)


if __name__ == "__main__":
    unittest.main()
