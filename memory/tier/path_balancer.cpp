#include <terrace/memory/tier/path_balancer.h>

#include <algorithm>
#include <cmath>
#include <string>

#include <terrace/base/assert.h>

namespace terrace {
namespace {

constexpr double kNsPerSecond = 1e9;
constexpr double kUnknownRate = 1;         // bytes per nanosecond, if no path is known
constexpr uint32_t kSamplesToBelieve = 3;  // before so many samples the assumed rate counts
constexpr double kLeastShareOfFastest =
    64;                             // a path counts with at least the fastest path's rate divided by this
constexpr double kStallFactor = 2;  // a path that takes so many times longer than expected has stalled
constexpr double kMostOwedBlocks = 4;
// A path's file may hold this much more than its share. Of two equal paths, one of which slows to a quarter,
// the faster one then holds 0.8 of the blocks: 1.6 times the half that was planned.
constexpr double kHeadRoom = 1.6;

// Returns the rates, with the mean of the known ones in place of the unknown.
std::vector<double> filled_rates(std::span<const double> rates) {
  double sum = 0;
  double known = 0;
  for (const double rate : rates) {
    if (rate <= 0) continue;
    sum += rate;
    known += 1;
  }
  std::vector<double> filled(rates.begin(), rates.end());
  for (double& rate : filled) {
    if (rate <= 0) rate = known > 0 ? sum / known : kUnknownRate;
  }
  return filled;
}

}  // namespace

PathBalancer::PathBalancer(const std::vector<double>& bytes_per_second, const Clock& clock)
    : path_count_(bytes_per_second.size()),
      clock_(clock),
      paths_(bytes_per_second.size()),
      rates_(bytes_per_second.size()) {
  TERRACE_ASSERT(!bytes_per_second.empty(), "a space has at least one path");
  for (size_t p = 0; p < path_count_; ++p) paths_[p].assumed = bytes_per_second[p] / kNsPerSecond;
}

uint32_t PathBalancer::choose(std::span<const uint64_t> free_slots, uint64_t bytes) {
  TERRACE_ASSERT(free_slots.size() == path_count_,
                 std::to_string(free_slots.size()) + " counts for " + std::to_string(path_count_) + " paths");
  if (path_count_ == 1) return 0;
  const MutexLock lock(mutex_);
  const uint64_t now = clock_.now_ns();
  double fastest = 0;
  for (size_t p = 0; p < path_count_; ++p) fastest = std::max(fastest, rates_[p] = rate_of(paths_[p], now));
  // Each path is given as much as it can move in the same time.
  size_t best = path_count_;
  double best_end = 0;
  double least_promised = INFINITY;
  for (size_t p = 0; p < path_count_; ++p) {
    const Path& path = paths_[p];
    rates_[p] = std::max(rates_[p], fastest / kLeastShareOfFastest);
    least_promised = std::min(least_promised, path.promised_ns);
    const double end = path.promised_ns + static_cast<double>(bytes) / rates_[p];
    if (free_slots[p] == 0 || (best < path_count_ && end >= best_end)) continue;
    best = p;
    best_end = end;
  }
  TERRACE_ASSERT(best < path_count_, "no path has a free slot");
  for (Path& path : paths_) path.promised_ns -= least_promised;
  paths_[best].promised_ns += static_cast<double>(bytes) / rates_[best];
  // A path that was full is not owed everything that it missed.
  for (size_t p = 0; p < path_count_; ++p) {
    const double most_owed_ns = kMostOwedBlocks * static_cast<double>(bytes) / rates_[p];
    paths_[p].promised_ns = std::max(paths_[p].promised_ns, paths_[best].promised_ns - most_owed_ns);
  }
  return static_cast<uint32_t>(best);
}

void PathBalancer::started(uint32_t path, uint64_t bytes) noexcept {
  const MutexLock lock(mutex_);
  const uint64_t now_ns = clock_.now_ns();
  count_time(paths_[path], now_ns);
  count_any(now_ns);
  ++any_in_flight_;
  paths_[path].in_flight_bytes += bytes;
  ++paths_[path].in_flight_requests;
}

void PathBalancer::completed(uint32_t path_index, uint64_t bytes) noexcept {
  const MutexLock lock(mutex_);
  Path& path = paths_[path_index];
  TERRACE_ASSERT(path.in_flight_requests > 0 && path.in_flight_bytes >= bytes,
                 "a request ended on path " + std::to_string(path_index) + " that was not started");
  const uint64_t now_ns = clock_.now_ns();
  count_time(path, now_ns);
  count_any(now_ns);
  --any_in_flight_;
  path.in_flight_bytes -= bytes;
  --path.in_flight_requests;
  path.use.bytes += bytes;
  path.window_bytes += bytes;
  // A request that ended at once says nothing about the rate, so its bytes count with those that follow.
  if (++path.window_requests >= kWindowRequests && path.window_busy_ns > 0) take_sample(path);
}

void PathBalancer::count_any(uint64_t now_ns) {
  if (any_in_flight_ > 0) any_busy_ns_ += now_ns - any_counted_until_ns_;
  any_counted_until_ns_ = now_ns;
}

void PathBalancer::count_time(Path& path, uint64_t now_ns) {
  if (path.in_flight_requests > 0) {
    path.window_busy_ns += now_ns - path.counted_until_ns;
    path.use.busy_ns += now_ns - path.counted_until_ns;
  }
  path.counted_until_ns = now_ns;
}

void PathBalancer::take_sample(Path& path) {
  path.samples[path.sample_count++ % kSamples] =
      static_cast<double>(path.window_bytes) / static_cast<double>(path.window_busy_ns);
  path.window_bytes = path.window_busy_ns = path.window_requests = 0;
  if (path.sample_count < kSamplesToBelieve) return;
  std::array<double, kSamples> sorted = path.samples;
  const auto end = sorted.begin() + std::min(path.sample_count, kSamples);
  const auto middle = sorted.begin() + (end - sorted.begin()) / 2;
  std::nth_element(sorted.begin(), middle, end);
  path.observed = *middle;
}

double PathBalancer::assumed_rate() const {
  double sum = 0;
  double known = 0;
  for (const Path& path : paths_) {
    const double rate = path.observed > 0 ? path.observed : path.assumed;
    if (rate <= 0) continue;
    sum += rate;
    known += 1;
  }
  return known > 0 ? sum / known : kUnknownRate;
}

double PathBalancer::rate_of(const Path& path, uint64_t now_ns) const {
  double rate = path.observed > 0 ? path.observed : path.assumed;
  if (rate <= 0) rate = assumed_rate();
  if (path.in_flight_requests == 0) return rate;
  // A path that stands still completes nothing and gives no sample, but the time that it has taken shows it.
  const auto busy_ns = static_cast<double>(path.window_busy_ns + now_ns - path.counted_until_ns);
  const auto bytes = static_cast<double>(path.window_bytes + path.in_flight_bytes);
  return busy_ns > kStallFactor * bytes / rate ? bytes / busy_ns : rate;
}

uint64_t PathBalancer::busy_ns() const {
  const MutexLock lock(mutex_);
  const uint64_t running_ns = any_in_flight_ > 0 ? clock_.now_ns() - any_counted_until_ns_ : 0;
  return any_busy_ns_ + running_ns;
}

std::vector<double> PathBalancer::rates() const {
  const MutexLock lock(mutex_);
  const uint64_t now = clock_.now_ns();
  std::vector<double> rates;
  for (const Path& path : paths_) rates.push_back(rate_of(path, now) * kNsPerSecond);
  return rates;
}

double PathBalancer::backlog_ns(uint32_t path) const {
  const MutexLock lock(mutex_);
  const auto bytes = static_cast<double>(paths_[path].in_flight_bytes);
  return bytes / rate_of(paths_[path], clock_.now_ns());
}

std::vector<PathUse> PathBalancer::uses() const {
  const MutexLock lock(mutex_);
  std::vector<PathUse> uses;
  for (const Path& path : paths_) uses.push_back(path.use);
  return uses;
}

std::vector<uint64_t> share_slots(uint64_t slots, std::span<const double> bytes_per_second,
                                  std::span<const uint64_t> most) {
  TERRACE_ASSERT(!bytes_per_second.empty() && (most.empty() || most.size() == bytes_per_second.size()),
                 "a limit for every path, or none");
  const size_t count = bytes_per_second.size();
  const std::vector<double> rates = filled_rates(bytes_per_second);
  double sum = 0;
  for (const double rate : rates) sum += rate;
  std::vector<uint64_t> shares(count);
  uint64_t total = 0;
  for (size_t p = 0; p < count; ++p) {
    const double wanted = count == 1 ? static_cast<double>(slots)
                                     : std::ceil(static_cast<double>(slots) * kHeadRoom * rates[p] / sum);
    shares[p] = std::min(slots, static_cast<uint64_t>(wanted));
    if (!most.empty()) shares[p] = std::min(shares[p], most[p]);
    total += shares[p];
  }
  // If a path is short of room, the others take the rest.
  for (size_t p = 0; p < count && total < slots; ++p) {
    const uint64_t room = (most.empty() ? slots : std::min(slots, most[p])) - shares[p];
    const uint64_t taken = std::min(room, slots - total);
    shares[p] += taken;
    total += taken;
  }
  return shares;
}

}  // namespace terrace
