"""Parameters of a model and their tensors in a store.

Outside of leases the data of a managed parameter is one NaN of the parameter's true shape, of other types one element
of bytes UNWRITTEN: shapes stay true, a read gives NaN, a write raises, and nothing ends the process. Within leases it is
the tensor at its address in the store, which never changes, so that views and saved tensors stay right. On a strict device it
is always that tensor."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, cast

import torch
from torch import nn

from ..._declarations import ENUMS
from ..._types import not_yet
from ...errors import ConfigError, MisuseError
from ..emptied import UNWRITTEN, holds_nothing
from ..handed_over import HandedOver
from ..inner import inner_tensors, is_wrapper, version_of
from ..local import is_dtensor, local_of
from ..overlap import overlapping
from .away import AwayParameter
from .words import Words, keeps_state

if TYPE_CHECKING:
    from .away import OutsideReads

TYPES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
TORCH_TYPES = {word: dtype for dtype, word in TYPES.items()}


class Tracked:
    """A parameter that a store trains or keeps. Small ones stay in memory of torch's, and are never leased."""

    __slots__ = (
        "parameter",
        "shape",
        "elements",
        "names",
        "number",
        "type",
        "type_number",
        "is_managed",
        "is_small",
        "is_trainable",
        "is_matrix",
        "group",
        "real",
        "away",
        "leases",
        "is_gathered",
        "version",
        "is_written",
        "address",
        "first_small",
        "stamp",
        "read_stamp",
        "comes_in_parts",
        "refusal",
        "values",
        "outside",
        "words",
        "memory",
        "alias",
        "_own_class",
        "_away_class",
        "__weakref__",
    )

    def __init__(self, parameter: nn.Parameter, names: list[str], type_: str, is_trainable: bool, group: int) -> None:
        self.parameter = parameter
        local = local_of(parameter)  # of a DTensor the shard of this process, which is all that the engine knows
        self.shape, self.elements = tuple(local.shape), local.numel()
        self.names = names
        # How its bytes lie in the store, of a frozen one that is no tensor of numbers to it.
        self.words = Words(parameter) if type_ == "word" else None
        self.memory: torch.Tensor = not_yet()  # where the store has it: `real`, or what that is made over
        self.alias: torch.Tensor | None = None  # another name for it, which a module that dequantises itself has
        self.type = type_
        self.type_number = ENUMS["terrace_type"][type_]
        self.is_trainable = is_trainable
        self.group = group
        self.number: int = not_yet()  # in the store
        self.address = self.first_small = 0  # of a small one: its memory, its place among those of its type
        self.is_managed = True
        self.is_small = False
        self.is_matrix = False  # which Muon updates
        self.real: torch.Tensor = not_yet()
        self.away: torch.Tensor = not_yet()
        self.leases = 0  # that are open, and one more where it is gathered
        self.is_gathered = False
        self.version = 0  # when its first lease was opened, as torch counts writes in place
        self.is_written = False  # within a pass, since the one before
        self.stamp = -1  # of the micro-batch that its last gradient belongs to
        self.read_stamp = (-1, -1)  # of the forward passes in which a watched operation has read it
        # It is read several times in a micro-batch. Where checkpoints are reentrant, torch completes its
        # gradient as often.
        self.comes_in_parts = False
        self.refusal: HandedOver | None = None
        # For a while: values that a small one is to have, or the version of a parameter that is loaded into.
        self.values: Any = None
        self.outside: OutsideReads | None = None  # an OutsideReads, told of what reads this one while it is away
        self._own_class: type[nn.Parameter] = type(parameter)
        self._away_class: type[nn.Parameter] = type(parameter)

    @property
    def name(self) -> str:
        return self.names[0]

    @property
    def bytes(self) -> int:
        """That it has in a pass."""
        return local_of(self.parameter).nbytes if self.words is None else self.words.bytes

    def attach(self, real: torch.Tensor, away: torch.Tensor, memory: torch.Tensor | None = None) -> None:
        self.real = real
        self.away = away
        self.memory = real if memory is None else memory
        if away is not real and self._own_class is nn.Parameter:
            self._away_class = AwayParameter
            cast(Any, self.parameter)._terrace_away = weakref.ref(self)
        self.put_away()

    def show(self, values: torch.Tensor) -> None:
        """The parameter has these values from now on."""
        self.parameter.__class__ = self._own_class  # torch's own: before anything is asked of it
        if is_wrapper(values):
            for inner, value in zip(inner_tensors(self.parameter), inner_tensors(values)):
                inner.data = value
            return
        inner_of(self.parameter).data = values
        if self.alias is not None:
            self.alias.data = values

    def put_away(self) -> None:
        self.show(self.away)
        self.parameter.__class__ = self._away_class

    def forget_leases(self) -> None:
        """Nothing is leased, but what was gathered has values of its own."""
        if self.is_managed and self.leases:
            self.leases = int(self.is_gathered)
            if not self.is_gathered:
                self.put_away()

    def leave_store(self, away: torch.Tensor) -> None:
        """The store ends: a strict one leaves nothing to look at."""
        self.show(away)
        self.parameter.__dict__.pop("_terrace_away", None)
        self.real = self.away = self.memory = not_yet()
        self.outside = None


class Placeholders:
    """All of one type are the same NaN, or of what has none the same bytes. So it can be seen whether one was written."""

    def __init__(self) -> None:
        self._values: dict[tuple[torch.dtype, torch.device], torch.Tensor] = {}

    def like(self, tensor: torch.Tensor) -> torch.Tensor:
        return self._of(tensor.dtype, tensor.device, tensor.shape)

    def of(self, one: Tracked, device: torch.device) -> torch.Tensor:
        """What a parameter is while its values are in the store."""
        if one.words is None:
            return self._of(TORCH_TYPES[one.type], device, one.shape)
        return one.words.made_of(one.parameter, lambda dtype, shape: self._of(dtype, device, shape))

    def _of(self, dtype: torch.dtype, device: torch.device, shape: Sequence[int]) -> torch.Tensor:
        value = self._values.get((dtype, device))
        if value is None:
            if dtype in TYPES:
                value = torch.full((), float("nan"), dtype=dtype, device=device)
            else:
                value = torch.full((dtype.itemsize,), UNWRITTEN, dtype=torch.uint8, device=device).view(dtype).view(())
            self._values[dtype, device] = value
        return value.expand(shape) if 0 not in shape else torch.empty(shape, dtype=dtype, device=device)

    @staticmethod
    def require_in_place(tracked: Iterable[Tracked]) -> None:
        for one in tracked:
            if one.is_written:
                one.is_written = False
                refuse_write_of_pass(one, "it has been written to")
            if not one.is_managed or one.leases or address_of(one.parameter) == address_of(one.away):
                continue
            is_left_over = address_of(one.parameter) == address_of(one.real)  # of a release that Ctrl-C cut short
            is_resized = inner_of(one.parameter).shape != one.real.shape
            one.put_away()
            if not is_left_over and is_resized:
                raise MisuseError(
                    "cannot go on with a model",
                    one.name,
                    f"its shape was {tuple(one.real.shape)}, and it was given another, as resize_token_embeddings does; "
                    "the store has the values of before",
                    "resize before terrace.initialize: engine.close(keep_values=True), load the model anew or undo the "
                    "change, resize it, and make another engine",
                )
            if not is_left_over:
                raise MisuseError(
                    "cannot take the data that a parameter was given",
                    one.name,
                    "its values are in a store, which parameter.data = ... does not reach, and what it was "
                    "given is lost",
                    "write within `with engine.gathered(parameters, write=True):`",
                )

    def require_untouched(self) -> None:
        """torch refuses most writes by itself, but not fill_ and zero_."""
        for value in self._values.values():
            if not holds_nothing(value):
                found = value.item()
                value.view(1).view(torch.uint8).fill_(UNWRITTEN)
                raise MisuseError(
                    "cannot take what was written to a parameter",
                    "the model",
                    f"it was filled with {found} outside "
                    "of a pass, where it has no memory of its own, and the value is lost",
                    "write within `with engine.gathered(parameters, write=True):`",
                )


def inner_of(parameter: torch.Tensor) -> torch.Tensor:
    """The tensor that has its values: of a DTensor that of this process."""
    return inner_tensors(parameter)[0] if is_dtensor(parameter) else parameter


def address_of(tensor: torch.Tensor) -> int:
    return inner_tensors(tensor)[0].data_ptr()


def refuse_write_of_pass(one: Tracked, how: str) -> NoReturn:
    raise MisuseError(
        "cannot write to a parameter",
        one.name,
        f"{how} within a pass, where only a copy on the device has it, and that copy is given up in time",
        "write between passes, within `with engine.gathered(parameters, write=True):` (transformers' RWKV: set "
        "model.config.rescale_every = 0). What was written before it was noticed may have been read: go on from the "
        "last commit or checkpoint then",
    )


def acquire(tracked: Iterable[Tracked]) -> None:
    """Lets the parameters of a lease that was just opened be read."""
    for one in tracked:
        if not one.leases:
            one.show(one.real)
            one.version = version_of(one.parameter)
        one.leases += 1


def release(tracked: Iterable[Tracked]) -> None:
    for one in tracked:
        one.leases -= 1
        if not one.leases:
            one.is_written |= version_of(one.parameter) != one.version
            one.put_away()


def is_strange(gradient: torch.Tensor, one: Tracked) -> bool:
    """Whether a gradient cannot be handed over."""
    return (
        gradient.dtype is not one.parameter.dtype
        or gradient.requires_grad
        or gradient.layout is not torch.strided
        or type(gradient) is HandedOver
    )


def why_strange(gradient: torch.Tensor, one: Tracked) -> tuple[str, str]:
    """(reason, advice)"""
    if type(gradient) is HandedOver:
        return "the graph is that of a step that is over", "go forward again"
    if gradient.layout is not torch.strided:
        return "it is sparse", "make it dense, such as by sparse=False of an embedding"
    if gradient.requires_grad:
        return (
            "it was made with create_graph=True, and a second derivative would read parameters at a time that "
            "Terrace does not know",
            "use backward() without create_graph",
        )
    return (
        f"its type is {gradient.dtype}, and the parameter's is {one.parameter.dtype}",
        "give it in the parameter's type",
    )


def named_once(model: nn.Module) -> list[tuple[nn.Parameter, list[str]]]:
    """[(parameter, [its names])]: a tied one has several."""
    found: dict[int, tuple[nn.Parameter, list[str]]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        found.setdefault(id(parameter), (parameter, []))[1].append(name)
    return list(found.values())


def kind_of_parameter(parameter: nn.Parameter, name: str) -> str:
    """How a store can have it: as "numbers" of a type that is trained, as "words", or, where it is a tensor of a class
    that does not say what it is made of, "outside", in torch's memory. Raises where nothing could train it, or where it
    would be read in a wrong way."""
    what = "cannot take a parameter into Terrace"
    if is_dtensor(parameter) and parameter.requires_grad:
        parameter = nn.Parameter(local_of(parameter.detach()))
    is_plain = type(parameter.data) in (torch.Tensor, torch.nn.Parameter)
    if parameter.requires_grad and (not is_plain or keeps_state(parameter)):
        kind = type(parameter.data) if not is_plain else type(parameter)
        reason = "whose values are not one tensor" if not is_plain else "codes of a quantised weight"
        advice = "freeze it (requires_grad_(False)) and train adapters, or train the model with plain parameters"
        raise ConfigError(what, name, f"it is a {kind.__name__}, {reason}", advice)
    if not is_plain:
        return "words" if is_wrapper(parameter) else "outside"
    is_frozen_complex = parameter.is_complex() and not parameter.requires_grad
    if parameter.layout != torch.strided or parameter.is_quantized or parameter.is_complex() and not is_frozen_complex:
        kind_name = "complex" if parameter.is_complex() else "quantised" if parameter.is_quantized else "sparse"
        raise ConfigError(what, name, f"it is {kind_name}", "keep such parameters out of the model, or as buffers")
    if parameter.dtype in TYPES and not keeps_state(parameter):
        return "numbers"
    if parameter.requires_grad:
        raise ConfigError(
            what,
            name,
            f"its type is {parameter.dtype}, and {', '.join(TYPES.values())} are trained",
            "convert the model, such as by model.float(), or freeze the parameter",
        )
    return "words"


def require_storage_of_its_own(parameters: Iterable[tuple[nn.Parameter, list[str]]], model: nn.Module) -> None:
    """Two parameters over the same bytes would be trained twice by torch, and would come apart here, as a buffer
    would that is a view of a parameter."""
    buffers = [
        (buffer, name)
        for name, buffer in model.named_buffers()
        if buffer.device.type != "meta" and buffer.layout == torch.strided
    ]
    with_bytes = [
        (inner, names[0]) for one, names in parameters if one.device.type != "meta" for inner in inner_tensors(one)
    ]
    shared = overlapping(with_bytes, buffers)
    if shared is not None:
        raise ConfigError(
            "cannot take a parameter into Terrace",
            shared[1],
            f"it shares its storage with {shared[0]}",
            "use one Parameter object in both places (they are then tied), or give each a copy of its own",
        )
