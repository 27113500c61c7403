#include <terrace/runtime/observe/log/memory_lines.h>

namespace terrace {

void MemoryLines::step_done(const StepReport& report) {
  least_.add(report.update_mode);
  if (clock_.now_ns() >= due_ns_) write(report.step);
}

void MemoryLines::write(uint64_t step) {
  RunMemory memory = now_();
  // A bound belongs to one budget, so there is none once the budget has changed.
  if (!offloader_.budget().has_changed()) memory.bound = least_.per_step(offloader_);
  log_.memory(step, memory);
  due_ns_ = clock_.now_ns() + kPauseNs;
}

}  // namespace terrace
