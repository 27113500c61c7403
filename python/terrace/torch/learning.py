"""The first step is watched: which parameters does a forward pass read outside of the units that have them?

Such are a tied table that is used by a function, the output projection of torch's MultiheadAttention, or a
weight that another module borrows. The innermost unit that is open at that moment has them from then on. It is
also noted which parameters are read more than once. A step whose gradients are not finite
without a cause is watched as well, since a new path through the model may have read a placeholder.
"""

import sys

import torch
from torch.overrides import TorchFunctionMode

from .hooks import forget_compiled

# They read no values.
_HARMLESS = frozenset(
    (
        "size",
        "dim",
        "stride",
        "numel",
        "nelement",
        "element_size",
        "is_floating_point",
        "is_complex",
        "get_device",
        "ndimension",
        "requires_grad_",
        "type",
        "storage_offset",
        "is_contiguous",
        "__len__",
        "__hash__",
        "register_hook",
        "is_shared",
        "has_names",
        "_is_view",
        "is_signed",
        "is_inference",
        "is_same_size",
        "__repr__",
        "__format__",
        "__reduce_ex__",
        "__deepcopy__",
    )
)
_PLAIN_PROPERTIES = frozenset(
    getattr(torch.Tensor, name).__set__ for name in ("data", "grad", "requires_grad")
) | frozenset(
    getattr(torch.Tensor, name).__get__
    for name in (
        "shape",
        "dtype",
        "device",
        "layout",
        "ndim",
        "requires_grad",
        "grad_fn",
        "grad",
        "is_leaf",
        "is_cuda",
        "is_cpu",
        "is_sparse",
        "is_quantized",
        "is_meta",
        "is_nested",
        "is_mkldnn",
        "is_mps",
        "is_xpu",
        "names",
        "_version",
        "output_nr",
        "_grad",
        "_grad_fn",
        "_base",
        "itemsize",
        "nbytes",
    )
    if hasattr(torch.Tensor, name)
)


class Watch(TorchFunctionMode):
    """Leases what an operation is about to read."""

    def __init__(self, passes, tracked_of):
        super().__init__()
        self._passes = passes
        self._tracked_of = tracked_of

    def __torch_function__(self, function, types, arguments=(), named=None):
        named = named or {}
        if self._passes.is_inside and not _reads_nothing(function):
            self._look(arguments)
            if named:
                self._look(named.values())
        return function(*arguments, **named)

    def _look(self, values):
        for value in values:
            if isinstance(value, torch.nn.Parameter):
                one = self._tracked_of.get(id(value))
                if one is not None:
                    self._passes.note_read(one)
            elif isinstance(value, (list, tuple)):
                self._look(value)


def _reads_nothing(function):
    return getattr(function, "__name__", "") in _HARMLESS or function in _PLAIN_PROPERTIES


class Learning:
    """Watches the forward passes of a model, in place of its forward, until `stop`.

    What is compiled runs uncompiled meanwhile, where every operation can be seen.
    """

    def __init__(self, model, passes, tracked_of):
        self._model = model
        self._passes = passes
        self._tracked_of = tracked_of
        self.had_own = model.__dict__.get("forward")
        self.inner = model.forward
        self.is_over = False
        model.forward = Watched(self)

    def run(self, arguments, named):
        with Watch(self._passes, self._tracked_of), _uncompiled():
            return self.inner(*arguments, **named)

    def stop(self):
        self.is_over = True
        if isinstance(self._model.__dict__.get("forward"), Watched):
            if self.had_own is None:
                del self._model.forward
            else:
                self._model.forward = self.had_own
            forget_compiled()


class Watched:
    """A forward that looks like the one that it stands for: signatures are asked for by trainers."""

    def __init__(self, learning):
        self._learning = learning
        self._run = torch.compiler.disable(learning.run)
        self.stands_for = learning.had_own
        self.__wrapped__ = learning.inner
        self.__name__ = "forward"
        self.__doc__ = learning.inner.__doc__

    def __call__(self, *arguments, **named):
        if self._learning.is_over:  # something else stands in front of it, such as accelerate's autocast
            return self._learning.inner(*arguments, **named)
        return self._run(arguments, named)


class _Nothing:
    def __enter__(self):
        return self

    def __exit__(self, *_):
        return False


def _uncompiled():
    if "torch._dynamo" in sys.modules and hasattr(torch.compiler, "set_stance"):
        return torch.compiler.set_stance("force_eager")
    return _Nothing()
