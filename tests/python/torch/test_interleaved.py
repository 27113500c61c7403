"""Several forward passes before a backward pass, as a stage of a pipeline makes them: no bit depends on it."""

import tempfile
import unittest

from support_torch import (
    KIB,
    MIB,
    EngineTest,
    Gpt,
    Mlp,
    batch_of,
    config_of,
    engine_of,
    isolated,
    masters,
    seeded,
    torch,
)
from support_torch import loss_of as loss_of_model
from torch import nn
from torch.utils.checkpoint import checkpoint

MICRO_BATCHES, STEPS = 5, 3


class Again(nn.Module):
    """Blocks whose inputs are large enough to leave torch. Each, or a part of it, is computed again within a module with a
    weight of its own."""

    def __init__(self, is_reentrant):
        super().__init__()
        self.is_reentrant = is_reentrant
        self.first = nn.Linear(32, 1024)
        self.blocks = nn.ModuleList([_Scaled() for _ in range(3)])
        self.last = nn.Linear(1024, 8)

    def forward(self, x):
        x = torch.tanh(self.first(x.repeat(64, 1)))
        for block in self.blocks:
            x = block(x) if self.is_reentrant is None else checkpoint(block, x, use_reentrant=self.is_reentrant)
        return self.last(x)


class _Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1024))
        self.inner = nn.Sequential(nn.Linear(1024, 64), nn.GELU(), nn.Linear(64, 1024))

    def forward(self, x):
        return x + checkpoint(self.inner, x * self.scale, use_reentrant=True)


def trained(model, config, ahead, units):
    """Losses, norms and masters of a training with so many forward passes ahead of the first backward pass."""
    engine = engine_of(model, config, persistence_threshold=0, units=units)
    told = []
    for step in range(STEPS):
        waiting, losses = [], []

        def backward():
            loss = waiting.pop(0)
            losses.append(loss.item())
            engine.backward(loss)
            engine.step()

        for micro_batch in range(MICRO_BATCHES):
            waiting.append(loss_of_model(model, batch_of(model, step, micro_batch), engine))
            if len(waiting) > ahead:
                backward()
        while waiting:
            backward()
        told.append((losses, engine.get_global_grad_norm()))
    ends = masters(engine)
    engine.close()
    return told, ends


class Interleaved(EngineTest):
    def compare(self, make, *arguments, units="auto", **named):
        found = []
        for ahead in (0, 1, 3):
            with tempfile.TemporaryDirectory() as folder:
                config = config_of(*arguments, folder=folder, accumulation=MICRO_BATCHES, **named)
                if named.get("precision") == "fp16":
                    config["fp16"] = {"enabled": True, "initial_scale_power": 8}
                found.append(trained(seeded(make), config, ahead, units))
        for ahead, one in zip((1, 3), found[1:]):
            with self.subTest(model=make, places=arguments, ahead=ahead, **named):
                self.assertEqual(one, found[0])

    @isolated
    def test_no_bit_depends_on_it(self):
        self.compare(Mlp, "cpu", "cpu")
        self.compare(Gpt, "nvme", "nvme", precision="bf16")
        self.compare(Gpt, "cpu", "nvme", precision="fp16", update="during_backward")
        self.compare(Mlp, "device", "cpu", update="next_forward")

    @isolated
    def test_nor_with_the_least_device_memory(self):
        self.compare(Gpt, "nvme", "cpu", device_memory=48 * KIB)
        self.compare(Mlp, "cpu", "cpu", device_memory=80 * KIB, chunk_elements=4096)

    @isolated
    def test_nor_with_inputs_of_checkpoints_in_the_store(self):
        for place in ("cpu", "nvme"):
            for is_reentrant in (False, True):
                named = {"offload_activations": place, "host_memory": 48 * MIB, "device_memory": 900 * KIB}
                self.compare(lambda r=is_reentrant: Again(r), "nvme", "nvme", **named)

    @isolated
    def test_nor_with_modules_around_what_is_computed_again(self):
        self.compare(lambda: Again(None), "cpu", "cpu", units="leaf", device_memory=600 * KIB)

    @isolated
    def test_a_gradient_is_handed_over_as_soon_as_it_is_there(self):
        model = seeded(Gpt)
        engine = engine_of(model, config_of(accumulation=3), persistence_threshold=0)
        losses = []
        for k in range(3):
            engine._passes.step.begin_forward()
            losses.append(loss_of_model(model, batch_of(model, 0, k), engine))
        for loss in losses:
            engine.backward(loss)
            engine.step()
        # The tied table alone is read twice in a pass.
        self.assertEqual([one.name for one in engine._tracked if one.comes_in_parts], ["table.weight"])


if __name__ == "__main__":
    unittest.main()
