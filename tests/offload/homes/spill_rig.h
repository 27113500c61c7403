// Trainings of the toy model that spill gradients, and a look at what goes to and from the files that hold
// them.
#pragma once

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <climits>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <terrace/aio/engines/engine_decorator.h>
#include <terrace/base/mutex.h>

#include "offload/commits/epoch_rig.h"
#include "support/sanitized.h"

namespace terrace {

inline constexpr UpdateMode kUpdateModes[] = {UpdateMode::after_backward, UpdateMode::next_forward,
                                              UpdateMode::during_backward};

// Host budgets, of the plan without limits: every gradient is spilled; none is; about half of them are.
inline uint64_t spill_all(const MemoryPlan& roomy) {
  return roomy.host_minimum_bytes;
}
inline uint64_t spill_nothing(const MemoryPlan& roomy) {
  return roomy.host_holding_bytes;
}
inline uint64_t spill_some(const MemoryPlan& roomy) {
  return (roomy.host_minimum_bytes + roomy.host_holding_bytes) / 2;
}

inline std::string text_of(const EpochCase& c) {
  return fmt::format("parameters {}, states {}, {} micro-batches in {}, {} masters, {}",
                     name_of(c.parameters), name_of(c.states), c.accumulation, name_of(c.accumulation_type),
                     c.layout.master == MasterForm::whole ? "whole" : "compact", name_of(c.mode));
}

// Every way to spill: wherever something is on nvme and gradients have a place of their own. Nothing durable.
inline std::vector<EpochCase> spilling_cases() {
  std::vector<EpochCase> cases;
  uint64_t combinations = 0;
  for (const Placement parameters : {Placement::none, Placement::cpu, Placement::nvme}) {
    for (const Placement states : {Placement::cpu, Placement::nvme}) {
      if (parameters != Placement::nvme && states != Placement::nvme) continue;
      for (const RecordLayout& layout : {RecordLayout{}, kCompact}) {
        for (const uint32_t accumulation : {1u, 3u}) {
          for (const DataType type : {DataType::fp32, DataType::bf16}) {
            if (accumulation == 1 && type != DataType::fp32) continue;  // nothing accumulates
            const bool in_homes =
                accumulation == 1 && parameters == Placement::cpu && layout == RecordLayout{};
            if (in_homes || combinations++ % testing::kOneIn != 0) continue;
            EpochCase c{.parameters = parameters, .accumulation = accumulation, .durable = false};
            c.layout = layout;
            c.states = states;
            c.accumulation_type = type;
            c.host_budget = spill_all;
            cases.push_back(c);
          }
        }
      }
    }
  }
  return cases;
}

// Beside after_backward, where host memory does not hold the gradients of parameters that live on the device.
inline bool may_run(const EpochCase& c, UpdateMode mode) {
  return mode == UpdateMode::after_backward || c.parameters != Placement::none;
}

// Requests for the files of spilled gradients, over all engines of a run; any thread makes them.
class GradientRequests {
 public:
  using OnRequest = std::function<void(const io::Request&)>;
  explicit GradientRequests(OnRequest on_request = nullptr) : on_request_(std::move(on_request)) {}

  // For EpochCase::decorate; this outlives the engines.
  auto decorator() {
    return [this](std::unique_ptr<io::Engine> engine) -> std::unique_ptr<io::Engine> {
      return std::make_unique<Spy>(std::move(engine), *this);
    };
  }

  struct Totals {
    uint64_t reads = 0, writes = 0;
    uint64_t read_bytes = 0, written_bytes = 0;
    std::map<std::string, uint64_t> bytes_by_file;
  };
  Totals totals() const {
    const MutexLock lock(mutex_);
    return totals_;
  }

  static std::string file_of(const io::Request& request) {
    std::array<char, PATH_MAX> path;
    const ssize_t size =
        readlink(("/proc/self/fd/" + std::to_string(request.fd)).c_str(), path.data(), path.size());
    return size > 0 ? std::string(path.data(), static_cast<size_t>(size)) : std::string();
  }

 private:
  class Spy final : public io::EngineDecorator {
   public:
    Spy(std::unique_ptr<io::Engine> base, GradientRequests& owner)
        : io::EngineDecorator(std::move(base)), owner_(owner) {}
    void submit(std::span<const io::Request> requests) override {
      for (const io::Request& request : requests) owner_.note(request);
      base().submit(requests);
    }

   private:
    GradientRequests& owner_;
  };

  void note(const io::Request& request) {
    const std::string file = file_of(request);
    if (!file.ends_with("/grads.tier")) return;
    const MutexLock lock(mutex_);
    const bool reads = request.kind == io::OpKind::read;
    ++(reads ? totals_.reads : totals_.writes);
    (reads ? totals_.read_bytes : totals_.written_bytes) += request.bytes;
    totals_.bytes_by_file[file] += request.bytes;
    if (on_request_) on_request_(request);
  }

  const OnRequest on_request_;
  mutable Mutex mutex_;
  Totals totals_ TERRACE_GUARDED_BY(mutex_);
};

}  // namespace terrace
