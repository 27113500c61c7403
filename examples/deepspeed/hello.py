"""A tagger of words that saves checkpoints and goes on from them, as scripts of DeepSpeed are written: a dict of
configuration, client_state, a loader of the script's own, and logs of the first rank alone.

Nothing below knows Terrace but the import: with `import deepspeed` it is a script of DeepSpeed."""

import argparse

import terrace.compat.deepspeed as deepspeed
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

WORDS, TAGS, LENGTH = 256, 8, 12


def log_dist(message, ranks=()):
    if not ranks or deepspeed.comm.get_rank() in ranks:
        print(message, flush=True)


def get_arguments():
    parser = argparse.ArgumentParser(description="Hello")
    parser.add_argument("--checkpoint_dir", required=True)
    parser.add_argument("--load", action="store_true", help="go on from the last checkpoint")
    parser.add_argument("--checkpoint_every", type=int, default=8)
    parser.add_argument("--num_iterations", type=int, default=16)
    parser.add_argument("--local_rank", type=int, default=-1)
    return parser.parse_args()


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(WORDS, 64)
        self.body = nn.GRU(64, 64, batch_first=True)
        self.head = nn.Linear(64, TAGS)

    def forward(self, words, tags):
        hidden, _ = self.body(self.table(words))
        return nn.functional.cross_entropy(self.head(hidden).view(-1, TAGS), tags.view(-1))


def main(arguments):
    deepspeed.init_distributed(dist_backend="gloo")
    rank, count = deepspeed.comm.get_rank(), deepspeed.comm.get_world_size()
    torch.manual_seed(1)
    model = Tagger()
    config = {
        "train_micro_batch_size_per_gpu": 8 // count,
        "optimizer": {"type": "Adam", "params": {"lr": 1e-2, "weight_decay": 0.0, "torch_adam": True}},
        "gradient_clipping": 1.0,
        "bf16": {"enabled": False},
        "zero_optimization": {"stage": 1, "offload_optimizer": {"device": "cpu"}},
    }
    model, _, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
    log_dist("DeepSpeed engine created", ranks=[0])

    words = torch.randint(0, WORDS, (64, LENGTH), generator=torch.Generator().manual_seed(2))
    data = TensorDataset(words, words * 3 % TAGS)
    mine = torch.utils.data.Subset(data, range(rank, len(data), count))
    loader = DataLoader(mine, batch_size=8 // count, shuffle=False)
    start = 1
    if arguments.load:
        _, client_state = model.load_checkpoint(arguments.checkpoint_dir)
        start = client_state["checkpoint_step"] + 1
        log_dist(f"going on at step {start}", ranks=[0])
    model.train()
    for step, batch in enumerate((batch for _ in range(100) for batch in loader), start=1):
        if step < start:
            continue
        if step > arguments.num_iterations:
            break
        loss = model(*(one.to(model.device) for one in batch))
        model.backward(loss)
        model.step()
        of_all = [torch.zeros(()) for _ in range(count)]
        deepspeed.comm.all_gather(of_all, loss.detach().cpu())
        log_dist(f"step {step}: loss {torch.stack(of_all).mean().item():.6f}", ranks=[0])
        if step % arguments.checkpoint_every == 0:
            model.save_checkpoint(save_dir=arguments.checkpoint_dir, client_state={"checkpoint_step": step})
            log_dist(f"saved step {step}", ranks=[0])
    deepspeed.comm.barrier()
    model.destroy()


if __name__ == "__main__":
    main(get_arguments())
