"""What the tests of pipelines share: models of layers, a training, and what it has to tell."""

import os
import pickle
import tempfile

import ranks_torch as _ranks
from support_torch import Block as CausalBlock
from support_torch import config_of, engine_of, masters, terrace, torch
from terrace.pipe import LayerSpec, PipelineModule, TiedLayerSpec
from torch import nn
from torch.nn import functional as F

RanksTest, together = _ranks.RanksTest, _ranks.together
MICRO_BATCHES, STEPS, WIDTH, WORDS = 4, 3, 32, 64


class Embedding(nn.Embedding):
    """Tokens and a mask become numbers and the same mask."""

    def forward(self, x):
        tokens, mask = x
        return super().forward(tokens), mask


class Block(CausalBlock):
    """Attention under a mask, and what follows it: numbers change, and the mask goes on."""

    def __init__(self, width=WIDTH):
        super().__init__(width)

    def forward(self, given):
        x, mask = given
        q, k, v = self.attention(self.norm(x)).chunk(3, dim=-1)
        x = x + self.out(F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None], mask[:, None])[:, 0])
        return x + self.down(F.gelu(self.up(x))), mask


def leave_mask(given):
    return given[0]


def as_head(table, x):
    return F.linear(x, table.weight)


def loss_of(output, tokens):
    return F.cross_entropy(output[:, :-1].flatten(0, 1).float(), tokens[:, 1:].flatten())


class Drop(nn.Module):
    def forward(self, given):
        return F.dropout(given[0], 0.2, self.training), given[1]


def layers_of(is_tied, blocks=4, drops=False):
    table = TiedLayerSpec("table", Embedding, WORDS, WIDTH) if is_tied else LayerSpec(Embedding, WORDS, WIDTH)
    head = (
        TiedLayerSpec("table", Embedding, WORDS, WIDTH, forward_fn=as_head)
        if is_tied
        else LayerSpec(nn.Linear, WIDTH, WORDS, bias=False)
    )
    body = [LayerSpec(Block) for _ in range(blocks)]
    if drops:
        body.insert(1, LayerSpec(Drop))
    return [table, *body, leave_mask, LayerSpec(nn.LayerNorm, WIDTH), head]


def gpt(stages, is_tied=False, frozen=(), drops=False, **named):
    """`frozen`: numbers of layers that are not trained."""
    model = PipelineModule(
        layers_of(is_tied, drops=drops),
        num_stages=stages,
        loss_fn=loss_of,
        seed_layers=True,
        **{"partition_method": "uniform", **named},
    )
    for name, parameter in model.named_parameters():
        if int(name.split(".")[1]) in frozen:
            parameter.requires_grad_(False)
    return model


def batch_of(step, number, is_causal=True):
    """Of another length each time, so that shapes change between micro-batches."""
    generator = torch.Generator().manual_seed(1000 * step + number)
    length = 9 + number % 3
    tokens = torch.randint(0, WORDS, (2, length), generator=generator)
    mask = torch.ones(2, length, length, dtype=torch.bool).tril()
    return (tokens, mask), tokens


def batches(step, data_rank, data, count):
    """Micro-batch k of the part of the data with this number is number k N + r."""
    return iter([batch_of(step, k * data + data_rank) for k in range(count // data)])


def precise(config, precision):
    if precision == "fp16":
        config["fp16"] = {"enabled": True, "initial_scale_power": 8}
    return config


def train(engine, steps=STEPS, first=0):
    """[(mean loss, norm, whether the step was applied)]"""
    grid, told = engine.grid, []
    for step in range(first, first + steps):
        found = batches(step, grid.data_parallel_id, grid.data_parallel_size, MICRO_BATCHES)
        loss = engine.train_batch(found if engine.is_first_stage() or engine.is_last_stage() else None)
        told.append((loss.item(), engine.get_global_grad_norm(), engine.was_step_applied()))
    return told


def trained(stages, data, places=("cpu", "cpu"), precision="fp32", clip=0.1, is_tied=False, more=None, **named):
    """body(rank) of a training: what train() tells, and the digests of the masters that this process has."""

    def body(rank):
        with tempfile.TemporaryDirectory() as folder:
            config = config_of(*places, folder, MICRO_BATCHES // data, clip, precision, **(more or {}))
            model = gpt(stages, is_tied, **named)
            engine = engine_of(model, precise(config, precision), persistence_threshold=0)
            found = train(engine), masters(engine)
            engine.close()
        return found

    return body


def raised_on(count, body):
    """What body(rank) raises on each rank. A process that another one's failure ends has no time to say it at its end."""
    with tempfile.TemporaryDirectory() as folder:

        def noted(rank):
            try:
                body(rank)
            except BaseException as error:
                with open(os.path.join(folder, f"{rank}.new"), "wb") as file:
                    pickle.dump(error if isinstance(error, terrace.Error) else RuntimeError(repr(error)), file)
                os.rename(file.name, os.path.join(folder, f"{rank}"))
                raise

        ends, found = together(count, noted), []
        for rank, end in enumerate(ends):
            place = os.path.join(folder, f"{rank}")
            if os.path.exists(place):
                with open(place, "rb") as file:
                    found.append(pickle.load(file))
            else:
                found.append(
                    RuntimeError(f"nothing was raised: status {end.status}, signal {end.signal_number}, {end.text}")
                )
        return found


class PipelineTest(RanksTest):
    def compare(self, stages, data, **named):
        """Nothing but where the bytes are differs from one process."""
        (told, values), *_ = self.on_ranks(1, trained(1, 1, **named))
        found = {}
        for told_here, values_here in self.on_ranks(stages * data, trained(stages, data, **named)):
            self.assertEqual(repr(told_here), repr(told))
            for name, value in values_here.items():
                self.assertEqual(found.setdefault(name, value), value)
        self.assertEqual(found, values)
