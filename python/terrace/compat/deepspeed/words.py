"""DeepSpeed's words for states of parameters, stages and places, as scripts compare with them."""

from __future__ import annotations

from enum import Enum


class ZeroParamStatus(Enum):
    """A parameter in a store is NOT_AVAILABLE: outside of passes its values are to be gathered."""

    AVAILABLE = 1
    NOT_AVAILABLE = 2
    INFLIGHT = 3


class ZeroStageEnum(int, Enum):
    disabled = 0
    optimizer_states = 1
    gradients = 2
    weights = 3


class OffloadDeviceEnum(str, Enum):
    none = "none"
    cpu = "cpu"
    nvme = "nvme"
