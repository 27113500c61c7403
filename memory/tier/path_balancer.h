// PathBalancer: chooses the path that the next block is written to, so that all paths are busy equally long.
//
// It begins with the measured mixed rates and then follows its own observations: bytes moved per time in
// which a path had something to move, so that a path that rests is not taken for a slow one. An estimate is
// the median of the last few windows of requests. One burst into a write cache or one pause does not move it;
// when a path slows for good, or recovers, new writes follow within a few dozen requests. Every path gets
// some writes, because otherwise its recovery would go unseen.
//
// The same calls at the same times of the clock give the same choices. It must never touch a file, and its
// choices must never change a result: they only say where bytes lie.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include <terrace/base/clock.h>
#include <terrace/base/mutex.h>

namespace terrace {

// The transfers that have gone over a path.
struct PathUse {
  uint64_t bytes = 0;    // reads and writes that have ended
  uint64_t busy_ns = 0;  // the time in which at least one was in flight
};

// Thread-safe.
class PathBalancer {
 public:
  // `bytes_per_second` is the measured rate of each path while reads and writes are mixed; 0: not known,
  // which counts as the mean of the known ones. There is at least one path; `clock` outlives the balancer.
  PathBalancer(const std::vector<double>& bytes_per_second, const Clock& clock);

  size_t path_count() const { return path_count_; }

  // Chooses the path for the next written block among those with free slots; at least one path must have
  // some. The block counts as written there.
  uint32_t choose(std::span<const uint64_t> free_slots, uint64_t bytes);

  // The caller reports every request, read or write, when it is submitted and when it has ended.
  void started(uint32_t path, uint64_t bytes) noexcept;
  void completed(uint32_t path, uint64_t bytes) noexcept;

  // The estimated bytes per second of each path; the assumed rate where nothing was observed yet.
  std::vector<double> rates() const;
  std::vector<PathUse> uses() const;
  // The time in which at least one transfer was in flight on any path.
  uint64_t busy_ns() const;
  // How long a path will be busy with the requests in flight.
  double backlog_ns(uint32_t path) const;

 private:
  static constexpr uint32_t kWindowRequests = 6;  // requests that make one sample
  static constexpr uint32_t kSamples = 5;         // samples whose median counts

  struct Path {
    double assumed = 0;  // bytes per nanosecond, as all rates here
    std::array<double, kSamples> samples{};
    uint32_t sample_count = 0;  // ever taken
    double observed = 0;        // the median; 0: too few samples
    uint64_t window_bytes = 0;
    uint64_t window_busy_ns = 0;
    uint32_t window_requests = 0;
    uint64_t in_flight_bytes = 0;
    uint32_t in_flight_requests = 0;
    uint64_t counted_until_ns = 0;  // busy time is counted up to here
    double promised_ns = 0;         // time of the blocks chosen for this path, above the least of all paths
    PathUse use;
  };
  // Counts the busy time of all paths together until now.
  void count_any(uint64_t now_ns) TERRACE_REQUIRES(mutex_);
  // Counts the path's busy time until now.
  static void count_time(Path& path, uint64_t now_ns);
  static void take_sample(Path& path);
  double assumed_rate() const TERRACE_REQUIRES(mutex_);
  double rate_of(const Path& path, uint64_t now_ns) const TERRACE_REQUIRES(mutex_);

  const size_t path_count_;
  const Clock& clock_;
  mutable Mutex mutex_;
  std::vector<Path> paths_ TERRACE_GUARDED_BY(mutex_);
  std::vector<double> rates_ TERRACE_GUARDED_BY(mutex_);  // scratch memory of choose()
  // The counters of all paths together.
  uint32_t any_in_flight_ TERRACE_GUARDED_BY(mutex_) = 0;
  uint64_t any_counted_until_ns_ TERRACE_GUARDED_BY(mutex_) = 0;
  uint64_t any_busy_ns_ TERRACE_GUARDED_BY(mutex_) = 0;
};

// How many of `slots` slots the file of each path gets: in proportion to the rates (0: the mean of the
// others), but with several paths more than its share, up to all of them, so that the share of a path may
// grow when another one slows. A path gets no more than `most[p]` slots (its free space) where that is given;
// the sum is less than `slots` only when `most` leaves no other way.
std::vector<uint64_t> share_slots(uint64_t slots, std::span<const double> bytes_per_second,
                                  std::span<const uint64_t> most = {});

}  // namespace terrace
