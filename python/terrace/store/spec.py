"""What a store is made of, as plain values: tensors, uses, devices, optimizers, plans."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Union

from .._lib import value_of
from ..errors import ConfigError
from ..optimizer_kinds import optimizer_kinds

if TYPE_CHECKING:
    from .._types import TensorKey


def _cannot_use(kind: str, member: str, value: object, advice: str) -> NoReturn:
    raise ConfigError("cannot use the value of", f"{kind}.{member}", f"it is {value!r}", advice)


def _require_whole(kind: str, **members: int) -> None:
    for member, value in members.items():
        try:
            is_whole = not isinstance(value, bool) and operator.index(value) >= 0
        except TypeError:
            is_whole = False
        if not is_whole:
            _cannot_use(kind, member, value, "give a whole number, 0 or more, such as 2 << 20 for 2 MiB")


def _is_number(value: float) -> bool:
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return not isinstance(value, (str, bytes))


class Tensor(NamedTuple):
    """A parameter. `type` is fp32, bf16 or fp16, or "word" of a frozen tensor: four bytes of anything, which are moved
    and never converted. `group` counts Store.update's groups.

    With home="caller" the values lie at `address`, in memory of the caller, and stay there.
    """

    name: str
    shape: tuple[int, ...]
    type: str = "fp32"
    trainable: bool = True
    group: int = 0
    backward_uses: int = 1
    home: str = "managed"
    address: int = 0
    address_is_device: bool = False
    rounding_place: int = 0  # as in terrace_tensor
    by_matrix: bool = False  # two extents, which an Optimizer of kind "muon" trains
    counted_elsewhere: bool = False  # a copy, which the norm has from another part of model_ranks

    @property
    def elements(self) -> int:
        return prod(self.shape)


class Use(NamedTuple):
    """One use of the first step, or a unit: tensors that go forward, and backward in reverse order."""

    key: str
    tensors: Sequence[TensorKey]
    kind: str = "unit"
    micro_batch: int = 0
    encloses: int = 0


class _Simulated(NamedTuple):
    budget_bytes: int
    strict: bool
    h2d_bytes_per_second: int
    d2h_bytes_per_second: int


class SimulatedDevice(_Simulated):
    """Memory of this machine that plays a device's. Strict: a stray access ends the process and is named."""

    __slots__ = ()

    def __new__(
        cls, budget_bytes: int, strict: bool = False, h2d_bytes_per_second: int = 0, d2h_bytes_per_second: int = 0
    ) -> SimulatedDevice:
        rates = {"h2d_bytes_per_second": h2d_bytes_per_second, "d2h_bytes_per_second": d2h_bytes_per_second}
        _require_whole("SimulatedDevice", budget_bytes=budget_bytes, **rates)
        return super().__new__(cls, budget_bytes, strict, h2d_bytes_per_second, d2h_bytes_per_second)


class _Cuda(NamedTuple):
    budget_bytes: int
    ordinal: int
    strict: bool


class CudaDevice(_Cuda):
    """A GPU."""

    __slots__ = ()

    def __new__(cls, budget_bytes: int, ordinal: int = 0, strict: bool = False) -> CudaDevice:
        _require_whole("CudaDevice", budget_bytes=budget_bytes, ordinal=ordinal)
        return super().__new__(cls, budget_bytes, ordinal, strict)


Device = Union[SimulatedDevice, CudaDevice]


# Of torch.optim.Muon. Without a name adjust_lr_fn is "original".
NS_COEFFICIENTS = (3.4445, -4.775, 2.0315)
_OF_KIND: Any = ...  # of an argument that is not given
LR_FUNCTIONS = (None, "original", "match_rms_adamw")


class _Settings(NamedTuple):
    kind: str
    lr: float
    betas: tuple[float, float]
    eps: float
    weight_decay: float
    momentum: float
    dampening: float
    nesterov: bool
    bias_correction: bool
    ns_steps: int
    ns_coefficients: tuple[float, float, float]
    adjust_lr_fn: str | None


class Optimizer(_Settings):
    """Settings of a parameter group; `kind` is a word of optimizer_kinds(). Values are meant as they are, 0 too.

    ns_steps, ns_coefficients and adjust_lr_fn are Muon's, as torch.optim.Muon has them; with `kind` "muon" momentum is
    0.95 and nesterov True where nothing is said.
    """

    __slots__ = ()

    def __new__(
        cls,
        kind: str = "adamw",
        lr: float = 1e-3,
        betas: tuple[float, float] | None = None,
        eps: float | None = None,
        weight_decay: float = 0.0,
        momentum: float = _OF_KIND,
        dampening: float = 0.0,
        nesterov: bool = _OF_KIND,
        bias_correction: bool = True,
        ns_steps: int = 5,
        ns_coefficients: tuple[float, float, float] = NS_COEFFICIENTS,
        adjust_lr_fn: str | None = None,
    ) -> Optimizer:
        value_of("terrace_optimizer_kind", kind, "kind of an optimizer")
        if betas is None:
            betas = (0.9, optimizer_kinds()[kind].beta2)
        if eps is None:
            eps = optimizer_kinds()[kind].eps
        momentum = (0.95 if kind == "muon" else 0.0) if momentum is _OF_KIND else momentum
        nesterov = kind == "muon" if nesterov is _OF_KIND else nesterov
        numbers = {"lr": lr, "eps": eps, "weight_decay": weight_decay, "momentum": momentum, "dampening": dampening}
        for member, value in numbers.items():
            if not _is_number(value):
                _cannot_use("Optimizer", member, value, "give a number")
        if not isinstance(betas, (tuple, list)) or len(betas) != 2 or not all(map(_is_number, betas)):
            _cannot_use("Optimizer", "betas", betas, "give two numbers, such as (0.9, 0.999)")
        _require_whole("Optimizer", ns_steps=ns_steps)
        _require_coefficients(ns_coefficients)
        a, b, c = ns_coefficients
        if adjust_lr_fn not in LR_FUNCTIONS:
            _cannot_use("Optimizer", "adjust_lr_fn", adjust_lr_fn, 'give "original", "match_rms_adamw" or None')
        of_adam = (lr, betas, eps, weight_decay, momentum, dampening, nesterov, bias_correction)
        return super().__new__(cls, kind, *of_adam, ns_steps, (a, b, c), adjust_lr_fn)


def _require_coefficients(given: object) -> None:
    if not isinstance(given, (tuple, list)) or len(given) != 3 or not all(map(_is_number, given)):
        _cannot_use("Optimizer", "ns_coefficients", given, f"give three numbers, such as {NS_COEFFICIENTS}")


# One for all parameter groups, or one each.
Groups = Union[Optimizer, Iterable[Optimizer]]


class Plan(NamedTuple):
    """What terrace_plan_result holds, member by member (capi/terrace.h)."""

    fits: bool
    chunk_elements: int
    parameter_count: int
    trainable_count: int
    device_least_bytes: int
    host_least_bytes: int
    device_bytes: int
    host_bytes: int
    device_useful_bytes: int
    file_bytes: int
    chunk_count: int
    keeps_commits: bool
    # Of a store that saves activations (terrace_saved_use): the host memory that is left to them, that of all that were
    # there at once in the last step, and what they took of it and of nvme. Before the first step nobody knows.
    saved_most_bytes: int = 0
    saved_wanted_bytes: int = 0
    saved_host_bytes: int = 0
    saved_nvme_bytes: int = 0


class UpdateResult(NamedTuple):
    """What an update did: .applied, .gradient_norm, and .partly_applied where a part of it ran."""

    applied: bool
    gradient_norm: float
    partly_applied: bool
