// ExactSum: the sum of sums of squares without any rounding, so that neither their order nor the place where
// each was made changes a bit of a norm.
//
// It is a number in fixed point: kLimbs limbs of 32 bits, the lowest bit of which is 2^-320. The square of an
// fp32 is a multiple of 2^-298, and the sum of 2^47 blocks is below 2^316, so all that can come fits.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace terrace {

// Not thread-safe. Allocates nothing.
class ExactSum {
 public:
  static constexpr size_t kLimbs = 21;

  // `value` is the sum of squares of a block: a multiple of 2^-298 from 0 to below 2^269. Infinity and NaN
  // stay: nothing takes them out again.
  void add(double value);
  // Adds what `other` has.
  void merge(const ExactSum& other);

  bool is_finite() const { return not_finite_ == 0; }
  // The sum, rounded once: to nearest, ties to even.
  double value() const;

  // The number as limbs below 2^32, of which limb i is worth 2^(32 i - 320): those of several sums add up.
  std::array<uint64_t, kLimbs> limbs() const;
  // The sum of what is infinite or NaN; 0 where nothing is.
  double not_finite() const { return not_finite_; }

 private:
  void carry();

  std::array<int64_t, kLimbs> limbs_{};
  uint64_t added_ = 0;     // since limbs were last below 2^32
  double not_finite_ = 0;  // the sum of what is not finite
};

}  // namespace terrace
