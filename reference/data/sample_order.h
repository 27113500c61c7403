// SampleOrder says which sample is the n-th of a run. The run goes through epochs, each a permutation of all
// samples that depends on the seed and the epoch alone. It stores nothing, so a position in the data is one
// number, and a run that resumes may cut its samples into micro-batches in another way.
#pragma once

#include <cstdint>

namespace terrace {

class SampleOrder {
 public:
  // `sample_count` is at least one.
  SampleOrder(uint64_t seed, uint64_t sample_count);

  uint64_t sample_count() const { return sample_count_; }
  uint64_t epoch_of(uint64_t sample_number) const { return sample_number / sample_count_; }
  // Returns the sample with number `sample_number` of the run, in [0, sample_count()). Every sample comes
  // once per epoch. Takes constant time on average.
  uint64_t at(uint64_t sample_number) const;

 private:
  uint64_t permuted(uint64_t index, uint64_t epoch) const;

  uint64_t seed_;
  uint64_t sample_count_;
  // The permutation works on numbers of high_bits_ + low_bits_ bits; there are fewer than twice sample_count_
  // of them.
  uint32_t low_bits_;
  uint32_t high_bits_;
};

}  // namespace terrace
