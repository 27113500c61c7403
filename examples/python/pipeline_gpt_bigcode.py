"""A GPTBigCode model in stages of a pipeline, each with its parameters and optimizer states on nvme.

torchrun --nproc-per-node 2 examples/python/pipeline_gpt_bigcode.py --stages 2 --steps 20
terrace launch -n 4 -- python examples/python/pipeline_gpt_bigcode.py --stages 4 --nvme-path /mnt/nvme

The number of processes is a multiple of the stages; the losses are the same with any number of both. The weights are random, and
the text is that of the programs of this folder, so that nothing has to be fetched.
"""

import argparse
import pathlib
import tempfile

import terrace
import torch
from terrace.pipe import LayerSpec, PipelineModule, TiedLayerSpec
from torch import nn
from torch.nn import functional
from transformers import GPTBigCodeConfig
from transformers.models.gpt_bigcode.modeling_gpt_bigcode import GPTBigCodeBlock

MICRO_BATCHES = 4  # of an update, over all processes that share a stage
LENGTH = 64


class Embedding(nn.Module):
    """(tokens, which of them are there) become (numbers, the mask of attention)."""

    def __init__(self, config):
        super().__init__()
        self.table = nn.Embedding(config.vocab_size, config.n_embd)
        self.places = nn.Embedding(config.n_positions, config.n_embd)
        for one in (self.table, self.places):
            nn.init.normal_(one.weight, std=config.initializer_range)

    def forward(self, given):
        tokens, is_there = given
        length = tokens.shape[1]
        x = self.table(tokens) + self.places(torch.arange(length, device=tokens.device))
        before = torch.ones(length, length, dtype=torch.bool, device=tokens.device).tril()
        return x, (before & is_there[:, None, :])[:, None]


class Block(nn.Module):
    """One of transformers: the mask passes through, and carries no gradient."""

    def __init__(self, config, number):
        super().__init__()
        self.block = GPTBigCodeBlock(config, layer_idx=number)

    def forward(self, given):
        x, mask = given
        x = self.block(x, attention_mask=mask)
        return (x[0] if isinstance(x, tuple) else x), mask


def numbers_alone(given):
    return given[0]


def as_head(embedding, x):
    return functional.linear(x, embedding.table.weight)


def loss_of(logits, tokens):
    return functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten())


def layers_of(config):
    return [
        TiedLayerSpec("table", Embedding, config),
        *(LayerSpec(Block, config, number) for number in range(config.n_layer)),
        numbers_alone,
        LayerSpec(nn.LayerNorm, config.n_embd, eps=config.layer_norm_epsilon),
        TiedLayerSpec("table", Embedding, config, forward_fn=as_head),
    ]


def settings(folder, micro_batches):
    nvme = {"device": "nvme", "nvme_path": folder}
    return {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": micro_batches,
        "gradient_clipping": 1.0,
        "optimizer": {"type": "AdamW", "params": {"lr": 3e-3}},
        "zero_optimization": {"stage": 3, "offload_param": nvme, "offload_optimizer": nvme},
        "terrace": {"device_memory": "4MiB", "host_memory": "32MiB", "durable": False},
    }


def batches_of(text, part, parts):
    """Micro-batch k of a part of the data is number k * parts + part, so that any number of them trains the same."""
    generator = torch.Generator().manual_seed(1)
    while True:
        for number in range(MICRO_BATCHES):
            at = torch.randint(len(text) - LENGTH, (4, 1), generator=generator) + torch.arange(LENGTH)
            if number % parts == part:
                tokens = text[at]
                yield (tokens, torch.ones_like(tokens, dtype=torch.bool)), tokens


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stages", type=int, default=1)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--nvme-path", default=tempfile.gettempdir())
    arguments = parser.parse_args()
    shape = {"n_layer": arguments.layers, "n_embd": arguments.width, "n_head": 4, "n_positions": LENGTH}
    config = GPTBigCodeConfig(vocab_size=256, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, **shape)
    config._attn_implementation = "sdpa"
    model = PipelineModule(layers_of(config), num_stages=arguments.stages, loss_fn=loss_of, seed_layers=True)
    grid = model.mpu()
    parts = grid.get_data_parallel_world_size()
    text = "".join(file.read_text() for file in sorted(pathlib.Path(__file__).parent.glob("*.py")))
    batches = batches_of(torch.tensor(list(text.encode())), grid.get_data_parallel_id(), parts)
    engine, *_ = terrace.initialize(model=model, config=settings(arguments.nvme_path, MICRO_BATCHES // parts))
    with engine:
        for step in range(1, arguments.steps + 1):
            loss = engine.train_batch(batches)
            if grid.get_global_rank() == 0 and (step % 5 == 0 or step == arguments.steps):
                print(f"step {step}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
