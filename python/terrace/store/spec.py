"""What a store is made of, as plain values: tensors, uses, devices, optimizers, plans."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import TYPE_CHECKING, NamedTuple, Union

if TYPE_CHECKING:
    from .._types import TensorKey


class Tensor(NamedTuple):
    """A parameter. `type` is fp32, bf16 or fp16; `group` counts Store.update's groups.

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


class SimulatedDevice(NamedTuple):
    """Memory of this machine that plays a device's. Strict: a stray access ends the process and is named."""

    budget_bytes: int
    strict: bool = False
    h2d_bytes_per_second: int = 0
    d2h_bytes_per_second: int = 0


class CudaDevice(NamedTuple):
    """A GPU."""

    budget_bytes: int
    ordinal: int = 0
    strict: bool = False


Device = Union[SimulatedDevice, CudaDevice]


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


class Optimizer(_Settings):
    """Settings of a parameter group: adamw, adam, adagrad, lion or sgd. Values are meant as they are, 0 too."""

    __slots__ = ()

    def __new__(
        cls,
        kind: str = "adamw",
        lr: float = 1e-3,
        betas: tuple[float, float] | None = None,
        eps: float | None = None,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        dampening: float = 0.0,
        nesterov: bool = False,
        bias_correction: bool = True,
    ) -> Optimizer:
        if betas is None:
            betas = (0.9, 0.99) if kind == "lion" else (0.9, 0.999)
        if eps is None:
            eps = 1e-10 if kind == "adagrad" else 1e-8
        return super().__new__(cls, kind, lr, betas, eps, weight_decay, momentum, dampening, nesterov, bias_correction)


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


class UpdateResult(NamedTuple):
    """What an update did: .applied, .gradient_norm, and .partly_applied where a part of it ran."""

    applied: bool
    gradient_norm: float
    partly_applied: bool
