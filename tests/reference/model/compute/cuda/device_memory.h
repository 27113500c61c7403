// Memory of the device that runs the kernels, for their tests: the emulator's is memory of its own size, so
// that the address sanitizer sees what leaves it; a GPU's is the GPU's.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include <terrace/reference/model/compute/cuda/cuda_ops.h>

namespace terrace::testing {

// Why there is no device to run on; empty where there is one.
std::string why_no_device();
void* allocate_on_device(size_t bytes);
void free_on_device(void* memory);
void copy_to_device(void* to, const void* from, size_t bytes);
void copy_from_device(void* to, const void* from, size_t bytes);
// Runs the threads of a block from the last to the first, where that can be chosen.
void run_threads_backwards(bool backwards);

// Elements in device memory, from element `displacement` of an allocation on.
template <typename T>
class OnDevice {
 public:
  explicit OnDevice(const std::vector<T>& values, size_t displacement = 0)
      : memory_(static_cast<T*>(allocate_on_device((values.size() + displacement) * sizeof(T)))),
        displacement_(displacement),
        count_(values.size()) {
    copy_to_device(data(), values.data(), count_ * sizeof(T));
  }
  explicit OnDevice(size_t count) : OnDevice(std::vector<T>(count)) {}
  ~OnDevice() { free_on_device(memory_); }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

  T* data() { return memory_ + displacement_; }
  operator std::span<T>() { return {data(), count_}; }                               // NOLINT: as std::vector
  operator std::span<const T>() const { return {memory_ + displacement_, count_}; }  // NOLINT
  std::vector<T> read() const {
    std::vector<T> values(count_);
    copy_from_device(values.data(), memory_ + displacement_, count_ * sizeof(T));
    return values;
  }

  ParameterView view() const { return {reinterpret_cast<const std::byte*>(memory_ + displacement_), type()}; }
  GradientTarget into(bool accumulate = false) {
    return {{reinterpret_cast<std::byte*>(data()), accumulate}, type()};
  }

 private:
  static constexpr DataType type() {
    if constexpr (std::is_same_v<T, Bf16>) return DataType::bf16;
    if constexpr (std::is_same_v<T, Fp16>) return DataType::fp16;
    return DataType::fp32;
  }

  T* memory_;
  size_t displacement_;
  size_t count_;
};

}  // namespace terrace::testing
