"""DeepSpeed's zero: models that are larger than memory, and parameters that are read outside of a pass."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from .errors import ConfigError

if TYPE_CHECKING:
    import torch
    from torch import nn

    from ._types import ConfigSource


@contextlib.contextmanager
def Init(
    module: nn.Module | None = None,
    *,
    remote_device: str | None = None,
    config_dict_or_path: ConfigSource | None = None,
    config: ConfigSource | None = None,
    enabled: bool = True,
    dtype: torch.dtype | None = None,
    **_: object,
) -> Iterator[None]:
    """Within the block parameters are made where there is room for all of them: with remote_device="nvme", or
    offload_param on nvme in the configuration, in unlinked files in its nvme_path (terrace.torch.init); else in memory.

    `dtype`: the default type of floating point within. Leave it out: terrace.initialize rounds parameters as bf16.enabled
    and fp16.enabled say, and masters keep what they had before. What concerns several processes has no meaning here.
    """
    if not enabled or module is not None:  # a module that is there has its memory
        yield
        return
    folder = _folder_of(remote_device, config if config is not None else config_dict_or_path)
    import torch

    from .torch import init

    before = torch.get_default_dtype()
    try:
        if dtype is not None:
            torch.set_default_dtype(dtype)
        with init(folder) if folder is not None else contextlib.nullcontext():
            yield
    finally:
        torch.set_default_dtype(before)


def _folder_of(remote_device: str | None, source: ConfigSource | None) -> str | None:
    """The folder for parameters on nvme, or None."""
    from .config import read_config

    config = read_config(source, brings_optimizer=True, brings_schedule=True) if source is not None else None
    options = config.store_options if config is not None else {"parameters": remote_device, "nvme_paths": []}
    if remote_device not in (None, "none", "cpu", "nvme"):
        raise ConfigError(
            "cannot make parameters",
            "remote_device",
            f"it is {remote_device!r}",
            'give "cpu" or "nvme", or leave it out',
        )
    if "nvme" not in (remote_device, options["parameters"] if remote_device is None else None):
        return None
    if not options["nvme_paths"]:
        raise ConfigError(
            "cannot make parameters on nvme",
            "nvme_path",
            "there is no folder",
            "give config= with offload_param.nvme_path, or use terrace.torch.init(folder)",
        )
    return options["nvme_paths"][0]


@contextlib.contextmanager
def GatheredParameters(
    params: Any, modifier_rank: int | None = None, fwd_module: object = None, enabled: bool = True
) -> Iterator[None]:
    """Within the block parameters of an engine have their values. With a `modifier_rank` what they have at its end on
    that rank is kept, and all ranks get it. Parameters that no engine has are as they are."""
    if not enabled:
        yield
        return
    from .comm import broadcast
    from .torch.emptied import require_values
    from .torch.engine.deepspeed_names import ENGINES

    params = _listed(params)
    with contextlib.ExitStack() as stack:
        has_engine: set[int] = set()
        for engine in list(ENGINES):
            own = [one for one in params if engine.has_parameter(one)]
            has_engine.update(map(id, own))
            if own:
                stack.enter_context(engine.gathered(own, modifier_rank is not None, modifier_rank))
        others = [one for one in params if id(one) not in has_engine]
        for one in others:
            require_values(one, "a parameter", "cannot gather parameters")
        yield
    if modifier_rank is not None:
        for one in others:
            broadcast(one, modifier_rank)


def register_external_parameter(module: nn.Module, parameter: nn.Parameter) -> None:
    """Does nothing: the first step finds which parameters a module reads of others."""


unregister_external_parameter = register_external_parameter


def _listed(params: Any) -> list[Any]:
    if hasattr(params, "parameters"):
        return list(params.parameters())
    return [params] if hasattr(params, "requires_grad") else list(params)
