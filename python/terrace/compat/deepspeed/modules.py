"""DeepSpeed's modules, where the names of each are in Terrace, and what to use in place of those without meaning."""

from __future__ import annotations

RELEASE = "0.19.8"

_OWN = __package__
_ADAM = ("terrace.ops.adam",)
_ADAGRAD, _LION = ("terrace.ops.adagrad",), ("terrace.ops.lion",)
_CHECKPOINTING = ("terrace.checkpointing",)
_COMM = ("terrace.comm",)
_GROUPS = (f"{_OWN}.groups",)
_HELPERS = (f"{_OWN}.helpers",)
_PIPE = ("terrace.pipe",)
_SAVED = (f"{_OWN}.saved",)
_SCHEDULES = (f"{_OWN}.schedules",)
_STARTING = (f"{_OWN}.starting",)
_TENSORS = (f"{_OWN}.tensors",)
_WORDS = (f"{_OWN}.words",)
_ZERO = ("terrace.zero", *_WORDS)

# What of DeepSpeed has a meaning: {its module: the modules of Terrace that have its names}. One that contains others
# need not be here.
MODULES: dict[str, tuple[str, ...]] = {
    "": (_OWN, "terrace.accelerator", *_PIPE),
    "accelerator": ("terrace.accelerator",),
    "accelerator.real_accelerator": ("terrace.accelerator",),
    "checkpoint.utils": _HELPERS,
    "checkpointing": _CHECKPOINTING,
    "comm": _COMM,
    "comm.comm": _COMM,
    "git_version_info": (_OWN,),
    "ops": (),
    "ops.adagrad": _ADAGRAD,
    "ops.adagrad.cpu_adagrad": _ADAGRAD,
    "ops.adam": _ADAM,
    "ops.adam.cpu_adam": _ADAM,
    "ops.adam.fused_adam": _ADAM,
    "ops.lion": _LION,
    "ops.lion.cpu_lion": _LION,
    "ops.lion.fused_lion": _LION,
    "pipe": _PIPE,
    "runtime.activation_checkpointing.checkpointing": _CHECKPOINTING,
    "runtime.base_optimizer": _STARTING,
    "runtime.config": _STARTING,
    "runtime.dataloader": _HELPERS,
    "runtime.engine": _STARTING,
    "runtime.lr_schedules": _SCHEDULES,
    "runtime.pipe": _PIPE,
    "runtime.pipe.engine": ("terrace.pipe.stages",),
    "runtime.pipe.module": _PIPE,
    "runtime.pipe.schedule": ("terrace.pipe.schedule",),
    "runtime.pipe.topology": ("terrace.pipe.topology",),
    "runtime.utils": _HELPERS,
    "runtime.zero": _ZERO,
    "runtime.zero.config": _WORDS,
    "runtime.zero.offload_config": _WORDS,
    "runtime.zero.partition_parameters": _ZERO,
    "utils": (*_HELPERS, *_TENSORS),
    "utils.groups": _GROUPS,
    "utils.logging": _HELPERS,
    "utils.tensor_fragment": _TENSORS,
    "utils.z3_leaf_module": _HELPERS,
    "utils.zero_to_fp32": _SAVED,
    "zero": _ZERO,
}

_EXPERTS = "experts are modules like others: bring them to device memory one by one, with units= of initialize"
_FUSED = "take AdamW, Adam, Lion, Adagrad or SGD: the engine computes them"
_GENERATE = "call the model, or engine.module.generate(...), under torch.no_grad()"
_NO_BUILD = "leave it out: nothing is compiled when a program runs"
_PROFILE = "use torch.profiler, or torch.utils.flop_counter"
_TIMES = "measure steps with time.perf_counter() or torch.profiler"
_UNDIVIDED = "leave it out: parameters that do not fit are on cpu or nvme, as offload_param says"
_ZERO_OPTIMIZER = "the optimizer that initialize returns is deepspeed.DeepSpeedOptimizer"

# Modules without meaning, with all that is in them.
WAYS_OF_MODULES = {
    "autotuning": "terrace tune measures the machine, and terrace plan says what fits",
    "compression": "use torch.ao.quantization on the trained model",
    "elasticity": "start again with another number of ranks: a checkpoint is of any number of them",
    "inference": _GENERATE,
    "io": "engine.save_checkpoint writes by itself as fast as the drive takes it",
    "launcher": "start with python, torchrun or terrace launch",
    "linear": "use peft: frozen weights may be on nvme",
    "module_inject": _GENERATE,
    "moe": _EXPERTS,
    "monitor": "switch tensorboard, csv_monitor, wandb or comet on in the configuration, or give step_log= to initialize",
    "nebula": "use engine.save_checkpoint, or engine.commit, which goes on beside the training",
    "nvme": "terrace bench and terrace tune measure drives",
    "ops.aio": "the engine reads and writes nvme by itself, as the section aio says",
    "ops.lamb": _FUSED,
    "ops.op_builder": _NO_BUILD,
    "ops.sparse_attention": "use torch.nn.attention.flex_attention",
    "ops.transformer": "use layers of torch or transformers",
    "profiling": _PROFILE,
    "runtime.bf16_optimizer": _ZERO_OPTIMIZER,
    "runtime.comm": "gradients are exchanged as they are",
    "runtime.data_pipeline": "give a sampler of your own to a torch.utils.data.DataLoader",
    "runtime.fp16": "set fp16 in the configuration: the engine scales losses",
    "runtime.fp16.onebit": _FUSED,
    "runtime.hybrid_engine": _GENERATE,
    "runtime.sequence_parallel": _UNDIVIDED,
    "runtime.tensor_parallel": _UNDIVIDED,
    "runtime.zero.parameter_offload": _ZERO_OPTIMIZER,
    "runtime.zero.stage3": _ZERO_OPTIMIZER,
    "runtime.zero.stage_1_and_2": _ZERO_OPTIMIZER,
    "sequence": _UNDIVIDED,
    "utils.timer": _TIMES,
}

# Names without meaning in modules that have one.
WAYS = {
    "DeepSpeedConfig": "use terrace.config.read_config",
    "DeepSpeedDataLoader": "give training_data= to initialize, or make a torch.utils.data.DataLoader",
    "DeepSpeedHybridEngine": _GENERATE,
    "DeepSpeedInferenceConfig": _GENERATE,
    "DeepSpeedTransformerConfig": "use layers of torch or transformers",
    "DeepSpeedTransformerLayer": "use layers of torch or transformers",
    "InferenceEngine": _GENERATE,
    "OnDevice": "make the model on the processor, or within terrace.torch.init(folder) in files",
    "TiledLinear": "use torch.nn.Linear: a layer is brought to device memory row by row where terrace.device_memory asks",
    "clip_grad_norm_": "call engine.clip_grad_norm_(max_norm) before the step, or set gradient_clipping",
    "default_inference_config": _GENERATE,
    "init_inference": _GENERATE,
    "memory_status": "engine.store.plan and engine.store.counters() have the bytes",
    "replace_transformer_layer": _GENERATE,
    "set_autotp_mode": _UNDIVIDED,
    "tp_model_init": _UNDIVIDED,
    "unwrap_model_for_generation": _GENERATE,
}
for _name in ("zero2_model_states_mem_needs", "zero3_model_states_mem_needs"):
    for _end in ("all_live", "all_cold"):
        WAYS[f"estimate_{_name}_{_end}"] = "terrace.torch.plan_model(model, config) says what a training takes"
for _name in ("all_to_all", "all_to_all_single", "gather", "irecv", "isend", "new_group", "recv", "scatter", "send"):
    WAYS[_name] = "the engine exchanges parameters and gradients by itself; for what is yours use torch.distributed"
for _name in ("reduce_scatter", "reduce_scatter_tensor", "reduce_scatter_fn"):
    WAYS[_name] = "use all_reduce, or torch.distributed for what is yours"
