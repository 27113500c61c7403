#include <terrace/runtime/observe/run_reports.h>

namespace terrace {

HostBudgetChange change_host_budget(Offloader& offloader, uint64_t bytes) {
  HostBudgetChange change;
  const OffloadCounters before = offloader.report().counters();
  try {
    offloader.budget().set(bytes);
  } catch (const Error& error) {
    // Everything is where it was, or as far on its way as is said.
    if (error.kind() != ErrorKind::capacity) throw;
    change.refusal = error;
  }
  const OffloadCounters moved = offloader.report().counters() - before;
  change.budget_bytes = offloader.budget().in_force();
  change.kept_chunks = offloader.budget().resident_chunks();
  change.read_bytes = moved.cache_read_bytes;
  change.write_bytes = moved.cache_write_bytes;
  change.ns = moved.time.total_ns();
  return change;
}

}  // namespace terrace
