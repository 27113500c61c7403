// HostBudget: the bytes of host memory that a run may use, which may change between its steps. Optimizer
// states that are resident make room or take it up: what leaves is written where the tier has not got it, and
// its pages go back to the system at once; what enters is read.
//
// On the thread that trains. The plan's budget is the most: a larger one has no effect.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace terrace {

class Commits;
class DriveTurns;
class HostArena;
class RecordStore;
class StepBoundary;
struct RunContext;

struct TierUse {
  std::string purpose;
  uint64_t bytes = 0;
};

class HostBudget {
 public:
  // `arena` has what the run cannot do without, `record_arena` the optimizer states. All references outlive
  // this.
  struct Memory {
    const HostArena& arena;
    const HostArena& record_arena;
    RecordStore& records;
  };
  // Made by the Offloader. `on_change` is told that other chunks are resident now.
  HostBudget(const RunContext& run, const Memory& memory, StepBoundary& boundary, Commits& commits,
             std::function<void()> on_change);
  ~HostBudget();

  // The budget from now on; between steps. Waits for a commit in progress. Throws Error(capacity) below
  // least(), and then nothing has changed; or when the system has not got the memory any more.
  void set(uint64_t bytes);
  // Everything but resident optimizer states, as this plan has it.
  uint64_t least() const;
  uint64_t in_force() const { return in_force_; }
  // The budget has changed so that other chunks are resident: steps differ in their least traffic.
  bool has_changed() const { return has_changed_; }
  // How many chunks' optimizer states are in host memory now: what a step need not read and write.
  uint32_t resident_chunks() const;

  // What takes host memory now.
  std::vector<TierUse> ledger() const;
  // The most that it was: before any of it was given back.
  uint64_t peak_bytes() const;

 private:
  bool can_change() const;
  void take_turns();

  const RunContext& run_;
  const Memory memory_;
  StepBoundary& boundary_;
  Commits& commits_;
  const std::function<void()> on_change_;
  std::unique_ptr<DriveTurns> turns_;  // null where none are taken
  uint64_t in_force_;
  bool has_changed_ = false;
};

}  // namespace terrace
