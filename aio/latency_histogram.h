// LatencyHistogram: how long operations took, in buckets at most 1/64 of their value wide, like fio's. It
// must never allocate after its constructor.
#pragma once

#include <cstdint>
#include <vector>

namespace terrace::io {

class LatencyHistogram {
 public:
  LatencyHistogram();

  void add(uint64_t ns);

  uint64_t count() const { return count_; }
  // The numbers below are 0 when nothing was added.
  uint64_t min_ns() const { return count_ == 0 ? 0 : min_ns_; }
  uint64_t max_ns() const { return max_ns_; }
  double mean_ns() const;
  double stddev_ns() const;  // of the operations that were added
  // The upper end of the first bucket up to which `percent` of the operations lie, but at most max_ns().
  uint64_t percentile_ns(double percent) const;

 private:
  static constexpr uint32_t kBits =
      6;  // values with the same highest bits share a bucket: 64 buckets for each power of two
  static uint32_t bucket_of(uint64_t ns);
  static uint64_t upper_end(uint32_t bucket);

  std::vector<uint64_t> buckets_;
  uint64_t count_ = 0;
  uint64_t min_ns_ = UINT64_MAX;
  uint64_t max_ns_ = 0;
  double mean_ns_ = 0;  // Welford's running mean and sum of squared distances from it
  double distances_ = 0;
};

}  // namespace terrace::io
