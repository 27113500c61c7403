// TrainFlags: the flags of `terrace train`, and the configuration that they make together with the
// configuration file. The code here reads that file and no other.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <terrace/base/units.h>
#include <terrace/reference/trainer.h>

#include "command.h"
#include "flags/data_flags.h"

namespace terrace {

// kResumeAuto: the value of --resume for the newest of the commit on nvme and the checkpoints of --save, or
// for the beginning if there is none.
inline constexpr const char* kResumeAuto = "auto";
// kResumeNvme: the value of --resume for the commit on the nvme paths.
inline constexpr const char* kResumeNvme = "nvme";

struct TrainFlags {
  std::string config;
  mutable std::optional<std::string> config_text;  // of that file, once it was read: it may be a pipe
  std::string model = "gpt2";
  std::optional<uint32_t> layers, width, heads, context;
  DataFlags data;
  double validation_fraction = 0.05;
  uint64_t steps = 100;
  bool steps_are_given = false;
  double epochs = 0;        // passes over the data instead of steps; 0: not given
  uint64_t eval_every = 0;  // 0: at the end only
  uint64_t eval_samples = 32;
  std::vector<std::string> nvme_paths;
  bool compact_state = false;
  bool strict = false;
  bool no_memory_pressure = false;
  bool no_control = false;
  std::string save;
  uint64_t save_every = 0;            // 0: at the end only
  std::optional<uint64_t> keep_last;  // nullopt: every checkpoint is kept
  std::string resume;                 // a path, kResumeAuto or kResumeNvme
  bool fresh = false;
  std::string log;
  std::string record_schedule;
  std::string report;
  std::string trace;
  std::string trace_steps;  // "3-5"; empty: the program chooses
  std::string trace_memory;
  std::vector<std::string> inject;  // faults in the form of reference/fault_spec.h
  uint32_t ranks_started = 1;       // by `launcher`, no flag
  std::string launcher;
  bool print_config = false;
  std::string explain;  // a key
  bool json = false;
  bool verbose = false;
  // The values of flags that stand for a key of the configuration, in the order of their table.
  std::vector<std::string> key_values;

  // The value of such a flag; empty: it is not given.
  const std::string& given(std::string_view flag) const;
  void give(std::string_view flag, std::string_view value);

  // Adds the flags to `app`; this object must stay where it is.
  void add_to(Command& app);
};

// Returns the configuration in force. Throws Error(config) with a line per problem.
TrainConfig resolve_config(const TrainFlags& flags);

// Returns the options of the run, without its data. A model that is made for the data gets `data_vocabulary`.
// Throws Error(config) for flags that are missing or contradict each other.
TrainerOptions resolve_training(const TrainFlags& flags, std::optional<uint32_t> data_vocabulary);
// With --epochs, sets the steps of `flags` and `options` to the number in that many passes over the data, and
// logs it.
void settle_steps(TrainFlags& flags, const TrainingData& data, TrainerOptions& options, Log& log);
// Opens the data in the form that the model of `options` takes.
TrainingData open_training_data(const TrainFlags& flags, const DataChoice& data,
                                const TrainerOptions& options, Log& log);
// Throws the errors of open_training_data() that can be seen without tokenizing text.
void require_training_data(const TrainFlags& flags, const DataChoice& data, const TrainerOptions& options);

}  // namespace terrace
