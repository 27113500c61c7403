"""Fine-tunes models of transformers with Terrace, through its program alone, and with torch, and compares.

A small model of every family is made with transformers and saved. `terrace train` loads each, trains 20 steps of 2
accumulated micro-batches in fp32 with parameters and states on nvme, and `terrace export` writes the result, which
transformers loads as the class that it was. The same training in torch, on the same samples in the same order, gives
the losses and weights to compare with; with adapters, in PEFT, which also loads what was exported. The exit code is 1
when something is beyond its bound.

    python compare.py build/release/tools/terrace
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import peft
import torch
import transformers

STEPS, MICRO_BATCH, ACCUMULATION, CONTEXT, SAMPLES, VOCABULARY, SEED = 20, 2, 2, 64, 50, 503, 42
LEARNING_RATE, WEIGHT_DECAY = 1e-3, 0.1
LOSS_BOUND = 1e-4  # relative, of any step
# Of final weights: one step at most for an element (where a gradient is all but zero Adam divides noise by noise), and
# the differences of a whole tensor beside the length of the way that it went.
ELEMENT_BOUND, TENSOR_BOUND = LEARNING_RATE, 0.01


def gpt2():
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=VOCABULARY,
            n_embd=96,
            n_layer=4,
            n_head=6,
            n_positions=CONTEXT,
            attn_pdrop=0.0,
            embd_pdrop=0.0,
            resid_pdrop=0.0,
        )
    )


def small(**changes):
    settings = dict(
        vocab_size=VOCABULARY,
        hidden_size=96,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=6,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=False,
    )
    return {**settings, **changes}


def llama():
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**small()))


def mistral():
    return transformers.MistralForCausalLM(transformers.MistralConfig(**small(sliding_window=CONTEXT)))


def qwen2():
    return transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**small(tie_word_embeddings=True)))


def qwen3():
    return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**small(tie_word_embeddings=True, head_dim=24)))


FAMILIES = {"gpt2": gpt2, "llama": llama, "mistral": mistral, "qwen2": qwen2, "qwen3": qwen3}
# With targets of adapters.
ADAPTED = {
    "gpt2": ["c_attn", "c_fc"],
    "llama": ["q_proj", "v_proj"],
    "mistral": ["*_proj"],
    "qwen2": ["*_proj"],
    "qwen3": ["*_proj"],
}
RANK, ALPHA = 8, 16


def philox(counter, key):
    """Philox4x32-10 (Salmon et al., 2011)."""
    c, k = list(counter), list(key)
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(p1 >> 32) ^ c[1] ^ k[0], p1 & 0xFFFFFFFF, (p0 >> 32) ^ c[3] ^ k[1], p0 & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


def sample_at(number):
    """The sample that is number `number` of a run: reference/data/sample_order.h, written once more."""
    seed, epoch = SEED ^ 0x64617461206F7264, number // SAMPLES
    bits = max(2, (SAMPLES - 1).bit_length())
    low_bits = bits // 2
    low_mask, high_mask = (1 << low_bits) - 1, (1 << (bits - low_bits)) - 1
    key = (seed & 0xFFFFFFFF, seed >> 32)
    index = number % SAMPLES
    while True:
        high, low = index >> low_bits, index & low_mask
        for turn in range(0, 8, 2):
            high ^= philox((low, turn, epoch & 0xFFFFFFFF, epoch >> 32), key)[0] & high_mask
            low ^= philox((high, turn + 1, epoch & 0xFFFFFFFF, epoch >> 32), key)[0] & low_mask
        index = high << low_bits | low
        if index < SAMPLES:
            return index


def make_tokens():
    tokens = np.random.default_rng(3).integers(0, VOCABULARY, SAMPLES * CONTEXT + 1)
    for place in range(1, len(tokens)):
        if place % 5:  # something to learn
            tokens[place] = (tokens[place - 1] * 7 + 3) % 97
    return tokens.astype(np.uint16)


def run(*command):
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if result.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{result.stderr}")


def train_with_terrace(program, folder, tokens, *, steps=STEPS, targets=None):
    config = {
        "train_micro_batch_size_per_gpu": MICRO_BATCH,
        "gradient_accumulation_steps": ACCUMULATION,
        "gradient_clipping": 1.0,
        "optimizer": {
            "type": "AdamW",
            "params": {"lr": LEARNING_RATE, "weight_decay": 0.0 if targets else WEIGHT_DECAY},
        },
        "zero_optimization": {
            "stage": 3,
            "offload_param": {"device": "nvme", "nvme_path": str(folder)},
            "offload_optimizer": {"device": "nvme", "nvme_path": str(folder)},
        },
        "terrace": {"seed": SEED},
    }
    if targets:
        config["terrace"]["lora"] = {"rank": RANK, "alpha": ALPHA, "targets": targets}
    (folder / "ds_config.json").write_text(json.dumps(config))
    tokens.tofile(folder / "train.bin")
    log, checkpoints, export = folder / "steps.jsonl", folder / f"checkpoints{steps}", folder / f"export{steps}"
    run(
        program,
        "train",
        "--config",
        folder / "ds_config.json",
        "--model",
        folder / "model",
        "--data",
        folder / "train.bin",
        "--validation-fraction",
        "0",
        "--steps",
        str(steps),
        "--save",
        checkpoints,
        "--log",
        log,
    )
    run(
        program,
        "export",
        checkpoints,
        "--out",
        export,
        "--dtype",
        "fp32",
        *(["--adapter", "--base", folder / "model"] if targets else []),
    )
    records = [json.loads(line) for line in log.read_text().splitlines()]
    return np.array([record["loss"] for record in records if record["event"] == "step"])[-steps:]


def train_with_torch(model, tokens, weight_decay=WEIGHT_DECAY):
    trained = [p for p in model.parameters() if p.requires_grad]
    decayed = [p for p in trained if p.dim() > 1]
    plain = [p for p in trained if p.dim() == 1]
    optimizer = torch.optim.AdamW(
        [dict(params=decayed, weight_decay=weight_decay), dict(params=plain, weight_decay=0.0)], lr=LEARNING_RATE
    )
    tokens = torch.from_numpy(tokens.astype(np.int64))
    losses, consumed = [], 0
    model.train()
    for _ in range(STEPS):
        total = 0.0
        for _ in range(ACCUMULATION):
            samples = [sample_at(consumed + i) for i in range(MICRO_BATCH)]
            consumed += MICRO_BATCH
            windows = torch.stack([tokens[s * CONTEXT : (s + 1) * CONTEXT + 1] for s in samples])
            logits = model(windows[:, :-1]).logits
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())
            (loss / ACCUMULATION).backward()
            total += float(loss.detach()) / ACCUMULATION
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(total)
    return np.array(losses)


def verdict(name, losses, found, expected, start, trained):
    """Of losses, and of weights by their names: `expected` went from `start`, `trained` is Terrace's."""
    loss = np.max(np.abs(found - losses) / losses)
    element, tensor = 0.0, 0.0
    for key, value in expected.items():
        difference = trained[key].detach() - value.detach()
        learned = value.detach() - start[key].detach()
        element = max(element, float(difference.abs().max()))
        tensor = max(tensor, float(difference.norm() / learned.norm()))
    print(f"| {name} | {losses[0]:.4f} -> {losses[-1]:.4f} | {loss:.1e} | {element:.1e} | {tensor:.1e} |", flush=True)
    return loss < LOSS_BOUND and element < ELEMENT_BOUND and tensor < TENSOR_BOUND


def compare(name, make, program):
    torch.manual_seed(11)
    model = make().float()
    tokens = make_tokens()
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        model.save_pretrained(folder / "model")
        found = train_with_terrace(program, folder, tokens)
        exported = transformers.AutoModelForCausalLM.from_pretrained(folder / f"export{STEPS}", dtype=torch.float32)
    if type(exported) is not type(model):
        sys.exit(f"{name} came back as {type(exported).__name__}")
    start = {key: value.clone() for key, value in model.named_parameters()}
    losses = train_with_torch(model, tokens)
    return verdict(name, losses, found, dict(model.named_parameters()), start, dict(exported.named_parameters()))


def adapters_of(model):
    return {key: value for key, value in model.named_parameters() if "lora_" in key}


def compare_adapters(name, make, targets, program):
    torch.manual_seed(11)
    model = make().float()
    tokens = make_tokens()
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        model.save_pretrained(folder / "model")

        def loaded(steps):
            base = type(model).from_pretrained(folder / "model", dtype=torch.float32)
            return peft.PeftModel.from_pretrained(base, folder / f"export{steps}", is_trainable=True)

        # The first step moves B alone: without decay A is then what it began with.
        train_with_terrace(program, folder, tokens, steps=1, targets=targets)
        adapted = loaded(1)
        with torch.no_grad():
            for key, value in adapters_of(adapted).items():
                if "lora_B" in key:
                    value.zero_()
        start = {key: value.clone() for key, value in adapters_of(adapted).items()}
        found = train_with_terrace(program, folder, tokens, targets=targets)
        trained = adapters_of(loaded(STEPS))
    losses = train_with_torch(adapted, tokens, weight_decay=0.0)
    return verdict(f"{name}, LoRA of {', '.join(targets)}", losses, found, adapters_of(adapted), start, trained)


def main():
    transformers.logging.set_verbosity_error()
    print("| model | loss | loss, relative | weights, largest difference | of a tensor, beside what it learned |")
    print("|---|---|---|---|---|")
    results = [compare(name, make, sys.argv[1]) for name, make in FAMILIES.items()]
    results += [compare_adapters(name, FAMILIES[name], targets, sys.argv[1]) for name, targets in ADAPTED.items()]
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
