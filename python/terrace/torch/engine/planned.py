"""A store that is planned for a model, before anything of it is allocated: units, device and options that fit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...errors import CapacityError, ConfigError
from ...saved_state import has_commit
from ...store import Store, plan
from .device import DeviceKind, device_that_holds_all
from .units import choose_units, expected_uses

if TYPE_CHECKING:
    from ..._types import Log, Named
    from ...store.spec import Device
    from .parameters import Parameters


class Planned:
    """`units` says what is leased together, and `device` is one or, where its useful size is to be found, its class.
    Raises CapacityError with the least budgets where the given ones are too small."""

    def __init__(self, parameters: Parameters, units: Any, device: Device | DeviceKind, options: Named) -> None:
        self.parameters = parameters
        self.units = units
        self._device = device
        self.specs = parameters.specs()
        try:
            self._try(units, options)
            return
        except CapacityError:
            if units != "auto":
                raise
        self._try("leaf", options)

    def _try(self, units: Any, options: Named) -> None:
        parameters, config = self.parameters, self.parameters.config
        self.chosen = choose_units(parameters.model, parameters.managed_of, units)
        self.uses = expected_uses(
            parameters.model, self.chosen, config.gradient_accumulation_steps, parameters.managed_of
        )
        device = self._device if parameters.managed_of else None
        if isinstance(device, type):
            device = device_that_holds_all(device, config, self.specs, self.uses, options)
        self.options = config.options_for(self.specs, device, self.uses, **options)
        plan(self.specs, device, self.uses, **self.options)
        self.used_device = device

    def create(self, resume: bool | str) -> tuple[Store, bool]:
        """A store, and whether it goes on from a commit."""
        options = self.options
        if not resume or (resume == "auto" and not options.get("nvme_paths")):
            return Store(self.specs, self.used_device, self.uses, **options), False
        if not options.get("nvme_paths"):
            raise ConfigError(
                "cannot resume a training",
                "nvme_path",
                "nothing is on nvme, where commits are",
                "place optimizer states on nvme, or use load_checkpoint",
            )
        if resume == "auto" and not has_commit(options["nvme_paths"], options.get("tier_name")):
            return Store(self.specs, self.used_device, self.uses, **options), False
        return Store(self.specs, self.used_device, self.uses, **dict(options, resume=True)), True


def options_of(parameters: Parameters, kind: str, groups: list[Named], log: Log | None, **more: Any) -> Named:
    """The options of a store that the passes of a model hand gradients over to."""
    return dict(
        parameters.config.store_options,
        gradients="handed_over",
        unused_gradients="skip",
        optimizer=kind,
        log=log,
        **more,
        sgd_momentum=any(group.get("momentum", 0) for group in groups),
    )
