"""The training that bench/python/attack disturbs: its settings, drawn from a generator, and a run of it."""

import gc
import json
import tempfile

STEPS = 5


class Case:
    """The settings of a chain; every run of it makes the same model."""

    def __init__(self, generator):
        self.way = generator.choice(("commits", "saves", "saves", "drop-in"))
        self.optimizer = generator.choice(("AdamW", "SGD", "Adagrad", *(("Muon",) if self.way != "drop-in" else ())))
        self.precision = generator.choice(("fp32", "bf16")) if self.way != "drop-in" else "fp32"
        self.parameters = generator.choice(("nvme", "cpu"))
        self.states = "nvme" if self.way == "commits" else generator.choice(("nvme", "cpu"))
        updates = ("after_backward", "next_forward")[: 1 if self.optimizer == "Muon" else 2]
        self.update = generator.choice(updates)
        self.every = generator.choice((1, 2))
        self.same_tag = generator.random() < 0.6
        self.inputs = generator.choice(("none", "cpu", "nvme")) if self.way != "drop-in" else "none"
        self.key = json.dumps(vars(self))
        self.room = None  # the host memory with which some of its inputs go to nvme

    def config(self, folder):
        def place(name):
            return {"device": name, "nvme_path": str(folder / "nvme")} if name == "nvme" else {"device": name}

        durable = self.way == "commits"
        return {
            "bf16": {"enabled": self.precision == "bf16"},
            "gradient_clipping": 1.0 if self.optimizer != "SGD" else 0,
            "optimizer": {"type": self.optimizer, "params": {"lr": 1e-2}},
            "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 4, "warmup_max_lr": 1e-2}},
            "zero_optimization": {
                "stage": 3,
                "offload_param": place(self.parameters),
                "offload_optimizer": {**place(self.states), "nvme_path": str(folder / "nvme")},
            },
            "terrace": {
                "offload_activations": self.inputs,
                "chunk_elements": 4096,
                "host_memory": "32MiB",
                "threads": 1,
                "durable": durable,
                "update": self.update,
                "engine": "threads",
                "commit_every_steps": self.every if durable else 0,
                "commit_every_seconds": 0,
            },
        }


def make_model():
    """Its parts are computed again in the backward pass."""
    import torch
    from torch.utils.checkpoint import checkpoint

    class Checkpointed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            first = torch.nn.Sequential(torch.nn.Linear(24, 48), torch.nn.ReLU(), torch.nn.Dropout(0.1))
            second = torch.nn.Sequential(torch.nn.Linear(48, 48), torch.nn.ReLU())
            self.parts = torch.nn.ModuleList((first, second, torch.nn.Linear(48, 4)))

        def forward(self, x):
            for part in self.parts:
                x = checkpoint(part, x, use_reentrant=False)
            return x

    torch.manual_seed(3)
    return Checkpointed()


def make_engine(case, folder, said=None, resume="auto"):
    import terrace
    import terrace.torch
    from terrace.torch.engine.passes import saved_inputs

    (folder / "nvme").mkdir(parents=True, exist_ok=True)
    log = (lambda level, line: said.append(line)) if said is not None else (lambda level, line: None)
    saved_inputs.LEAST_BYTES = 1  # else inputs of this model would stay with torch
    config = case.config(folder)
    named = {"persistence_threshold": 64, "log": log}
    if case.inputs == "nvme":
        if case.room is None:
            case.room = least_host(config, named) + 512 * 1024  # for one or two of its three inputs
        config["terrace"]["host_memory"] = case.room
    resume = resume if case.way == "commits" else False
    return terrace.initialize(model=make_model(), config=config, resume=resume, **named)[0]


def least_host(config, named):
    """The host memory without which no engine is made."""
    import terrace

    with tempfile.TemporaryDirectory() as folder:
        text = json.dumps({**config, "terrace": {**config["terrace"], "host_memory": 1}})
        elsewhere = json.loads(text.replace(config["zero_optimization"]["offload_optimizer"]["nvme_path"], folder))
        try:
            terrace.initialize(model=make_model(), config=elsewhere, **named)
        except terrace.CapacityError as error:
            return error.least_host_bytes
    raise SystemExit("an engine is made with a byte of host memory")


def loss_at(model, step):
    import torch

    generator = torch.Generator().manual_seed(step)
    torch.manual_seed(1000 + step)  # of the dropout
    batch = torch.randn(4, 24, generator=generator).to(next(model.parameters()).dtype)
    return model(batch).float().square().mean()


def digest_of(engine):
    import hashlib

    digest = hashlib.sha256()
    states = engine.optimizer_state_dict()["state"]
    for one in engine._tracked:
        digest.update(engine.master(one.parameter).numpy().tobytes())
    for state in states.values():
        for value in state.values():
            digest.update(value.numpy().tobytes())
    return digest.hexdigest()


def train(case, folder, note):
    """A run of a chain, from where the one before has left it. Tells every step, and the state at the end."""
    if case.way == "drop-in":
        return train_drop_in(case, folder, note)
    engine = make_engine(case, folder)
    saves = folder / "saves"
    if case.way == "saves" and saves.exists():
        tags = ["last"] if case.same_tag else [None]
        if not case.same_tag or (saves / "last").exists() or (saves / ".last.replaced").exists():
            engine.load_checkpoint(str(saves), tags[0])
    for step in range(engine.global_steps, STEPS):
        loss = loss_at(engine.module, step)
        engine.backward(loss)
        engine.step()
        note({"step": step, "loss": loss.item().hex(), "norm": float(engine.get_global_grad_norm()).hex()})
        if case.way == "saves" and (step + 1) % case.every == 0 and step + 1 < STEPS:
            engine.save_checkpoint(str(saves), "last" if case.same_tag else None)
    # Every run ends with a save, also one that had no step to do: it removes what a killed save has left.
    if case.way == "saves":
        engine.save_checkpoint(str(saves), "last" if case.same_tag else None)
    note({"digest": digest_of(engine)})
    if case.way == "commits":
        engine.store.keep_tier(False)
    engine.close()


def train_drop_in(case, folder, note):
    import torch
    from terrace.torch import OffloadAdagrad, OffloadAdamW, OffloadSGD

    (folder / "nvme").mkdir(parents=True, exist_ok=True)
    kind = {"AdamW": OffloadAdamW, "SGD": OffloadSGD, "Adagrad": OffloadAdagrad}[case.optimizer]
    more = {"momentum": 0.9} if case.optimizer == "SGD" else {}
    model = make_model()
    optimizer = kind(model.parameters(), lr=1e-2, states="nvme", path=str(folder / "nvme"), **more)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = loss_at(model, step)
        loss.backward()
        optimizer.step()
        note({"step": step, "loss": loss.item().hex()})
    note({"digest": str([value.sum().item().hex() for value in model.parameters() if torch.is_tensor(value)])})
    del optimizer
    gc.collect()
