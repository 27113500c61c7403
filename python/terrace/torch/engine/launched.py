"""Whether this process trains alone. terrace.initialize has the whole model in one process: several processes would
each train a model of its own, on data of its own, and nothing would show it."""

from __future__ import annotations

import ctypes

import torch.distributed

from ..._lib import check, library, text_of
from ...errors import ConfigError


def require_alone() -> None:
    """Raises where a launcher has started this process as one of several, or torch.distributed knows of others."""
    numbers, name = (ctypes.c_uint32(), ctypes.c_uint32()), ctypes.c_char_p()
    check(library().terrace_launched(*map(ctypes.byref, numbers), ctypes.byref(name)))
    rank, ranks = (number.value for number in numbers)
    launcher = text_of(name.value)
    said_by = f"the variables of {launcher} in the environment say"
    if ranks == 1 and torch.distributed.is_available() and torch.distributed.is_initialized():
        rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
        said_by = "torch.distributed says"
    unset = f", or unset the variables if {launcher} has not started this one" if launcher else ""
    if ranks > 1:
        raise ConfigError(
            "cannot train a model in several processes",
            f"rank {rank} of {ranks}",
            f"{said_by} that {ranks} processes train together, and terrace.initialize trains the whole model in one: "
            "each would train a model of its own",
            f"start one process{unset}. To divide the batches, wrap the model in DistributedDataParallel and give its "
            "parameters to terrace.torch.OffloadAdamW in each process (docs/from_deepspeed.md). To train over ranks, use "
            "`terrace train` (docs/ranks.md)",
        )
