#include <terrace/aio/latency_histogram.h>
#include <algorithm>
#include <bit>
#include <cmath>

namespace terrace::io {

LatencyHistogram::LatencyHistogram() : buckets_(bucket_of(UINT64_MAX) + 1) {}

// Below 2^kBits each value has its own; above, the kBits bits after the highest one choose among those of its
// power of two.
uint32_t LatencyHistogram::bucket_of(uint64_t ns) {
  constexpr uint64_t kExact = uint64_t{1} << kBits;
  if (ns < kExact) return static_cast<uint32_t>(ns);
  const auto power = static_cast<uint32_t>(std::bit_width(ns)) - 1;
  const uint32_t shift = power - kBits;
  const auto below = static_cast<uint32_t>((ns >> shift) - kExact);
  return ((shift + 1) << kBits) + below;
}

uint64_t LatencyHistogram::upper_end(uint32_t bucket) {
  constexpr uint64_t kExact = uint64_t{1} << kBits;
  if (bucket < kExact) return bucket;
  const uint32_t shift = (bucket >> kBits) - 1;
  const uint64_t first = (kExact + (bucket & (kExact - 1))) << shift;
  return first + ((uint64_t{1} << shift) - 1);
}

void LatencyHistogram::add(uint64_t ns) {
  ++buckets_[bucket_of(ns)];
  ++count_;
  min_ns_ = std::min(min_ns_, ns);
  max_ns_ = std::max(max_ns_, ns);
  const double before = static_cast<double>(ns) - mean_ns_;
  mean_ns_ += before / static_cast<double>(count_);
  distances_ += before * (static_cast<double>(ns) - mean_ns_);
}

double LatencyHistogram::mean_ns() const {
  return mean_ns_;
}

double LatencyHistogram::stddev_ns() const {
  return count_ == 0 ? 0 : std::sqrt(distances_ / static_cast<double>(count_));
}

uint64_t LatencyHistogram::percentile_ns(double percent) const {
  const double wanted = std::max(1.0, std::ceil(percent / 100 * static_cast<double>(count_)));
  uint64_t seen = 0;
  for (uint32_t bucket = 0; bucket < buckets_.size(); ++bucket) {
    seen += buckets_[bucket];
    if (static_cast<double>(seen) >= wanted) return std::min(upper_end(bucket), max_ns_);
  }
  return max_ns_;
}

}  // namespace terrace::io
