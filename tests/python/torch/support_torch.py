"""What the tests of the engine share: small models, a training whose every bit is told, and tests in processes
of their own.

The process that runs the tests only imports torch; a test that is `isolated` runs in a forked child, so that one
that ends by a signal is a failure with that signal's name, and nothing is left of it for the next.
"""

import functools
import hashlib
import os
import pathlib
import pickle
import signal
import sys
import tempfile
import traceback
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "python"))

try:
    import torch
except ImportError:
    raise unittest.SkipTest("torch is not installed") from None

import terrace
import terrace.torch

# Every optimizer of torch imports it, and a child would do so again.
import torch._dynamo
from torch import nn
from torch.nn import functional as F

torch.set_num_threads(1)
MIB = 1 << 20
KIB = 1 << 10


def isolated(test):
    """Runs a test in a process of its own."""

    @functools.wraps(test)
    def run(self):
        with tempfile.TemporaryFile() as report:
            child = os.fork()
            if not child:
                _run_in_child(test, self, report)
            _, status = os.waitpid(child, 0)
            report.seek(0)
            text = report.read()
            if os.WIFSIGNALED(status):
                self.fail(f"the process was ended by {signal.Signals(os.WTERMSIG(status)).name}")
            failed, message = pickle.loads(text)
            if failed == "skip":
                self.skipTest(message)
            if failed:
                self.fail(message)

    return run


def _run_in_child(test, self, report):
    result = (False, "")
    self._outcome = None  # else subTest would keep failures for a process that does not hear of them
    try:
        test(self)
    except unittest.SkipTest as skip:
        result = ("skip", str(skip))
    except BaseException:
        result = (True, traceback.format_exc())
    report.write(pickle.dumps(result))
    report.flush()
    os._exit(0)


# --- Models ---


class Mlp(nn.Module):
    def __init__(self, width=96):
        super().__init__()
        self.first = nn.Linear(32, width)
        self.layers = nn.ModuleList([nn.Linear(width, width) for _ in range(3)])
        self.norm = nn.LayerNorm(width)
        self.last = nn.Linear(width, 8)

    def forward(self, x):
        x = torch.relu(self.first(x))
        for layer in self.layers:
            x = x + torch.relu(layer(x))
        return self.last(self.norm(x))


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x):
        q, k, v = self.attention(self.norm(x)).chunk(3, dim=-1)
        x = x + self.out(F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None], is_causal=True)[:, 0])
        return x + self.down(F.gelu(self.up(x)))


class Gpt(nn.Module):
    """A tied table, positions as a parameter of the whole model, blocks in a list."""

    def __init__(self, width=32, layers=3, words=64):
        super().__init__()
        self.table = nn.Embedding(words, width)
        self.places = nn.Parameter(torch.zeros(16, width))
        self.blocks = nn.ModuleList([Block(width) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.table.weight
        nn.init.normal_(self.places, std=0.02)
        nn.init.normal_(self.table.weight, std=0.02)

    def forward(self, tokens):
        x = self.table(tokens) + self.places[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Coded(nn.Module):
    """Frozen layers of few bits with adapters, and codes that the model itself makes numbers of."""

    def __init__(self, width=96):
        super().__init__()
        self.first = nn.Linear(32, width)
        self.layers = nn.ModuleList([nn.Linear(width, width).requires_grad_(False) for _ in range(3)])
        for layer, (kind, double) in enumerate((("nf4", False), ("int8", False), ("nf4", True))):
            terrace.torch.quantize_base(self.layers, kind, double=double, skip=[str(n) for n in range(3) if n != layer])
        self.down = nn.ModuleList([nn.Linear(width, 4, bias=False) for _ in range(3)])
        self.up = nn.ModuleList([nn.Linear(4, width, bias=False) for _ in range(3)])
        self.codes = nn.Parameter(torch.randint(0, 256, (width, width), dtype=torch.uint8), requires_grad=False)
        self.last = nn.Linear(width, 8)

    def forward(self, x):
        x = torch.relu(self.first(x))
        for layer, down, up in zip(self.layers, self.down, self.up):
            x = x + torch.tanh(layer(x) + up(down(x)))
        return self.last(x + x @ ((self.codes.to(x.dtype) - 128) * 1e-4))


def seeded(make, *arguments):
    torch.manual_seed(7)
    return make(*arguments)


def batch_of(model, step, micro_batch=0):
    generator = torch.Generator().manual_seed(1000 * step + micro_batch)
    if isinstance(model, Gpt):
        return torch.randint(0, 64, (2, 12), generator=generator)
    dtype = next(one.dtype for one in model.parameters() if one.is_floating_point())
    return torch.randn(4, 32, generator=generator).to(dtype)


def loss_of(model, batch, run=None):
    out = (model if run is None else run)(batch)
    if isinstance(model, Gpt):
        return F.cross_entropy(out[:, :-1].flatten(0, 1).float(), batch[:, 1:].flatten())
    return out.float().square().mean()


# --- Training ---


def config_of(
    parameters="cpu",
    states="cpu",
    folder=None,
    accumulation=1,
    clip=1.0,
    precision="fp32",
    lr=1e-2,
    decay=0.1,
    optimizer="AdamW",
    eps=1e-3,
    **terrace_section,
):
    places = {"cpu": "cpu", "nvme": "nvme", "device": "none"}
    path = {"nvme_path": str(folder)} if folder else {}

    def section(place):
        return {"device": places[place], **(path if place == "nvme" else {})}

    return {
        "gradient_accumulation_steps": accumulation,
        "gradient_clipping": clip,
        "bf16": {"enabled": precision == "bf16"},
        "optimizer": {
            "type": optimizer,
            "params": {"lr": lr, "weight_decay": decay, **({"eps": eps} if optimizer.startswith("Ada") else {})},
        },
        "zero_optimization": {
            "stage": 3,
            "offload_param": section(parameters),
            "offload_optimizer": section(states),
        },
        "terrace": {"host_memory": "32MiB", "threads": 1, "durable": False, **terrace_section},
    }


def engine_of(model, config=None, **named):
    named.setdefault("persistence_threshold", 128)
    return terrace.initialize(model=model, config=config or config_of(), **named)[0]


def train(engine, steps, first=0, run=None):
    """[(losses of the micro-batches, norm)] of some steps."""
    model = engine.module
    told = []
    for step in range(first, first + steps):
        losses = []
        for micro_batch in range(engine.gradient_accumulation_steps()):
            loss = loss_of(model, batch_of(model, step, micro_batch), run)
            engine.backward(loss)
            engine.step()
            losses.append(loss.item())
        told.append((losses, engine.get_global_grad_norm()))
    return told


def masters(engine):
    """A digest of the bits of each master."""
    return {
        one.name: hashlib.sha256(bytes(engine.master(one.parameter).view(torch.uint8).flatten().tolist())).hexdigest()
        for one in engine._tracked
        if one.is_trainable
    }


def train_plain(model, steps, accumulation=1, clip=1.0, first=0, optimizer=None):
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1, eps=1e-3)
    told = []
    for step in range(first, first + steps):
        losses = []
        for micro_batch in range(accumulation):
            loss = loss_of(model, batch_of(model, step, micro_batch)) / accumulation
            loss.backward()
            losses.append(loss.item() * accumulation)
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad()
        told.append((losses, norm.item()))
    return told


class EngineTest(unittest.TestCase):
    def assert_near_plain(self, told, plain, tolerance=1e-5):
        for (losses, norm), (plain_losses, plain_norm) in zip(told, plain):
            for loss, plain_loss in zip(losses, plain_losses):
                self.assertLessEqual(abs(loss - plain_loss), tolerance * abs(plain_loss))
            self.assertLessEqual(abs(norm - plain_norm), 1e-4 * plain_norm)
        self.assertEqual(len(told), len(plain))

    def assert_four_parts(self, error):
        for part in ("what", "subject", "reason", "advice"):
            self.assertTrue(getattr(error, part), f"{part} of: {error}")

    def raised(self, kind, function, *arguments, **named):
        """The error of four parts that a call raises."""
        with self.assertRaises(kind) as caught:
            function(*arguments, **named)
        self.assert_four_parts(caught.exception)
        return caught.exception

    def train_and_compare(self, make, steps=4, run=None, prepare=None, tolerance=1e-5, config=None, **named):
        """Trains a model here and with torch alone, on a strict device, and compares losses, norms and weights."""
        model, plain = seeded(make), seeded(make)
        for one in (model, plain):
            if prepare:
                prepare(one)
        engine = engine_of(model, config or config_of(strict=True), **named)
        told = train(engine, steps)
        accumulation = engine.gradient_accumulation_steps()
        self.assert_near_plain(told, train_plain(plain, steps, accumulation), tolerance)
        for (name, value), (_, other) in zip(model.state_dict().items(), plain.state_dict().items()):
            self.assertLessEqual((value - other).abs().max().item(), tolerance, name)
        return engine
