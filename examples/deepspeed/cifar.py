"""A convolutional network on pictures of ten classes, as scripts of DeepSpeed are written: arguments of the command line,
a configuration in the script, training_data, and the loader that initialize returns. The pictures are made up, in the
shape of CIFAR-10, so that nothing is downloaded.

Nothing below knows Terrace but the import: with `import deepspeed` it is a script of DeepSpeed."""

import argparse
import os

import terrace.compat.deepspeed as deepspeed
import torch
import torch.nn as nn
import torch.nn.functional as F


def get_arguments():
    parser = argparse.ArgumentParser(description="CIFAR")
    parser.add_argument("--passes", type=int, default=2)
    parser.add_argument("--pictures", type=int, default=256)
    parser.add_argument("--local_rank", type=int, default=-1)
    parser.add_argument("--stage", type=int, default=0, choices=(0, 1, 2, 3))
    parser.add_argument("--dtype", default="fp32", choices=("fp32", "bf16", "fp16"))
    parser.add_argument("--moe", action="store_true")
    parser = deepspeed.add_config_arguments(parser)
    return parser.parse_args()


def get_config(arguments):
    return {
        "train_batch_size": 16,
        "steps_per_print": 2000,
        "optimizer": {
            "type": "Adam",
            "params": {"lr": 0.001, "betas": [0.8, 0.999], "eps": 1e-8, "weight_decay": 3e-7},
        },
        "scheduler": {
            "type": "WarmupLR",
            "params": {"warmup_min_lr": 0, "warmup_max_lr": 0.001, "warmup_num_steps": 10},
        },
        "gradient_clipping": 1.0,
        "prescale_gradients": False,
        "bf16": {"enabled": arguments.dtype == "bf16"},
        "fp16": {"enabled": arguments.dtype == "fp16", "initial_scale_power": 15},
        "wall_clock_breakdown": False,
        "zero_optimization": {"stage": arguments.stage, "overlap_comm": False},
    }


class Pictures(torch.utils.data.Dataset):
    """Noise around the pattern of a class."""

    def __init__(self, count, seed):
        generator = torch.Generator().manual_seed(seed)
        patterns = torch.randn(10, 3, 32, 32, generator=torch.Generator().manual_seed(0))
        self.labels = torch.randint(0, 10, (count,), generator=generator)
        self.pictures = patterns[self.labels] + torch.randn(count, 3, 32, 32, generator=generator)

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return self.pictures[index], self.labels[index]


class Net(nn.Module):
    def __init__(self, arguments):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 5)
        self.pool = nn.MaxPool2d(2, 2)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(16 * 5 * 5, 240)
        self.fc2 = nn.Linear(240, 84)
        self.moe = deepspeed.moe.layer.MoE(hidden_size=84, expert=self.fc2) if arguments.moe else None
        self.fc3 = nn.Linear(84, 10)

    def forward(self, x):
        x = self.pool(F.relu(self.conv1(x)))
        x = self.pool(F.relu(self.conv2(x)))
        x = F.relu(self.fc1(x.view(-1, 16 * 5 * 5)))
        return self.fc3(F.relu(self.fc2(x)))


def test(engine, device, dtype):
    engine.eval()
    pictures = Pictures(64, seed=2)
    with torch.no_grad():
        outputs = engine(pictures.pictures.to(device, dtype))
    return (outputs.argmax(1).cpu() == pictures.labels).float().mean().item()


def main(arguments):
    deepspeed.init_distributed()
    deepspeed.get_accelerator().set_device(int(os.environ.get("LOCAL_RANK", 0)))
    torch.manual_seed(7)
    if deepspeed.comm.get_rank() != 0:  # the first rank would download
        deepspeed.comm.barrier()
    trainset = Pictures(arguments.pictures, seed=1)
    if deepspeed.comm.get_rank() == 0:
        deepspeed.comm.barrier()

    net = Net(arguments)
    parameters = filter(lambda p: p.requires_grad, net.parameters())
    engine, _, trainloader, _ = deepspeed.initialize(
        args=arguments,
        model=net,
        model_parameters=parameters,
        training_data=trainset,
        config=get_config(arguments),
    )
    device = deepspeed.get_accelerator().device_name(engine.local_rank)
    dtype = torch.bfloat16 if engine.bfloat16_enabled() else torch.half if engine.fp16_enabled() else torch.float
    criterion = nn.CrossEntropyLoss()
    for number in range(arguments.passes):
        engine.train()
        running = []
        for data in trainloader:
            inputs, labels = data[0].to(device, dtype), data[1].to(device)
            loss = criterion(engine(inputs), labels)
            engine.backward(loss)
            engine.step()
            running.append(loss.item())
        deepspeed.utils.log_dist(f"pass {number} ends after {engine.global_steps} steps", ranks=[0])
        mean = torch.tensor(sum(running) / len(running), device=device)
        deepspeed.comm.all_reduce(mean, op=deepspeed.comm.ReduceOp.AVG)
        if deepspeed.comm.get_rank() == 0:
            print(f"pass {number}: loss {mean.item():.6f}", flush=True)
    accuracy = test(engine, device, dtype)
    if deepspeed.comm.get_rank() == 0:
        print(f"accuracy {accuracy:.3f}", flush=True)
    deepspeed.comm.barrier()
    engine.destroy()


if __name__ == "__main__":
    main(get_arguments())
