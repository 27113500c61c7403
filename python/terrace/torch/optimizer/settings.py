"""Parameter groups of torch as Terrace takes them; what it cannot compute with is refused by name."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ...errors import ConfigError
from ...store.spec import LR_FUNCTIONS, NS_COEFFICIENTS, Optimizer

if TYPE_CHECKING:
    from ..._types import Named

# Settings of torch's optimizers that Terrace does not have, with the value that it can go on with.
NEUTRAL = {
    "amsgrad": False,
    "maximize": False,
    "capturable": False,
    "differentiable": False,
    "lr_decay": 0,
    "initial_accumulator_value": 0,
}


def kind_of_group(kind: str, group: Named) -> str:
    """Beside Muon's groups there may be some of AdamW, which say use_muon=False, as DeepSpeed's do."""
    return "adamw" if kind == "muon" and not group.get("use_muon", True) else kind


def settings_of(kind: str, group: Named) -> Optimizer:
    """The settings of a parameter group, with what the kind does not have as 0. `kind` is that of the optimizer."""
    kind = kind_of_group(kind, group)
    for name, value in NEUTRAL.items():
        if group.get(name, value) != value:
            raise ConfigError(
                "cannot use a setting of a parameter group",
                name,
                f"it is {group[name]!r}, which Terrace does not have",
                f"set it to {value}",
            )
    for name in ("lr", "eps", "weight_decay", "momentum"):
        require(number_of(group.get(name, 0)) >= 0, name, group.get(name), "a number of 0 or more")
    given = group.get("betas", (0, 0))
    betas = tuple(number_of(beta) for beta in given) if isinstance(given, Iterable) else ()
    are_betas = len(betas) == 2 and all(0 <= beta < 1 for beta in betas)
    require(are_betas, "betas", given, "two of [0, 1)")
    momentum, dampening = number_of(group.get("momentum", 0)), number_of(group.get("dampening", 0))
    require(kind != "muon" or momentum < 1, "momentum", momentum, "a number of [0, 1)")
    require(not math.isnan(dampening), "dampening", group.get("dampening"), "a number")
    nesterov = bool(group.get("nesterov", False))
    is_nesterov_known = not nesterov or kind == "muon" or (momentum > 0 and dampening == 0)
    require(is_nesterov_known, "nesterov", nesterov, "False without a momentum or with a dampening")
    return Optimizer(
        kind,
        float(group["lr"]),
        (betas[0], betas[1]),
        float(group.get("eps", 0)),
        float(group.get("weight_decay", 0)),
        momentum,
        dampening,
        nesterov,
        bool(group.get("bias_correction", True)),
        **(_of_muon(group) if kind == "muon" else {}),
    )


def _of_muon(group: Named) -> Named:
    steps, name = group.get("ns_steps", 5), group.get("adjust_lr_fn")
    is_whole = isinstance(steps, int) and not isinstance(steps, bool)
    require(is_whole and 0 <= steps < 100, "ns_steps", steps, "a whole number below 100")
    require(name in LR_FUNCTIONS, "adjust_lr_fn", name, 'None, "original" or "match_rms_adamw"')
    given = group.get("ns_coefficients", NS_COEFFICIENTS)
    numbers = tuple(number_of(one) for one in given) if isinstance(given, Iterable) else ()
    require(len(numbers) == 3 and all(map(math.isfinite, numbers)), "ns_coefficients", given, "three numbers")
    return {"ns_steps": steps, "ns_coefficients": numbers, "adjust_lr_fn": name}


def number_of(value: Any) -> float:
    """NaN, which is in no range, of what is no number. A tensor of one element is one."""
    try:
        return math.nan if isinstance(value, (str, bytes)) else float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return math.nan


def require(holds: bool, name: str, value: object, wanted: str) -> None:
    if not holds:
        raise ConfigError(
            "cannot use a setting of the optimizer",
            name,
            f"it is {value!r}, and has to be {wanted}",
            "see the documentation of terrace.torch.OffloadOptions and of torch's optimizer",
        )
