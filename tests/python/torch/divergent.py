"""Trainings whose ranks do other things: everything is drawn from a seed, and one rank has the same numbers.

What a micro-batch does follows from its number among those of all ranks, so that one rank can do it, too. What a rank does
beside that (evaluations, passes that nothing follows) is its own."""

import itertools
import random
import tempfile

from ranks_torch import config_of, engine_of, masters, together, torch
from torch import nn
from torch.utils.checkpoint import checkpoint

WIDTH = 48
STEPS = 3
EVALUATIONS = 4

LEVELS = {
    "parameters": ("device", "cpu", "nvme"),
    "states": ("cpu", "nvme", "device"),
    "update": ("after_backward", "next_forward"),
    "precision": ("fp32", "bf16", "fp16"),
    "stage": (3, 2),
    "accumulation": (1, 2, 3),
    "ranks": (2, 3, 4),
    "optimizer": ("AdamW", "Lion", "SGD"),
    "clip": (1.0, 0.0),
    "frozen": (False, True),
    "recomputes": (False, True),
    "loop": ("engine", "torch"),
}


def is_possible(case):
    """Of a part of a case, too."""
    places, settings = ("parameters", "states"), ("update", "stage")
    given = [[case[name]] if name in case else LEVELS[name] for name in (*places, *settings)]
    return any(
        not (update == "next_forward" and "device" in (parameters, states))
        and not (stage == 2 and parameters != "device")
        and not (states == "device" and (parameters, stage) != ("device", 2))
        for parameters, states, update, stage in itertools.product(*given)
    )


def drawn_case(seed):
    generator = random.Random(seed)
    while True:
        case = {name: generator.choice(levels) for name, levels in LEVELS.items()}
        if is_possible(case):
            return case


class Forks(nn.Module):
    """Branches of which a batch uses some, in an order of its own, and experts that tokens are sent to."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(16, WIDTH)
        self.branches = nn.ModuleList([nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(4)])
        self.gate = nn.Linear(WIDTH, 3, bias=False)
        self.experts = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(3)])
        self.shared = nn.Parameter(torch.full((WIDTH,), 0.5))
        self.last = nn.Linear(WIDTH, 4)

    def forward(self, x, order, recomputes=False):
        x = self.first(x)
        for number in order:
            branch = self.branches[number]
            x = x + (checkpoint(branch, x, use_reentrant=False) if recomputes else branch(x))
        if len(order) % 2:
            x = x * self.shared
        chosen = self.gate(x).float().argmax(-1)
        for number, expert in enumerate(self.experts):
            sent = chosen == number
            if sent.any():
                x = x.index_put((sent,), x[sent] + expert(x[sent]))
        return self.last(x)


def config_for(case, ranks, folder):
    config = config_of(
        case["parameters"],
        case["states"],
        folder,
        case["accumulation"] * case["ranks"] // ranks,
        case["clip"],
        case["precision"],
        optimizer=case["optimizer"],
        update=case["update"],
        rank_exchange="pulled",
        chunk_elements=16384,  # four tiles, of which each rank has some
    )
    config["zero_optimization"]["stage"] = case["stage"]
    if case["precision"] == "fp16":
        config["fp16"] = {"enabled": True, "initial_scale_power": 8}
    return config


class Run:
    """A rank of a training."""

    def __init__(self, seed, case, ranks, folder):
        self.seed, self.case = seed, case
        self.is_reference = ranks == 1
        torch.manual_seed(seed)
        model = Forks()
        if case["frozen"]:
            model.first.requires_grad_(False)
            model.branches[0].requires_grad_(False)
        self.engine = engine_of(model, config_for(case, ranks, folder))
        self.losses, self.norms, self.evaluated = {}, [], {}

    def train(self):
        for step in range(STEPS):
            self.do_beside(step)
            for k in range(self.engine.gradient_accumulation_steps()):
                self.micro_batch(step, k * self.engine.world_size + self.engine.global_rank)
            self.norms.append(self.engine.get_global_grad_norm())
        self.do_beside(STEPS)
        told = self.losses, self.norms, self.evaluated, masters(self.engine)
        self.engine.close()
        return told

    def random_of(self, *words):
        return random.Random(repr((self.seed, *words)))

    def batch(self, generator):
        numbers = torch.Generator().manual_seed(generator.randrange(1 << 30))
        x = torch.randn(generator.randrange(1, 5), 16, generator=numbers)
        order = generator.sample(range(4), generator.randrange(5))
        return x.to(next(self.engine.module.parameters()).dtype), order

    def micro_batch(self, step, number):
        generator = self.random_of("micro-batch", step, number)
        # Only engine.step() says that a micro-batch had nothing to go backward from.
        is_empty = generator.random() < 0.15 and self.case["loop"] == "engine"
        x, order = self.batch(generator)
        if not is_empty:
            self.go_astray(step, number)
            loss = self.engine(x, order, self.case["recomputes"]).float().square().mean()
            self.engine.backward(loss)
            self.losses[step, number] = loss.item()
        if self.case["loop"] == "engine":
            self.engine.step()
        elif number // self.engine.world_size + 1 == self.engine.gradient_accumulation_steps():
            self.engine.optimizer.step()
            self.engine.optimizer.zero_grad()

    def go_astray(self, step, number):
        """Passes of this rank alone, within the step."""
        own = self.random_of("astray", step, number, self.engine.global_rank)
        if self.is_reference:
            return
        if own.random() < 0.2:
            self.engine(*self.batch(own))  # nothing follows
        if own.random() < 0.2:
            with torch.no_grad():
                self.engine(*self.batch(own))

    def do_beside(self, step):
        """Evaluations, as many as each rank likes. The reference makes all."""
        own = self.random_of("beside", step, self.engine.global_rank)
        chosen = range(EVALUATIONS)
        if not self.is_reference:
            chosen = own.sample(range(EVALUATIONS), own.randrange(EVALUATIONS + 1))
            if own.random() < 0.2:
                self.engine(*self.batch(own))
        for number in chosen:
            generator = self.random_of("evaluation", step, number)
            with torch.no_grad():
                for _ in range(generator.randrange(1, 4)):
                    found = self.engine(*self.batch(generator)).float().sum().item()
            self.evaluated[step, number] = found


def difference(one, found):
    """What the ranks tell otherwise than one rank; empty: nothing."""
    losses, norms, evaluated, ends = one
    if {key: loss for rank in found for key, loss in rank[0].items()} != losses:
        return "losses"
    for number, rank in enumerate(found):
        if rank[1] != norms:
            return f"norms of rank {number}"
        if any(evaluated[key] != value for key, value in rank[2].items()):
            return f"evaluations of rank {number}"
        if rank[3] != ends:
            return f"masters of rank {number}"
    return ""


def trained(seed, case, ranks):
    """[what each rank tells], or why one has nothing to tell."""

    def body(rank):
        with tempfile.TemporaryDirectory() as folder:
            return Run(seed, case, ranks, folder).train()

    ends = together(ranks, body)
    for rank, end in enumerate(ends):
        if end.text or end.signal_number:
            others = [one.text.rpartition("\n  ")[2] for one in ends]
            return f"rank {rank} of {ranks}: {end.text or f'signal {end.signal_number}'}; all: {others}"
    return [end.value for end in ends]


def failure_of(seed, case):
    """What is wrong with the ranks of a case; empty: nothing."""
    one = trained(seed, case, 1)
    found = one if isinstance(one, str) else trained(seed, case, case["ranks"])
    return found if isinstance(found, str) else difference(one[0], found)
