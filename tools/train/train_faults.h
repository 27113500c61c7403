// InjectedFaults: the faults of `terrace train --inject`, announced loudly before the run and counted when it
// ends. It must never do anything without --inject.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <terrace/aio/engines/fault_plan.h>
#include <terrace/base/log.h>
#include <terrace/offload/options/offload_options.h>
#include <terrace/runtime/observe/log/run_observer.h>

namespace terrace {

class InjectedFaults final : public RunObserver {
 public:
  // `specs` has one specification for each --inject, in the form of reference/fault_spec.h. Throws
  // Error(config).
  explicit InjectedFaults(const std::vector<std::string>& specs);

  // Warns, and decorates the engines of a run that will be made with `options`. `log` and this object outlive
  // it.
  void apply_to(OffloadOptions& options, Log& log);
  // Says how many transfers went wrong.
  void ended(const RunEnd& end) override;

 private:
  std::vector<std::string> specs_;
  std::unique_ptr<io::FaultPlan> plan_;  // null without --inject
  Log* log_ = nullptr;
};

}  // namespace terrace
