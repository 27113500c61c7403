"""What the tests of the drop-in optimizers share: a small network and its training."""

import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "python"))

import torch

# Threads of OpenMP spin while they wait, and would take the processor from those of the store.
torch.set_num_threads(1)


def network(dtype=torch.float32):
    torch.manual_seed(7)
    layers = [torch.nn.Linear(12, 70), torch.nn.Tanh(), torch.nn.Linear(70, 70), torch.nn.Tanh()]
    return torch.nn.Sequential(*layers, torch.nn.Linear(70, 3)).to(dtype)


def batch(number, dtype=torch.float32):
    generator = torch.Generator().manual_seed(number)
    inputs = torch.randn(16, 12, generator=generator)
    return inputs.to(dtype), torch.sin(inputs @ torch.linspace(-1, 1, 36).view(12, 3)).to(dtype)


def loss_of(model, number):
    inputs, targets = batch(number, next(model.parameters()).dtype)
    return (model(inputs) - targets).float().square().mean()


def train(model, optimizer, steps, micro_batches=1, first=0, before_step=lambda: None):
    """The losses of every backward pass."""
    losses = []
    for step in range(first, first + steps):
        optimizer.zero_grad()
        for micro_batch in range(micro_batches):
            loss = loss_of(model, step * micro_batches + micro_batch)
            (loss / micro_batches).backward()
            losses.append(loss.item())
        before_step()
        optimizer.step()
    return losses


def bits(tensors):
    """Bytes, which unlike values tell a -0 from a 0 and compare where there is a NaN."""
    return [bytes(tensor.detach().contiguous().view(-1).view(torch.uint8).tolist()) for tensor in tensors]


def worst(ours, theirs):
    """The largest relative difference of losses."""
    return max(abs(one - other) / abs(other) for one, other in zip(ours, theirs))
