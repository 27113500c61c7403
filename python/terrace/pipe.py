"""DeepSpeed's pipe, in one stage: layers one behind the other, as torch.nn.Sequential has them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from .errors import ConfigError


class LayerSpec:
    """A layer that PipelineModule makes: typename(*arguments, **named)."""

    def __init__(self, typename: Callable[..., Any], *module_args: Any, **module_kwargs: Any) -> None:
        self.typename, self.module_args, self.module_kwargs = typename, module_args, module_kwargs

    def build(self, log: bool = False) -> Any:
        return self.typename(*self.module_args, **self.module_kwargs)


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


class PipelineModule(nn.Module):
    """Calls its layers one after the other: modules, functions and specs. engine.train_batch(iterator) takes batches of
    (inputs, labels) and `loss_fn(outputs, labels)`.

    activation_checkpoint_interval: so many layers are computed again together in the backward pass; 0: none.
    """

    def __init__(
        self,
        layers: Iterable[Any],
        num_stages: int | None = None,
        topology: Any = None,
        loss_fn: Callable[..., Any] | None = None,
        seed_layers: bool = False,
        seed_fn: object = None,
        base_seed: int = 1234,
        partition_method: str = "parameters",
        activation_checkpoint_interval: int = 0,
        activation_checkpoint_func: Callable[..., Any] | None = None,
        checkpointable_layers: object = None,
        dynamic_shape: bool = False,
    ) -> None:
        super().__init__()
        stages = topology.get_dim("pipe") if num_stages is None and topology is not None else num_stages
        if stages not in (None, 1):
            raise ConfigError(
                "cannot divide a model into stages",
                "num_stages",
                f"it is {stages}, and one process trains the whole model",
                "leave it out: layers that do not fit into device memory are on cpu or nvme, as offload_param says",
            )
        if seed_layers:
            raise ConfigError(
                "cannot make layers",
                "seed_layers",
                "layers have no seeds of their own here",
                "call torch.manual_seed before",
            )
        self.loss_fn = loss_fn
        self._interval, self._again = activation_checkpoint_interval, activation_checkpoint_func
        self._tied: dict[str, int] = {}
        self.layers = nn.ModuleList()
        self._calls = [self._call_of(layer) for layer in layers]

    def _call_of(self, layer: Any) -> tuple[int | None, Callable[..., Any] | None]:
        """(the place of a module or None, a function or None): both for a function of the module and the inputs."""
        if isinstance(layer, TiedLayerSpec):
            if layer.key not in self._tied:
                self._tied[layer.key] = self._added(layer.build())
            return self._tied[layer.key], layer.forward_fn
        if isinstance(layer, LayerSpec):
            layer = layer.build()
        return (self._added(layer), None) if isinstance(layer, nn.Module) else (None, layer)

    def _added(self, module: nn.Module) -> int:
        self.layers.append(module)
        return len(self.layers) - 1

    def forward(self, x: Any) -> Any:
        if not self._interval or not torch.is_grad_enabled():
            return self._run(0, len(self._calls), x)
        for first in range(0, len(self._calls), self._interval):

            def part(inputs: Any, first: int = first) -> Any:
                return self._run(first, first + self._interval, inputs)

            x = self._again(part, x) if self._again else checkpoint(part, x, use_reentrant=False)
        return x

    def _run(self, first: int, end: int, x: Any) -> Any:
        for place, function in self._calls[first:end]:
            if place is not None:
                x = function(self.layers[place], x) if function else self.layers[place](x)
            elif function is not None:
                x = function(x)
        return x
