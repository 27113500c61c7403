"""The layers of a pipeline as their specs say it: which are modules, what each has to train, and which stage gets which.

A layer of another stage is never made here, except on the meta device, where it has no memory."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from ..errors import ConfigError


class LayerSpec:
    """A layer that PipelineModule makes: typename(*arguments, **named)."""

    def __init__(self, typename: Callable[..., Any], *module_args: Any, **module_kwargs: Any) -> None:
        self.typename, self.module_args, self.module_kwargs = typename, module_args, module_kwargs

    def build(self, log: bool = False) -> Any:
        return self.typename(*self.module_args, **self.module_kwargs)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({name_of(self)})"


class TiedLayerSpec(LayerSpec):
    """Layers of one key are one module. `forward_fn(module, inputs)` stands for its forward."""

    def __init__(
        self,
        key: str,
        typename: Callable[..., Any],
        *module_args: Any,
        forward_fn: Callable[..., Any] | None = None,
        tied_weight_attr: object = ("weight",),
        **module_kwargs: Any,
    ) -> None:
        super().__init__(typename, *module_args, **module_kwargs)
        self.key, self.forward_fn, self.tied_weight_attr = key, forward_fn, tied_weight_attr


class Layer(NamedTuple):
    """One of the whole model: its place in the list, what the list has there, and the number of its module among the
    modules of the whole model; None of a function. Tied layers of one key have one number."""

    place: int
    source: Any
    number: int | None

    @property
    def key(self) -> str | None:
        return self.source.key if isinstance(self.source, TiedLayerSpec) else None


def numbered(sources: Sequence[Any]) -> list[Layer]:
    found: list[Layer] = []
    of_key: dict[str, int] = {}
    count = 0
    for place, source in enumerate(sources):
        key = source.key if isinstance(source, TiedLayerSpec) else None
        if key is not None and key in of_key:
            found.append(Layer(place, source, of_key[key]))
        elif _is_module(source):
            if key is not None:
                of_key[key] = count
            found.append(Layer(place, source, count))
            count += 1
        else:
            found.append(Layer(place, source, None))
    return found


def name_of(source: Any) -> str:
    """Of the class of a layer, or of a function."""
    made = source.typename if isinstance(source, LayerSpec) else source
    made = type(made) if isinstance(made, nn.Module) else made
    return str(getattr(made, "__name__", made))


def _is_module(source: Any) -> bool:
    if not isinstance(source, LayerSpec):
        return isinstance(source, nn.Module)
    if isinstance(source.typename, type):
        return issubclass(source.typename, nn.Module)
    return isinstance(_without_memory(source), nn.Module)


def _without_memory(spec: LayerSpec) -> Any:
    """What the spec makes, on the meta device. No random number is drawn for it."""
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        return spec.build()


def trained_elements(source: Any) -> int:
    if isinstance(source, LayerSpec):
        source = _without_memory(source)
    if not isinstance(source, nn.Module):
        return 0
    return sum(one.numel() for one in source.parameters() if one.requires_grad)


def partition_of(sources: Sequence[Any], stages: int, method: str) -> list[int]:
    """The first layer of each stage, and one behind the last: as DeepSpeed's partition_method says it."""
    what = "cannot divide layers into stages"
    if len(sources) < stages:
        raise ConfigError(
            what, f"{stages} stages", f"there are {len(sources)} layers", "take fewer stages, or divide layers"
        )
    kind = method.lower()
    if kind == "uniform":
        weights = [1] * len(sources)
    elif kind == "parameters":
        weights = [trained_elements(one) for one in sources] if stages > 1 else [1] * len(sources)
    elif kind.startswith("type:"):
        pattern = re.compile(method[len("type:") :], re.IGNORECASE)
        weights = [int(pattern.search(name_of(one)) is not None) for one in sources]
        if not any(weights):
            raise ConfigError(what, method, "no layer's class has this name", f"the classes are {_named(sources)}")
    else:
        raise ConfigError(
            what, "partition_method", f"it is {method!r}", 'give "parameters", "uniform" or "type:REGULAR_EXPRESSION"'
        )
    return balanced(weights, stages)


def _named(sources: Sequence[Any]) -> str:
    return ", ".join(dict.fromkeys(map(name_of, sources)))


def balanced(weights: Sequence[int], parts: int) -> list[int]:
    """Bounds of `parts` runs of weights, none of them empty, whose largest sum is as small as can be; of several such the
    ones whose sums differ least."""
    sums = [0]
    for weight in weights:
        sums.append(sums[-1] + weight)
    # Of the first `end` weights in so many parts: (the largest sum, the sum of squares, where the last part begins).
    best: list[tuple[int, int, int] | None] = [(0, 0, 0)] + [None] * len(weights)
    rounds = []
    for _ in range(parts):
        found: list[tuple[int, int, int] | None] = [None] * len(best)
        for end in range(1, len(best)):
            tried = []
            for begin in range(end):
                before = best[begin]
                if before is not None:
                    own = sums[end] - sums[begin]
                    tried.append((max(before[0], own), before[1] + own * own, begin))
            found[end] = min(tried, default=None)
        rounds.append(found)
        best = found
    bounds = [len(weights)]
    for found in reversed(rounds):
        last = found[bounds[-1]]
        assert last is not None  # there are at least as many weights as parts
        bounds.append(last[2])
    return bounds[::-1]
