"""What DeepSpeed has beside the training for loops: a logger, loaders that begin again, and tensors in containers."""

from __future__ import annotations

import logging
import random
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map

from ...comm import get_rank
from ...torch.engine.deepspeed_names import ENGINES

logger = logging.getLogger("DeepSpeed")
log_levels = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.CRITICAL,
}


def _begin_logger() -> None:
    """To stdout from "info" on, as scripts are used to. One that has handlers already is left alone."""
    if logger.handlers:
        return
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(logging.Formatter("[%(asctime)s] [%(levelname)s] [%(filename)s:%(lineno)d] %(message)s"))
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False


_begin_logger()


def log_dist(message: str, ranks: Iterable[int] | None = None, level: int = logging.INFO) -> None:
    """Logs on these ranks; on all where none is named, or -1 is."""
    chosen, rank = list(ranks or ()), get_rank()
    if not chosen or -1 in chosen or rank in chosen:
        logger.log(level, f"[Rank {rank}] {message}", stacklevel=2)


def set_log_level_from_string(log_level_str: str, custom_logger: logging.Logger | None = None) -> None:
    (custom_logger or logger).setLevel(log_levels[log_level_str.lower()])


class RepeatingLoader:
    """Iterates over a loader again and again."""

    def __init__(self, loader: Iterable[Any]) -> None:
        self.loader = loader
        self.data_iter = iter(loader)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        try:
            return next(self.data_iter)
        except StopIteration:
            self.data_iter = iter(self.loader)
            return next(self.data_iter)


def see_memory_usage(message: str, force: bool = False) -> None:
    """With `force` the first rank logs what the engine's store has planned, and the most that torch has had of a GPU."""
    if not force or get_rank():
        return
    told = [f"{engine.store.plan.device_bytes} device, {engine.store.plan.host_bytes} host" for engine in list(ENGINES)]
    if torch.cuda.is_available():
        told.append(f"{torch.cuda.max_memory_allocated()} at most by torch on the GPU")
    logger.info(f"{message}: bytes: {'; '.join(told) or 'no engine yet'}", stacklevel=2)


def set_z3_leaf_modules(model: nn.Module, leaf_module_classes: Iterable[type | str]) -> list[nn.Module]:
    """The modules of these classes. What is brought to device memory together is said by units= of initialize; the
    first step finds by itself what a module reads of others."""
    chosen = list(leaf_module_classes)
    return [one for one in model.modules() if type(one) in chosen or type(one).__name__ in chosen]


unset_z3_leaf_modules = set_z3_leaf_modules


def set_random_seed(seed: int) -> None:
    """Of Python, torch and, where it is loaded, numpy."""
    random.seed(seed)
    torch.manual_seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed)


def move_to_device(item: Any, device: Any, criterion_func: object = None) -> Any:
    """The same containers, with their tensors on a device."""
    return tree_map(lambda one: one.to(device) if isinstance(one, torch.Tensor) else one, item)


def clone_tensors_for_torch_save(item: Any, device: Any = "cpu") -> Any:
    """The same containers, with copies of their tensors, which keep nothing else alive."""
    return tree_map(lambda one: one.detach().clone().to(device) if isinstance(one, torch.Tensor) else one, item)
