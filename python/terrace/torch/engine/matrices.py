"""Which parameters of a model Muon trains, as wholes, and the groups that are made of them and of the others.

As in DeepSpeed an attribute use_muon of a parameter says whether it is one of them. Without it these are the matrices
within layers: two extents, and neither a table of embeddings nor the output head."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

from ...errors import ConfigError
from .parts import is_shard

if TYPE_CHECKING:
    from ..._types import Named
    from ...store.spec import Optimizer

# Of torch.optim.Muon, and of AdamW beside it.
_OF_MUON = ("lr", "weight_decay", "momentum", "nesterov", "ns_coefficients", "eps", "ns_steps", "adjust_lr_fn")
_OF_REST = ("lr", "betas", "eps", "weight_decay")
# As DeepSpeed and many models call what is no layer.
_NAMES_OF_TABLES = ("embed", "lm_head")


def require_matrix(parameter: nn.Parameter, name: str) -> None:
    if parameter.dim() != 2:
        raise ConfigError(
            "cannot train a parameter by Muon",
            name,
            f"its shape is {tuple(parameter.shape)}, and Muon trains matrices",
            "give it to a group with use_muon=False, which AdamW trains, or set use_muon = False on the parameter",
        )
    if is_shard(parameter):
        raise ConfigError(
            "cannot train a parameter by Muon",
            name,
            "it is a shard of a matrix, and a step of Muon is made of the whole",
            "set use_muon = False on parameters that are divided among processes, which AdamW trains then",
        )


def defaults_of_muon(muon: Optimizer) -> Named:
    return {name: getattr(muon, name) for name in _OF_MUON}


def muon_groups(
    model: nn.Module, groups: list[Named], muon: Optimizer, rest: Optimizer, are_alike: bool = False
) -> list[Named]:
    """Groups that say use_muon themselves are taken as they are, and each other one becomes one of matrices and one of
    the rest, where there are any, or with `are_alike` in any case: so all parts of a model have the same groups. What a
    group does not say it has of `muon` or `rest`."""
    names = {id(one): name for name, one in model.named_parameters()}
    tables = _tables_of(model)
    found: list[Named] = []
    for group in groups:
        if "use_muon" in group:
            found.append(group)
            continue
        divided: dict[bool, list[Any]] = {True: [], False: []}
        for one in group["params"]:
            divided[_is_by_muon(one, names.get(id(one), ""), tables)].append(one)
        found += [dict(group, params=ones, use_muon=is_by) for is_by, ones in divided.items() if ones or are_alike]
    for number, group in enumerate(found):
        _truth(group["use_muon"], f"parameter group {number}")
        settings, wanted = (muon, _OF_MUON) if group["use_muon"] else (rest, _OF_REST)
        for name in wanted:
            group.setdefault(name, getattr(settings, name))
    return found


def _is_by_muon(parameter: nn.Parameter, name: str, tables: set[int]) -> bool:
    said = getattr(parameter, "use_muon", None)
    if said is not None:
        return _truth(said, name)
    return parameter.dim() == 2 and id(parameter) not in tables and not any(one in name for one in _NAMES_OF_TABLES)


def _truth(said: object, where: str) -> bool:
    if not isinstance(said, bool):
        raise ConfigError("cannot use use_muon", where, f"it is {said!r}", "set True or False")
    return said


def _tables_of(model: nn.Module) -> set[int]:
    """Ids of the parameters of embeddings and of the output head, which may be one and the same."""
    modules: list[nn.Module] = [one for one in model.modules() if isinstance(one, (nn.Embedding, nn.EmbeddingBag))]
    find_head: Any = getattr(model, "get_output_embeddings", None)  # of transformers
    head = find_head() if callable(find_head) else None
    if isinstance(head, nn.Module):
        modules.append(head)
    return {id(one) for module in modules for one in module.parameters(recurse=False)}
