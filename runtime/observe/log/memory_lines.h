// MemoryLines: says in the log of steps what the run holds in memory and the least that its steps could have
// moved: after the first step, from then on once in a while, and at the end. It stands before the log in the
// list of observers, so that the log's last line stays the last.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>

#include <terrace/base/clock.h>
#include <terrace/runtime/observe/log/least_traffic.h>
#include <terrace/runtime/observe/log/step_log.h>

namespace terrace {

class MemoryLines final : public RunObserver {
 public:
  static constexpr uint64_t kPauseNs = 15'000'000'000;

  // `now` gives what the run holds, between two steps, all but the bound. The log and `offloader` outlive
  // this, or the call of stop().
  MemoryLines(StepLog& log, const Offloader& offloader, std::function<RunMemory()> now)
      : log_(log), offloader_(offloader), now_(std::move(now)) {}

  void step_done(const StepReport& report) override;
  void evaluated(uint64_t /*step*/, double /*loss*/) override { least_.add_evaluation(); }
  void ended(const RunEnd& end) override { write(end.step); }

 private:
  void write(uint64_t step);

  StepLog& log_;
  const Offloader& offloader_;
  const std::function<RunMemory()> now_;
  const SteadyClock clock_;
  LeastTraffic least_;
  uint64_t due_ns_ = 0;
};

}  // namespace terrace
