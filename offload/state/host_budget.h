// HostBudget: the bytes of host memory that a run may use, which may change between its steps. Resident
// optimizer states make room for a smaller budget or fill a larger one. A chunk's states that leave are
// written where the tier does not have them, and their pages go back to the system at once; states that enter
// are read.
//
// The step thread uses it. A budget above the plan's has no effect.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace terrace {

class Commits;
class HostArena;
class RecordStore;
class TieredActivations;
class StepBoundary;
struct RunContext;

struct TierUse {
  std::string purpose;
  uint64_t bytes = 0;
};

class HostBudget {
 public:
  // `arena` holds the memory that the run cannot do without, `record_arena` the resident optimizer states.
  // All references outlive the HostBudget.
  struct Memory {
    const HostArena& arena;
    const HostArena& record_arena;
    RecordStore& records;
    TieredActivations* saved;  // null where none are
  };
  // The Offloader constructs it. `on_change` is called when other chunks have become resident.
  HostBudget(const RunContext& run, const Memory& memory, StepBoundary& boundary, Commits& commits,
             std::function<void()> on_change);

  // Sets the budget; call it between steps. Waits for a commit in progress. Throws Error(capacity) below
  // least(), where nothing has changed, or when the system does not have the memory any more.
  void set(uint64_t bytes);
  // The least budget: the host bytes of the run without the optimizer states that can leave for nvme, with
  // what saved activations have in any case.
  uint64_t least() const;
  uint64_t in_force() const { return in_force_; }
  // True if the budget has changed so that other chunks are resident: steps then differ in their least
  // traffic.
  bool has_changed() const { return has_changed_; }
  // The number of chunks whose optimizer states are resident now: a step need not read and write these.
  uint32_t resident_chunks() const;

  // The present uses of host memory.
  std::vector<TierUse> ledger() const;
  // The peak of host memory, before any of it was given back.
  uint64_t peak_bytes() const;

 private:
  bool can_change() const;
  // What the run has without records that can leave, and without saved activations.
  uint64_t of_run_bytes() const;
  // Gives saved activations what the run leaves of a budget with so many resident chunks.
  void leave_to_saved(uint64_t bytes, uint32_t resident_chunks);

  const RunContext& run_;
  const Memory memory_;
  StepBoundary& boundary_;
  Commits& commits_;
  const std::function<void()> on_change_;
  uint64_t in_force_;
  bool has_changed_ = false;
};

}  // namespace terrace
