"""Any causal language model of transformers, with the configuration file that `terrace train` takes.

python examples/python/any_family.py --model google/gemma-2-2b --config ds.json --text book.txt --output trained

Without --model it is a small mixture of experts with random weights, and without --text it reads the programs of this
folder, so that nothing has to be fetched.
"""

import argparse
import pathlib
import tempfile

import terrace
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, MixtralConfig


def small_mixture_of_experts():
    shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = MixtralConfig(**shape, num_key_value_heads=2, num_local_experts=4, vocab_size=256)
    return AutoModelForCausalLM.from_config(config)


def on_nvme(folder):
    nvme = {"device": "nvme", "nvme_path": folder}
    return {
        "gradient_clipping": 1.0,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
        "zero_optimization": {"stage": 3, "offload_param": nvme, "offload_optimizer": nvme},
        "terrace": {"device_memory": "4MiB", "host_memory": "32MiB", "durable": False},
    }


def tokens_of(text, model):
    if model is None:
        return torch.tensor(list(text.encode()))
    return torch.tensor(AutoTokenizer.from_pretrained(model)(text)["input_ids"])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", help="a folder, or OWNER/NAME")
    parser.add_argument("--config", help="a DeepSpeed file; without it parameters and states are on nvme")
    parser.add_argument("--nvme-path", default=tempfile.gettempdir(), help="where they are without --config")
    parser.add_argument("--text", help="a file to train on")
    parser.add_argument("--length", type=int, default=64, help="tokens of a sequence")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--output", help="a folder for the trained model")
    arguments = parser.parse_args()
    torch.manual_seed(1)
    if arguments.model is None:
        model = small_mixture_of_experts()
    else:
        model = AutoModelForCausalLM.from_pretrained(arguments.model)
    files = [arguments.text] if arguments.text else sorted(pathlib.Path(__file__).parent.glob("*.py"))
    tokens = tokens_of("".join(pathlib.Path(file).read_text() for file in files), arguments.model)
    config = arguments.config or on_nvme(arguments.nvme_path)
    with terrace.initialize(model=model, config=config)[0] as engine:
        for step in range(1, arguments.steps + 1):
            for _ in range(engine.gradient_accumulation_steps()):
                at = torch.randint(len(tokens) - arguments.length, (4, 1)) + torch.arange(arguments.length)
                loss = engine(input_ids=tokens[at], labels=tokens[at]).loss
                engine.backward(loss)
                engine.step()
            if step % 10 == 0 or step == arguments.steps:
                print(f"step {step}: loss {loss.item():.4f}")
        if arguments.output:
            engine.save_safetensors(arguments.output)
            model.config.save_pretrained(arguments.output)


if __name__ == "__main__":
    main()
