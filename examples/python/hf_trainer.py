"""transformers.Trainer with its usual arguments, over a model whose parameters and states are in host memory.

The model is made from a configuration, so that nothing has to be fetched; from_pretrained does as well.

    python examples/python/hf_trainer.py --steps 20 --output /tmp/trained
    torchrun --nproc-per-node 2 examples/python/hf_trainer.py --steps 20 --output /tmp/trained
"""

import argparse
import tempfile

import torch
from terrace.hf import TerraceTrainer
from transformers import AutoModelForCausalLM, GPT2Config, TrainingArguments


class Counting(torch.utils.data.Dataset):
    """Numbers that follow each other."""

    def __len__(self):
        return 256

    def __getitem__(self, at):
        tokens = (torch.arange(32) + at) % 64
        return {"input_ids": tokens, "labels": tokens}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--output", default=tempfile.mkdtemp())
    arguments = parser.parse_args()
    torch.manual_seed(1)
    shape = {"n_embd": 128, "n_layer": 4, "n_head": 4, "vocab_size": 64, "n_positions": 32}
    model = AutoModelForCausalLM.from_config(GPT2Config(**shape, bos_token_id=0, eos_token_id=0))
    trainer = TerraceTrainer(
        model=model,
        args=TrainingArguments(
            output_dir=arguments.output,
            max_steps=arguments.steps,
            per_device_train_batch_size=4,
            gradient_accumulation_steps=2,
            learning_rate=1e-3,
            logging_steps=5,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
        ),
        train_dataset=Counting(),
        terrace_config={
            "zero_optimization": {
                "stage": 3,
                "offload_param": {"device": "cpu"},
                "offload_optimizer": {"device": "cpu"},
            },
            "terrace": {"device_memory": "4MiB", "host_memory": "64MiB"},
        },
    )
    loss = trainer.train().training_loss
    trainer.save_model(arguments.output)  # on all ranks: each brings its share
    if trainer.is_world_process_zero():
        print(f"training loss {loss:.4f}")
        again = AutoModelForCausalLM.from_pretrained(arguments.output)
        print(f"saved and loaded {sum(one.numel() for one in again.parameters())} parameters")


if __name__ == "__main__":
    main()
