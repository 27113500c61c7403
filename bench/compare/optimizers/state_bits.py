#!/usr/bin/env python3
"""state_bits.py FOLDER [--steps N] [--seeds N] [--only CASE...] [--text FOLDER] [--files PATTERN] and sizes of the model:
held-out losses of a GPT on text, with the moments of AdamW in 32, 16 and 8 bits, beside torch's AdamW and bitsandbytes' AdamW8bit.

    TERRACE_LIBRARY=build/dev/capi/libterrace.so PYTHONPATH=python \\
        python3 bench/compare/optimizers/state_bits.py /tmp/bench --steps 2000 --seeds 2

GPT-2 124M: --layers 12 --width 768 --heads 12 --vocabulary 50257 --text /usr/lib/python3.11 --files '*.py'.

The model, its first weights and the order of the batches are those of the seed, so a case differs from the others by its
optimizer alone. The text is every file below --text, in the order of the paths; the last tenth is held out. Tokens are bytes, or
with --vocabulary those of a byte pair encoding that is made of the text; then the head has the table of the tokens, as in GPT-2.
Each case runs in a process of its own with one thread. Without bitsandbytes its case is left out, and that is said."""

import argparse
import importlib.util
import json
import pathlib
import subprocess
import sys

BYTES, WARMUP = 256, 100
CASES = ("torch", "terrace 32", "terrace 16", "terrace 8", "bitsandbytes 8")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--held-out", type=int, default=256, help="sequences")
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--products", choices=("fp32", "bf16"), default="fp32", help="their type, by torch's autocast")
    parser.add_argument("--vocabulary", type=int, default=BYTES)
    parser.add_argument("--text", type=pathlib.Path, default=pathlib.Path("/usr/share/common-licenses"))
    parser.add_argument("--files", default="*")
    parser.add_argument("--only", nargs="*", choices=CASES)
    parser.add_argument("--case", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    if options.case:
        print(json.dumps(trained(options, options.case[0], int(options.case[1]))))
        return
    cases = list(options.only or CASES)
    if "bitsandbytes 8" in cases and importlib.util.find_spec("bitsandbytes") is None:
        print("bitsandbytes is not installed: its case is left out", file=sys.stderr)
        cases.remove("bitsandbytes 8")
    report(options.steps, cases, {case: [run(options, case, seed) for seed in range(options.seeds)] for case in cases})


def run(options, case, seed):
    names = ("steps", "layers", "width", "heads", "context", "batch", "held_out", "rate")
    names += ("products", "vocabulary", "text", "files")
    same = [word for name in names for word in (f"--{name.replace('_', '-')}", getattr(options, name))]
    command = [sys.executable, __file__, options.folder, *same, "--case", case, seed]
    done = subprocess.run([str(word) for word in command], check=True, stdout=subprocess.PIPE, text=True)
    losses = json.loads(done.stdout.splitlines()[-1])
    print(case, "seed", seed, " ".join(f"{loss:.4f}" for loss in losses), file=sys.stderr)
    return losses


def report(steps, cases, found):
    print(f"| moments | {' | '.join(f'step {steps * quarter // 4}' for quarter in (1, 2, 3, 4))} |")
    print("|---|" + "---|" * 4)
    for case in cases:
        cells = [" ".join(f"{losses[quarter]:.4f}" for losses in found[case]) for quarter in range(4)]
        print(f"| {case} | {' | '.join(cells)} |")


def trained(options, case, seed):
    """The held-out loss after each quarter of the steps."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(seed)
    data = tokens_of(torch, options)
    training, held_out = data[: len(data) * 9 // 10], data[len(data) * 9 // 10 :]
    model = gpt(torch, options)
    optimizer = optimizer_of(torch, case, model, options.rate)
    order = torch.Generator().manual_seed(seed)
    losses = []
    for step in range(options.steps):
        for group in optimizer.param_groups:
            group["lr"] = options.rate * min(1.0, (step + 1) / WARMUP) * (1.0 - 0.9 * step / options.steps)
        optimizer.zero_grad()
        loss_of(torch, model, training, options, order).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if (step + 1) % (options.steps // 4) == 0:
            with torch.no_grad():
                draw = torch.Generator().manual_seed(12345)
                batches = range(options.held_out // options.batch)
                held = [loss_of(torch, model, held_out, options, draw).item() for _ in batches]
            losses.append(sum(held) / len(held))
    return losses


def tokens_of(torch, options):
    """Numbers of tokens, int64 [tokens]; the first case leaves them in the folder for the others."""
    kept = options.folder / f"tokens_{options.vocabulary}.pt"
    if kept.exists():
        return torch.load(kept)
    text = b"".join(path.read_bytes() for path in sorted(options.text.rglob(options.files)) if path.is_file())
    tokens = encoded(torch, text, options.vocabulary)
    torch.save(tokens, kept)
    return tokens


def encoded(torch, text, vocabulary):
    if vocabulary == BYTES:
        return torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
    from tokenizers import ByteLevelBPETokenizer

    lines = text.decode(errors="replace").splitlines(keepends=True)
    tokenizer = ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(lines, vocabulary, show_progress=False)
    return torch.tensor([number for line in tokenizer.encode_batch(lines) for number in line.ids])


def loss_of(torch, model, data, options, draw):
    starts = torch.randint(0, len(data) - options.context - 1, (options.batch,), generator=draw)
    rows = torch.stack([data[start : start + options.context + 1] for start in starts])
    with torch.autocast("cpu", torch.bfloat16, enabled=options.products == "bf16"):
        logits = model(rows[:, :-1])
    return torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), rows[:, 1:].flatten())


def gpt(torch, options):
    from torch import nn

    width, context = options.width, options.context

    class Gpt(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens, self.places = nn.Embedding(options.vocabulary, width), nn.Embedding(context, width)
            block = nn.TransformerEncoderLayer(
                width, options.heads, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True
            )
            self.blocks = nn.TransformerEncoder(block, options.layers, nn.LayerNorm(width), enable_nested_tensor=False)
            self.head = nn.Linear(width, options.vocabulary, bias=False)
            if options.vocabulary != BYTES:
                nn.init.normal_(self.tokens.weight, std=0.02)
                self.head.weight = self.tokens.weight

        def forward(self, rows):
            inputs = self.tokens(rows) + self.places.weight
            mask = nn.Transformer.generate_square_subsequent_mask(context)
            return self.head(self.blocks(inputs, mask=mask, is_causal=True))

    return Gpt()


def optimizer_of(torch, case, model, rate):
    settings = {"lr": rate, "betas": (0.9, 0.95), "weight_decay": 0.1}
    if case == "torch":
        return torch.optim.AdamW(model.parameters(), **settings)
    if case == "bitsandbytes 8":
        import bitsandbytes

        # Every tensor, where it would leave small ones in 32 bits.
        return bitsandbytes.optim.AdamW8bit(model.parameters(), min_8bit_size=0, **settings)
    import terrace

    return terrace.torch.OffloadAdamW(model.parameters(), state_bits=int(case.split()[1]), threads=1, **settings)


if __name__ == "__main__":
    main()
