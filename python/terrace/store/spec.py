"""What a store is made of, as plain values: tensors, uses, devices, optimizers, plans."""

from collections import namedtuple
from math import prod


class Tensor(
    namedtuple(
        "Tensor",
        "name shape type trainable group backward_uses home address address_is_device",
        defaults=("fp32", True, 0, 1, "managed", 0, False),
    )
):
    """A parameter. `type` is fp32, bf16 or fp16; `group` counts Store.update's groups.

    With home="caller" the values lie at `address`, in memory of the caller, and stay there.
    """

    __slots__ = ()

    @property
    def elements(self):
        return prod(self.shape)


class Use(namedtuple("Use", "key tensors kind micro_batch encloses", defaults=("unit", 0, 0))):
    """One use of the first step, or a unit: tensors that go forward, and backward in reverse order."""

    __slots__ = ()


class SimulatedDevice(
    namedtuple(
        "SimulatedDevice", "budget_bytes strict h2d_bytes_per_second d2h_bytes_per_second", defaults=(False, 0, 0)
    )
):
    """Memory of this machine that plays a device's. Strict: a stray access ends the process and is named."""

    __slots__ = ()


class CudaDevice(namedtuple("CudaDevice", "budget_bytes ordinal strict", defaults=(0, False))):
    """A GPU."""

    __slots__ = ()


class Optimizer(namedtuple("Optimizer", "kind lr betas eps weight_decay momentum dampening nesterov bias_correction")):
    """Settings of a parameter group: adamw, adam, adagrad, lion or sgd. Values are meant as they are, 0 too."""

    __slots__ = ()

    def __new__(
        cls,
        kind="adamw",
        lr=1e-3,
        betas=None,
        eps=None,
        weight_decay=0.0,
        momentum=0.0,
        dampening=0.0,
        nesterov=False,
        bias_correction=True,
    ):
        if betas is None:
            betas = (0.9, 0.99) if kind == "lion" else (0.9, 0.999)
        if eps is None:
            eps = 1e-10 if kind == "adagrad" else 1e-8
        return super().__new__(cls, kind, lr, betas, eps, weight_decay, momentum, dampening, nesterov, bias_correction)


# What terrace_plan_result holds, member by member (capi/terrace.h).
Plan = namedtuple(
    "Plan",
    "fits chunk_elements parameter_count trainable_count device_least_bytes host_least_bytes device_bytes "
    "host_bytes device_useful_bytes file_bytes chunk_count keeps_commits",
)

UpdateResult = namedtuple("UpdateResult", "applied gradient_norm partly_applied")
