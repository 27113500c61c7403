"""What a store is asked for, in the structs of C. Everything that these point to lives as long as the Request."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from .. import _declarations as c
from .._lib import check, library, new, raw_of, text_of, value_of, word_of
from ..errors import CapacityError, ConfigError, did_you_mean
from .spec import CudaDevice, Optimizer, Plan, SimulatedDevice, Tensor, Use

if TYPE_CHECKING:
    from .._types import Named, TensorKey
    from .spec import Device, Groups

# Members of terrace_options that are words.
OPTION_ENUMS = {
    "parameters": "terrace_placement",
    "states": "terrace_placement",
    "saved_activations": "terrace_placement",
    "gradients": "terrace_gradient_origin",
    "masters": "terrace_masters",
    "unused_gradients": "terrace_unused_gradients",
    "update_when": "terrace_update_when",
    "optimizer": "terrace_optimizer_kind",
    "moment_type": "terrace_moment_type",
    "accumulation_type": "terrace_type",
    "io_engine": "terrace_io_engine",
    "rank_exchange": "terrace_rank_exchange",
}
# Members that follow from others.
_DERIVED = ("size", "nvme_path_count", "log_context", "reserved")
OPTIONS = [name for name, *_ in c.terrace_options._fields_ if name not in _DERIVED]


class Request:
    """The arguments of terrace_plan and terrace_create."""

    def __init__(
        self, tensors: Iterable[Any], device: Device | None, uses: Iterable[Any] | None, options: Named
    ) -> None:
        self.tensors = [tensor if isinstance(tensor, Tensor) else Tensor(*tensor) for tensor in tensors]
        self.numbers = {tensor.name: number for number, tensor in enumerate(self.tensors)}
        self.device = device
        self._c_tensors = (c.terrace_tensor * len(self.tensors))(*map(_c_tensor, self.tensors))
        uses = [use if isinstance(use, Use) else Use(*use) for use in uses or ()]
        self._c_uses = (c.terrace_use * len(uses))(*(self._c_use(use) for use in uses))
        self._c_options = _c_options(options)
        self._ranks = options.get("ranks"), options.get("model_ranks")  # they outlive every store

    def number_of(self, tensor: TensorKey, what: str) -> int:
        """The place of a tensor in the list, by its name or by that place."""
        if isinstance(tensor, str):
            if tensor in self.numbers:
                return self.numbers[tensor]
            raise ConfigError(what, tensor, "there is no tensor of this name", did_you_mean(tensor, self.numbers))
        return tensor

    def _c_use(self, use: Use) -> c.terrace_use:
        numbers = [self.number_of(tensor, "cannot announce a use") for tensor in use.tensors]
        return new(
            c.terrace_use,
            kind=value_of("terrace_use_kind", use.kind, f"kind of the use {use.key}"),
            key=raw_of(use.key, "key of a use"),
            tensors=(ctypes.c_uint32 * len(numbers))(*numbers),
            tensor_count=len(numbers),
            micro_batch=use.micro_batch,
            encloses=use.encloses,
        )

    def plan(self) -> Plan:
        result = new(c.terrace_plan_result)
        with _Device(self.device) as device:
            try:
                check(library().terrace_plan(device, *self._arguments(), result))
            except CapacityError as error:
                error.plan = plan_of(result)
                raise
        return plan_of(result)

    def create(self) -> int | None:
        """The handle of a new store. Nothing stays if this is interrupted."""
        handle = ctypes.c_void_p()
        with _Device(self.device) as device:
            try:
                check(library().terrace_create(device, *self._arguments(), ctypes.byref(handle)))
            except CapacityError:
                self.plan()
                raise
            except BaseException:
                library().terrace_destroy(handle)
                raise
        return handle.value

    def _arguments(self) -> tuple[Any, ...]:
        return (self._c_tensors, len(self._c_tensors), self._c_options, self._c_uses or None, len(self._c_uses))


class _Device:
    """The description of a device in C, for the time of one call; stores keep none."""

    def __init__(self, device: Device | None) -> None:
        self._device = device
        self._handle = ctypes.c_void_p()

    def __enter__(self) -> ctypes.c_void_p | None:
        device = self._device
        if device is None:
            return None
        if isinstance(device, SimulatedDevice):
            settings = new(c.terrace_simulated_options, **device._asdict())
            check(library().terrace_device_simulated(settings, ctypes.byref(self._handle)))
        elif isinstance(device, CudaDevice):
            of_cuda = new(c.terrace_cuda_options, **device._asdict())
            check(library().terrace_device_cuda(of_cuda, ctypes.byref(self._handle)))
        else:
            raise ConfigError(
                "cannot use a device",
                repr(device),
                f"it is of type {type(device).__name__}",
                "give a terrace.SimulatedDevice or a terrace.CudaDevice",
            )
        return self._handle

    def __exit__(self, *_: object) -> None:
        library().terrace_device_free(self._handle)


def plan_of(result: c.terrace_plan_result) -> Plan:
    values = {name: getattr(result, name) for name in Plan._fields if hasattr(result, name)}
    return Plan(**{**values, "fits": bool(result.fits), "keeps_commits": bool(result.keeps_commits)})


def _c_tensor(tensor: Tensor) -> c.terrace_tensor:
    if tensor.home not in ("managed", "caller") or (tensor.home == "caller") != bool(tensor.address):
        raise ConfigError(
            "cannot place a tensor",
            tensor.name,
            f"home is {tensor.home!r} and address {tensor.address!r}",
            'give home="managed" without an address, or home="caller" with one',
        )
    if tensor.address_is_device:
        raise ConfigError(
            "cannot place a tensor",
            tensor.name,
            "its address is in the memory of a GPU",
            "copy the parameters to host memory",
        )
    try:
        return new(
            c.terrace_tensor,
            name=raw_of(tensor.name, "name of a tensor"),
            shape=(ctypes.c_uint64 * len(tensor.shape))(*tensor.shape),
            rank=len(tensor.shape),
            type=value_of("terrace_type", tensor.type, f"type of the tensor {tensor.name}"),
            frozen=not tensor.trainable,
            group=tensor.group,
            backward_uses=tensor.backward_uses,
            address=tensor.address or None,
            rounding_place=tensor.rounding_place,
            by_matrix=tensor.by_matrix,
            counted_elsewhere=tensor.counted_elsewhere,
        )
    except (TypeError, ValueError) as error:
        raise ConfigError(
            "cannot use a tensor",
            tensor.name,
            f"one of {tuple(tensor)[1:]!r}: {error}",
            "give a tuple of whole numbers as shape, and whole numbers as group and backward_uses",
        ) from None


def _c_options(options: Named) -> c.terrace_options:
    result = new(c.terrace_options)
    for name, value in {"parameters": "cpu", "states": "cpu", **options}.items():
        if name not in OPTIONS:
            raise ConfigError(
                "cannot use an option", name, "there is no option of this name", did_you_mean(name, OPTIONS)
            )
        if value is None:
            continue
        if name in OPTION_ENUMS:
            value = value_of(OPTION_ENUMS[name], value, name)
        elif name == "nvme_paths":
            value = [value] if isinstance(value, (str, bytes, os.PathLike)) else value
            paths = [raw_of(path, name) for path in value]
            value = (ctypes.c_char_p * len(paths))(*paths)
            result.nvme_path_count = len(paths)
        elif name == "tier_name":
            value = raw_of(value, name)
        elif name == "log":
            value = log_function(value)
        elif name in ("ranks", "model_ranks"):
            value = getattr(value, "_handle", value)  # of terrace.ranks.Ranks
        try:
            setattr(result, name, value)
        except (TypeError, ValueError) as error:
            raise ConfigError("cannot use an option", name, f"{value!r}: {error}", "give a whole number") from None
    return result


def has_commit(options: Named) -> bool:
    """Whether a store with these options finds a commit of an earlier run, of any number of ranks, whole or not. All of
    options["ranks"] call it."""
    found = ctypes.c_uint32()
    check(library().terrace_has_commit(_c_options(options), ctypes.byref(found)))
    return bool(found.value)


def log_function(log: Any) -> Any:
    """The function of C that gives lines to `log`."""
    if not callable(log):
        raise ConfigError(
            "cannot use an option", "log", f"{log!r} is not callable", "give a function of level and line"
        )
    return c.terrace_log_fn(lambda _, level, line: log(word_of("terrace_log_level", level), text_of(line)))


def update_settings(groups: Groups, step: int, clip_norm: float, loss_scale: float) -> c.terrace_update_settings:
    groups = [groups] if isinstance(groups, Optimizer) else list(groups)
    members = (c.terrace_optimizer * len(groups))(*map(_c_optimizer, groups))
    return new(
        c.terrace_update_settings,
        groups=members,
        group_count=len(groups),
        step=step,
        clip_norm=clip_norm,
        loss_scale=loss_scale,
    )


def _c_optimizer(group: Optimizer) -> c.terrace_optimizer:
    return new(
        c.terrace_optimizer,
        kind=value_of("terrace_optimizer_kind", group.kind, "kind of an optimizer"),
        lr=group.lr,
        beta1=group.betas[0],
        beta2=group.betas[1],
        eps=group.eps,
        weight_decay=group.weight_decay,
        momentum=group.momentum,
        dampening=group.dampening,
        nesterov=bool(group.nesterov),
        no_bias_correction=not group.bias_correction,
        exact=1,
        iterations=group.ns_steps,
        coefficient_a=group.ns_coefficients[0],
        coefficient_b=group.ns_coefficients[1],
        coefficient_c=group.ns_coefficients[2],
        matches_adamw=group.adjust_lr_fn == "match_rms_adamw",
    )
