"""Masked language modelling with a small BERT under ZeRO-3, as scripts of DeepSpeed are written: a file of
configuration, zero.Init, an optimizer and a schedule of DeepSpeed, activation checkpointing, and a look at single
parameters. The words are made up: each follows from the one before it.

Nothing below knows Terrace but the imports: without `terrace.compat.` it is a script of DeepSpeed."""

import argparse
import os

import terrace.compat.deepspeed as deepspeed
import torch
import torch.nn as nn
import torch.nn.functional as F
from terrace.compat.deepspeed.ops.adam import DeepSpeedCPUAdam
from terrace.compat.deepspeed.runtime.lr_schedules import WarmupDecayLR
from terrace.compat.deepspeed.runtime.zero.partition_parameters import ZeroParamStatus
from terrace.compat.deepspeed.utils import (
    RepeatingLoader,
    logger,
    safe_get_full_fp32_param,
    safe_get_full_optimizer_state,
    safe_set_full_fp32_param,
)

WORDS, MASK, LENGTH = 512, 1, 16


def get_arguments():
    parser = argparse.ArgumentParser(description="BERT")
    parser.add_argument("--max_steps", type=int, default=12)
    parser.add_argument("--local_rank", type=int, default=-1)
    parser.add_argument("--output")
    return deepspeed.add_config_arguments(parser).parse_args()


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(2)])

    def forward(self, x):
        x = self.norms[0](x + self.attention(x, x, x, need_weights=False)[0])
        return self.norms[1](x + self.down(F.gelu(self.up(x))))


class Bert(nn.Module):
    def __init__(self, width=64, layers=2):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, width), nn.Embedding(LENGTH, width)
        self.layers = nn.ModuleList([Layer(width) for _ in range(layers)])
        self.head = nn.Linear(width, WORDS)

    def forward(self, tokens, labels):
        x = self.words(tokens) + self.places.weight
        for layer in self.layers:
            x = deepspeed.checkpointing.checkpoint(layer, x)
        return F.cross_entropy(self.head(x).view(-1, WORDS), labels.view(-1), ignore_index=-100)


class Masked(torch.utils.data.Dataset):
    def __init__(self, count=96):
        generator = torch.Generator().manual_seed(3)
        first = torch.randint(2, WORDS, (count, 1), generator=generator)
        self.labels = (first * 5 + 7 * torch.arange(LENGTH)) % (WORDS - 2) + 2
        is_masked = torch.rand(self.labels.shape, generator=generator) < 0.2
        self.tokens = self.labels.masked_fill(is_masked, MASK)
        self.labels[~is_masked] = -100

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.tokens[index], self.labels[index]


def get_groups(model, weight_decay):
    plain = [p for name, p in model.named_parameters() if name.endswith("bias") or "norms" in name]
    others = [p for name, p in model.named_parameters() if not (name.endswith("bias") or "norms" in name)]
    return [{"params": others, "weight_decay": weight_decay}, {"params": plain, "weight_decay": 0.0}]


def get_values(parameter):
    """Of a parameter that may be divided, as tools that save models write it."""
    if not hasattr(parameter, "ds_id"):
        return parameter.detach().cpu().clone()
    assert parameter.ds_status == ZeroParamStatus.NOT_AVAILABLE
    with deepspeed.zero.GatheredParameters([parameter]):
        return parameter.data.detach().cpu().clone()


def main(arguments):
    deepspeed.init_distributed()
    torch.manual_seed(11)
    with deepspeed.zero.Init(config_dict_or_path=arguments.deepspeed_config):
        model = Bert()
    with deepspeed.zero.GatheredParameters(model.words.weight, modifier_rank=0):
        if deepspeed.comm.get_rank() == 0:
            nn.init.normal_(model.words.weight, std=0.02, generator=torch.Generator().manual_seed(5))
    optimizer = DeepSpeedCPUAdam(get_groups(model, 0.01), lr=2e-3)
    schedule = WarmupDecayLR(optimizer, total_num_steps=100, warmup_max_lr=2e-3, warmup_num_steps=4)
    deepspeed.checkpointing.configure(None, deepspeed_config=arguments.deepspeed_config)
    engine, _, loader, _ = deepspeed.initialize(
        args=arguments, model=model, optimizer=optimizer, lr_scheduler=schedule, training_data=Masked()
    )
    batches = iter(RepeatingLoader(loader))
    for step in range(arguments.max_steps):
        total = torch.zeros(())
        for _ in range(engine.gradient_accumulation_steps()):
            tokens, labels = (one.to(engine.device) for one in next(batches))
            loss = engine(tokens, labels)
            engine.backward(loss)
            engine.step()
            total += loss.detach().float().cpu() / engine.gradient_accumulation_steps()
        deepspeed.comm.all_reduce(total, op=deepspeed.comm.ReduceOp.AVG)
        if deepspeed.comm.get_rank() == 0:
            print(f"step {step}: loss {total.item():.6f}, lr {engine.get_lr()[0]:.3e}", flush=True)

    up = model.layers[0].up.weight
    master, moment = safe_get_full_fp32_param(up), safe_get_full_optimizer_state(up, "exp_avg")
    assert master.shape == moment.shape and torch.equal(master.to(up.dtype), get_values(up).to(up.dtype))
    safe_set_full_fp32_param(up, torch.zeros_like(master))
    assert not get_values(up).any()
    safe_set_full_fp32_param(up, master)
    if arguments.output:
        engine.save_16bit_model(os.path.join(arguments.output), "model.bin")
    if deepspeed.comm.get_rank() == 0:
        logger.info(f"norm of a master {master.norm().item():.4f}, of its moment {moment.norm().item():.3e}")
        print(f"norm {master.norm().item():.5f}", flush=True)
    engine.destroy()


if __name__ == "__main__":
    main(get_arguments())
