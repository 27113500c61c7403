"""Parameter groups of torch as Terrace takes them; what it cannot compute with is refused by name."""

from ..errors import ConfigError
from ..spec import Optimizer

# Settings of torch's optimizers that Terrace does not have, with the value that it can go on with.
NEUTRAL = {
    "amsgrad": False,
    "maximize": False,
    "capturable": False,
    "differentiable": False,
    "lr_decay": 0,
    "initial_accumulator_value": 0,
}


def settings_of(kind, group):
    """The settings of a parameter group, with what the kind does not have as 0."""
    for name, value in NEUTRAL.items():
        if group.get(name, value) != value:
            raise ConfigError(
                "cannot use a setting of a parameter group",
                name,
                f"it is {group[name]!r}, which Terrace does not have",
                f"set it to {value}",
            )
    for name in ("lr", "eps", "weight_decay", "momentum"):
        require(float(group.get(name, 0)) >= 0, name, group.get(name), "0 or more")
    betas = tuple(float(beta) for beta in group.get("betas", (0, 0)))
    are_betas = len(betas) == 2 and all(0 <= beta < 1 for beta in betas)
    require(are_betas, "betas", group.get("betas"), "two of [0, 1)")
    momentum, dampening = float(group.get("momentum", 0)), float(group.get("dampening", 0))
    nesterov = bool(group.get("nesterov", False))
    is_nesterov_known = not nesterov or (momentum > 0 and dampening == 0)
    require(is_nesterov_known, "nesterov", nesterov, "False without a momentum or with a dampening")
    return Optimizer(
        kind,
        float(group["lr"]),
        betas,
        float(group.get("eps", 0)),
        float(group.get("weight_decay", 0)),
        momentum,
        dampening,
        nesterov,
        bool(group.get("bias_correction", True)),
    )


def require(holds, name, value, wanted):
    if not holds:
        raise ConfigError(
            "cannot use a setting of the optimizer",
            name,
            f"it is {value!r}, and has to be {wanted}",
            "see the documentation of terrace.torch.OffloadOptions and of torch's optimizer",
        )
