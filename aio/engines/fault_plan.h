// FaultPlan: an explicit list of what goes wrong, when and where, so that a failing run can be printed and
// repeated. It must never do the damage itself: FaultTransport does, as the plan says.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <terrace/aio/engine.h>
#include <terrace/base/clock.h>
#include <terrace/base/mutex.h>

namespace terrace::io {

enum class FaultKind : uint8_t {
  fail,            // moves `bytes` bytes, then ends with `error` (EIO, ENOSPC, kEndOfFile ...)
  short_transfer,  // moves only `bytes` bytes and says so; FaultTransport only: an Engine never ends short
  delay,           // completes no sooner than `delay_ns` after it was submitted
  corrupt_read,    // flips the lowest bit of byte `bytes` of the bytes read
  torn_write,      // moves only `bytes` bytes and claims all; 0 bytes: a lost write
  full,            // writes find room for `bytes` bytes in all, then fail with ENOSPC
  rate_limit,      // transfers pass one after the other at `bytes_per_second`
};

// As a Fault's index: every transfer.
inline constexpr uint64_t kEveryIndex = UINT64_MAX;
// As the `bytes` of corrupt_read: some byte, chosen by the seed.
inline constexpr uint64_t kAnyByte = UINT64_MAX;

// A fault is about the transfers (requests of an engine, pieces of a transport) of its `operation` at its
// `path` or `file`. It numbers these from 0 in the order of submission, and happens to those that meet every
// other condition. Several faults may meet in one transfer. Among the rate limits of one path, the last in
// the list whose time has come is in force.
struct Fault {
  uint64_t index = kEveryIndex;
  FaultKind kind = FaultKind::fail;
  uint64_t bytes = 0;
  int error = EIO;
  uint64_t delay_ns = 0;
  uint64_t bytes_per_second = 0;

  std::optional<OpKind> operation = {};  // none: both
  std::string path = {};                 // a file, or a folder and all below; empty: anywhere
  std::string file = {};                 // the last part of the path; empty: any
  uint64_t from_index = 0;               // the first it may happen to
  uint64_t every = 1;                    // only to every n-th, counted from from_index
  uint64_t from_ns = 0;                  // not before this time since the plan was made
  double probability = 1;                // decided by hash of the seed and the number
  uint64_t seed = 0;
};

// How delayed completions see time pass. A blocking call with nothing else to wait for sleeps until the next
// completion is due, by `sleep_until` or, if that is empty, in real time.
struct FaultTime {
  const Clock* clock;
  std::function<void(uint64_t ns)> sleep_until;
};
// Returns the FaultTime of real time.
FaultTime real_time();

// The effects of the plan on one transfer.
struct FaultEffects {
  bool any = false;
  uint64_t moved_bytes = 0;  // really moved
  int error = 0;             // in the end
  bool disk_is_full = false;
  bool claims_all = false;
  std::optional<uint64_t> flipped_byte;
  uint64_t due_ns = 0;  // completes no sooner

  // Flips the bit that is to be wrong, if it is among these bytes.
  void flip(std::byte* data, uint64_t bytes) const;
};

// Several engines may share a plan: it then numbers their transfers together, and their bytes share the
// rates. Thread-safe.
class FaultPlan {
 public:
  explicit FaultPlan(std::vector<Fault> faults, FaultTime time = real_time());

  // Numbers this transfer and returns the effects on it.
  FaultEffects effects_on(OpKind kind, int fd, uint64_t bytes);
  const FaultTime& time() const { return time_; }
  const std::vector<Fault>& faults() const { return faults_; }
  // transfers() counts all transfers so far, faults_done() those that anything has happened to.
  uint64_t transfers() const;
  uint64_t faults_done() const;

 private:
  struct State {
    uint64_t seen = 0;
    uint64_t written_bytes = 0;
  };
  bool concerns(const Fault& fault, OpKind kind, const std::string& path) const;
  bool happens_to(const Fault& fault, uint64_t number, uint64_t now_ns) const;
  void apply(const Fault& fault, State& state, uint64_t number, uint64_t bytes, uint64_t now_ns,
             FaultEffects& effects) const;
  void limit_rates(const std::map<std::string, uint64_t>& rates, uint64_t bytes, uint64_t now_ns,
                   FaultEffects& effects) TERRACE_REQUIRES(mutex_);

  std::vector<Fault> faults_;
  const FaultTime time_;
  const uint64_t start_ns_;
  bool names_files_ = false;
  mutable Mutex mutex_;
  std::vector<State> states_ TERRACE_GUARDED_BY(mutex_);  // by fault
  // By path and file: the time at which everything submitted so far will have passed.
  std::map<std::string, uint64_t> passed_ns_ TERRACE_GUARDED_BY(mutex_);
  uint64_t transfers_ TERRACE_GUARDED_BY(mutex_) = 0;
  uint64_t faults_done_ TERRACE_GUARDED_BY(mutex_) = 0;
};

}  // namespace terrace::io
