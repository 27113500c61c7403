// Monitor: what the configuration wants to be shown of every update, in TensorBoard's event files and in CSV
// files under <output_path>/<job_name>, with DeepSpeed's tags and with the sequences seen as the step.
#pragma once

#include <cstdint>
#include <memory>

#include <terrace/runtime/config/train_config.h>
#include <terrace/runtime/observe/monitor/scalar.h>

namespace terrace {

class CsvFiles;
class EventFile;

// What monitors show of an update.
struct UpdateScalars {
  uint64_t samples = 0;  // sequences seen so far
  double loss = 0;
  double learning_rate = 0;
  double gradient_norm = 0;
  double loss_scale = 0;       // shown in fp16 only
  bool skipped = false;        // by fp16: there is no gradient norm
  double forward_seconds = 0;  // these three with wall_clock_breakdown only
  double backward_seconds = 0;
  double update_seconds = 0;
};

// Throws Error(config) where the folders of the monitors have scalars of a run already: a new run is to be
// refused before it has done anything.
void require_empty_monitors(const TrainConfig& config);

class Monitor {
 public:
  // Makes the folders and looks at what is in them; with everything switched off it touches nothing. Throws
  // Error: config where a run that is not resumed finds another's scalars, io.
  Monitor(const TrainConfig& config, const MonitorStart& start);
  ~Monitor();
  Monitor(const Monitor&) = delete;
  Monitor& operator=(const Monitor&) = delete;

  // In the files when they return. Throw Error(io).
  void update(const UpdateScalars& scalars, double wall_seconds);
  // One where a resumed run begins is there already, from the run before.
  void evaluation(uint64_t samples, double loss, double wall_seconds);

 private:
  void write(const ScalarEvent& event);

  MonitorStart start_;
  bool has_loss_scale_;
  bool has_times_;
  std::unique_ptr<EventFile> events_;
  std::unique_ptr<CsvFiles> csv_;
};

}  // namespace terrace
