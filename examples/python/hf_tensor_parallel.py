"""A model of transformers whose layers processes divide as its own `tp_plan` says, each with parameters and states of its part
in host memory or on an NVMe drive.

    torchrun --nproc-per-node 2 examples/python/hf_tensor_parallel.py --nvme-path /mnt/nvme
    torchrun --nproc-per-node 4 examples/python/hf_tensor_parallel.py --tensor-parallel 2

Without --tensor-parallel all processes share one copy of the model; else so many do, and the copies divide the batch.
`from_pretrained(folder, distributed_config=DistributedConfig(tp_plan="auto"))` divides a model among all processes, without copies:
for that, give what it returns to terrace.initialize in the place of build().
"""

import argparse
import re

import terrace
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.distributed.tensor_parallel import apply_tensor_parallelism

WORDS, CONTEXT = 64, 32


def build(mesh):
    """All processes make the same weights; each keeps its shards of them."""
    torch.manual_seed(1)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=WORDS,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=CONTEXT,
            tie_word_embeddings=False,
            use_cache=False,
        )
    )
    return model if mesh is None else apply_tensor_parallelism(model, mesh, plan_of(model))


def plan_of(model):
    """model.tp_plan has "model.layers.*.mlp.up_proj": "colwise"; each of these modules, behind its parameters."""
    found = {}
    for name, module in model.named_modules():
        style = model.tp_plan.get(re.sub(r"\d+", "*", name))
        if style is not None:
            found.update({f"{name}.{parameter}": style for parameter, _ in module.named_parameters(recurse=False)})
            found[name] = style
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--tensor-parallel", type=int, default=0, help="processes that share one copy of the model")
    parser.add_argument("--nvme-path", help="a folder on an NVMe drive; without it all is in host memory")
    arguments = parser.parse_args()
    if dist.is_torchelastic_launched():
        dist.init_process_group("gloo")
    processes = dist.get_world_size() if dist.is_initialized() else 1
    shared = arguments.tensor_parallel or processes
    copies = processes // shared
    mesh = None
    if shared > 1:
        mesh = init_device_mesh("cpu", (copies, shared), mesh_dim_names=("data", "tp"))["tp"]
    place = {"device": "nvme", "nvme_path": arguments.nvme_path} if arguments.nvme_path else {"device": "cpu"}
    engine, _, _, _ = terrace.initialize(
        model=build(mesh),
        model_parallel_size=shared,
        config={
            "train_batch_size": 8,
            "gradient_accumulation_steps": 1,
            "gradient_clipping": 1.0,
            "optimizer": {"type": "AdamW", "params": {"lr": 3e-3}},
            "zero_optimization": {"stage": 3, "offload_param": place, "offload_optimizer": place},
            "terrace": {"host_memory": "64MiB"},
        },
    )
    copy = 0 if not dist.is_initialized() else dist.get_rank() // shared
    for step in range(arguments.steps):
        starts = torch.arange(8)[copy::copies, None] * 7 + step
        tokens = (starts + torch.arange(CONTEXT)) % WORDS
        loss = engine(input_ids=tokens, labels=tokens).loss
        engine.backward(loss)
        engine.step()
        mean = loss.detach().clone()
        if dist.is_initialized():
            dist.all_reduce(mean)
            mean /= processes
        if engine.global_rank == 0 and (step % 5 == 0 or step + 1 == arguments.steps):
            print(f"step {step}: loss {mean.item():.4f}, norm {engine.get_global_grad_norm():.4f}")
    engine.close()
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
