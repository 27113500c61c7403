// The host budget of an Offloader, changed between steps.
#include <fmt/format.h>

#include <algorithm>

#include <terrace/base/assert.h>
#include <terrace/base/error.h>
#include <terrace/base/units.h>
#include <terrace/offload/offloader_parts.h>

namespace terrace {

void Offloader::Parts::set_host_budget(uint64_t bytes) {
  const bool has_cache = options.states == Placement::nvme;
  const uint64_t least = arena.budget_bytes() + (has_cache ? 0 : record_arena.budget_bytes());
  if (bytes < least) {
    throw Error(ErrorKind::capacity,
                {"the host budget cannot change to", format_bytes(bytes),
                 fmt::format("this run needs {} ({} bytes) beside the optimizer states that it keeps there",
                             format_bytes(least), least),
                 "end the run, and go on from its last commit or checkpoint with a smaller budget"});
  }
  // More than the run began with is no budget of it.
  const uint64_t in_force = std::min(bytes, options.host_budget_bytes);
  if (!has_cache) {
    host_budget_bytes = in_force;
    return;
  }
  const auto wanted = static_cast<uint32_t>(
      std::min<uint64_t>((bytes - least) / plan.record_slot_bytes, plan.host_record_slots));
  if (wanted == records->kept_count()) {
    host_budget_bytes = in_force;
    return;
  }
  watch.set_activity("a change of the host budget");
  host_budget_has_changed = true;
  if (committer != nullptr) committer->wait_idle();
  const bool knows = committer != nullptr && knows_cached;
  std::exception_ptr failure;
  try {
    records->keep(wanted, knows);
  } catch (...) {
    failure = std::current_exception();
  }
  if (turns == nullptr) take_turns();
  if (records_step()) record_budget();
  // What could not be done leaves some of it done.
  host_budget_bytes =
      failure == nullptr ? in_force : least + uint64_t{records->kept_count()} * plan.record_slot_bytes;
  if (failure != nullptr) std::rethrow_exception(failure);
}

void Offloader::Parts::take_turns() {
  if (!options.drive_turns || options.dry || records->streamed_bytes() == 0) return;
  std::vector<std::filesystem::path> folders;
  for (const TierPath& path : options.state_paths) folders.push_back(path.path);
  const Clock& turn_clock = options.clock != nullptr ? *options.clock : clock;
  turns = std::make_unique<DriveTurns>(folders, *options.drive_turns, turn_clock, watch, log);
  records->take_turns(turns.get());
}

void Offloader::set_host_budget(uint64_t bytes) {
  parts_->order.require_nothing_open("cannot change the host budget of");
  finish_update();
  parts_->set_host_budget(bytes);
}

uint64_t Offloader::least_host_budget() const {
  const Parts& p = *parts_;
  return p.arena.budget_bytes() + (p.options.states == Placement::nvme ? 0 : p.record_arena.budget_bytes());
}

uint64_t Offloader::host_budget() const {
  return parts_->host_budget_bytes;
}

uint32_t Offloader::kept_record_chunks() const {
  const Parts& p = *parts_;
  switch (p.options.states) {
    case Placement::nvme:
      return p.records->kept_count();
    case Placement::cpu:
      return p.plan.host_record_slots;
    case Placement::none:
      break;
  }
  return 0;
}

}  // namespace terrace
