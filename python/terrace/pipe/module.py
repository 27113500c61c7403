"""PipelineModule: layers one behind the other, of which each process makes those of its stage."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from ..errors import ConfigError
from ..torch.engine.launched import join_ranks
from ..torch.engine.parts import Parts, copies_of, divide
from .layers import Layer, LayerSpec, TiedLayerSpec, numbered, partition_of
from .topology import PipeDataParallelTopology, PipelineParallelGrid, ProcessTopology

if TYPE_CHECKING:
    from ..ranks import Ranks
    from .stages import PipelineEngine

_WHAT = "cannot divide a model into stages"


class _Layers(nn.ModuleList):
    """Of one stage, under their numbers in the whole model."""


class PipelineModule(nn.Module):
    """Calls its layers one after the other: modules, functions and specs. engine.train_batch(iterator) takes batches of
    (inputs, labels) and `loss_fn(outputs, labels)`.

    Of `num_stages` stages each process has one: rank r of D * num_stages has stage r // D, or where `topology` places it, which
    may also say how many processes divide the tensors of a stage. The names of parameters are those of one stage.

    activation_checkpoint_interval: so many layers are computed again together in the backward pass; 0: none.
    seed_layers: each layer is made, and runs, with a seed of its own, so that the stages do not change what is drawn.
    checkpointable_layers: names of classes; only runs of these alone are computed again.
    """

    def __init__(
        self,
        layers: Iterable[Any],
        num_stages: int | None = None,
        topology: ProcessTopology | None = None,
        loss_fn: Callable[..., Any] | None = None,
        seed_layers: bool = False,
        seed_fn: Callable[[int], Any] | None = None,
        base_seed: int = 1234,
        partition_method: str = "parameters",
        activation_checkpoint_interval: int = 0,
        activation_checkpoint_func: Callable[..., Any] | None = None,
        checkpointable_layers: Iterable[str] | None = None,
        dynamic_shape: bool = False,
    ) -> None:
        super().__init__()
        self.loss_fn = loss_fn
        self.seed_layers, self.base_seed = seed_layers, base_seed
        self.seed_fn: Callable[[int], Any] = torch.manual_seed if seed_fn is None else seed_fn
        self._seed_pass: Callable[[int], Any] = _seed_again if seed_fn is None else seed_fn
        self._interval, self._again = activation_checkpoint_interval, activation_checkpoint_func
        self._checkpointable = None if checkpointable_layers is None else set(checkpointable_layers)
        self.seeded_passes = 0  # so far: each draws by seeds of its own, after a resume too
        self._grid, ranks = _placed(num_stages, topology)
        sources = list(layers)
        self.num_stages, self.stage_id = self._grid.pipe_parallel_size, self._grid.stage_id
        self.bounds = partition_of(sources, self.num_stages, partition_method)
        self.layers = _Layers()
        self._tied: dict[str, nn.Module] = {}
        if self.num_stages == 1:
            self._calls = self._made_whole(sources)
            self._found: list[Layer] = []
        else:
            self._found = numbered(sources)
            first, end = self.bounds[self.stage_id : self.stage_id + 2]
            self._calls = self._made(self._found[first:end])
        shared = self._grid.slice_parallel_size
        whole = Parts(None, ranks)
        if ranks is not None and self.num_stages * shared > 1:
            whole = divide(ranks, self.stage_id * shared + self._grid.slice_parallel_id)
        self._parts = whole._replace(block_of=_layer_of)

    @property
    def parts(self) -> Parts:
        """What this process trains. Of a layer whose tensors are divided, the norm counts what is not as the first one has it."""
        return self._parts._replace(copies=copies_of(self) if self._grid.slice_parallel_id else frozenset())

    @property
    def alike(self) -> str:
        """The same for all processes whose parameters begin alike, but for shards."""
        return f"stage {self.stage_id}"

    @property
    def engine_class(self) -> type[PipelineEngine]:
        """What terrace.initialize makes."""
        from .stages import PipelineEngine

        return PipelineEngine

    # --- Making layers ---

    def _made_whole(self, sources: list[Any]) -> list[tuple[int | None, Callable[..., Any] | None]]:
        """Every layer, each of which says what it is when it is made."""
        calls: list[tuple[int | None, Callable[..., Any] | None]] = []
        numbers: dict[str, int] = {}
        for place, source in enumerate(sources):
            key = source.key if isinstance(source, TiedLayerSpec) else None
            function = source.forward_fn if isinstance(source, TiedLayerSpec) else None
            if key is not None and key in numbers:
                calls.append((numbers[key], function))
                continue
            made = self._built(source, place)
            if not isinstance(made, nn.Module):
                calls.append((None, made))
                continue
            number = len(self.layers)
            self.layers.add_module(str(number), made)
            calls.append((number, function))
            if key is not None:
                numbers[key] = number
                self._tied[key] = made
        return calls

    def _made(self, own: list[Layer]) -> list[tuple[int | None, Callable[..., Any] | None]]:
        """The layers of this stage. A copy of a tied layer has the number and the seed of the first one."""
        calls: list[tuple[int | None, Callable[..., Any] | None]] = []
        modules: dict[int, nn.Module] = {}
        for layer in own:
            function = layer.source.forward_fn if layer.key is not None else None
            if layer.number is None:
                calls.append((None, self._built(layer.source, layer.place)))
                continue
            if layer.number not in modules:
                first = next(one.place for one in self._found if one.number == layer.number)
                modules[layer.number] = self._built(layer.source, first)
                if layer.key is not None:
                    self._tied[layer.key] = modules[layer.number]
            calls.append((layer.number, function))
        for number in sorted(modules):
            self.layers.add_module(str(number), modules[number])
        return calls

    def _built(self, source: Any, place: int) -> Any:
        if self.seed_layers:
            self.seed_fn(self.base_seed + place)
        return source.build() if isinstance(source, LayerSpec) else source

    # --- What a stage is ---

    def topology(self) -> ProcessTopology:
        return self._grid.topology()

    def mpu(self) -> PipelineParallelGrid:
        """Where this process is."""
        return self._grid

    @property
    def tied_modules(self) -> dict[str, nn.Module]:
        """Of this stage, by their keys."""
        return dict(self._tied)

    def stages_of_tied(self) -> dict[str, list[int]]:
        """By key the stages that have a layer, where several do. The first of them trains it."""
        found: dict[str, list[int]] = {}
        for layer in self._found:
            stage = self.stage_of_layer(layer.place)
            if layer.key is not None and stage not in found.setdefault(layer.key, []):
                found[layer.key].append(stage)
        return {key: stages for key, stages in found.items() if len(stages) > 1}

    def stage_of_layer(self, place: int) -> int:
        """The stage that has the layer at this place in the list."""
        return next(stage for stage, end in enumerate(self.bounds[1:]) if place < end)

    def followers(self) -> dict[str, nn.Module]:
        """By key the layers of this stage that an earlier one trains: they get its values after each update."""
        return {key: self._tied[key] for key, stages in self.stages_of_tied().items() if self.stage_id in stages[1:]}

    # --- Forward ---

    def forward(self, x: Any) -> Any:
        """Through the layers of this stage."""
        self.seeded_passes += 1
        run = self.seeded_passes
        if not self._interval or not torch.is_grad_enabled():
            return self._run(0, len(self._calls), x, run)
        # As with one stage: the bounds of what is computed again are counted from the first layer of the model.
        first, end = 0, len(self._calls)
        before = self.bounds[self.stage_id]
        while first < end:
            last = min(end, first + self._interval - (before + first) % self._interval)

            def part(*inputs: Any, first: int = first, last: int = last) -> Any:
                return self._run(first, last, inputs[0] if len(inputs) == 1 else inputs, run)

            given = x if isinstance(x, tuple) and len(x) != 1 else (x,)
            if not self._is_checkpointable(first, last):
                x = part(*given)
            elif self._again:
                x = self._again(part, *given)
            else:
                x = checkpoint(part, *given, use_reentrant=False)
            first = last
        return x

    def _is_checkpointable(self, first: int, end: int) -> bool:
        """As in DeepSpeed: layers of the named classes alone, or else any with parameters."""
        calls = self._calls[first:end]
        if self._checkpointable is not None:
            called = [function if number is None else self._module(number) for number, function in calls]
            return all(type(one).__name__ in self._checkpointable for one in called)
        return any(number is not None and any(True for _ in self._module(number).parameters()) for number, _ in calls)

    def _module(self, number: int) -> nn.Module:
        return self.layers.get_submodule(str(number))

    def _run(self, first: int, end: int, x: Any, run: int) -> Any:
        for place in range(first, end):
            if self.seed_layers:
                self._seed_pass(self.base_seed * run + self.bounds[self.stage_id] + place)
            number, function = self._calls[place]
            if number is not None:
                module = self._module(number)
                x = function(module, x) if function else module(x)
            elif function is not None:
                x = function(x)
        return x


def _seed_again(seed: int) -> None:
    """As torch.manual_seed, where devices that are not used are left alone: for each of these it keeps the call and its place in
    the program until they are, which takes time in each layer, and memory."""
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)


def _layer_of(name: str) -> str:
    """Of the name of a parameter, "layers.3.weight": the norm is summed layer by layer, whichever stage has one."""
    return ".".join(name.split(".")[:2])


def _placed(num_stages: int | None, topology: ProcessTopology | None) -> tuple[PipelineParallelGrid, Ranks | None]:
    """Where this process is among all that train, and these; None where it trains alone."""
    ranks = join_ranks()
    world = 1 if ranks is None else ranks.count
    if topology is None:
        stages = 1 if num_stages is None else num_stages
        if isinstance(stages, bool) or not isinstance(stages, int) or stages < 1:
            raise ConfigError(_WHAT, "num_stages", f"it is {stages!r}", "give a number above 0")
        if world % stages:
            raise ConfigError(
                _WHAT,
                "num_stages",
                f"it is {stages}, and {world} {'process trains' if world == 1 else 'processes train'}",
                "start as many processes as stages, or a multiple of that (torchrun, terrace launch -n); layers that do "
                "not fit into the device memory of one process are on cpu or nvme, as offload_param says",
            )
        topology = PipeDataParallelTopology(stages, world // stages)
    elif num_stages not in (None, topology.get_dim("pipe")):
        raise ConfigError(
            _WHAT,
            "num_stages",
            f"it is {num_stages}, and the topology has {topology.get_dim('pipe')} stages",
            "give one of the two",
        )
    return PipelineParallelGrid(topology), ranks
