"""The modules and parameters that a model had when its engine was made. Changes are found before the next step."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

from ...errors import MisuseError

if TYPE_CHECKING:
    from torch import nn

# What an engine sets on modules.
OWN_ATTRIBUTES = ("__deepcopy__", "_ddp_params_and_buffers_to_ignore", "_replicate_for_data_parallel", "zero_grad")


class Layout:
    def __init__(self, model: nn.Module) -> None:
        self._modules = [
            (name, module, list(map(id, module._parameters.values())), list(map(id, module._modules.values())))
            for name, module in model.named_modules()
        ]
        self._frozen = [(name, one) for name, one in model.named_parameters() if not one.requires_grad]

    def require_unchanged(self) -> None:
        for name, module, parameters, children in self._modules:
            if (
                list(map(id, module._parameters.values())) != parameters
                or list(map(id, module._modules.values())) != children
            ):
                raise MisuseError(
                    "cannot go on with a model",
                    name or type(module).__name__,
                    "its modules or parameters are others than when the engine was made",
                    "change the model before terrace.initialize; an engine is closed with "
                    "engine.close(keep_values=True)",
                )
        for name, parameter in self._frozen:
            if parameter.requires_grad:
                raise MisuseError(
                    "cannot train a parameter",
                    name,
                    "it was frozen when the engine was made, and has no optimizer state",
                    "set requires_grad before terrace.initialize",
                )

    def mark(self, model: nn.Module, zero_grad: Callable[..., None]) -> None:
        """DistributedDataParallel and DataParallel ask for these first."""
        model.__dict__["zero_grad"] = zero_grad
        model.__dict__["_ddp_params_and_buffers_to_ignore"] = _NotDivided()
        model.__dict__["_replicate_for_data_parallel"] = _refuse_to_divide

    def unmark(self, model: nn.Module) -> None:
        for name in OWN_ATTRIBUTES:
            model.__dict__.pop(name, None)


class _NotDivided:
    def __iter__(self) -> NoReturn:
        _refuse_to_divide()


def _refuse_to_divide() -> NoReturn:
    raise MisuseError(
        "cannot divide a model among processes or devices",
        "DistributedDataParallel or DataParallel",
        "its parameters are in a store of this process",
        "train with the engine alone",
    )
