"""Gradients on their way from torch to the store: when one is complete, and why one is refused."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from ...._lib import error_of, undeclared
from ...handed_over import HandedOver
from ...local import gradient_of
from ..placeholders import is_strange, why_strange
from .landing import landing_for
from .open_step import IDLE, misuse

if TYPE_CHECKING:
    from ....store import Store
    from ..placeholders import Tracked
    from .open_step import OpenStep


class Gradients:
    def __init__(self, store: Store, trainable: Sequence[Tracked], step: OpenStep) -> None:
        self._trainable = trainable
        self._step = step
        self._held: dict[Tracked, None] = {}  # whose gradients may still grow in this backward pass
        # Such a call is made for every parameter and step: Store.hand_over takes arguments of any kind.
        self._c_hand_over, self._handle = undeclared("terrace_hand_over"), store._handle
        self._address = ctypes.c_void_p()
        self._landing = landing_for(store, trainable, self._hand_over_at)

    def take(self, one: Tracked, parameter: torch.Tensor, is_last: bool = False) -> None:
        """p.grad is complete in this backward pass, or as far as a reentrant part of it goes."""
        if one.comes_in_parts and not is_last:
            self._held[one] = None
            return
        gradient = parameter.grad
        if gradient is None:
            return  # the parameter was frozen after the forward pass
        parameter.grad = None
        gradient = gradient_of(parameter, gradient)
        is_unnoticed = one.is_managed and not one.leases and not is_last
        if is_unnoticed and gradient.isnan().any():
            self._step.has_read_nothing = True  # a placeholder was read, and the update is skipped for its NaN
            is_unnoticed = False
        is_again = one.stamp == self._step.stamp
        if is_again or is_unnoticed or is_strange(gradient, one):
            self._step.spoil(
                misuse(*_why_refused(one, gradient, is_again, is_unnoticed), "take the gradient of", one.name)
            )
        self._hand_over(one, gradient)

    def take_held(self) -> None:
        """At the end of a backward pass, when nothing grows any more."""
        for one in self._held:
            self.take(one, one.parameter, is_last=True)
        self._held.clear()

    def take_set(self) -> None:
        """Before an update: those that the program has set itself."""
        for one in self._trainable:
            gradient = one.parameter.grad
            if gradient is not None and type(gradient) is not HandedOver:
                self._take_set(one, gradient_of(one.parameter, gradient))

    def _take_set(self, one: Tracked, gradient: torch.Tensor) -> None:
        step = self._step
        if step.phase is IDLE:
            step.begin()
        reason = why_strange(gradient, one) if is_strange(gradient, one) else None
        if reason is None and step.micro_batch >= step.accumulation_steps:
            reason = ("all micro-batches of the step are complete", "set gradients before the last backward pass")
        if reason is not None:
            raise misuse(*reason, "take the gradient of", one.name)
        one.parameter.grad = None
        self._hand_over(one, gradient)

    def land(self) -> None:
        """Waits until the store has all that were taken."""
        self._landing.finish()

    def drop(self) -> None:
        """Those that are still on their way."""
        self._landing.drop()

    def forget_held(self) -> None:
        for one in self._held:
            one.parameter.grad = None
        self._held.clear()

    def _hand_over(self, one: Tracked, gradient: torch.Tensor) -> None:
        if not gradient.is_contiguous():
            gradient = gradient.contiguous()
        self._step.note_gradient()
        one.stamp = self._step.stamp
        self._landing.take(one, gradient)

    def _hand_over_at(self, one: Tracked, place: int) -> None:
        self._address.value = place
        failure = self._c_hand_over(self._handle, one.number, self._address, one.type_number, 0)
        if failure is not None:
            raise error_of(failure)


def _why_refused(one: Tracked, gradient: torch.Tensor, is_again: bool, is_unnoticed: bool) -> tuple[str, str]:
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
