"""Adapters of peft over a frozen model that stays on nvme: only the adapters have optimizer states.

python examples/python/lora_peft.py --nvme-path /mnt/nvme
"""

import argparse
import tempfile

import peft
import terrace.torch
import torch
from transformers import AutoModelForCausalLM, LlamaConfig


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nvme-path", default=tempfile.gettempdir())
    parser.add_argument("--steps", type=int, default=20)
    arguments = parser.parse_args()
    torch.manual_seed(1)
    with terrace.torch.init(arguments.nvme_path):
        base = AutoModelForCausalLM.from_config(
            LlamaConfig(
                hidden_size=128, num_hidden_layers=4, num_attention_heads=4, intermediate_size=512, vocab_size=512
            )
        )
        model = peft.get_peft_model(base, peft.LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj"]))
    config = {
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}},
        "zero_optimization": {
            "stage": 3,
            "offload_param": {"device": "nvme", "nvme_path": arguments.nvme_path},
            "offload_optimizer": {"device": "cpu"},
        },
        "terrace": {"device_memory": "8MiB", "host_memory": "32MiB", "durable": False},
    }
    engine, optimizer, _, _ = terrace.initialize(model=model, config=config)
    plan = engine.store.plan
    print(f"{plan.trainable_count} of {plan.parameter_count} parameters in the store are trained")
    tokens = torch.arange(128).view(4, 32) % 61
    for step in range(arguments.steps):
        loss = engine(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 5 == 0 or step + 1 == arguments.steps:
            print(f"step {step + 1}: loss {loss.item():.4f}")
    with tempfile.TemporaryDirectory() as folder:
        engine.module.save_pretrained(folder)  # the adapters alone
    engine.close()


if __name__ == "__main__":
    main()
