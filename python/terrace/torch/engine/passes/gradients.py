"""Why a gradient is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....errors import MisuseError
from ..placeholders import why_strange

if TYPE_CHECKING:
    import torch

    from ..placeholders import Tracked


def why_refused(one: Tracked, gradient: torch.Tensor, is_again: bool, is_unnoticed: bool) -> tuple[str, str]:
    """(reason, advice)"""
    if is_again:
        return (
            "it has a gradient in this micro-batch already",
            "go backward once for each forward pass, or set "
            "gradient_accumulation_steps to the backward passes of an update",
        )
    if is_unnoticed:
        return (
            "its module went backward without being noticed, as where a view that a module returned was "
            "changed in place",
            "do not change outputs of modules in place",
        )
    return why_strange(gradient, one)


def misuse(reason: str, advice: str, what: str, subject: str = "the model") -> MisuseError:
    return MisuseError(f"cannot {what}", subject, reason, advice)
