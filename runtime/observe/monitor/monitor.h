// Monitor shows every update as the configuration asks: in TensorBoard's event files and in CSV files under
// <output_path>/<job_name>, and to a listener, with DeepSpeed's tags and with the sequences seen as the step.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include <terrace/runtime/config/train_config.h>
#include <terrace/runtime/observe/monitor/scalar.h>

namespace terrace {

class CsvFiles;
class EventFile;

// The values of an update that monitors show.
struct UpdateScalars {
  uint64_t samples = 0;  // sequences seen so far
  double loss = 0;
  double learning_rate = 0;
  double gradient_norm = 0;
  double loss_scale = 0;       // shown in fp16 only
  bool skipped = false;        // by fp16; there is then no gradient norm
  double forward_seconds = 0;  // set, like the next two, with wall_clock_breakdown only
  double backward_seconds = 0;
  double update_seconds = 0;
};

struct MonitorSettings {
  MonitorConfig targets;
  bool has_loss_scale = false;                                 // of a run in fp16
  bool has_times = false;                                      // with wall_clock_breakdown
  std::function<void(const ScalarEvent&)> listener = nullptr;  // hears what the files get; may be null
};
MonitorSettings monitor_settings(const TrainConfig& config);

// Throws Error(config) if the folders of the monitors already have scalars of a run, so that a new run is
// refused before it does anything.
void require_empty_monitors(const MonitorConfig& monitor);

class Monitor {
 public:
  // Makes the folders and reads their contents; touches nothing if everything is switched off. Throws Error:
  // config when a run that is not resumed finds another's scalars; io.
  Monitor(const MonitorSettings& settings, const MonitorStart& start);
  ~Monitor();
  Monitor(const Monitor&) = delete;
  Monitor& operator=(const Monitor&) = delete;

  // These return when the values are in the files and the listener has heard them. They throw Error(io).
  void update(const UpdateScalars& scalars, double wall_seconds);
  // An evaluation at the start of a resumed run is skipped: the earlier run has written it.
  void evaluation(uint64_t samples, double loss, double wall_seconds);

 private:
  void write(const ScalarEvent& event);

  MonitorStart start_;
  bool has_loss_scale_;
  bool has_times_;
  std::function<void(const ScalarEvent&)> listener_;
  std::unique_ptr<EventFile> events_;
  std::unique_ptr<CsvFiles> csv_;
};

}  // namespace terrace
