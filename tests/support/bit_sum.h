// BitSum: a sum of sums of squares, bit by bit, as slow as it is plain: what ExactSum must give.
#pragma once

#include <bitset>
#include <cmath>
#include <cstddef>

namespace terrace::testing {

class BitSum {
 public:
  // `value` is a multiple of 2^-400 and not negative.
  void add(double value) {
    int exponent = 0;
    double rest = std::frexp(value, &exponent);
    for (int at = exponent - 1; rest != 0; --at) {
      rest *= 2;
      if (rest < 1) continue;
      rest -= 1;
      size_t bit = static_cast<size_t>(at + kDown);
      while (bits_[bit]) bits_[bit++] = false;
      bits_[bit] = true;
    }
  }

  // To nearest, ties to even.
  double value() const {
    size_t top = bits_.size();
    while (top > 0 && !bits_[top - 1]) --top;
    double value = 0;
    size_t taken = 0, at = top;
    for (; at > 0 && taken < 53; ++taken) value = 2 * value + (bits_[--at] ? 1 : 0);
    const bool half = at > 0 && bits_[at - 1];
    bool more = false;
    for (size_t below = 0; at > 0 && below + 1 < at; ++below) more = more || bits_[below];
    if (half && (more || std::fmod(value, 2) == 1)) value += 1;
    return std::ldexp(value, static_cast<int>(at) - kDown);
  }

 private:
  static constexpr int kDown = 400;  // the lowest bit is 2^-400
  std::bitset<800> bits_;
};

}  // namespace terrace::testing
