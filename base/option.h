// Option: every option that an error or a line of the log may name. TERRACE_OPTIONS is the one list of them
// and of their names at each door (wording.h): for a program in C++ a member or a function, in C a member of
// a struct, in Python a keyword, for the program `terrace` a flag, in a configuration a key. An option
// without a name at a door has TERRACE_NONE or "" there. A word with a blank says the value that is meant
// too.
//
// To add an option, add a row. tests/runtime/config/option_table_test.cpp holds the members to the headers
// and the keys to the schema, tests/tools/usage the flags to the program, and tests/python/test_errors.py the
// keywords.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include <terrace/base/wording.h>

// clang-format off
#define TERRACE_OPTIONS(ROW) \
  /* where things are */ \
  ROW(parameters, TERRACE_MEMBER(OffloadOptions, parameters), TERRACE_C_MEMBER(terrace_options, parameters), "parameters", "--offload-param", "zero_optimization.offload_param.device") \
  ROW(states, TERRACE_MEMBER(OffloadOptions, states), TERRACE_C_MEMBER(terrace_options, states), "states", "--offload-optimizer", "zero_optimization.offload_optimizer.device") \
  ROW(nvme_path, TERRACE_MEMBER(TierPath, path), TERRACE_C_MEMBER(terrace_options, nvme_paths), "nvme_paths", "--nvme-path", "nvme_path") \
  ROW(tier_name, TERRACE_MEMBER(OffloadOptions, tier_name), TERRACE_C_MEMBER(terrace_options, tier_name), "tier_name", "--nvme-path", "") \
  ROW(durable, TERRACE_MEMBER(OffloadOptions, durable), TERRACE_C_MEMBER(terrace_options, durable), "durable", "", "terrace.durable") \
  ROW(retained_commits, TERRACE_MEMBER(OffloadOptions, retained_commits), TERRACE_C_MEMBER(terrace_options, retained_commits), "retained_commits", "", "terrace.retained_checkpoints") \
  ROW(resume, TERRACE_MEMBER(OffloadOptions, tier_start), TERRACE_C_MEMBER(terrace_options, resume), "resume", "--resume nvme", "") \
  ROW(discard_commits, TERRACE_MEMBER(OffloadOptions, discard_commits), TERRACE_C_MEMBER(terrace_options, discard_commits), "discard_commits", "--fresh", "") \
  ROW(masters, TERRACE_MEMBER(OffloadOptions, record_layout), TERRACE_C_MEMBER(terrace_options, masters), "masters", "--compact-state", "terrace.compact_state") \
  ROW(optimizer, TERRACE_NONE, TERRACE_C_MEMBER(terrace_options, optimizer), "optimizer", "", "optimizer.type") \
  ROW(moment_type, TERRACE_NONE, TERRACE_C_MEMBER(terrace_options, moment_type), "moment_type", "--state-type", "terrace.state_type") \
  ROW(chunk_elements, TERRACE_MEMBER(FlatSpace, chunk_elements), TERRACE_C_MEMBER(terrace_options, chunk_elements), "chunk_elements", "--chunk-elements", "terrace.chunk_elements") \
  ROW(earlier_store, "destroy the earlier Offloader", "destroy the earlier store", "call close() of the earlier Store", "", "call close() of the earlier engine") \
  /* budgets */ \
  ROW(device_budget, TERRACE_MEMBER(OffloadOptions, device_budget_bytes), TERRACE_C_MEMBER(terrace_simulated_options, budget_bytes), "budget_bytes of the device", "--device-memory", "terrace.device_memory") \
  ROW(cuda_budget, TERRACE_NONE, TERRACE_C_MEMBER(terrace_cuda_options, budget_bytes), "budget_bytes of the device", "--device-memory", "terrace.device_memory") \
  ROW(host_budget, TERRACE_MEMBER(OffloadOptions, host_budget_bytes), TERRACE_C_MEMBER(terrace_options, host_bytes), "host_bytes", "--host-memory", "terrace.host_memory") \
  ROW(work_bytes, TERRACE_MEMBER(OffloadOptions, work_bytes), TERRACE_C_MEMBER(terrace_options, work_bytes), "work_bytes", "", "") \
  ROW(saved_activations, TERRACE_MEMBER(OffloadOptions, saved_activations), TERRACE_C_MEMBER(terrace_options, saved_activations), "saved_activations", "", "terrace.offload_activations") \
  ROW(lock_host_memory, TERRACE_MEMBER(OffloadOptions, lock_host_memory), TERRACE_C_MEMBER(terrace_options, no_host_lock), "no_host_lock", "", "zero_optimization.offload_optimizer.pin_memory") \
  /* steps */ \
  ROW(micro_batches, TERRACE_MEMBER(OffloadOptions, micro_batches), TERRACE_C_MEMBER(terrace_options, accumulation_steps), "accumulation_steps", "--accumulation", "gradient_accumulation_steps") \
  ROW(micro_batch_size, TERRACE_MEMBER(BatchConfig, micro_batch_size), TERRACE_NONE, "", "--micro-batch", "train_micro_batch_size_per_gpu") \
  ROW(layer_major, TERRACE_MEMBER(OffloadOptions, layer_major), TERRACE_C_MEMBER(terrace_options, layer_major), "layer_major", "--microbatch-order batch", "") \
  ROW(gradients, TERRACE_MEMBER(OffloadOptions, gradients), TERRACE_C_MEMBER(terrace_options, gradients), "gradients", "", "") \
  ROW(holds_gradients, TERRACE_MEMBER(OffloadOptions, holds_gradients), TERRACE_C_MEMBER(terrace_options, hold_gradients), "hold_gradients", "", "") \
  ROW(unused_gradients, TERRACE_MEMBER(OffloadOptions, unused_gradients), TERRACE_C_MEMBER(terrace_options, unused_gradients), "unused_gradients", "", "") \
  ROW(accumulation_type, TERRACE_MEMBER(OffloadOptions, accumulation_type), TERRACE_C_MEMBER(terrace_options, accumulation_type), "accumulation_type", "", "data_types.grad_accum_dtype") \
  ROW(update_when, TERRACE_MEMBER(Offloader, set_update_mode), TERRACE_C_MEMBER(terrace_options, update_when), "update_when", "--update", "terrace.update") \
  ROW(processor_share, TERRACE_MEMBER(OffloadOptions, processor_share), TERRACE_NONE, "", "--update-ratio", "zero_optimization.offload_optimizer.ratio") \
  ROW(threads, TERRACE_NONE, TERRACE_C_MEMBER(terrace_options, threads), "threads", "--threads", "terrace.threads") \
  ROW(io_engine, TERRACE_NONE, TERRACE_C_MEMBER(terrace_options, io_engine), "io_engine", "", "") \
  ROW(verify_checksums, TERRACE_MEMBER(OffloadOptions, verify_checksums), TERRACE_C_MEMBER(terrace_options, no_checksums), "no_checksums", "", "terrace.verify_checksums") \
  ROW(reads_past_host, TERRACE_MEMBER(OffloadOptions, reads_past_host), TERRACE_NONE, "", "", "aio.use_gds") \
  ROW(update_groups, TERRACE_MEMBER(UpdateSettings, groups), TERRACE_C_MEMBER(terrace_update_settings, groups), "the optimizers of update()", "", "") \
  /* tensors */ \
  ROW(tensor_group, TERRACE_MEMBER(TensorSpec, group), TERRACE_C_MEMBER(terrace_tensor, group), "Tensor.group", "", "") \
  ROW(tensor_home, TERRACE_MEMBER(TensorSpec, home), TERRACE_C_MEMBER(terrace_tensor, address), "Tensor.home", "", "") \
  ROW(tensor_memory, TERRACE_MEMBER(TensorSpec, memory), TERRACE_C_MEMBER(terrace_tensor, address), "Tensor.address", "", "") \
  ROW(by_matrix, TERRACE_MEMBER(TensorSpec, by_matrix), TERRACE_C_MEMBER(terrace_tensor, by_matrix), "Tensor.by_matrix", "", "optimizer.type") \
  ROW(backward_uses, TERRACE_MEMBER(TensorSpec, backward_uses), TERRACE_C_MEMBER(terrace_tensor, backward_uses), "Tensor.backward_uses", "", "") \
  /* ranks */ \
  ROW(communicator, TERRACE_MEMBER(OffloadHooks, communicator), TERRACE_NONE, "", "", "") \
  ROW(rank_exchange, TERRACE_MEMBER(OffloadOptions, rank_exchange), TERRACE_C_MEMBER(terrace_options, rank_exchange), "rank_exchange", "", "terrace.rank_exchange") \
  ROW(hosts, TERRACE_MEMBER(OffloadOptions, hosts), TERRACE_NONE, "", "", "") \
  ROW(sub_group_hosts, TERRACE_MEMBER(OffloadOptions, sub_group_hosts), TERRACE_NONE, "", "", "zero_optimization.mics_shard_size") \
  ROW(exchanges_by_copies, TERRACE_MEMBER(OffloadOptions, exchanges_by_copies), TERRACE_NONE, "", "", "") \
  ROW(gathers_by_copies, TERRACE_MEMBER(OffloadOptions, gathers_by_copies), TERRACE_NONE, "", "", "") \
  ROW(transport, TERRACE_MEMBER(RankMeeting, communicator), TERRACE_C_MEMBER(terrace_ranks_options, transport), "transport", "", "terrace.communicator") \
  ROW(gradient_bits, TERRACE_MEMBER(OffloadOptions, gradient_bits), TERRACE_NONE, "", "", "zero_optimization.zero_quantized_gradients") \
  ROW(parameter_bits, TERRACE_MEMBER(OffloadOptions, parameter_bits), TERRACE_NONE, "", "", "zero_optimization.zero_quantized_weights") \
  /* the trainer of our own */ \
  ROW(context, TERRACE_MEMBER(ModelConfig, context), TERRACE_NONE, "", "--context", "") \
  ROW(weights, TERRACE_MEMBER(TrainerOptions, weights), TERRACE_NONE, "", "--model", "") \
  ROW(data, TERRACE_MEMBER(TokenOptions, paths), TERRACE_NONE, "", "--data", "") \
  ROW(token_bytes, TERRACE_MEMBER(TokenOptions, token_bytes), TERRACE_NONE, "", "--token-type", "") \
  ROW(validation_fraction, TERRACE_MEMBER(TrainingDataOptions, validation_fraction), TERRACE_NONE, "", "--validation-fraction", "") \
  ROW(seed, TERRACE_MEMBER(TrainingDataOptions, seed), TERRACE_NONE, "", "--seed", "terrace.seed") \
  ROW(replace_export, TERRACE_MEMBER(ExportOptions, replace), TERRACE_NONE, "", "--force", "") \
  ROW(explanation, "config_explanation()", TERRACE_NONE, "", "--explain KEY", "") \
  ROW(stall_abort, TERRACE_MEMBER(WatchdogOptions, abort_after_ns), TERRACE_NONE, "", "--stall-abort", "") \
  ROW(control_patience, TERRACE_MEMBER(ControlClient, set_patience), TERRACE_NONE, "", "--timeout", "")
// clang-format on

namespace terrace {

enum class Option : uint8_t {
#define TERRACE_ROW(id, cpp, c, python, flag, key) id,
  TERRACE_OPTIONS(TERRACE_ROW)
#undef TERRACE_ROW
};

// The names of every option, in the order of the enum.
#define TERRACE_ROW(id, cpp, c, python, flag, key) Names{cpp, c, python, flag, key},
#define TERRACE_MEMBER(owner, member) #owner "::" #member
#define TERRACE_C_MEMBER(owner, member) #owner "." #member
#define TERRACE_NONE ""
inline constexpr auto kOptionNames = std::to_array<Names>({TERRACE_OPTIONS(TERRACE_ROW)});
#undef TERRACE_ROW
#undef TERRACE_MEMBER
#undef TERRACE_C_MEMBER
#undef TERRACE_NONE

constexpr const Names& names_of(Option option) {
  return kOptionNames[static_cast<size_t>(option)];
}

}  // namespace terrace
