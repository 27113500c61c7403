#include <terrace/optimizer_cpu/exact_sum.h>

#include <bit>
#include <cmath>

#include <terrace/base/assert.h>

namespace terrace {
namespace {

constexpr int kLowestBit = -320;
constexpr uint32_t kLimbBits = 32;
constexpr int kMantissaBits = 53;
constexpr uint64_t kLimbMask = 0xffffffff;
constexpr double kTooLarge = 0x1p269;
// A limb takes so many parts below 2^32 before it might overflow.
constexpr uint64_t kMostAdded = uint64_t{1} << 30;

}  // namespace

void ExactSum::add(double value) {
  if (!std::isfinite(value)) {
    not_finite_ += value;
    return;
  }
  if (value == 0) return;
  const uint64_t bits = std::bit_cast<uint64_t>(value);
  // No sum of squares is denormal, so the leading one is always there.
  uint64_t mantissa =
      (bits & ((uint64_t{1} << (kMantissaBits - 1)) - 1)) | (uint64_t{1} << (kMantissaBits - 1));
  int position = static_cast<int>(bits >> (kMantissaBits - 1)) - 1023 - (kMantissaBits - 1) - kLowestBit;
  TERRACE_ASSERT(value > 0 && value < kTooLarge, "a sum of squares is not negative, and below 2^269");
  if (position < 0) {
    TERRACE_ASSERT(position > -kMantissaBits && (mantissa & ((uint64_t{1} << -position) - 1)) == 0,
                   "a sum of squares is a multiple of 2^-298");
    mantissa >>= -position;
    position = 0;
  }
  const size_t limb = static_cast<size_t>(position) / kLimbBits;
  const uint32_t shift = static_cast<uint32_t>(position) % kLimbBits;
  const uint64_t low = (mantissa & kLimbMask) << shift;
  const uint64_t high = (mantissa >> kLimbBits) << shift;
  limbs_[limb] += static_cast<int64_t>(low & kLimbMask);
  limbs_[limb + 1] += static_cast<int64_t>((low >> kLimbBits) + (high & kLimbMask));
  limbs_[limb + 2] += static_cast<int64_t>(high >> kLimbBits);
  if (++added_ == kMostAdded) carry();
}

void ExactSum::merge(const ExactSum& other) {
  ExactSum rest = other;
  rest.carry();
  carry();
  for (size_t i = 0; i < kLimbs; ++i) limbs_[i] += rest.limbs_[i];
  added_ = 1;
  not_finite_ += other.not_finite_;
}

// Brings every limb but the last into [0, 2^32), which leaves the number as it is.
void ExactSum::carry() {
  int64_t carried = 0;
  for (size_t i = 0; i + 1 < kLimbs; ++i) {
    const int64_t limb = limbs_[i] + carried;
    limbs_[i] = limb & static_cast<int64_t>(kLimbMask);
    carried = (limb - limbs_[i]) >> kLimbBits;
  }
  limbs_[kLimbs - 1] += carried;
  added_ = 0;
}

std::array<uint64_t, ExactSum::kLimbs> ExactSum::limbs() const {
  ExactSum sum = *this;
  sum.carry();
  std::array<uint64_t, kLimbs> limbs{};
  for (size_t i = 0; i < kLimbs; ++i) limbs[i] = static_cast<uint64_t>(sum.limbs_[i]);
  return limbs;
}

double ExactSum::value() const {
  if (!is_finite()) return not_finite_;
  ExactSum sum = *this;
  sum.carry();
  size_t top = kLimbs;
  while (top > 0 && sum.limbs_[top - 1] == 0) --top;
  if (top == 0) return 0;
  // The highest 64 bits from the leading one on; what is below them only says whether there is anything.
  const auto limb_below = [&](size_t down) {
    return top > down ? static_cast<uint64_t>(sum.limbs_[top - 1 - down]) : uint64_t{0};
  };
  const int leading_zeros = std::countl_zero(static_cast<uint32_t>(limb_below(0)));
  uint64_t highest = (limb_below(0) << kLimbBits) | limb_below(1);
  uint64_t below = limb_below(2) << kLimbBits;
  if (leading_zeros > 0) {
    highest = (highest << leading_zeros) | (below >> (64 - leading_zeros));
    below <<= leading_zeros;
  }
  for (size_t down = 3; down < top; ++down) below |= limb_below(down);
  // Odd where bits follow, so that the conversion to 53 bits rounds as it would with all of them.
  if (below != 0) highest |= 1;
  const int exponent = static_cast<int>(kLimbBits * top) - leading_zeros - 64 + kLowestBit;
  return std::ldexp(static_cast<double>(highest), exponent);
}

}  // namespace terrace
