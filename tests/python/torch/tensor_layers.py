"""Layers whose tensors processes divide, as Megatron divides them: each makes the whole layer and keeps its shard. Without a
group of torch.distributed they are whole."""

import torch
from torch import nn
from torch.distributed import ReduceOp
from torch.nn import functional as F


def summed(x, group):
    if group is None:
        return x
    x = x.clone()
    torch.distributed.all_reduce(x, ReduceOp.SUM, group)
    return x


class Copy(torch.autograd.Function):
    """To all processes forward, the sum of their gradients backward."""

    @staticmethod
    def forward(context, x, group):
        context.group = group
        return x

    @staticmethod
    def backward(context, gradient):
        return summed(gradient, context.group), None


class Sum(torch.autograd.Function):
    @staticmethod
    def forward(context, x, group):
        return summed(x, group)

    @staticmethod
    def backward(context, gradient):
        return gradient, None


class Gather(torch.autograd.Function):
    """The last dimension of all processes one behind the other, the own part of the gradient backward."""

    @staticmethod
    def forward(context, x, group):
        context.place, context.count = of_group(group)
        parts = [torch.empty_like(x) for _ in range(context.count)]
        torch.distributed.all_gather(parts, x.contiguous(), group)
        return torch.cat(parts, -1)

    @staticmethod
    def backward(context, gradient):
        return gradient.chunk(context.count, -1)[context.place].contiguous(), None


def of_group(group):
    """(the number of this process, how many there are)"""
    return (0, 1) if group is None else (torch.distributed.get_rank(group), torch.distributed.get_world_size(group))


def shard(parameter, dimension, place, count):
    """This process's part of a parameter."""
    if count == 1:
        return parameter
    kept = nn.Parameter(parameter.detach().chunk(count, dimension)[place].contiguous())
    kept.tensor_model_parallel, kept.partition_dim = True, dimension
    return kept


class Column(nn.Linear):
    """Outputs are divided."""

    def __init__(self, inputs, outputs, group=None):
        super().__init__(inputs, outputs)
        place = of_group(group)
        self.weight, self.bias = shard(self.weight, 0, *place), shard(self.bias, 0, *place)
        self.group = group

    def forward(self, x):
        return super().forward(Copy.apply(x, self.group))


class Row(nn.Linear):
    """Inputs are divided."""

    def __init__(self, inputs, outputs, group=None):
        super().__init__(inputs, outputs)
        self.weight = shard(self.weight, 1, *of_group(group))
        self.group = group

    def forward(self, x):
        return Sum.apply(F.linear(x, self.weight), self.group) + self.bias


class Words(nn.Embedding):
    """Words are divided. Tokens and a mask become numbers and the same mask."""

    def __init__(self, words, width, group=None):
        super().__init__(words, width)
        place, count = of_group(group)
        self.weight = shard(self.weight, 0, place, count)
        self.group, self.first = group, place * words // count

    def forward(self, given):
        tokens, mask = given
        own = tokens - self.first
        is_here = (own >= 0) & (own < self.weight.shape[0])
        found = F.embedding(own * is_here, self.weight) * is_here[..., None].to(self.weight.dtype)
        return Sum.apply(found, self.group), mask

    def as_head(self, x):
        logits = F.linear(Copy.apply(x, self.group), self.weight)
        return logits if self.group is None else Gather.apply(logits, self.group)


class Block(nn.Module):
    """Attention under a mask, whose heads are divided, and what follows it."""

    def __init__(self, width, heads, group=None):
        super().__init__()
        self.heads = heads // of_group(group)[1]
        self.before, self.behind = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value = (Column(width, width, group) for _ in range(3))
        self.out = Row(width, width, group)
        self.up, self.down = Column(width, 2 * width, group), Row(2 * width, width, group)

    def forward(self, given):
        x, mask = given
        y = self.before(x)
        q, k, v = (one(y).unflatten(-1, (self.heads, -1)).transpose(1, 2) for one in (self.query, self.key, self.value))
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None])
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.behind(x)))), mask
