"""QLoRA of the shape of a 7 B model with random codes: adapters are trained over a base of NF4 that lies on a drive, and the
losses have to be those of a base that lies in device memory as a whole.

python bench/python/qlora.py FOLDER                       # 32 layers of 4096 and 11008: 8.5 GB of the drive
python bench/python/qlora.py FOLDER --device 1GiB --host 1GiB
python bench/python/qlora.py FOLDER --layers 4

The drive's own direct rate comes from `terrace bench io`; TERRACE_PROGRAM names the program. Each run is a process.
"""

import argparse
import json
import os
import pathlib
import resource
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))

import peft
import terrace.torch
import torch
from terrace.torch.mapped import mapped_empty
from transformers import LlamaConfig, LlamaForCausalLM

WIDTH, INNER, HEADS, WORDS = 4096, 11008, 32, 32000
DEVIATION = 0.02
PART_BYTES = 64 << 20


def numbers_of(name, parameter, folder):
    """Values by the name of a parameter, in an unlinked file: codes of any kind, scales and numbers of a small model."""
    seed = sum(ord(letter) * (place + 1) * 7919 for place, letter in enumerate(name))
    generator = torch.Generator().manual_seed(seed)
    out = mapped_empty(parameter.shape, parameter.dtype, folder)
    flat = out.view(-1)
    if name.endswith("scales"):
        numbers = flat.view(torch.float32)
        numbers.uniform_(2 * DEVIATION, 3 * DEVIATION, generator=generator)
    elif parameter.dtype == torch.uint8:
        for part in flat.split(PART_BYTES):
            part.random_(0, 256, generator=generator)
    elif "norm" in name:
        flat.fill_(1)
    else:
        for part in flat.split(PART_BYTES):
            part.normal_(0, DEVIATION, generator=generator)
    return out


def base_of(layers, folder):
    """A frozen base whose layers no bytes of more than one lie in memory for."""
    shape = LlamaConfig(
        hidden_size=WIDTH,
        intermediate_size=INNER,
        num_hidden_layers=layers,
        num_attention_heads=HEADS,
        vocab_size=WORDS,
        max_position_embeddings=2048,
        tie_word_embeddings=False,
    )
    with terrace.torch.init(meta=True):
        model = LlamaForCausalLM(shape).to(torch.bfloat16)
    model.requires_grad_(False)
    terrace.torch.quantize_base(model, "nf4")
    for owner_name, owner in model.named_modules():
        for name, parameter in list(owner._parameters.items()):
            if parameter is not None:
                values = numbers_of(f"{owner_name}.{name}", parameter, folder)
                owner._parameters[name] = torch.nn.Parameter(values, requires_grad=False)
    return model


def configured(options, place):
    where = {"device": "nvme", "nvme_path": options.folder} if place == "nvme" else {"device": "none"}
    return {
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
        "gradient_clipping": 1.0,
        "zero_optimization": {"stage": 3, "offload_param": where, "offload_optimizer": {"device": "cpu"}},
        "terrace": {
            "host_memory": options.host,
            "durable": False,
            **({"device_memory": options.device} if place == "nvme" else {}),
        },
    }


def run(options, place):
    """One JSON object: losses, seconds and bytes of each step, what was planned and what the process has held."""
    began = time.monotonic()
    torch.manual_seed(1)
    model = base_of(options.layers, options.folder)
    lora = peft.LoraConfig(r=16, lora_alpha=32, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"])
    model = peft.get_peft_model(model, lora)
    engine, optimizer, _, _ = terrace.initialize(model=model, config=configured(options, place))
    plan = engine.store.plan
    words = [spec.elements for spec in engine.store.tensors if spec.type == "word"]
    told = {"place": place, "seconds_until_ready": time.monotonic() - began, "bytes_of_codes": 4 * sum(words)}
    told.update(device_bytes=plan.device_bytes, host_bytes=plan.host_bytes, nvme_bytes=plan.file_bytes)
    told.update(trained=plan.trainable_count, losses=[], steps=[])
    for step in range(options.steps):
        tokens = torch.randint(0, WORDS, (1, options.tokens), generator=torch.Generator().manual_seed(step))
        start = time.monotonic()
        loss = engine(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        seconds = time.monotonic() - start
        found = engine.store.step_counters()
        moved = {name: found[name] for name in ("param_read", "param_write", "h2d", "disk_busy", "fetch_wait")}
        told["losses"].append(loss.item().hex())
        told["steps"].append({"seconds": seconds, **moved})
        print(
            f"base in {place}: step {step + 1} took {seconds:.0f} s, loss {loss.item():.6f}",
            file=sys.stderr,
            flush=True,
        )
    engine.close()
    told["peak_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    print(json.dumps(told))


def in_a_process(options, place):
    command = [sys.executable, "-W", "ignore", __file__, options.folder, "--place", place]
    for name in ("layers", "steps", "tokens", "device", "host"):
        command += [f"--{name}", str(getattr(options, name))]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"the run with the base in {place} failed: {done.returncode}")
    return json.loads(done.stdout.splitlines()[-1])


def drive_rate(folder):
    """Bytes per second of direct reads, by `terrace bench io`."""
    program = os.environ.get("TERRACE_PROGRAM", "terrace")
    command = [program, "bench", "io", "--directory", folder, "--rw", "read", "--size", "2GiB", "--json"]
    text = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    return json.loads(text)["jobs"][0]["read"]["bw_bytes"]


def say(told, rate):
    print(
        f"base in {told['place']}: {told['bytes_of_codes'] / 1e9:.3f} GB of codes and scales, {told['trained']} trained"
    )
    print(
        f"  planned {told['device_bytes'] / 2**30:.2f} GiB device, {told['host_bytes'] / 2**30:.2f} GiB host, "
        f"{told['nvme_bytes'] / 1e9:.2f} GB nvme; the process had {told['peak_bytes'] / 2**30:.2f} GiB at most, mapped "
        f"pages of the source too; ready after {told['seconds_until_ready']:.0f} s"
    )
    for number, step in enumerate(told["steps"]):
        read, busy = step["param_read"], step["disk_busy"] / 1e9
        line = f"  step {number + 1}: loss {float.fromhex(told['losses'][number]):.6f}, {step['seconds']:.1f} s, "
        line += (
            f"{read / 1e9:.3f} GB read, {step['param_write']} bytes written, waited {step['fetch_wait'] / 1e9:.1f} s"
        )
        if read and busy:
            line += f"; {read / busy / 1e9:.2f} GB/s while the drive was busy"
            line += f" = {100 * read / busy / rate:.0f} % of {rate / 1e9:.2f} GB/s" if rate else ""
        print(line)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="on the drive")
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--device", default="4GiB")
    parser.add_argument("--host", default="8GiB")
    parser.add_argument("--place", choices=("nvme", "memory"), help="makes one run, and prints it as JSON")
    options = parser.parse_args()
    if options.place:
        return run(options, options.place)
    rate = drive_rate(options.folder)
    found = [in_a_process(options, place) for place in ("nvme", "memory")]
    for told in found:
        say(told, rate)
    if found[0]["losses"] != found[1]["losses"]:
        raise SystemExit("the losses differ")
    print("losses are the same, bit for bit")


if __name__ == "__main__":
    main()
