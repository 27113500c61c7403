// ProgressReport: tells a log how far a long operation has come, from one second after its start and at most
// five times a second.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

#include <terrace/base/clock.h>
#include <terrace/base/log.h>

namespace terrace {

class ProgressReport {
 public:
  // `what` names the operation ("saving step 12"). `total` counts bytes, or the things that `unit` names
  // ("sequences"). Log and clock (null: the steady one) outlive this.
  ProgressReport(Log& log, std::string what, uint64_t total, std::string_view unit = {},
                 const Clock* clock = nullptr);
  ~ProgressReport();
  ProgressReport(const ProgressReport&) = delete;
  ProgressReport& operator=(const ProgressReport&) = delete;

  // Thread-safe.
  void add(uint64_t amount);

 private:
  Log& log_;
  std::string what_;
  uint64_t total_;
  std::string unit_;
  SteadyClock steady_;
  const Clock& clock_;
  uint64_t begun_ns_;
  std::atomic<uint64_t> done_{0};
  std::atomic<uint64_t> next_ns_;
  std::atomic<bool> is_shown_{false};
};

}  // namespace terrace
