"""A store that is planned for a model, before anything of it is allocated: units, device and options that fit."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from ...errors import CapacityError, ConfigError
from ...store import Store, plan
from ...store.request import has_commit
from ..optimizer.settings import kind_of_group
from .device import DeviceKind, device_that_holds_all
from .together import least_of, on_all
from .units import choose_units, expected_uses

if TYPE_CHECKING:
    from ..._types import Log, Named
    from ...ranks import Ranks
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
        self._given = options
        self.why_symmetric = ""  # why ranks cannot pull, where nothing is said of that
        if options.get("ranks") is None or "rank_exchange" in options:
            self._try_units(options)
            return
        try:
            self._try_units(dict(options, rank_exchange="pulled"))
            return
        except (CapacityError, ConfigError) as error:
            self.why_symmetric = error.reason
        self._try_units(dict(options, rank_exchange="symmetric"))

    def exchange_alike(self, ranks: Ranks, what: str) -> None:
        """All ranks call it. Where one cannot pull none does."""
        reasons = [reason.decode() for reason in ranks.texts_of_all(self.why_symmetric.encode()) if reason]
        if reasons:
            on_all(ranks, what, lambda: self._try_units(dict(self._given, rank_exchange="symmetric")))
            self.why_symmetric = reasons[0]

    def line_of_exchange(self, count: int) -> str:
        if self.options["rank_exchange"] == "pulled":
            return f"{count} ranks pull what they need: their passes may differ"
        why = f": {self.why_symmetric}" if self.why_symmetric else ""
        return f"{count} ranks exchange together, and all use the same parameters in the same order{why}"

    def _try_units(self, options: Named) -> None:
        try:
            self._try(self.units, options)
            return
        except CapacityError:
            if self.units != "auto":
                raise
        self._try("leaf", options)

    def _try(self, units: Any, options: Named) -> None:
        parameters, config = self.parameters, self.parameters.config
        self.chosen = choose_units(parameters.model, parameters.managed_of, units)
        self.uses = expected_uses(
            parameters.model, self.chosen, config.gradient_accumulation_steps, parameters.managed_of
        )
        device = self._device if parameters.managed_of or parameters.train_nothing else None
        if isinstance(device, DeviceKind):
            device = device_that_holds_all(device, self.specs, self.uses, options)
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
        if resume == "auto" and not has_commit(options):
            return Store(self.specs, self.used_device, self.uses, **options), False
        return Store(self.specs, self.used_device, self.uses, **dict(options, resume=True)), True


def options_of(parameters: Parameters, kind: str, groups: list[Named], *, log: Log | None = None, **more: Any) -> Named:
    """The options of a store that the passes of a model hand gradients over to. The processes of a host share its memory
    and, where they train several parts, its processors. By NCCL ranks exchange gradients where torch has made them."""
    config, parts = parameters.config, parameters.parts
    ranks = parts.data
    kinds = {kind_of_group(kind, group) for group in groups}
    store_kind = "adamw" if "adamw" in kinds else kind  # whose moments have room for Muon's
    shared: Named = {}
    moves_by_nccl = ranks is not None and ranks.count > 1 and ranks.transport == "nccl"
    if parts.everybody is not None:
        budget = config.store_options["host_bytes"]
        if not config.values.get("terrace.host_memory"):
            budget //= parts.everybody.local_count
        shared = {"ranks": ranks, "model_ranks": parts.all, "host_bytes": least_of(ranks, budget)}
    if parts.all is not None and not config.store_options.get("threads"):
        shared["threads"] = max(len(os.sched_getaffinity(0)) // parts.all.local_count, 1)
    return dict(
        config.store_options,
        gradients="handed_over_on_device" if moves_by_nccl else "handed_over",
        unused_gradients="skip",
        optimizer=store_kind,
        log=log,
        sgd_momentum=any(group.get("momentum", 0) for group in groups),
        **{**more, **shared},
    )
