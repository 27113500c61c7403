#include "train/train_faults.h"

#include <fmt/format.h>

#include <terrace/reference/fault_spec.h>

namespace terrace {

InjectedFaults::InjectedFaults(const std::vector<std::string>& specs) : specs_(specs) {
  std::vector<io::Fault> faults;
  for (const std::string& spec : specs) faults.push_back(parse_fault_spec(spec));
  if (!faults.empty()) plan_ = std::make_unique<io::FaultPlan>(std::move(faults));
}

void InjectedFaults::apply_to(OffloadOptions& options, Log& log) {
  if (plan_ == nullptr) return;
  log_ = &log;
  if (options.parameters != Placement::nvme && options.states != Placement::nvme) {
    log.warning("--inject has no effect: nothing is on nvme");
    return;
  }
  for (const std::string& spec : specs_) {
    log.warning(
        fmt::format("FAULT ON PURPOSE: --inject {}: this is a rehearsal, not a training to keep", spec));
  }
  options.hooks.decorate_engine = engines_with_faults(*plan_);
}

void InjectedFaults::ended(const RunEnd&) {
  if (plan_ == nullptr) return;
  log_->warning(fmt::format("--inject made {} transfers go wrong", plan_->faults_done()));
}

}  // namespace terrace
