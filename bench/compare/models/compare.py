"""Compares Terrace's models with those of transformers, in fp32.

Makes small random models, saves them as save_pretrained does, trains each 20 AdamW steps on the same tokens with
torch and with build/.../bench/train_folder, and prints the largest differences: of the loss of any step, of the
first step's gradients, and of the logits of the next token after the last step. The exit code is 1 when one is
beyond its bound.

    python compare.py build/release/bench/train_folder
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers

STEPS, BATCH, SEQUENCE = 20, 3, 70
LOSS_BOUND, GRADIENT_BOUND, LOGIT_BOUND = 1e-4, 1e-4, 1e-2


def llama(**changes):
    settings = dict(
        vocab_size=1003,
        hidden_size=96,
        intermediate_size=200,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=24,
        max_position_embeddings=128,
        rms_norm_eps=1e-5,
        tie_word_embeddings=False,
        attn_implementation="eager",
    )
    settings.update(changes)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**settings))


def mistral():
    return transformers.MistralForCausalLM(
        transformers.MistralConfig(
            vocab_size=1003,
            hidden_size=96,
            intermediate_size=200,
            num_hidden_layers=3,
            num_attention_heads=6,
            num_key_value_heads=3,
            head_dim=16,
            max_position_embeddings=128,
            sliding_window=None,
            attn_implementation="eager",
        )
    )


def qwen2():
    return transformers.Qwen2ForCausalLM(
        transformers.Qwen2Config(
            vocab_size=1003,
            hidden_size=96,
            intermediate_size=200,
            num_hidden_layers=3,
            num_attention_heads=6,
            num_key_value_heads=2,
            max_position_embeddings=128,
            tie_word_embeddings=True,
            attn_implementation="eager",
        )
    )


def qwen3(**changes):
    settings = dict(
        vocab_size=1003,
        hidden_size=96,
        intermediate_size=200,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=24,
        max_position_embeddings=128,
        tie_word_embeddings=True,
        attn_implementation="eager",
    )
    settings.update(changes)
    return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**settings))


def gpt2(**changes):
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=1003,
            n_embd=96,
            n_layer=3,
            n_head=6,
            n_positions=128,
            attn_pdrop=0.0,
            embd_pdrop=0.0,
            resid_pdrop=0.0,
            attn_implementation="eager",
            **changes,
        )
    )


def rope(kind, **factors):
    return dict(rope_parameters=dict(rope_type=kind, rope_theta=10000.0, **factors))


MODELS = {
    "gpt2": gpt2,
    "gpt2, untied, n_inner": lambda: gpt2(tie_word_embeddings=False, n_inner=160),
    "llama": llama,
    "llama, tied, biases": lambda: llama(tie_word_embeddings=True, attention_bias=True, mlp_bias=True),
    "llama, linear": lambda: llama(**rope("linear", factor=2.0)),
    "llama, dynamic": lambda: llama(max_position_embeddings=32, **rope("dynamic", factor=2.0)),
    "llama, llama3": lambda: llama(
        **rope("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32)
    ),
    "llama, yarn": lambda: llama(**rope("yarn", factor=4.0, original_max_position_embeddings=32)),
    "mistral": mistral,
    "qwen2": qwen2,
    "qwen3": qwen3,
    "qwen3, untied, biases": lambda: qwen3(tie_word_embeddings=False, attention_bias=True),
}


def spread(model):
    """Norms and biases away from 1 and 0, so that they matter."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))


def train_with_torch(model, tokens):
    decayed = [p for p in model.parameters() if p.dim() > 1]
    plain = [p for p in model.parameters() if p.dim() == 1]
    optimizer = torch.optim.AdamW(
        [dict(params=decayed, weight_decay=0.1), dict(params=plain, weight_decay=0.0)],
        lr=1e-3,
        betas=(0.9, 0.999),
        eps=1e-8,
    )
    losses, norms, gradients = [], [], {}
    model.train()
    for step in range(STEPS):
        logits = model(tokens[step, :, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[step, :, 1:].flatten())
        loss.backward()
        if step == 0:
            gradients = {name: p.grad.clone().numpy() for name, p in model.named_parameters()}
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)))
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    with torch.no_grad():
        logits = model(tokens[STEPS - 1, :1, :-1]).logits[0, -1].numpy()
    return np.array(losses), np.array(norms), gradients, logits


def train_with_terrace(program, folder, tokens, part_elements):
    token_path, out_path = Path(folder) / "tokens.bin", Path(folder) / "out.bin"
    header = np.array([STEPS, BATCH, SEQUENCE], dtype=np.int32)
    np.concatenate([header, tokens.numpy().astype(np.int32).ravel()]).tofile(token_path)
    command = [program, folder, token_path, out_path, str(part_elements)]
    names = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.split()
    return names, np.fromfile(out_path, dtype=np.float32)


def compare(name, make, program):
    torch.manual_seed(5)
    model = make().float()
    spread(model)
    tokens = torch.randint(0, 1003, (STEPS, BATCH, SEQUENCE + 1))
    for place in range(1, SEQUENCE + 1):  # something to learn
        tokens[:, :, place] = (tokens[:, :, place - 1] * 7 + 3) % 53
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        found = {parts: train_with_terrace(program, folder, tokens, parts) for parts in (0, 128 * 96)}
    losses, norms, gradients, logits = train_with_torch(model, tokens)
    names, values = found[0]
    same = np.array_equal(values, found[128 * 96][1])
    steps, values = values[: 2 * STEPS].reshape(STEPS, 2), values[2 * STEPS :]
    loss_difference = np.max(np.abs(steps[:, 0] - losses) / losses)
    norm_difference = np.max(np.abs(steps[:, 1] - norms) / norms)
    worst = 0.0
    for weight in names:
        expected = gradients[weight]
        mine, values = values[: expected.size].reshape(expected.shape), values[expected.size :]
        worst = max(worst, np.linalg.norm(mine - expected) / np.linalg.norm(expected))
    logit_difference = np.max(np.abs(values - logits)) / np.max(np.abs(logits))
    print(
        f"| {name} | {losses[0]:.4f} -> {losses[-1]:.4f} | {loss_difference:.1e} | {norm_difference:.1e} "
        f"| {worst:.1e} | {logit_difference:.1e} | {'equal' if same else 'DIFFERENT'} |",
        flush=True,
    )
    return (
        loss_difference < LOSS_BOUND
        and worst < GRADIENT_BOUND
        and logit_difference < LOGIT_BOUND
        and same
        and set(names) == set(gradients)
    )


def main():
    transformers.logging.set_verbosity_error()
    print("| model | loss | loss, relative | gradient norm | gradients | logits | tables in parts |")
    print("|---|---|---|---|---|---|---|")
    results = [compare(name, make, sys.argv[1]) for name, make in MODELS.items()]
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
