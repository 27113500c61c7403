"""Ways of training of the census, over a few models: checkpointing, adapters, schedules, types and times of updates."""

import torch
from architectures import WIDTH, Answer, Net, decoder, own
from torch import nn
from torch.utils.checkpoint import checkpoint

LLAMA = decoder("LlamaForCausalLM", "LlamaConfig", num_hidden_layers=3)
GPT2 = decoder(
    "GPT2LMHeadModel",
    "GPT2Config",
    n_embd=WIDTH,
    n_layer=3,
    n_head=4,
    n_positions=32,
    resid_pdrop=0.0,
    embd_pdrop=0.0,
    attn_pdrop=0.0,
)


class Block(nn.Module):
    """`inside`: it checkpoints what it does itself."""

    def __init__(self, inside=None):
        super().__init__()
        self.inside = inside
        self.scale = nn.Parameter(torch.ones(WIDTH))
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        return self.run(x) if self.inside is None else checkpoint(self.run, x, use_reentrant=self.inside)

    def run(self, x):
        return x + self.down(torch.tanh(self.up(x * self.scale)))


class Checkpointed(Net):
    """What is checkpointed is around the module, inside of it, or a function with an activation behind it."""

    def __init__(self, reentrant, around):
        super().__init__()
        self.first, self.last = nn.Linear(8, WIDTH), nn.Linear(WIDTH, 8)
        self.blocks = nn.ModuleList([Block(reentrant if around == "inside" else None) for _ in range(4)])
        self.reentrant, self.around = reentrant, around

    def run(self, x):
        x = self.first(x)
        for block in self.blocks:
            what = (lambda y, block=block: torch.tanh(block(y))) if self.around == "function" else block
            x = block(x) if self.around == "inside" else checkpoint(what, x, use_reentrant=self.reentrant)
        return self.last(x)


def checkpointed(reentrant, around):
    return own(lambda: Checkpointed(reentrant, around), 2, 8)


def of_hugging_face(make, reentrant, calls=False):
    """`calls`: as in transformers 4.x the checkpoint is around the call of a layer, so that its hooks run again."""

    def made():
        model, batch = make()
        model.gradient_checkpointing_enable({"use_reentrant": reentrant})
        model.train()
        if calls:
            layers = model.model.layers if hasattr(model, "model") else model.transformer.h
            for at, layer in enumerate(layers):
                layer.gradient_checkpointing = False
                layers[at] = Called(layer, reentrant)
        return model, batch

    return made


class Called(nn.Module):
    def __init__(self, layer, reentrant):
        super().__init__()
        self.layer, self.reentrant = layer, reentrant

    def __getattr__(self, name):
        if name in ("layer", "reentrant") or name.startswith("_"):
            return super().__getattr__(name)
        return getattr(self.layer, name)

    def forward(self, *arguments, **named):
        return (
            checkpoint(self.layer, *arguments, use_reentrant=self.reentrant, **named)
            if not (self.reentrant and named)
            else checkpoint(lambda *given: self.layer(*given, **named), *arguments, use_reentrant=True)
        )


def adapted(kind, make=LLAMA, reentrant=None, **settings):
    """A model of PEFT."""

    def made():
        import peft

        model, batch = make()
        model = peft.get_peft_model(model, getattr(peft, kind)(**settings))
        if reentrant is not None:
            model.enable_input_require_grads()
            model.gradient_checkpointing_enable({"use_reentrant": reentrant})
            model.train()
        return model, batch

    return made


_Q_AND_V = dict(target_modules=["q_proj", "v_proj"])


class Frozen(Net):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 8)])
        self.layers[1].requires_grad_(False)

    def run(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


class TwoLosses(Net):
    def __init__(self):
        super().__init__()
        self.block, self.left, self.right = Block(), nn.Linear(WIDTH, 8), nn.Linear(WIDTH, 8)

    def forward(self, x):
        x = self.block(x)
        return Answer(self.left(x).square().mean() + self.right(x).abs().mean())


def groups(model):
    matrices = [one for one in model.parameters() if one.requires_grad and one.dim() > 1]
    others = [one for one in model.parameters() if one.requires_grad and one.dim() <= 1]
    return torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1}, {"params": others, "lr": 1e-4}], lr=1e-3)


def one_cycle(optimizer):
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=8)


def cosine(optimizer):
    return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)


# name: (make, what differs: of the configuration's section "terrace" and of what census.py says)
SETTINGS = {
    "checkpoint around modules, reentrant": (checkpointed(True, "module"), {}),
    "checkpoint around modules": (checkpointed(False, "module"), {}),
    "checkpoint inside of modules, reentrant": (checkpointed(True, "inside"), {}),
    "checkpoint inside of modules": (checkpointed(False, "inside"), {}),
    "checkpoint around functions, reentrant": (checkpointed(True, "function"), {}),
    "checkpoint around functions": (checkpointed(False, "function"), {}),
    "checkpoint, single modules": (checkpointed(False, "module"), {"units": "leaf"}),
    "checkpoint, reentrant, single modules": (checkpointed(True, "module"), {"units": "leaf"}),
    "llama, reentrant": (of_hugging_face(LLAMA, True), {}),
    "llama, not reentrant": (of_hugging_face(LLAMA, False), {}),
    "llama, reentrant around calls": (of_hugging_face(LLAMA, True, calls=True), {}),
    "llama, not reentrant around calls": (of_hugging_face(LLAMA, False, calls=True), {}),
    "gpt2, reentrant": (of_hugging_face(GPT2, True), {}),
    "lora with dropout": (adapted("LoraConfig", r=4, lora_dropout=0.1, **_Q_AND_V), {}),
    "lora, reentrant": (adapted("LoraConfig", r=4, reentrant=True, **_Q_AND_V), {}),
    "dora": (adapted("LoraConfig", r=4, use_dora=True, **_Q_AND_V), {}),
    "lora on embeddings, modules_to_save": (
        adapted("LoraConfig", r=4, target_modules=["q_proj", "embed_tokens"], modules_to_save=["lm_head"]),
        {},
    ),
    "ia3": (
        adapted("IA3Config", feedforward_modules=["down_proj"], target_modules=["k_proj", "v_proj", "down_proj"]),
        {},
    ),
    "loha": (adapted("LoHaConfig", r=4, **_Q_AND_V), {}),
    "oft": (adapted("OFTConfig", oft_block_size=8, **_Q_AND_V), {}),
    "prompt tuning": (adapted("PromptTuningConfig", task_type="CAUSAL_LM", num_virtual_tokens=4), {}),
    "frozen layer": (own(Frozen, 2, 8), {}),
    "two losses": (own(TwoLosses, 2, WIDTH), {}),
    "groups, cosine, clip": (LLAMA, {"optimizer": groups, "scheduler": cosine, "clip": 0.5}),
    "sgd with nesterov": (
        LLAMA,
        {"optimizer": lambda model: torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, nesterov=True)},
    ),
    "adagrad": (LLAMA, {"optimizer": lambda model: torch.optim.Adagrad(model.parameters(), 0.01)}),
    "one cycle": (LLAMA, {"scheduler": one_cycle}),
    "accumulation and clip": (LLAMA, {"accumulation": 3, "clip": 0.5}),
    "single modules": (LLAMA, {"units": "leaf"}),
    "strict": (LLAMA, {"strict": True}),
    "bf16": (LLAMA, {"precision": "bf16", "tolerance": 1e-3}),
    "fp16": (LLAMA, {"precision": "fp16", "tolerance": 1e-3}),
    "updates in the backward pass": (LLAMA, {"update": "during_backward", "clip": 0.0}),
    "updates in the next forward pass": (LLAMA, {"update": "next_forward"}),
    "compiled blocks": (LLAMA, {"compile": True}),
}
