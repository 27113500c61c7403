"""Models without values: those of a model whose parameters are in a store, or were when its engine was closed. What would
read such a parameter as it is, is refused here."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import torch

from ..errors import MisuseError
from .inner import inner_tensors

if TYPE_CHECKING:
    from torch import nn

UNWRITTEN = 0xFF  # every byte of what is not there; of floating point this is NaN


def require_values(parameter: torch.Tensor, name: str, what: str) -> None:
    """Outside of passes a parameter in a store is one NaN in its shape, or one element of bytes without a meaning
    (engine/placeholders.py), and so it is after the end of an engine that keeps no values."""
    if any(_is_emptied(inner) for inner in inner_tensors(parameter)):
        raise MisuseError(
            what,
            name,
            "it has no values: an engine has them, or was closed without keeping them",
            "train with that engine and its optimizer, or end it by engine.close(keep_values=True)",
        )


def _is_emptied(tensor: torch.Tensor) -> bool:
    if tensor.numel() < 2 or any(tensor.stride()) or tensor.is_meta:
        return False
    return holds_nothing(tensor.detach()[(0,) * tensor.dim()])


def holds_nothing(element: torch.Tensor) -> bool:
    """Whether it is what stands in place of values: NaN, or UNWRITTEN in every byte of a type that is not trained."""
    if element.dtype in (torch.float32, torch.bfloat16, torch.float16):
        return bool(element.isnan().item())
    return bool((element.detach().reshape(1).view(torch.uint8) == UNWRITTEN).all().item())


def refuse_without_values(model: nn.Module) -> None:
    """After an engine that keeps no values, its modules raise where they would run, or be saved, with NaN."""
    for module in model.modules():
        if module._parameters:
            module.register_forward_pre_hook(Emptied(module))
            module._register_state_dict_hook(_refuse_to_save)


class Emptied:
    """A hook of a module that may have no values: it refuses to run the module, and to pickle it."""

    def __init__(self, module: nn.Module | None = None) -> None:
        self._module = weakref.ref(module) if module is not None else None

    def __call__(self, module: nn.Module, arguments: Any) -> None:
        _require_own_values(module, "", "cannot run a module")

    def __reduce__(self) -> tuple[Any, ...]:
        module = self._module() if self._module is not None else None
        if module is not None:
            _require_own_values(module, "", "cannot pickle a module")
        return Emptied, ()


def _refuse_to_save(module: nn.Module, state: object, prefix: str, metadata: object) -> None:
    _require_own_values(module, prefix, "cannot make a state dict")


def _require_own_values(module: nn.Module, prefix: str, what: str) -> None:
    for name, parameter in module._parameters.items():
        if parameter is not None:
            require_values(parameter, prefix + name, what)
