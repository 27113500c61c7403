"""The optimizer that an engine hands out: torch's interface over an update that Terrace runs.

Its param_groups are read in every step, so torch's learning rate schedulers work. A given optimizer of torch
says what kind it is, and shares its param_groups.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, SupportsIndex

import torch

from ..._types import not_yet
from ...errors import ConfigError, MisuseError
from ..optimizer.settings import NEUTRAL, kind_of_group, settings_of
from .deepspeed_names import OptimizerNames

if TYPE_CHECKING:
    from ..._types import Named
    from ...store.spec import Optimizer

# Those of torch.optim that compute what Terrace does.
_KINDS = {
    torch.optim.AdamW: "adamw",
    torch.optim.Adam: "adam",
    torch.optim.Adagrad: "adagrad",
    torch.optim.SGD: "sgd",
}
if hasattr(torch.optim, "Muon"):
    _KINDS[torch.optim.Muon] = "muon"


def kind_of(optimizer: torch.optim.Optimizer) -> str:
    """The kind of an optimizer of torch; raises where Terrace has none that computes the same."""
    what = "cannot take over an optimizer"
    kind = _KINDS.get(type(optimizer)) or getattr(optimizer, "terrace_kind", None)  # of ops/lion.py
    if kind is None:
        raise ConfigError(
            what,
            type(optimizer).__name__,
            "Terrace has no optimizer that computes the same",
            "give AdamW, Adam, Adagrad, SGD or Muon of torch.optim, or name one in the configuration",
        )
    for group in optimizer.param_groups:
        for name, value in NEUTRAL.items():
            if group.get(name, value) != value:
                raise ConfigError(
                    what,
                    type(optimizer).__name__,
                    f"{name}={group[name]!r} is not supported",
                    f"leave {name} at {value!r}",
                )
        if group.get("decoupled_weight_decay") and kind == "adam":
            kind = "adamw"
    if any(float(state.get("step", 1)) for state in optimizer.state.values()):
        raise ConfigError(
            what,
            type(optimizer).__name__,
            "it has states already",
            "give a new one, and load its state with engine.load_optimizer_state_dict",
        )
    return kind


class EngineOptimizer(OptimizerNames, torch.optim.Optimizer):
    """It belongs to the engine that adopts it."""

    def __init__(self, kind: str, groups: Any, defaults: Named) -> None:
        self.engine = not_yet()  # until it adopts this
        self.kind = kind
        self._is_complete = False
        kinds = [kind_of_group(kind, group) for group in groups]
        are_several = len(set(kinds)) > 1  # the defaults are of one, and are kept for schedulers that ask for names
        super().__init__(groups, {} if are_several else defaults)
        self.defaults = dict(defaults)
        self.kinds = kinds
        self._is_complete = True

    def settings(self) -> list[Optimizer]:
        """What the update is given, by group."""
        self.require_kinds(self.param_groups, "cannot update with a parameter group", "leave use_muon as it was")
        return [settings_of(self.kind, group) for group in self.param_groups]

    def require_kinds(self, groups: Sequence[Named], what: str, advice: str) -> None:
        """Raises where a group would be another optimizer's: the store knows which parameters are matrices of Muon."""
        for number, (kind, group) in enumerate(zip(self.kinds, groups)):
            found = kind_of_group(self.kind, group)
            if found != kind:
                reason = f"use_muon makes it {found}'s, and its parameters are in the store as {kind}'s"
                raise ConfigError(what, f"parameter group {number}", reason, advice)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Updates with the gradients that have come; without any, nothing happens, as in torch."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self.settings()  # what cannot be used is refused before the step is ended
        self.engine.update()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Gives up a step that has gradients but no update yet; their memory is gone in any case."""
        self.engine.drop_gradients()

    def add_param_group(self, param_group: Named) -> None:
        if self._is_complete:
            raise MisuseError(
                "cannot add a parameter group",
                "optimizer",
                "the parameters are in a store already",
                "give all groups to terrace.initialize",
            )
        super().add_param_group(param_group)

    def state_dict(self) -> Named:
        """In torch's layout. The moments are read one tensor at a time; before the first update there are none."""
        return self.engine.optimizer_state_dict()

    def load_state_dict(self, state_dict: Named) -> None:
        self.engine.load_optimizer_state_dict(state_dict)

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise MisuseError(
            "cannot pickle an optimizer",
            "optimizer",
            "its states are in a store of this process",
            "save optimizer.state_dict(), or engine.save_checkpoint(folder)",
        )
