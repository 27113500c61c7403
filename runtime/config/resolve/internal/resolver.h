// Resolver makes a TrainConfig from checked entries: it infers values, fills in defaults and finds
// contradictions between keys. It records the final value and the origin of every key that has an effect. It
// must never accept one of two keys that contradict each other.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <terrace/runtime/config/engine_config.h>
#include <terrace/runtime/config/schema/config_entries.h>
#include <terrace/runtime/config/train_config.h>

namespace terrace {

class Resolver {
 public:
  Resolver(const ConfigEntries& entries, ConfigProblems& problems) : entries_(entries), problems_(problems) {}

  TrainConfig resolve();
  // Returns what the engine for Python takes of a configuration.
  TrainConfig resolve_for_engine(const EngineConfigOptions& options);
  // The lines about keys without effect, after resolve_for_engine(): "key: reason".
  std::vector<std::string> lines_without_effect() const;

 private:
  // Returns the entry of a key to which the configuration gives a value; null if it is absent or "auto".
  const ConfigEntry* given(std::string_view path) const;
  bool is_auto(std::string_view path) const;
  // Notes the final value of a key. `otherwise` is the origin of a value that was not given.
  void record(std::string_view path, std::string value, std::string_view otherwise = "default");

  bool boolean(std::string_view path, bool by_default, bool when_auto);
  bool boolean(std::string_view path, bool by_default) { return boolean(path, by_default, by_default); }
  double number(std::string_view path, double by_default);
  uint64_t integer(std::string_view path, uint64_t by_default);
  uint32_t small(std::string_view path, uint32_t by_default);
  std::optional<uint64_t> optional_integer(std::string_view path);
  std::string text(std::string_view path, std::string_view by_default);
  std::vector<std::string> texts(std::string_view path);
  std::vector<double> numbers(std::string_view path, std::vector<double> by_default);

  void resolve_batch();
  void resolve_given_micro_batches();
  void record_batch(std::string_view count, const std::string& micro_origin, const std::string& steps_origin);
  void check_batch(const ConfigEntry& train, const ConfigEntry& micro, const ConfigEntry& accumulation);
  // True if the file leaves its optimizer to the trainer that fills in "auto".
  bool comes_with_a_trainer() const {
    return entries_.has_auto() && !entries_.has_section("optimizer") && !brings_optimizer_;
  }
  void resolve_optimizer();
  void check_optimizer_keys();
  void resolve_betas();
  void resolve_momentum();
  void resolve_muon();
  void resolve_moments();
  void require_moments(const ConfigEntry& type, MomentType own, const ConfigEntry* other);
  void explain_master_weights();
  std::string optimizer_named() const;
  void resolve_precision();
  void resolve_loss_scale(bool enabled);
  void check_loss_scale(bool enabled);
  void resolve_accumulation_type();
  void resolve_activations();
  void resolve_activation_offload();
  void check_activation_offload();
  void resolve_order();
  void resolve_monitor();
  void resolve_monitor_target(std::string_view section, MonitorTarget& target);

  void resolve_scheduler();
  void resolve_warmup();
  void resolve_cycle();
  void check_cycle_order();
  void resolve_range_test();
  void check_scheduler_keys();
  void check_group_lists();
  void warn_of_idle_rates();

  void resolve_adapters();
  void resolve_groups();
  GroupConfig resolve_group(const ConfigEntries::EntryMap& entries, const std::string& name,
                            const std::string& origin);

  void resolve_zero();
  void resolve_device(std::string_view section, Placement& placement,
                      std::vector<std::filesystem::path>& paths, bool& pin);
  std::vector<std::filesystem::path> folders(std::string_view path);
  void resolve_update_ratio();
  void check_stage();
  void resolve_chunk_bound();
  void explain_stage();
  void resolve_aio();
  void resolve_gpu();
  void resolve_compute();
  void resolve_terrace();
  void resolve_file_reads();
  void resolve_update();
  void explain_update_ratio(UpdateMode mode);
  void check_matrices(UpdateMode mode);
  void check_compact_state();
  void check_chunks();
  void resolve_durability();
  void resolve_ranks();
  // How ranks come together and wait for each other, in the program and in Python.
  void resolve_meeting();
  void resolve_exchange();
  // The key has no effect where there is one rank, if it says something.
  void idle_alone(std::string_view key, bool changes_something);
  void check_communication_type();
  void resolve_rounding();
  void resolve_sub_groups();

  void resolve_store();
  // True, in the engine, for "auto" and for a value that is the key's default.
  bool asks_for_nothing(const ConfigEntry& entry) const;
  void require_one_space();
  void place_activations();
  void require_whole_rounds();
  void require_steps(std::optional<uint64_t> total_step_count);
  void resolve_services();
  void resolve_engine_keys();

  void warn_without_effect();
  void order_resolved();

  const ConfigEntries& entries_;
  ConfigProblems& problems_;
  bool for_engine_ = false;
  bool brings_optimizer_ = false;
  TrainConfig config_;
  std::map<std::string, ResolvedValue> recorded_;
  std::vector<IdleKey> idle_;  // keys without effect in this configuration only
};

// The origin of a value that Hugging Face's trainer would fill in.
inline constexpr std::string_view kTrainersOwn =
    "Hugging Face's trainer has it: the file holds \"auto\" and no optimizer";

// Muon has the betas of AdamW, which updates what is no matrix beside it.
constexpr bool takes_betas(const OptimizerRow& row) {
  return row.has_betas || row.kind == OptimizerKind::muon;
}
// Returns "scheduler.params" and "lr" as one path.
std::string joined_path(std::string_view section, std::string_view key);
// Returns 0.001, or [0.001, 0.002].
std::string list_text(const std::vector<double>& values);

}  // namespace terrace
