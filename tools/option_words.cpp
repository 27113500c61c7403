#include "option_words.h"

#include <algorithm>
#include <array>
#include <span>

#include <terrace/base/assert.h>
#include <terrace/memory/space/flat_space.h>
#include <terrace/memory/tier/tier_space.h>
#include <terrace/offload/offloader.h>
#include <terrace/runtime/model/weights/export_weights.h>
#include <terrace/runtime/observe/control/control_client.h>
#include <terrace/runtime/observe/watchdog.h>
#include <terrace/runtime/train/data/training_data.h>
#include <terrace/runtime/train/trainer.h>

namespace terrace {
namespace {

struct OptionWords {
  std::string_view option;  // "OffloadOptions::host_budget_bytes"
  std::string_view flag;    // "--host-memory"; empty: it has none
  std::string_view key;     // "terrace.host_memory"; empty: it has none
};

template <typename Member>
constexpr OptionWords row(Member, std::string_view option, std::string_view flag, std::string_view key) {
  return {option, flag, key};
}

// The macro makes a row of the table. It does not compile if the library has no such option.
#define TERRACE_OPTION(owner, member, flag, key) row(&owner::member, #owner "::" #member, flag, key)

// clang-format off
constexpr std::array kOptionWords = {
    row(&config_explanation, "config_explanation", "--explain KEY", ""),
    TERRACE_OPTION(OffloadOptions, parameters, "--offload-param", "zero_optimization.offload_param.device"),
    TERRACE_OPTION(OffloadOptions, states, "--offload-optimizer", "zero_optimization.offload_optimizer.device"),
    TERRACE_OPTION(OffloadOptions, durable, "", "terrace.durable"),
    TERRACE_OPTION(OffloadOptions, tier_name, "--nvme-path", "nvme_path"),  // any sub-folder can be named there
    TERRACE_OPTION(OffloadOptions, tier_start, "--resume nvme", ""),
    TERRACE_OPTION(OffloadOptions, discard_commits, "--fresh", ""),
    TERRACE_OPTION(OffloadOptions, record_layout, "--compact-state", "terrace.compact_state"),
    TERRACE_OPTION(OffloadOptions, processor_share, "--update-ratio", "zero_optimization.offload_optimizer.ratio"),
    TERRACE_OPTION(OffloadOptions, device_budget_bytes, "--device-memory", "terrace.device_memory"),
    TERRACE_OPTION(OffloadOptions, host_budget_bytes, "--host-memory", "terrace.host_memory"),
    TERRACE_OPTION(OffloadOptions, gradients, "", ""),
    TERRACE_OPTION(OffloadOptions, unused_gradients, "", ""),
    TERRACE_OPTION(OffloadOptions, gradient_group, "", "terrace.gradient_group"),
    TERRACE_OPTION(OffloadOptions, gradient_bits, "", "zero_optimization.zero_quantized_gradients"),
    TERRACE_OPTION(OffloadOptions, parameter_bits, "", "zero_optimization.zero_quantized_weights"),
    TERRACE_OPTION(OffloadOptions, divides_parameters, "", "zero_optimization.stage 3"),
    TERRACE_OPTION(OffloadOptions, exchanges_by_copies, "", ""),  // a trainer sets it on a GPU
    TERRACE_OPTION(OffloadOptions, hosts, "", ""),                // a trainer sets it
    TERRACE_OPTION(OffloadOptions, keeps_gathers_first, "", "zero_optimization.zero_hpz_partition_size"),
    TERRACE_OPTION(OffloadOptions, sub_group_hosts, "", "zero_optimization.mics_shard_size"),
    TERRACE_OPTION(OffloadOptions, ranks_overlap, "", "zero_optimization.overlap_comm"),
    TERRACE_OPTION(OffloadOptions, compare_ranks_every_steps, "", "terrace.compare_ranks_every_steps"),
    TERRACE_OPTION(OffloadOptions, lock_host_memory, "", "zero_optimization.offload_optimizer.pin_memory"),
    TERRACE_OPTION(OffloadOptions, reads_past_host, "", "aio.use_gds"),
    TERRACE_OPTION(OffloadOptions, verify_checksums, "", "terrace.verify_checksums"),
    TERRACE_OPTION(Offloader, set_update_mode, "--update", "terrace.update"),
    TERRACE_OPTION(FlatSpace, chunk_elements, "--chunk-elements", "terrace.chunk_elements"),
    TERRACE_OPTION(TierPath, path, "--nvme-path", "nvme_path"),
    // The rows from here on are options of the trainer.
    TERRACE_OPTION(TerraceConfig, device_memory_bytes, "--device-memory", "terrace.device_memory"),
    TERRACE_OPTION(TerraceConfig, host_memory_bytes, "--host-memory", "terrace.host_memory"),
    TERRACE_OPTION(TerraceConfig, chunk_elements, "--chunk-elements", "terrace.chunk_elements"),
    TERRACE_OPTION(TerraceConfig, compact_state, "--compact-state", "terrace.compact_state"),
    TERRACE_OPTION(TerraceConfig, durable, "", "terrace.durable"),
    TERRACE_OPTION(TerraceConfig, update, "--update", "terrace.update"),
    TERRACE_OPTION(PlacementConfig, parameters, "--offload-param", "zero_optimization.offload_param.device"),
    TERRACE_OPTION(PlacementConfig, states, "--offload-optimizer", "zero_optimization.offload_optimizer.device"),
    TERRACE_OPTION(PlacementConfig, processor_share, "--update-ratio", "zero_optimization.offload_optimizer.ratio"),
    TERRACE_OPTION(BatchConfig, micro_batch_size, "--micro-batch", "train_micro_batch_size_per_gpu"),
    TERRACE_OPTION(BatchConfig, micro_batches, "--accumulation", "gradient_accumulation_steps"),
    TERRACE_OPTION(BatchConfig, layer_major, "--microbatch-order batch", ""),  // layer_major is set to false
    TERRACE_OPTION(ActivationConfig, offload, "", "terrace.offload_activations"),
    TERRACE_OPTION(TrainConfig, precision, "", "bf16.enabled true"),  // precision is set to bf16
    TERRACE_OPTION(ModelConfig, context, "--context", ""),
    TERRACE_OPTION(TrainerOptions, tier_start, "--resume nvme", ""),
    TERRACE_OPTION(TrainerOptions, discard_commits, "--fresh", ""),
    TERRACE_OPTION(TrainerOptions, weights, "--model", ""),
    TERRACE_OPTION(TokenOptions, paths, "--data", ""),
    TERRACE_OPTION(TokenOptions, token_bytes, "--token-type", ""),
    TERRACE_OPTION(TrainingDataOptions, validation_fraction, "--validation-fraction", ""),
    TERRACE_OPTION(TrainingDataOptions, context, "--context", ""),
    TERRACE_OPTION(TrainingDataOptions, seed, "--seed", "terrace.seed"),
    TERRACE_OPTION(ExportOptions, replace, "--force", ""),
    TERRACE_OPTION(WatchdogOptions, abort_after_ns, "--stall-abort", ""),
    TERRACE_OPTION(ControlClient, set_patience, "--timeout", ""),
};
// clang-format on
#undef TERRACE_OPTION

bool is_of_a_name(char c) {
  return c == '_' || c == ':' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

std::string worded(const OptionWords& words, bool in_parentheses) {
  const std::string flag(words.flag);
  const std::string key(words.key);
  if (flag.empty() || key.empty()) return flag + key;
  return in_parentheses ? key + ", " + flag : flag + " (" + key + ")";
}

const OptionWords* words_of(std::string_view option) {
  const auto* const found = std::ranges::find(kOptionWords, option, &OptionWords::option);
  return found == kOptionWords.end() ? nullptr : found;
}

// A word with a blank has its value already, and so has a switch that is set to "true".
std::string with_value(std::string_view word, const std::string& value, bool is_switch) {
  const bool has_value = word.find(' ') != std::string_view::npos || (is_switch && value == "true");
  return std::string(word) + (has_value ? "" : " " + value);
}

}  // namespace

std::string in_flags_and_keys(std::span<const ChangedOption> changes) {
  std::string flags;
  std::string settings;
  for (const ChangedOption& change : changes) {
    const OptionWords* const words = words_of(change.option);
    TERRACE_ASSERT(words != nullptr, change.option + " has no row");
    if (!words->flag.empty())
      flags += (flags.empty() ? "" : " ") + with_value(words->flag, change.value, true);
    else
      settings += (settings.empty() ? "" : " and ") + with_value(words->key, change.value, false);
  }
  if (settings.empty()) return flags;
  return flags + (flags.empty() ? "" : ", with ") + settings + " in the configuration";
}

std::string in_flags_and_keys(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    size_t size = 0;
    while (size < text.size() && is_of_a_name(text[size])) ++size;
    while (size > 0 && text[size - 1] == ':') --size;  // a colon at the end belongs to the message
    if (size == 0) {
      result += text.front();
      text.remove_prefix(1);
      continue;
    }
    const std::string_view name = text.substr(0, size);
    const OptionWords* const words = words_of(name);
    text.remove_prefix(size);
    if (words != nullptr && text.starts_with("()")) text.remove_prefix(2);  // of a function
    const bool in_parentheses = result.ends_with('(') && text.starts_with(')');
    result += words == nullptr ? std::string(name) : worded(*words, in_parentheses);
  }
  return result;
}

}  // namespace terrace
