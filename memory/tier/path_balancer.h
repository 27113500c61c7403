// PathBalancer: which of several paths the next block is written to, so that all of them are busy equally
// long.
//
// It begins with the measured mixed rates and follows what it observes: bytes moved per time in which a path
// had something to move, so that a path that rests is not taken for a slow one. An estimate is the median of
// the last few windows of requests; neither one burst into a write cache nor one pause moves it, and when a
// path slows for good, or recovers, new writes follow within a few dozen requests. A path never gets nothing:
// otherwise nobody would see it recover.
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

// What has gone over a path.
struct PathUse {
  uint64_t bytes = 0;    // reads and writes that have ended
  uint64_t busy_ns = 0;  // the time in which at least one was in flight
};

// Thread-safe.
class PathBalancer {
 public:
  // The rate of each path while reads and writes are mixed, as measured; 0: not known, which counts as the
  // mean of those that are. At least one path; `clock` outlives the balancer.
  PathBalancer(const std::vector<double>& bytes_per_second, const Clock& clock);

  size_t path_count() const { return path_count_; }

  // The path for the next written block, among those with free slots, of which there must be one. It counts
  // as written there.
  uint32_t choose(std::span<const uint64_t> free_slots, uint64_t bytes);

  // Every request, read or written, when it is submitted and when it has ended.
  void started(uint32_t path, uint64_t bytes) noexcept;
  void completed(uint32_t path, uint64_t bytes) noexcept;

  // Bytes per second, as estimated now; what is assumed where nothing was observed yet.
  std::vector<double> rates() const;
  std::vector<PathUse> uses() const;
  // The time in which at least one transfer was in flight on any path.
  uint64_t busy_ns() const;
  // How long a path will be busy with what is in flight.
  double backlog_ns(uint32_t path) const;

 private:
  static constexpr uint32_t kWindowRequests = 6;  // make one sample
  static constexpr uint32_t kSamples = 5;         // of which the median counts

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
    double promised_ns = 0;         // the time that what was chosen for this path takes, against the others
    PathUse use;
  };
  // Counts the time of all paths together until now.
  void count_any(uint64_t now_ns) TERRACE_REQUIRES(mutex_);
  // Counts busy time until now.
  static void count_time(Path& path, uint64_t now_ns);
  static void take_sample(Path& path);
  double assumed_rate() const TERRACE_REQUIRES(mutex_);
  double rate_of(const Path& path, uint64_t now_ns) const TERRACE_REQUIRES(mutex_);

  const size_t path_count_;
  const Clock& clock_;
  mutable Mutex mutex_;
  std::vector<Path> paths_ TERRACE_GUARDED_BY(mutex_);
  std::vector<double> rates_ TERRACE_GUARDED_BY(mutex_);  // of choose(), kept for its memory
  // Of all paths together.
  uint32_t any_in_flight_ TERRACE_GUARDED_BY(mutex_) = 0;
  uint64_t any_counted_until_ns_ TERRACE_GUARDED_BY(mutex_) = 0;
  uint64_t any_busy_ns_ TERRACE_GUARDED_BY(mutex_) = 0;
};

// How many of `slots` slots the file of each path gets, at least: in proportion to the rates (0: the mean of
// the others), and with several paths more than its share, so that the share of a path may grow when another
// one slows. At most all of them. A path gets no more than `most[p]` slots where that is given (its free
// space); the sum is less than `slots` only where that leaves no other way.
std::vector<uint64_t> share_slots(uint64_t slots, std::span<const double> bytes_per_second,
                                  std::span<const uint64_t> most = {});

}  // namespace terrace
