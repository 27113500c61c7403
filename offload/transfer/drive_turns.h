// DriveTurns: when the update may stream over its drives, where several processes of a user do. Each has them
// for bounded turns, so that every one of them streams at full speed for a while instead of all of them
// through each other, and none waits for a whole update of another.
//
// A turn ends after turn_ns, at the first block that is about to be read while another process waits; while
// none does, it goes on at no cost. Time bounds it and not bytes: time is what others lose, on a drive of any
// speed and by a process that computes slowly. The drive changes hands while what the turn has started is
// still on its way, at most a ring of blocks, so that it is never idle in between.
//
// It decides when a block is read, never whether: where a turn cannot be had in time, or at all, the update
// goes on without and says so once. It must never be asked for what anything but the update waits for. Used
// by the thread that runs the update.
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
  // A hundredth of it is lost when the drive changes hands (the next process looks every half a millisecond
  // and fills its ring); and with ten processes nobody waits for longer than a second.
  uint64_t turn_ns = 100'000'000;
};

class DriveTurns {
 public:
  // On the drives of `paths`, existing folders. `clock` says when a turn is over.
  DriveTurns(std::span<const std::filesystem::path> paths, const DriveTurnOptions& options,
             const Clock& clock, StepWatch& watch, Log& log);

  // A block is about to be read: whether it may be now. Takes the drives when they are free.
  bool may_read();
  // Waits for a turn; the next block may be read then.
  void wait();
  // Nothing is going to be read for a while.
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
  std::string subject_;  // of the wait in progress; kept for its memory
  uint64_t turn_end_ns_ = 0;
  bool has_read_ = false;  // in this turn
  bool without_ = false;   // patience was at an end, and the drives have not been had since
  uint64_t wait_ns_ = 0;
};

}  // namespace terrace
