"""How gradients get from torch to a StateStore: at the step, or as soon as the backward pass has made them.

Both are used alike: collect() at the step says whether there is anything to update with, and the store is ready for its
update then; spent() follows an update, and drop() whatever else ended the step.
"""

import weakref

import torch

from ..errors import MisuseError


class AtStep:
    """Takes p.grad at the step, as torch's own optimizers do."""

    def __init__(self, states, groups):
        self._states, self._groups = states, groups

    def watch(self, parameters):
        pass

    def collect(self):
        if all(parameter.grad is None for group in self._groups() for parameter in group["params"]):
            return False
        states = self._states
        states.fit([_with_gradients(group) for group in self._groups()])
        states.begin()
        for slot in states.slots.values():
            if slot.parameter.grad is not None:
                states.hand_over(slot, slot.parameter.grad)
        states.store.end_micro_batch()
        return True

    def spent(self):
        pass

    def drop(self):
        self._states.abandon()
