#!/usr/bin/env python3
"""compare.py TERRACE [--keep FOLDER] [--only MODEL] [--large]

transformers makes small models with random weights; Terrace loads each with parameters and states on nvme, saves and
exports it after a step whose learning rate is 0; transformers loads the export. Every tensor must be equal, bit for bit where the
data type is the same. With --large the models have some hundred megabytes, and the time and the memory of each stage
are printed. Then adapters that Terrace trains are merged by Terrace and by PEFT. Needs `torch`, `transformers` and
`peft`."""

import argparse
import array
import pathlib
import re
import subprocess
import sys
import tempfile
import time

import torch
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def models(large):
    width, layers, vocabulary = (768, 8, 32000) if large else (48, 3, 301)
    llama = dict(
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=vocabulary,
        max_position_embeddings=128,
    )
    yield (
        "gpt2",
        GPT2Config(
            n_embd=width,
            n_layer=layers,
            n_head=4,
            vocab_size=vocabulary,
            n_positions=64,
            attn_pdrop=0.0,
            embd_pdrop=0.0,
            resid_pdrop=0.0,
        ),
    )
    yield "llama", LlamaConfig(**llama, tie_word_embeddings=False)
    yield "llama-tied", LlamaConfig(**llama, tie_word_embeddings=True)
    yield "mistral", MistralConfig(**llama, tie_word_embeddings=False)
    yield "qwen2", Qwen2Config(**llama, tie_word_embeddings=True)
    yield "qwen3", Qwen3Config(**llama, head_dim=width // 2, tie_word_embeddings=True)


def run(terrace, *arguments):
    """What the program wrote, seconds, and the most memory it had resident in MiB."""
    start = time.monotonic()
    memory = 0
    with tempfile.TemporaryFile("w+") as written:
        process = subprocess.Popen([terrace, *map(str, arguments)], stdout=written, stderr=written)
        while process.poll() is None:  # what wait4() says begins with the memory of this interpreter
            status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
            if found := re.search(r"VmHWM:\s*(\d+) kB", status):
                memory = max(memory, int(found.group(1)))
            time.sleep(0.002)
        written.seek(0)
        text = written.read()
    if process.returncode != 0:
        sys.exit(f"terrace {' '.join(map(str, arguments))}\n{text}")
    return text, time.monotonic() - start, memory / 1024


def differences(expected, found, dtype):
    """Names of tensors that are not the expected ones rounded to dtype."""
    wrong = sorted(expected.keys() ^ found.keys())
    for name in expected.keys() & found.keys():
        if found[name].dtype != dtype:
            wrong.append(f"{name}: {found[name].dtype}")
        elif not torch.equal(expected[name].to(dtype), found[name]):
            wrong.append(name)
    return wrong


def compare(terrace, folder, name, config, stored, exported, shards):
    torch.manual_seed(7)
    source, out, saved = folder / "source", folder / "out", folder / "saved"
    model = AutoModelForCausalLM.from_config(config).to(DTYPES[stored])
    for parameter in model.parameters():  # biases and norms too
        torch.nn.init.normal_(parameter, std=0.05)
    options = {"max_shard_size": shards} if shards else {}
    model.save_pretrained(source, **options)
    expected = model.state_dict()
    tokens = folder / "tokens.bin"
    tokens.write_bytes(array.array("H", range(300)).tobytes())
    (folder / "nvme").mkdir()
    precision = folder / "config.json"
    precision.write_text('{"%s": {"enabled": true}}' % stored if stored != "fp32" else "{}")
    written, _, _ = run(
        terrace,
        "train",
        "--model",
        source,
        "--config",
        precision,
        "--data",
        tokens,
        "--validation-fraction",
        0,
        "--context",
        16,
        "--micro-batch",
        1,
        "--steps",
        1,
        "--lr",
        0,
        "--save",
        saved,
        "--offload-param",
        "nvme",
        "--offload-optimizer",
        "nvme",
        "--nvme-path",
        folder / "nvme",
    )
    arguments = ["--max-shard-size", shards] if shards else []
    load_time = re.search(r"loaded the weights of .* in (.*)", written).group(1)
    _, export_time, memory = run(terrace, "export", saved, "--out", out, "--dtype", exported, *arguments)
    again = AutoModelForCausalLM.from_pretrained(out, dtype="auto")
    wrong = differences(expected, again.state_dict(), DTYPES[exported])
    files = len(list(out.glob("*.safetensors")))
    size = sum(file.stat().st_size for file in out.glob("*.safetensors"))
    print(
        f"{name:11} {stored} -> {exported}  {files} file(s), {size / 1e6:8.1f} MB  loaded in {load_time:>8}  "
        f"export {export_time:5.1f} s, {memory:.0f} MiB resident  "
        + ("equal" if not wrong else f"DIFFERS: {wrong[:5]}"),
        flush=True,
    )
    return not wrong


def compare_adapter(terrace, folder, name, config):
    """Adapters that Terrace trained, merged by Terrace and by PEFT."""
    from peft import PeftModel

    torch.manual_seed(7)
    source, saved, tokens, settings = (folder / part for part in ("source", "saved", "tokens.bin", "lora.json"))
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(source)
    tokens.write_bytes(array.array("H", range(300)).tobytes())
    settings.write_text('{"terrace": {"lora": {"rank": 4, "alpha": 8}}}')
    run(
        terrace,
        "train",
        "--model",
        source,
        "--config",
        settings,
        "--data",
        tokens,
        "--validation-fraction",
        0,
        "--context",
        16,
        "--micro-batch",
        1,
        "--steps",
        5,
        "--lr",
        0.05,
        "--save",
        saved,
    )
    run(terrace, "export", saved, "--out", folder / "merged")
    run(terrace, "export", saved, "--out", folder / "adapter", "--adapter", "--base", source)
    base = AutoModelForCausalLM.from_pretrained(source)
    before = {key: value.clone() for key, value in base.state_dict().items()}
    expected = PeftModel.from_pretrained(base, folder / "adapter").merge_and_unload().state_dict()
    found = AutoModelForCausalLM.from_pretrained(folder / "merged").state_dict()
    changed = sum(not torch.equal(expected[key], before[key]) for key in before)
    worst = max((expected[key] - found[key]).abs().max().item() for key in expected)
    good = expected.keys() == found.keys() and changed > 0 and worst < 1e-6
    print(
        f"{name:11} adapters: {changed} of {len(before)} tensors changed, merged by PEFT and by Terrace they differ by "
        f"at most {worst:.1e}  {'good' if good else 'DIFFERS'}",
        flush=True,
    )
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("terrace")
    parser.add_argument("--keep", type=pathlib.Path)
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--only", help="one of the models")
    arguments = parser.parse_args()
    good = True
    cases = [
        ("fp32", "fp32", None),
        ("bf16", "bf16", None),
        ("bf16", "bf16", "200KB"),
        ("fp16", "fp16", None),
        ("fp32", "bf16", None),
        ("bf16", "fp32", "200KB"),
    ]
    if arguments.large:
        cases = [("bf16", "bf16", "100MB")]
    for name, config in models(arguments.large):
        if arguments.only not in (None, name):
            continue
        for number, (stored, exported, shards) in enumerate(cases):
            with tempfile.TemporaryDirectory() as temporary:
                folder = pathlib.Path(arguments.keep or temporary) / f"{name}-{number}"
                folder.mkdir(parents=True)
                good &= compare(arguments.terrace, folder, name, config, stored, exported, shards)
        if not arguments.large:
            with tempfile.TemporaryDirectory() as temporary:
                good &= compare_adapter(arguments.terrace, pathlib.Path(temporary), name, config)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
