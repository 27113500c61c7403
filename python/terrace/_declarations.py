"""What capi/terrace.h and capi/terrace_run.h declare; written by python/generate_declarations.py."""

from ctypes import CFUNCTYPE, POINTER, Structure, c_char_p, c_double, c_int, c_uint32, c_uint64, c_void_p

ABI = 0

# The words of each enum.
ENUMS = {
    "terrace_error_kind": {
        "config": 1, "capacity": 2, "io": 3, "device_failed": 4, "corrupt": 5, "cancelled": 6, "misuse": 7,
        "internal": 8, "peer": 9,
    },
    "terrace_type": {"fp32": 0, "bf16": 1, "fp16": 2, "word": 3},
    "terrace_moment_type": {"fp32": 0, "bf16": 1, "int8": 2},
    "terrace_use_kind": {"forward": 0, "backward": 1, "inference": 2, "unit": 3},
    "terrace_placement": {"device": 0, "cpu": 1, "nvme": 2},
    "terrace_optimizer_kind": {"adamw": 0, "adam": 1, "adagrad": 2, "lion": 3, "sgd": 4, "muon": 5},
    "terrace_update_when": {"after_backward": 0, "next_forward": 1, "during_backward": 2},
    "terrace_gradient_origin": {"leased": 0, "handed_over": 1, "borrowed": 2, "handed_over_on_device": 3},
    "terrace_masters": {"whole": 0, "compact": 1, "parameter": 2},
    "terrace_unused_gradients": {"zero": 0, "skip": 1},
    "terrace_io_engine": {"best": 0, "uring": 1, "libaio": 2, "threads": 3},
    "terrace_log_level": {"info": 0, "warning": 1, "error": 2},
    "terrace_what": {"parameter": 0, "master": 1, "first_moment": 2, "second_moment": 3, "gradient": 4},
    "terrace_unit": {"bytes": 0, "count": 1, "nanoseconds": 2},
    "terrace_words": {"c": 0, "python": 1, "configuration": 2},
    "terrace_error_cause": {
        "other": 0, "no_store": 1, "store_busy": 2, "folder_in_use": 3, "no_path": 4, "unknown_name": 5,
    },
    "terrace_kept": {"commit": 1, "checkpoint": 2},
    "terrace_rank_exchange": {"symmetric": 0, "pulled": 1},
    "terrace_transport": {"auto": 0, "host": 1, "mpi": 2, "nccl": 3},
    "terrace_ends_process": {"never": 0, "always": 1, "with_store": 2},
}

terrace_log_fn = CFUNCTYPE(None, c_void_p, c_uint32, c_char_p)
terrace_fill_fn = CFUNCTYPE(c_int, c_void_p, c_uint32, c_uint64, c_uint64, c_void_p)
terrace_run_save_fn = CFUNCTYPE(c_uint32, c_void_p)
terrace_run_scalars_fn = CFUNCTYPE(None, c_void_p, c_uint64, c_void_p, c_void_p, c_uint32)


class terrace_error_parts(Structure):
    _fields_ = [
        ("size", c_uint32), ("kind", c_uint32), ("what_failed", c_char_p), ("subject", c_char_p),
        ("reason", c_char_p), ("advice", c_char_p), ("least_bytes", c_uint64), ("least_device_bytes", c_uint64),
        ("least_host_bytes", c_uint64), ("least_nvme_bytes", c_uint64),
    ]


class terrace_simulated_options(Structure):
    _fields_ = [
        ("size", c_uint32), ("strict", c_uint32), ("budget_bytes", c_uint64), ("h2d_bytes_per_second", c_uint64),
        ("d2h_bytes_per_second", c_uint64),
    ]


class terrace_cuda_options(Structure):
    _fields_ = [
        ("size", c_uint32), ("ordinal", c_uint32), ("budget_bytes", c_uint64), ("strict", c_uint32),
        ("reserved", c_uint32),
    ]


class terrace_tensor(Structure):
    _fields_ = [
        ("size", c_uint32), ("rank", c_uint32), ("name", c_char_p), ("shape", POINTER(c_uint64)),
        ("type", c_uint32), ("frozen", c_uint32), ("group", c_uint32), ("backward_uses", c_uint32),
        ("address", c_void_p), ("rounding_place", c_uint64), ("by_matrix", c_uint32),
        ("counted_elsewhere", c_uint32),
    ]


class terrace_use(Structure):
    _fields_ = [
        ("size", c_uint32), ("kind", c_uint32), ("key", c_char_p), ("tensors", POINTER(c_uint32)),
        ("tensor_count", c_uint32), ("micro_batch", c_uint32), ("encloses", c_uint32), ("reserved", c_uint32),
    ]


class terrace_options(Structure):
    _fields_ = [
        ("size", c_uint32), ("parameters", c_uint32), ("states", c_uint32), ("nvme_path_count", c_uint32),
        ("nvme_paths", POINTER(c_char_p)), ("tier_name", c_char_p), ("host_bytes", c_uint64),
        ("work_bytes", c_uint64), ("chunk_elements", c_uint64), ("accumulation_steps", c_uint32),
        ("layer_major", c_uint32), ("gradients", c_uint32), ("unused_gradients", c_uint32),
        ("update_when", c_uint32), ("threads", c_uint32), ("optimizer", c_uint32), ("sgd_momentum", c_uint32),
        ("moment_type", c_uint32), ("masters", c_uint32), ("accumulation_type", c_uint32), ("durable", c_uint32),
        ("retained_commits", c_uint32), ("resume", c_uint32), ("discard_commits", c_uint32),
        ("io_engine", c_uint32), ("no_host_lock", c_uint32), ("no_checksums", c_uint32), ("log", terrace_log_fn),
        ("log_context", c_void_p), ("ranks", c_void_p), ("divide_parameters", c_uint32),
        ("rank_exchange", c_uint32), ("saved_activations", c_uint32), ("hold_gradients", c_uint32),
        ("model_ranks", c_void_p),
    ]


class terrace_plan_result(Structure):
    _fields_ = [
        ("size", c_uint32), ("fits", c_uint32), ("chunk_elements", c_uint64), ("parameter_count", c_uint64),
        ("trainable_count", c_uint64), ("device_least_bytes", c_uint64), ("host_least_bytes", c_uint64),
        ("device_bytes", c_uint64), ("host_bytes", c_uint64), ("device_useful_bytes", c_uint64),
        ("file_bytes", c_uint64), ("chunk_count", c_uint32), ("keeps_commits", c_uint32),
    ]


class terrace_array(Structure):
    _fields_ = [
        ("size", c_uint32), ("tensor", c_uint32), ("data", c_void_p), ("type", c_uint32), ("reserved", c_uint32),
    ]


class terrace_file_part(Structure):
    _fields_ = [
        ("size", c_uint32), ("tensor", c_uint32), ("path", c_char_p), ("offset", c_uint64), ("type", c_uint32),
        ("reserved", c_uint32),
    ]


class terrace_gradient_view(Structure):
    _fields_ = [
        ("size", c_uint32), ("accumulate", c_uint32), ("data", c_void_p),
    ]


class terrace_optimizer(Structure):
    _fields_ = [
        ("size", c_uint32), ("kind", c_uint32), ("lr", c_double), ("beta1", c_double), ("beta2", c_double),
        ("eps", c_double), ("weight_decay", c_double), ("momentum", c_double), ("dampening", c_double),
        ("nesterov", c_uint32), ("no_bias_correction", c_uint32), ("exact", c_uint32), ("iterations", c_uint32),
        ("coefficient_a", c_double), ("coefficient_b", c_double), ("coefficient_c", c_double),
        ("matches_adamw", c_uint32), ("reserved", c_uint32),
    ]


class terrace_update_settings(Structure):
    _fields_ = [
        ("size", c_uint32), ("group_count", c_uint32), ("groups", POINTER(terrace_optimizer)), ("step", c_uint64),
        ("clip_norm", c_double), ("loss_scale", c_double),
    ]


class terrace_update_result(Structure):
    _fields_ = [
        ("size", c_uint32), ("applied", c_uint32), ("gradient_norm", c_double), ("partly_applied", c_uint32),
        ("reserved", c_uint32),
    ]


class terrace_counter(Structure):
    _fields_ = [
        ("size", c_uint32), ("unit", c_uint32), ("key", c_char_p), ("name", c_char_p),
    ]


class terrace_saved_use(Structure):
    _fields_ = [
        ("size", c_uint32), ("reserved", c_uint32), ("saved_count", c_uint64), ("host_bytes", c_uint64),
        ("host_peak_bytes", c_uint64), ("host_held_bytes", c_uint64), ("host_most_bytes", c_uint64),
        ("nvme_bytes", c_uint64), ("nvme_peak_bytes", c_uint64), ("file_bytes", c_uint64),
        ("step_wanted_bytes", c_uint64), ("step_host_bytes", c_uint64), ("step_nvme_bytes", c_uint64),
        ("step_d2h_bytes", c_uint64), ("step_h2d_bytes", c_uint64), ("step_read_bytes", c_uint64),
        ("step_write_bytes", c_uint64),
    ]


class terrace_config_options(Structure):
    _fields_ = [
        ("size", c_uint32), ("brings_optimizer", c_uint32), ("path", c_char_p), ("text", c_char_p),
        ("total_steps", c_uint64), ("brings_schedule", c_uint32), ("document_only", c_uint32), ("ranks", c_uint32),
        ("reserved", c_uint32), ("met", c_void_p),
    ]


class terrace_scheduled(Structure):
    _fields_ = [
        ("size", c_uint32), ("sets_betas", c_uint32), ("lr", c_double), ("beta1", c_double), ("beta2", c_double),
    ]


class terrace_loss_scale_state(Structure):
    _fields_ = [
        ("size", c_uint32), ("hysteresis", c_uint32), ("scale", c_double), ("good_steps", c_uint64),
        ("skipped_steps", c_uint64), ("skipped_in_a_row", c_uint32), ("reserved", c_uint32),
    ]


class terrace_state_options(Structure):
    _fields_ = [
        ("size", c_uint32), ("file_count", c_uint32), ("folder", c_char_p), ("name", c_char_p),
        ("files", POINTER(c_char_p)), ("log", terrace_log_fn), ("log_context", c_void_p),
        ("is_checkpoint", c_uint32), ("reserved", c_uint32),
    ]


class terrace_checkpoint(Structure):
    _fields_ = [
        ("size", c_uint32), ("precision", c_uint32), ("run", c_uint64), ("step", c_uint64), ("samples", c_uint64),
        ("model", c_char_p), ("optimizer", c_uint32), ("reserved", c_uint32),
        ("loss_scale", POINTER(terrace_loss_scale_state)), ("architecture", c_char_p),
    ]


class terrace_run_options(Structure):
    _fields_ = [
        ("size", c_uint32), ("is_resumed", c_uint32), ("steps", c_uint64), ("completed_steps", c_uint64),
        ("samples", c_uint64), ("model", c_char_p), ("config", c_char_p), ("log_path", c_char_p),
        ("tensorboard", c_char_p), ("csv", c_char_p), ("has_loss_scale", c_uint32), ("has_times", c_uint32),
        ("no_control", c_uint32), ("no_stall_warnings", c_uint32), ("stall_warning_seconds", c_uint32),
        ("micro_batches", c_uint32), ("control_folder", c_char_p), ("save", terrace_run_save_fn),
        ("save_context", c_void_p), ("log", terrace_log_fn), ("log_context", c_void_p),
        ("scalars", terrace_run_scalars_fn), ("scalars_context", c_void_p),
    ]


class terrace_run_step(Structure):
    _fields_ = [
        ("size", c_uint32), ("skipped", c_uint32), ("step", c_uint64), ("tokens", c_uint64), ("samples", c_uint64),
        ("loss", c_double), ("learning_rate", c_double), ("gradient_norm", c_double), ("loss_scale", c_double),
        ("next_loss_scale", c_double), ("forward_ns", c_uint64), ("update_ns", c_uint64),
    ]


class terrace_ranks_options(Structure):
    _fields_ = [
        ("size", c_uint32), ("transport", c_uint32), ("rank", c_uint32), ("count", c_uint32),
        ("timeout_seconds", c_uint32), ("ends_process", c_uint32), ("place", c_char_p), ("log", terrace_log_fn),
        ("log_context", c_void_p), ("among", c_void_p),
    ]


class terrace_ranks_facts(Structure):
    _fields_ = [
        ("size", c_uint32), ("rank", c_uint32), ("count", c_uint32), ("local_rank", c_uint32),
        ("local_count", c_uint32), ("reserved", c_uint32), ("host", c_char_p), ("launcher", c_char_p),
    ]


class terrace_patience(Structure):
    _fields_ = [
        ("size", c_uint32), ("stall_warning_seconds", c_uint32), ("stall_abort_seconds", c_uint32),
        ("reserved", c_uint32),
    ]


# The result and the arguments of each function.
FUNCTIONS = {
    "terrace_version": (c_char_p, []),
    "terrace_abi": (c_uint32, []),
    "terrace_error_kind_of": (c_uint32, [c_void_p]),
    "terrace_error_text": (c_char_p, [c_void_p]),
    "terrace_error_get": (None, [c_void_p, POINTER(terrace_error_parts)]),
    "terrace_error_free": (None, [c_void_p]),
    "terrace_device_simulated": (c_void_p, [POINTER(terrace_simulated_options), c_void_p]),
    "terrace_device_cuda": (c_void_p, [POINTER(terrace_cuda_options), c_void_p]),
    "terrace_device_free": (None, [c_void_p]),
    "terrace_plan": (
        c_void_p,
        [
            c_void_p, POINTER(terrace_tensor), c_uint32, POINTER(terrace_options), POINTER(terrace_use), c_uint32,
            POINTER(terrace_plan_result),
        ],
    ),
    "terrace_create": (
        c_void_p,
        [
            c_void_p, POINTER(terrace_tensor), c_uint32, POINTER(terrace_options), POINTER(terrace_use), c_uint32,
            c_void_p,
        ],
    ),
    "terrace_destroy": (None, [c_void_p]),
    "terrace_plan_of": (c_void_p, [c_void_p, POINTER(terrace_plan_result)]),
    "terrace_fill_arrays": (c_void_p, [c_void_p, POINTER(terrace_array), c_uint32]),
    "terrace_fill_files": (c_void_p, [c_void_p, POINTER(terrace_file_part), c_uint32]),
    "terrace_fill_with": (c_void_p, [c_void_p, terrace_fill_fn, c_void_p]),
    "terrace_read_values": (c_void_p, [c_void_p, c_uint32, c_uint32, c_uint64, c_uint64, c_void_p]),
    "terrace_write_values": (c_void_p, [c_void_p, c_uint32, c_uint32, c_uint64, c_uint64, c_void_p]),
    "terrace_tensor_steps": (c_void_p, [c_void_p, c_void_p, c_uint32]),
    "terrace_set_tensor_steps": (c_void_p, [c_void_p, c_void_p, c_uint32]),
    "terrace_has_whole_state": (c_void_p, [c_void_p, c_void_p]),
    "terrace_parameter_address": (c_void_p, [c_void_p, c_uint32, c_void_p]),
    "terrace_gradient_address": (c_void_p, [c_void_p, c_uint32, c_void_p]),
    "terrace_work_memory": (c_void_p, [c_void_p, c_void_p, c_void_p]),
    "terrace_compute_stream": (c_void_p, [c_void_p, c_void_p]),
    "terrace_use_stream": (c_void_p, [c_void_p, c_void_p]),
    "terrace_dlpack": (c_void_p, [c_void_p, c_uint32, c_uint32, c_void_p]),
    "terrace_begin_step": (c_void_p, [c_void_p]),
    "terrace_select_micro_batch": (c_void_p, [c_void_p, c_uint32]),
    "terrace_end_micro_batch": (c_void_p, [c_void_p]),
    "terrace_lease": (c_void_p, [c_void_p, c_char_p, c_uint32, c_void_p, c_uint32, c_void_p]),
    "terrace_release": (c_void_p, [c_void_p, c_uint64]),
    "terrace_parameter": (c_void_p, [c_void_p, c_uint32, c_void_p]),
    "terrace_gradient": (c_void_p, [c_void_p, c_uint32, POINTER(terrace_gradient_view)]),
    "terrace_hand_over": (c_void_p, [c_void_p, c_uint32, c_void_p, c_uint32, c_uint32]),
    "terrace_abandon_step": (c_void_p, [c_void_p]),
    "terrace_move_tensor": (c_void_p, [c_void_p, c_uint32, c_void_p]),
    "terrace_begin_evaluation": (c_void_p, [c_void_p]),
    "terrace_end_evaluation": (c_void_p, [c_void_p]),
    "terrace_update": (c_void_p, [c_void_p, POINTER(terrace_update_settings), POINTER(terrace_update_result)]),
    "terrace_announce_update": (c_void_p, [c_void_p, POINTER(terrace_update_settings)]),
    "terrace_finish_update": (c_void_p, [c_void_p]),
    "terrace_update_pending": (c_void_p, [c_void_p, c_void_p]),
    "terrace_set_update_when": (c_void_p, [c_void_p, c_uint32]),
    "terrace_get_update_when": (c_void_p, [c_void_p, c_void_p]),
    "terrace_begin_commit": (c_void_p, [c_void_p, c_char_p, c_uint32]),
    "terrace_finish_commit": (c_void_p, [c_void_p, c_void_p]),
    "terrace_commit_in_progress": (c_void_p, [c_void_p, c_void_p]),
    "terrace_last_commit": (c_void_p, [c_void_p, c_void_p]),
    "terrace_taken_up_text": (c_void_p, [c_void_p, c_void_p]),
    "terrace_why_no_commits": (c_void_p, [c_void_p, c_void_p]),
    "terrace_keep_tier": (c_void_p, [c_void_p, c_uint32]),
    "terrace_host_budget": (c_void_p, [c_void_p, c_void_p, c_void_p]),
    "terrace_set_host_budget": (c_void_p, [c_void_p, c_uint64]),
    "terrace_counter_count": (c_uint32, []),
    "terrace_counter_get": (c_void_p, [c_uint32, POINTER(terrace_counter)]),
    "terrace_counters": (c_void_p, [c_void_p, c_void_p, c_uint32]),
    "terrace_step_counters": (c_void_p, [c_void_p, c_void_p, c_uint32]),
    "terrace_has_commit": (c_void_p, [POINTER(terrace_options), c_void_p]),
    "terrace_gradient_squares": (c_void_p, [c_void_p, c_void_p, c_uint32, c_void_p]),
    "terrace_start_save": (c_void_p, [c_void_p, c_void_p, c_uint64, c_void_p]),
    "terrace_finish_save": (c_void_p, [c_void_p, c_uint64]),
    "terrace_start_load": (c_void_p, [c_void_p, c_uint64, c_void_p, c_void_p]),
    "terrace_finish_load": (c_void_p, [c_void_p, c_uint64]),
    "terrace_drop_saved": (c_void_p, [c_void_p, c_void_p, c_uint32]),
    "terrace_saved_use_of": (c_void_p, [c_void_p, POINTER(terrace_saved_use)]),
    "terrace_optimizers": (c_void_p, [c_void_p]),
    "terrace_error_get_as": (None, [c_void_p, c_uint32, POINTER(terrace_error_parts)]),
    "terrace_error_cause_of": (c_uint32, [c_void_p]),
    "terrace_config_read": (c_void_p, [POINTER(terrace_config_options), c_void_p]),
    "terrace_config_json": (c_void_p, [c_void_p, c_void_p]),
    "terrace_config_scheduled": (c_void_p, [c_void_p, c_uint64, c_uint32, c_double, POINTER(terrace_scheduled)]),
    "terrace_config_free": (None, [c_void_p]),
    "terrace_config_keys": (c_void_p, [c_void_p]),
    "terrace_loss_scale_create": (c_void_p, [c_void_p, c_void_p]),
    "terrace_loss_scale_note": (c_void_p, [c_void_p, c_uint32]),
    "terrace_loss_scale_get": (c_void_p, [c_void_p, POINTER(terrace_loss_scale_state)]),
    "terrace_loss_scale_restore": (c_void_p, [c_void_p, POINTER(terrace_loss_scale_state)]),
    "terrace_loss_scale_free": (None, [c_void_p]),
    "terrace_state_begin": (c_void_p, [POINTER(terrace_state_options), c_void_p]),
    "terrace_state_file": (c_void_p, [c_void_p, c_char_p]),
    "terrace_state_write": (c_void_p, [c_void_p, c_void_p, c_uint64]),
    "terrace_state_checkpoint": (c_void_p, [c_void_p, c_void_p, POINTER(terrace_checkpoint)]),
    "terrace_state_complete": (c_void_p, [c_void_p, c_char_p, c_uint32]),
    "terrace_state_end": (None, [c_void_p]),
    "terrace_state_open": (c_void_p, [POINTER(terrace_state_options), c_void_p]),
    "terrace_state_path": (c_void_p, [c_void_p, c_void_p]),
    "terrace_state_facts": (c_void_p, [c_void_p, c_void_p]),
    "terrace_state_size": (c_void_p, [c_void_p, c_char_p, c_void_p]),
    "terrace_state_read": (c_void_p, [c_void_p, c_char_p, c_uint64, c_uint64, c_void_p]),
    "terrace_state_values": (c_void_p, [c_void_p, c_uint32, c_uint32, c_uint64, c_uint64, c_void_p]),
    "terrace_state_verify": (c_void_p, [c_void_p]),
    "terrace_state_close": (None, [c_void_p]),
    "terrace_safetensors_check": (c_void_p, [c_void_p, c_uint64, c_uint64, c_char_p]),
    "terrace_run_begin": (c_void_p, [c_void_p, POINTER(terrace_run_options), c_void_p]),
    "terrace_run_step_done": (c_void_p, [c_void_p, POINTER(terrace_run_step), c_void_p]),
    "terrace_run_evaluated": (c_void_p, [c_void_p, c_uint64, c_double]),
    "terrace_run_kept": (c_void_p, [c_void_p, c_uint64, c_char_p]),
    "terrace_run_end": (c_void_p, [c_void_p, c_uint64, c_char_p, c_char_p, c_char_p]),
    "terrace_run_free": (None, [c_void_p]),
    "terrace_launched": (c_void_p, [c_void_p, c_void_p, c_void_p]),
    "terrace_ranks_join": (c_void_p, [POINTER(terrace_ranks_options), c_void_p]),
    "terrace_ranks_get": (c_void_p, [c_void_p, POINTER(terrace_ranks_facts)]),
    "terrace_ranks_agree": (c_void_p, [c_void_p, POINTER(c_char_p), POINTER(c_char_p), c_uint32]),
    "terrace_ranks_ballot": (c_void_p, [c_void_p, c_void_p, c_uint64, c_void_p]),
    "terrace_ranks_step": (c_void_p, [c_void_p, c_uint64, c_char_p]),
    "terrace_ranks_kept": (c_void_p, [c_void_p, c_char_p]),
    "terrace_ranks_check": (c_void_p, [c_void_p]),
    "terrace_ranks_patience": (c_void_p, [c_void_p, POINTER(terrace_patience)]),
    "terrace_ranks_where": (c_void_p, [c_void_p, c_void_p]),
    "terrace_ranks_end": (c_void_p, [c_void_p, c_char_p, c_uint32, c_uint32, c_void_p]),
    "terrace_ranks_free": (None, [c_void_p]),
}
