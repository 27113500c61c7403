#include <terrace/runtime/observe/monitor/monitor.h>

#include <array>
#include <system_error>

#include <terrace/base/error.h>
#include <terrace/runtime/observe/monitor/csv_files.h>
#include <terrace/runtime/observe/monitor/event_file.h>

namespace terrace {
namespace {

// DeepSpeed's, and two that it does not have: the gradient norm and the held-out loss.
constexpr std::string_view kLoss = "Train/Samples/train_loss";
constexpr std::string_view kRate = "Train/Samples/lr";
constexpr std::string_view kLossScale = "Train/Samples/loss_scale";
constexpr std::string_view kForward = "Train/Samples/elapsed_time_ms_forward";
constexpr std::string_view kBackward = "Train/Samples/elapsed_time_ms_backward";
constexpr std::string_view kUpdate = "Train/Samples/elapsed_time_ms_step";
constexpr std::string_view kGradientNorm = "Train/Samples/gradient_norm";
constexpr std::string_view kHeldOutLoss = "Validation/Samples/loss";

constexpr double kMilliseconds = 1e3;

std::filesystem::path folder_of(const MonitorTarget& target) {
  const std::filesystem::path folder = target.output_path / target.job_name;
  return folder.empty() ? "." : folder;
}

std::filesystem::path make_folder(const MonitorTarget& target) {
  std::filesystem::path folder = folder_of(target);
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    throw Error(ErrorKind::io, {"cannot make the folder of a monitor", folder.string(),
                                system_reason(error.value()), "set another output_path"});
  }
  return folder;
}

}  // namespace

MonitorSettings monitor_settings(const TrainConfig& config) {
  return {config.monitor, config.precision == DataType::fp16, config.wall_clock_breakdown, nullptr};
}

void require_empty_monitors(const MonitorConfig& monitor) {
  if (monitor.csv.enabled) CsvFiles::require_none(folder_of(monitor.csv));
  if (monitor.tensorboard.enabled) EventFile::require_none(folder_of(monitor.tensorboard));
}

Monitor::Monitor(const MonitorSettings& settings, const MonitorStart& start)
    : start_(start),
      has_loss_scale_(settings.has_loss_scale),
      has_times_(settings.has_times),
      listener_(settings.listener) {
  const MonitorConfig& wanted = settings.targets;
  if (wanted.csv.enabled) csv_ = std::make_unique<CsvFiles>(make_folder(wanted.csv), start);
  if (wanted.tensorboard.enabled)
    events_ = std::make_unique<EventFile>(make_folder(wanted.tensorboard), start);
}

Monitor::~Monitor() = default;

void Monitor::update(const UpdateScalars& scalars, double wall_seconds) {
  constexpr size_t kMost = 7;
  std::array<Scalar, kMost> values;
  size_t count = 0;
  values[count++] = {kLoss, scalars.loss};
  values[count++] = {kRate, scalars.learning_rate};
  if (!scalars.skipped) values[count++] = {kGradientNorm, scalars.gradient_norm};
  if (has_loss_scale_) values[count++] = {kLossScale, scalars.loss_scale};
  if (has_times_) {
    values[count++] = {kForward, scalars.forward_seconds * kMilliseconds};
    values[count++] = {kBackward, scalars.backward_seconds * kMilliseconds};
    values[count++] = {kUpdate, scalars.update_seconds * kMilliseconds};
  }
  write({scalars.samples, wall_seconds, std::span(values).first(count)});
}

void Monitor::evaluation(uint64_t samples, double loss, double wall_seconds) {
  if (start_.resumed && samples == start_.samples) return;
  const Scalar value = {kHeldOutLoss, loss};
  write({samples, wall_seconds, {&value, 1}});
}

void Monitor::write(const ScalarEvent& event) {
  if (events_) events_->write(event);
  if (csv_) csv_->write(event);
  if (listener_) listener_(event);
}

}  // namespace terrace
