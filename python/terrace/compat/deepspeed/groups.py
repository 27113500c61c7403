"""DeepSpeed's groups of ranks: all ranks share the data, and nothing else is divided by hand."""

from __future__ import annotations

from ...comm import get_rank, get_world_size

get_data_parallel_rank = _get_data_parallel_rank = get_rank
get_data_parallel_world_size = _get_data_parallel_world_size = get_world_size


def get_data_parallel_group() -> None:
    """None: for the functions of comm the group of all ranks."""


def get_model_parallel_world_size() -> int:
    return 1


def get_model_parallel_rank() -> int:
    return 0


_get_data_parallel_group = get_data_parallel_group
_get_model_parallel_world_size = get_tensor_model_parallel_world_size = get_model_parallel_world_size
_get_sequence_parallel_world_size = _get_expert_parallel_world_size = get_model_parallel_world_size
_get_model_parallel_rank = get_tensor_model_parallel_rank = get_model_parallel_rank
_get_sequence_parallel_rank = get_model_parallel_rank
