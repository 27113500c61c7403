"""plan_model: what the training of a model of torch will hold, and where, before anything of it has memory.

with torch.device("meta"):
    model = MyModel(config)
print(terrace.torch.plan_model(model, {"terrace": {"device_memory": "24GiB", "host_memory": "64GiB"}}, disk="2TiB"))
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from ..._lib import in_words_of_the_configuration
from ...config import document_of, read_config
from ...errors import CapacityError, ConfigError
from ...store import plan
from ...store.spec import SimulatedDevice
from .device import torch_device_of
from .initialize import SMALL_ELEMENTS, groups_of, require_plain
from .parameters import Parameters
from .placeholders import TORCH_TYPES
from .planned import Planned, options_of

if TYPE_CHECKING:
    from ..._types import ConfigSource, Named

# The nearest to the device first: parameters, optimizer states.
_PLACES = [("none", "none"), ("none", "cpu"), ("cpu", "cpu"), ("none", "nvme"), ("cpu", "nvme"), ("nvme", "nvme")]
_WHAT = "cannot plan the training of a model"


class ModelPlan(NamedTuple):
    """Bytes of each tier at the peak of a step, activations not counted, and the configuration that trains so."""

    parameters: int
    trained: int
    device_bytes: int
    device_budget: int
    host_bytes: int
    host_budget: int
    nvme_bytes: int
    config: dict[str, Any]

    def __str__(self) -> str:
        tiers = [
            ("device", self.device_bytes, f"of {_text(self.device_budget)}; activations are beside it"),
            ("host", self.host_bytes, f"of {_text(self.host_budget)}"),
            ("nvme", self.nvme_bytes, ""),
        ]
        lines = [f"{self.parameters:,} parameters, {self.trained:,} trained"]
        lines += [f"{name:<7} {_text(size):>10}  {note}".rstrip() for name, size, note in tiers]
        return "\n".join([*lines, json.dumps(self.config, indent=2)])


def plan_model(
    model: nn.Module,
    config: ConfigSource | None = None,
    *,
    optimizer: Any = None,
    device_memory: int | str | None = None,
    host_memory: int | str | None = None,
    disk: int | str | None = None,
    nvme_path: str = "/local_nvme",
    units: Any = "auto",
    persistence_threshold: int = SMALL_ELEMENTS,
) -> ModelPlan:
    """The plan of terrace.initialize(model=model, config=config) in one process. Nothing of the model is read, so that it
    may be on the meta device, and nothing is allocated.

    config: a dict or a file. Without offload_param and offload_optimizer in it the plan takes the nearest placement to
        the device that fits, on nvme only if `disk` is given.
    device_memory, host_memory: the budgets, in bytes or as "24GiB", in place of those of the configuration, which has to
        have one of device memory otherwise.
    disk: the room on the drives, in bytes or as "2TiB"; nothing of `nvme_path` is looked at.
    optimizer, units, persistence_threshold: as for terrace.initialize.

    Raises CapacityError with the least that would do where the budgets or `disk` are too small.
    """
    require_plain(model)
    document: Named = dict(config) if isinstance(config, dict) else {} if config is None else document_of(config)
    given = {"device_memory": device_memory, "host_memory": host_memory}
    budgets = {name: size for name, size in given.items() if size is not None}
    if budgets:
        document = dict(document, terrace={**document.get("terrace", {}), **budgets})
    room = None if disk is None else _bytes_of(disk)
    refusal: CapacityError | None = None
    for candidate in _candidates(document, nvme_path, with_nvme=room is not None):
        try:
            with in_words_of_the_configuration():
                made = _plan_of(model, candidate, optimizer, units, persistence_threshold)
        except CapacityError as error:
            refusal = error
            continue
        if room is not None and made.nvme_bytes > room:
            raise _no_room(made.nvme_bytes, room)  # what is further away needs no less
        return made
    assert refusal is not None  # there is a candidate
    raise refusal


def _candidates(document: Named, nvme_path: str, with_nvme: bool) -> Iterator[Named]:
    zero = document.get("zero_optimization", {})
    if "offload_param" in zero or "offload_optimizer" in zero:
        yield document
        return
    for parameters, states in _PLACES if with_nvme else _PLACES[:3]:
        stage = 3 if parameters != "none" else 2 if states != "none" else zero.get("stage", 0)
        placed = dict(zero, stage=max(stage, zero.get("stage", 0)))
        for section, place in (("offload_param", parameters), ("offload_optimizer", states)):
            if place != "none":
                placed[section] = {"device": place, **({"nvme_path": nvme_path} if place == "nvme" else {})}
        yield dict(document, zero_optimization=placed) if placed != {"stage": 0} else document


def _plan_of(model: nn.Module, document: Named, optimizer: Any, units: Any, threshold: int) -> ModelPlan:
    settings = read_config(document, None, optimizer is not None, True)
    device_budget = settings.device_memory
    if not device_budget:
        raise ConfigError(
            _WHAT,
            "terrace.device_memory",
            "there is no budget of device memory",
            'set it, for example to "24GiB", or give device_memory',
        )
    device = SimulatedDevice(device_budget)
    groups, kind, _ = groups_of(model, settings, optimizer, None)
    parameters = Parameters(model, settings, groups, threshold, torch_device_of(device), kind=kind)
    for one in parameters.tracked:
        if not one.is_managed:
            one.values = torch.empty(one.shape, dtype=TORCH_TYPES[one.type])
    planned = Planned(parameters, units, device, options_of(parameters, kind, groups))
    found = plan(planned.specs, planned.used_device, planned.uses, **planned.options)
    return ModelPlan(
        found.parameter_count,
        found.trainable_count,
        found.device_bytes,
        device_budget,
        found.host_bytes,
        settings.store_options["host_bytes"],
        found.file_bytes,
        document,
    )


def _no_room(needed: int, room: int) -> CapacityError:
    error = CapacityError(
        _WHAT,
        "disk",
        f"{needed} bytes ({_text(needed)}) are needed on nvme and {room} are there",
        "give more room, or more host memory, which keeps more off the drives",
    )
    error.least_nvme_bytes = needed
    return error


def _bytes_of(size: int | str) -> int:
    """As the sizes of a configuration are read."""
    try:
        found = read_config({"terrace": {"device_memory": size}}).device_memory
    except ConfigError:
        found = None
    if found is None:
        raise ConfigError(_WHAT, "disk", f"{size!r} is no size", 'give bytes, or a text like "2TiB"')
    return int(found)


def _text(size: int) -> str:
    return f"{size / 2**30:.3g} GiB" if size >= 2**30 else f"{size / 2**20:.3g} MiB"
