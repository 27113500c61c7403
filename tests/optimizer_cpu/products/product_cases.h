// Inputs and scratch memory that the tests of products share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include <terrace/base/workers.h>
#include <terrace/optimizer_cpu/products/products.h>

namespace terrace::testing {

// Normal numbers, others for every `stream`.
inline std::vector<float> normal_values(uint64_t count, uint32_t stream) {
  std::mt19937 random(stream);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

// Floats from an address on that is aligned to 64 bytes.
class AlignedFloats {
 public:
  explicit AlignedFloats(uint64_t count) : floats_(count + 16) {}
  float* begin() {
    const uintptr_t over = reinterpret_cast<uintptr_t>(floats_.data()) % 64;
    return floats_.data() + (64 - over) % 64 / sizeof(float);
  }

 private:
  std::vector<float> floats_;
};

// What a product on all workers needs.
class ScratchOf {
 public:
  explicit ScratchOf(const Workers& workers)
      : floats_(workers.thread_count() * Products::workspace_floats()) {}
  operator ProductScratch() { return {floats_.begin(), Products::workspace_floats()}; }

 private:
  AlignedFloats floats_;
};

}  // namespace terrace::testing
