#include "measure/bench_step.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <optional>

#include <terrace/base/clock.h>
#include <terrace/base/error.h>
#include <terrace/base/units.h>
#include <terrace/base/workers.h>
#include <terrace/memory/device/simulated_device.h>
#include <terrace/memory/host/machine.h>

#include "measure/measuring.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;

// The records' file lies below a path of the tier (docs/nvme_format.md).
constexpr const char* kRecordsFile = "terrace-tier/records.tier";

double cpu_seconds_now() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

// Returns a number in [-1, 1), the same for the same seed.
float noise(uint64_t seed) {
  seed = (seed ^ (seed >> 31)) * 0x9e3779b97f4a7c15u;
  seed = (seed ^ (seed >> 29)) * 0xbf58476d1ce4e5b9u;
  return static_cast<float>(seed >> 40) / static_cast<float>(1 << 23) - 1.0f;
}

// Runs one pass over all tensors and back. `gradients` is called in backward and fills a gradient on the
// device.
void run_micro_batch(ParameterAccess& access, size_t tensor_count, uint32_t micro_batch,
                     const std::vector<std::string>& names,
                     FunctionRef<void(TensorId, GradientView)> gradients) {
  for (const UseKind kind : {UseKind::forward, UseKind::backward}) {
    for (size_t i = 0; i < tensor_count; ++i) {
      const size_t t = kind == UseKind::forward ? i : tensor_count - 1 - i;
      const TensorId tensor{static_cast<uint32_t>(t)};
      const size_t name = (micro_batch * 2 + (kind == UseKind::backward ? 1 : 0)) * tensor_count + t;
      const Lease lease(access, names[name], {&tensor, 1}, kind);
      if (kind == UseKind::backward) gradients(tensor, lease.gradient(tensor));
    }
  }
}

// Returns the keys of all uses of a step. They are made once, because a warm step allocates nothing.
std::vector<std::string> use_names(size_t tensor_count, uint32_t micro_batches) {
  std::vector<std::string> names;
  for (uint32_t m = 0; m < micro_batches; ++m) {
    for (const char* kind : {"forward", "backward"}) {
      for (size_t t = 0; t < tensor_count; ++t) names.push_back(fmt::format("{}/{}/{}", m, t, kind));
    }
  }
  return names;
}

// Returns noise for a tensor of this size and type.
std::vector<std::byte> gradient_noise(uint64_t elements, DataType type) {
  std::vector<std::byte> bytes(elements * bytes_of(type));
  for (uint64_t e = 0; e < elements; ++e) {
    const float value = noise(e) * 0x1p-10f;
    if (type == DataType::fp32) {
      reinterpret_cast<float*>(bytes.data())[e] = value;
    } else {
      reinterpret_cast<uint16_t*>(bytes.data())[e] =
          type == DataType::bf16 ? to_bf16(value).bits : to_fp16(value).bits;
    }
  }
  return bytes;
}

// BareStream: the transfers of an update and nothing else. It moves as many bytes of the records' own file as
// an update streams, in blocks of the same size through a ring of the same size, and writes each block back
// as it was.
class BareStream {
 public:
  BareStream(const StepPlan& plan, const MemoryPlan& memory, uint64_t bytes)
      : ring_({.slot_bytes = memory.ring_slot_bytes, .slot_count = memory.ring_slots}),
        path_(plan.options.state_paths.front().path / kRecordsFile),
        file_(io::File::open(path_, {.access = io::FileAccess::read_write, .direct = true})),
        engine_(plan.options.io) {
    stream_.kind = io::StreamKind::update;
    stream_.block_bytes = memory.ring_slot_bytes;
    stream_.region_bytes = bytes / memory.ring_slot_bytes * memory.ring_slot_bytes;
    stream_.io_bytes = 2 * stream_.region_bytes;
  }

  uint64_t bytes() const { return stream_.region_bytes; }

  void run(StepRound& round, Log& log) {
    const io::StreamResult result =
        run_measured_stream({file_, path_, ring_, engine_, stream_}, nullptr, log).result;
    round.io_seconds = static_cast<double>(result.elapsed_ns) * 1e-9;
    round.io_cpu_seconds = static_cast<double>(result.user_ns + result.system_ns) * 1e-9;
  }

 private:
  io::RingBuffer ring_;
  const fs::path path_;
  const io::File file_;
  const io::EngineOptions engine_;
  io::StreamOptions stream_;
};

class StepRun {
 public:
  StepRun(const StepPlan& plan, Console& console)
      : plan_(plan),
        console_(console),
        tensors_(step_tensors(plan)),
        space_(tensors_, plan.chunk_elements),
        names_(use_names(tensors_.size(), plan.options.micro_batches)),
        gradients_(gradient_noise(tensors_.front().element_count(), plan.type)),
        workers_(plan.threads),
        device_({.budget_bytes = plan.options.device_budget_bytes}),
        offloader_(space_, plan.options, step_trace(plan, tensors_), device_, workers_, console) {}

  StepBenchReport run() {
    offloader_.set_update_mode(plan_.update_mode);  // a mode is refused before anything is laid out
    console_.progress(fmt::format("laying out {} parameters", space_.parameter_count()));
    offloader_.state().initialise([](TensorId tensor, uint64_t first, std::span<float> values) {
      for (uint64_t e = 0; e < values.size(); ++e)
        values[e] = noise((uint64_t{index_of(tensor)} << 40) + first + e) * 0x1p-5f;
    });
    StepBenchReport report;
    report.plan = plan_;
    report.memory = offloader_.plan();
    report.chunks = space_.chunk_count();
    report.threads = static_cast<uint32_t>(workers_.thread_count());
    report.bound = offloader_.report().traffic_bound();
    std::optional<BareStream> stream;
    if (plan_.against_io) stream.emplace(plan_, report.memory, report.bound.record_read_bytes);
    if (stream) report.stream_bytes = stream->bytes();
    for_each_round(plan_.rounds, console_, [&](uint64_t r) {
      StepRound round = step(r + 1);
      if (stream) stream->run(round, console_);
      if (r > 0) report.rounds.push_back(round);
    });
    report.host_ledger = offloader_.budget().ledger();
    report.device_bytes = device_.used_bytes();
    report.process_bytes = current_memory_use().pss_bytes;
    report.tier_bytes = offloader_.report().tier_file_bytes();
    return report;
  }

 private:
  StepRound step(uint64_t number) {
    StepRound round;
    const SteadyClock clock;
    const OffloadCounters before = offloader_.report().counters();
    const UpdateSettings settings = {.groups = {&plan_.settings, 1}, .step = number, .clip_norm = 1.0};
    double cpu = cpu_seconds_now();
    const uint64_t step_begun_ns = clock.now_ns();
    offloader_.begin_step();
    for (uint32_t m = 0; m < plan_.options.micro_batches; ++m) {
      if (m + 1 == plan_.options.micro_batches && plan_.update_mode == UpdateMode::during_backward)
        offloader_.announce_update(settings);
      run_micro_batch(offloader_, tensors_.size(), m, names_, [&](TensorId tensor, GradientView gradient) {
        std::memcpy(gradient.data, gradients_.data(),
                    tensors_[index_of(tensor)].element_count() * bytes_of(plan_.type));
      });
      offloader_.end_micro_batch();
    }
    const bool alone = plan_.update_mode == UpdateMode::after_backward;
    if (alone) cpu = cpu_seconds_now();
    const OffloadCounters at_update = alone ? offloader_.report().counters() : before;
    const uint64_t begun_ns = alone ? clock.now_ns() : step_begun_ns;
    offloader_.update(settings);
    const uint64_t ended_ns = clock.now_ns();
    round.seconds = static_cast<double>(ended_ns - begun_ns) * 1e-9;
    round.step_seconds = static_cast<double>(ended_ns - step_begun_ns) * 1e-9;
    round.cpu_seconds = cpu_seconds_now() - cpu;
    const OffloadCounters after = offloader_.report().counters();
    round.moved = after - before;
    round.timed = after - at_update;
    return round;
  }

  const StepPlan& plan_;
  Console& console_;
  const std::vector<TensorSpec> tensors_;
  const FlatSpace space_;
  const std::vector<std::string> names_;
  const std::vector<std::byte> gradients_;
  Workers workers_;
  SimulatedDevice device_;
  Offloader offloader_;
};

// As near to a square as a number of rows that is a power of two allows.
void make_matrix(TensorSpec& tensor) {
  const uint64_t elements = tensor.element_count();
  uint64_t rows = 1;
  while (4 * rows * rows <= elements && elements % (2 * rows) == 0) rows *= 2;
  tensor.shape = {rows, elements / rows};
  tensor.by_matrix = true;
}

}  // namespace

std::vector<TensorSpec> step_tensors(const StepPlan& plan) {
  std::vector<TensorSpec> tensors;
  for (uint64_t first = 0; first < plan.parameters; first += plan.chunk_elements) {
    tensors.push_back({.name = fmt::format("tensor{}", tensors.size()),
                       .shape = {std::min(plan.chunk_elements, plan.parameters - first)},
                       .type = plan.type});
    if (plan.settings.kind == OptimizerKind::muon) make_matrix(tensors.back());
  }
  return tensors;
}

std::vector<TensorUse> step_trace(const StepPlan& plan, const std::vector<TensorSpec>& tensors) {
  UseRecorder recorder;
  const std::vector<std::string> names = use_names(tensors.size(), plan.options.micro_batches);
  for (uint32_t m = 0; m < plan.options.micro_batches; ++m)
    run_micro_batch(recorder, tensors.size(), m, names, [](TensorId, GradientView) {});
  return recorder.take_trace();
}

StepBenchReport measure_step(const StepPlan& plan, Console& console) {
  StepRun run(plan, console);
  return run.run();
}

}  // namespace terrace
