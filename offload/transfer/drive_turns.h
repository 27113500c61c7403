// DriveTurns: when the update may stream over its drives, where several processes of a user stream over them.
// Each process has the drives for bounded turns, so that it streams at full speed for a while instead of
// interleaved with the others, and never waits for a whole update of another process.
//
// A turn ends after turn_ns, at the first block to be read while another process waits; while none waits, the
// turn goes on at no cost. Time bounds a turn, not bytes: the others lose time, whatever the speed of the
// drive or of the computing process. The drive changes hands while the turn's last blocks, at most a ring of
// them, are still on their way, so it is never idle in between.
//
// DriveTurns decides when a block is read, never whether: if a turn cannot be had in time, or at all, the
// update goes on without one and says so once. It must never be asked for transfers that anything but the
// update waits for. The thread that runs the update uses it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include <terrace/aio/drives/device_token.h>
#include <terrace/base/clock.h>
#include <terrace/base/log.h>
#include <terrace/offload/watch/step_watch.h>

namespace terrace {

struct DriveTurnOptions {
  io::DeviceTokenOptions token;
  // The length of a turn. About a hundredth of it is lost when the drive changes hands (the next process
  // looks every half millisecond and fills its ring), and with ten processes none waits longer than a second.
  uint64_t turn_ns = 100'000'000;
};

class DriveTurns {
 public:
  // The turns are on the drives of `paths`, existing folders. `clock` says when a turn is over.
  DriveTurns(std::span<const std::filesystem::path> paths, const DriveTurnOptions& options,
             const Clock& clock, StepWatch& watch, Log& log);

  // Says whether the next block may be read now. Takes the drives when they are free.
  bool may_read();
  // Waits for a turn; the next block may be read then.
  void wait();
  // Gives the turn back, because no block will be read for a while.
  void give_back() { token_.release(); }

  bool held() const { return token_.held(); }
  uint64_t wait_ns() const { return wait_ns_; }

 private:
  void begin_turn();
  void describe_wait();

  io::DeviceToken token_;
  const uint64_t turn_ns_;
  const Clock& clock_;
  Log& log_;
  StepWatch& watch_;
  std::string place_;    // for messages
  std::string subject_;  // words of the wait in progress; a member so that its memory is reused
  uint64_t turn_end_ns_ = 0;
  bool has_read_ = false;  // in this turn
  bool without_ = false;   // a wait timed out, and no turn was had since
  uint64_t wait_ns_ = 0;
};

}  // namespace terrace
