"""Frozen linear layers of few bits, without another package: NF4 and blocks of 8 bits. Their codes and scales are frozen
parameters, which a store keeps as bytes; a pass makes the weight of a layer where it is used, and keeps none of it.

NF4 is that of QLoRA (Dettmers et al., arXiv:2305.14314, appendix E): sixteen values, quantiles of a normal distribution,
times the largest magnitude of each block of 64. Codes are those of bitsandbytes, bit for bit, the first of a pair in the
upper half of a byte."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn
from torch.nn import functional as F

from ..errors import ConfigError
from .mapped import mapped_copy

if TYPE_CHECKING:
    from .._types import Path

NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453,
    -0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0,
    0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
BLOCK = 64
KINDS = ("nf4", "int8")
_SCALES_OF_GROUP = 256  # that share a scale of their own, with double quantisation
_PART_BLOCKS = 1 << 15  # that are dequantised at a time, so that little memory is needed beside the weight
_WHAT = "cannot quantise a model"


class QuantizedLinear(nn.Linear):
    """A linear layer whose `weight` are codes, [bytes, 1], and whose `scales` are bytes: an fp32 number of each block,
    or with `is_double` a code of 8 bits of each, an fp32 number of each group, and the fp32 mean of all."""

    scales: nn.Parameter

    def __init__(self, kind: str, in_features: int, out_features: int, is_double: bool) -> None:
        nn.Module.__init__(self)
        self.kind, self.is_double = kind, is_double
        self.in_features, self.out_features = in_features, out_features

    @classmethod
    def of(cls, layer: nn.Linear, kind: str, is_double: bool = False, folder: Path | None = None) -> QuantizedLinear:
        """The layer in few bits; of one on the meta device that alone. With `folder` its bytes lie in unlinked files."""
        made = cls(kind, layer.in_features, layer.out_features, is_double)
        weight = layer.weight.detach()
        if weight.is_meta:
            codes, scales = made._shapes()
            parts = [torch.empty(codes, dtype=torch.uint8, device="meta"), scales]
        else:
            codes_of, absmax = quantized(weight, kind)
            parts = [codes_of.view(torch.uint8).view(-1, 1), _packed_scales(absmax, is_double)]
            if folder is not None:
                parts = [mapped_copy(part, folder) for part in parts]
        made.weight = nn.Parameter(parts[0], requires_grad=False)
        made.scales = nn.Parameter(parts[1], requires_grad=False)
        made.bias = layer.bias
        made.train(layer.training)
        return made

    @property
    def blocks(self) -> int:
        return -(-self.in_features * self.out_features // BLOCK)

    def _shapes(self) -> tuple[tuple[int, int], torch.Tensor]:
        of_block = BLOCK // 2 if self.kind == "nf4" else BLOCK
        scales = _packed_scales(torch.empty(self.blocks, device="meta"), self.is_double)
        return (self.blocks * of_block, 1), scales

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        product: torch.Tensor = _Product.apply(x, self.weight, self.scales, self.bias, self)
        return product

    def dequantized(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """The weight, [out_features, in_features]."""
        return self.weight_of(self.weight.detach(), self.scales.detach(), dtype)

    def weight_of(self, codes: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        absmax = _unpacked_scales(scales, self.blocks, self.is_double)
        flat = dequantized(codes, absmax, self.kind, dtype)
        return flat[: self.in_features * self.out_features].view(self.out_features, self.in_features)

    def extra_repr(self) -> str:
        double = ", double" if self.is_double else ""
        return f"{self.in_features}, {self.out_features}, {self.kind}{double}, bias={self.bias is not None}"


class _Product(torch.autograd.Function):
    """x W^T + b. The weight is made again for the gradient of x: what is kept are the codes, which are parameters."""

    @staticmethod
    def forward(ctx: Any, x: Any, codes: Any, scales: Any, bias: Any, layer: QuantizedLinear) -> torch.Tensor:
        ctx.save_for_backward(codes, scales)
        ctx.layer, ctx.has_bias = layer, bias is not None and bias.requires_grad
        return F.linear(x, layer.weight_of(codes, scales, x.dtype), bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (gradient,) = gradients
        codes, scales = ctx.saved_tensors
        of_x = None
        if ctx.needs_input_grad[0]:
            of_x = gradient @ ctx.layer.weight_of(codes, scales, gradient.dtype)
        of_bias = gradient.flatten(0, -2).sum(0) if ctx.has_bias else None
        return of_x, None, None, of_bias, None


# --- Arithmetic, of flat runs of blocks ---


def quantized(weight: torch.Tensor, kind: str) -> tuple[torch.Tensor, torch.Tensor]:
    """(codes, absmax): uint8 with two codes a byte, or int8, and the largest magnitude of each block as fp32."""
    codes, absmax = [], []
    flat = weight.detach().reshape(-1)
    for first in range(0, flat.numel(), _PART_BLOCKS * BLOCK):
        part = flat[first : first + _PART_BLOCKS * BLOCK].float()
        blocks = F.pad(part, (0, -part.numel() % BLOCK)).view(-1, BLOCK)
        absmax.append(blocks.abs().amax(dim=1))
        scaled = (blocks * (1.0 / absmax[-1].clamp(min=1e-38))[:, None]).clamp(-1, 1).view(-1)
        codes.append(_nf4_codes(scaled) if kind == "nf4" else (scaled * 127).round().to(torch.int8))
    return torch.cat(codes), torch.cat(absmax)


def _nf4_codes(scaled: torch.Tensor) -> torch.Tensor:
    values = torch.tensor(NF4, device=scaled.device)
    nearest = torch.bucketize(scaled, (values[:-1] + values[1:]) / 2, out_int32=True).to(torch.uint8)
    return (nearest[::2] << 4) | nearest[1::2]


def dequantized(codes: torch.Tensor, absmax: torch.Tensor, kind: str, dtype: torch.dtype) -> torch.Tensor:
    """The values of whole blocks: a product of fp32 numbers each, rounded to `dtype` once."""
    of_block = BLOCK // 2 if kind == "nf4" else BLOCK
    codes = codes.reshape(-1)
    out = torch.empty(absmax.numel() * BLOCK, dtype=dtype, device=codes.device)
    table = _table(codes.device) if kind == "nf4" else None
    for first in range(0, absmax.numel(), _PART_BLOCKS):
        scales = absmax[first : first + _PART_BLOCKS, None]
        part = codes[first * of_block : (first + scales.shape[0]) * of_block]
        if table is not None:
            values = table.index_select(0, part.int()).view(torch.float32).view(-1, BLOCK)
        else:
            values = part.view(torch.int8).float().view(-1, BLOCK)
            scales = scales * (1.0 / 127)
        torch.mul(values, scales, out=out[first * BLOCK : first * BLOCK + values.numel()].view(-1, BLOCK))
    return out


def _table(device: torch.device) -> torch.Tensor:
    """[256]: the fp32 values of both codes of a byte, as one number of 64 bits, which is found faster than two."""
    values = torch.tensor(NF4, device=device)
    return torch.stack([values.repeat_interleave(16), values.repeat(16)], dim=1).view(torch.int64).view(-1)


def _packed_scales(absmax: torch.Tensor, is_double: bool) -> torch.Tensor:
    if not is_double:
        return absmax.view(torch.uint8).view(-1)
    mean = absmax.mean().view(1)
    groups = F.pad(absmax - mean, (0, -absmax.numel() % _SCALES_OF_GROUP)).view(-1, _SCALES_OF_GROUP)
    of_group = groups.abs().amax(dim=1)
    codes = (groups * (127.0 / of_group.clamp(min=1e-38))[:, None]).round().to(torch.int8)
    parts = [codes.view(torch.uint8), of_group.view(torch.uint8), mean.view(torch.uint8)]
    return torch.cat([part.reshape(-1) for part in parts])


def _unpacked_scales(scales: torch.Tensor, blocks: int, is_double: bool) -> torch.Tensor:
    if not is_double:
        return scales.view(torch.float32)
    groups = -(-blocks // _SCALES_OF_GROUP)
    codes, numbers = scales[: groups * _SCALES_OF_GROUP], scales[groups * _SCALES_OF_GROUP :].view(torch.float32)
    found = codes.view(torch.int8).float().view(-1, _SCALES_OF_GROUP) * (numbers[:-1] * (1.0 / 127))[:, None]
    return (found + numbers[-1]).view(-1)[:blocks]


# --- A model ---


def quantize_base(
    model: nn.Module,
    kind: str = "nf4",
    *,
    skip: Sequence[str] = ("lm_head",),
    double: bool = False,
    folder: Path | None = None,
) -> list[str]:
    """Puts QuantizedLinear in place of each nn.Linear of a model whose weight is frozen, one at a time, and returns their
    names. What is trained stays as it is, and so do weights that several modules share.

    kind: "nf4" (4 bits and 0.5 of scales for each weight), or "int8" (8 and 0.5).
    skip: names, last parts of names or patterns of modules that stay as they are.
    double: scales are quantised too: 0.13 in place of 0.5 bits.
    folder: codes go to unlinked files in it, so that neither the old nor the new model has to fit in memory: with
        terrace.torch.init(meta=True) and terrace.torch.load before it, a weight is read from its file when it is its
        turn. A model on the meta device stays there, as terrace.torch.plan_model wants it.
    """
    if kind not in KINDS:
        raise ConfigError(_WHAT, "kind", f"it is {kind!r}", f"give one of {', '.join(KINDS)}")
    found = list(_frozen_layers(model, skip))
    if not found:
        raise ConfigError(
            _WHAT,
            type(model).__name__,
            "it has no nn.Linear that is frozen, shared with nobody and not in `skip`",
            "freeze the base first, for example by model.requires_grad_(False), and add adapters after it",
        )
    for name in found:
        path, _, last = name.rpartition(".")
        owner = model.get_submodule(path)
        layer = cast(nn.Linear, getattr(owner, last))
        setattr(owner, last, QuantizedLinear.of(layer, kind, double, folder))
    return found


def _frozen_layers(model: nn.Module, skip: Sequence[str]) -> Iterator[str]:
    uses: dict[int, int] = {}
    for module in model.modules():
        for parameter in module._parameters.values():
            if parameter is not None:
                uses[id(parameter)] = uses.get(id(parameter), 0) + 1
    for name, module in model.named_modules():
        if type(module) is not nn.Linear or module.weight.requires_grad or not name or uses[id(module.weight)] > 1:
            continue
        if not any(fnmatch.fnmatch(name, one) or name.rpartition(".")[2] == one for one in skip):
            yield name
