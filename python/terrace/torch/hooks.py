"""What is hung onto a model: hooks of passes, of state dicts and of copies. All of it comes off again."""

import functools
import sys

import torch

from ..errors import MisuseError


class Hook:
    """A hook with what it is for. A model that carries hooks can be copied (see state.py), not pickled."""

    __slots__ = ("_function", "_bound")

    def __init__(self, function, bound):
        self._function = function
        self._bound = bound

    def __reduce_ex__(self, protocol):
        refuse_to_pickle()


class BeforeForward(Hook):
    __slots__ = ()

    def __call__(self, module, arguments):
        self._function(self._bound)


class AfterForward(Hook):
    __slots__ = ()

    def __call__(self, module, arguments, output):
        self._function(self._bound, output)


class Hooks:
    """The hooks on a model. Their ids are known, so that copies of modules can go without them."""

    def __init__(self):
        self._handles = []
        self._ids = set()

    def add(self, handle):
        self._handles.append(handle)
        self._ids.add(handle.id)

    def watch_passes(self, passes, units):
        for unit in units:
            self.watch_unit(passes, unit)
        for one in passes.trainable:
            self.add(one.parameter.register_post_accumulate_grad_hook(functools.partial(_take, passes, one)))

        forget_compiled()

    def watch_unit(self, passes, unit):
        # Before those of others, which may read parameters (weight_norm), and after a forward that fails too.
        self.add(unit.module.register_forward_pre_hook(BeforeForward(passes.entering, unit), prepend=True))
        self.add(unit.module.register_forward_hook(AfterForward(passes.leaving, unit), always_call=True))

    def are_own(self, identifier):
        return identifier in self._ids

    def remove(self):
        for handle in self._handles:
            handle.remove()
        self._handles, self._ids = [], set()
        forget_compiled()


def forget_compiled():
    """Code that torch has compiled does not ask whether hooks have come or gone."""
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()


def _take(passes, one, parameter):
    passes.take_gradient(one)


def refuse_to_pickle():
    raise MisuseError(
        "cannot pickle a model",
        "terrace",
        "its parameters are in a store of this process",
        "save its values: engine.save_safetensors(folder), engine.save_checkpoint(folder) or "
        "torch.save(model.state_dict(), path); "
        "copy.deepcopy(model) gives a plain model that can be pickled",
    )
