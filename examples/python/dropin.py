"""A training loop of torch in which two lines are new: the import, and the optimizer, whose states are in host
memory or on a drive.

    python examples/python/dropin.py                     # states in host memory
    python examples/python/dropin.py --path /mnt/nvme    # states on the drive
"""

import argparse

import torch
from terrace.torch import OffloadAdamW


def network(width):
    layers = [torch.nn.Linear(16, width), torch.nn.GELU(), torch.nn.Linear(width, width), torch.nn.GELU()]
    return torch.nn.Sequential(*layers, torch.nn.Linear(width, 1))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--path", help="a folder on a fast local drive, for the optimizer states")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--steps", type=int, default=60)
    flags = parser.parse_args()

    torch.manual_seed(0)
    model = network(flags.width)
    home = {"states": "nvme", "path": flags.path} if flags.path else {"states": "cpu"}
    optimizer = OffloadAdamW(model.parameters(), lr=3e-3, weight_decay=0.01, **home)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, flags.steps)

    for step in range(flags.steps):
        inputs = torch.randn(64, 16)
        loss = (model(inputs).squeeze(1) - inputs.square().mean(1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        if step % 10 == 0 or step + 1 == flags.steps:
            rate = scheduler.get_last_lr()[0]
            print(f"step {step:3}  loss {loss.item():.5f}  norm {norm.item():.4f}  lr {rate:.6f}")

    moments = optimizer.state_dict()["state"]
    elements = sum(parameter.numel() for parameter in model.parameters())
    print(f"{elements} parameters; state_dict() has the states of {len(moments)} tensors, as that of torch's AdamW")


if __name__ == "__main__":
    main()
