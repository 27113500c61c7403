// InMemoryParameters: every parameter and gradient in plain vectors. The reference that a run with any
// placement must match, so it knows no tiers, chunks or schedules.
#pragma once

#include <cstddef>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <terrace/base/assert.h>
#include <terrace/base/data_type.h>
#include <terrace/memory/space/tensor.h>
#include <terrace/offload/lease/parameter_access.h>

namespace terrace::testing {

// One lease, as it was asked for.
struct RecordedUse {
  std::string operation;
  UseKind kind = UseKind::forward;
  std::vector<TensorId> tensors;
  bool operator==(const RecordedUse&) const = default;
};

// `bytes` as fp32 numbers.
inline std::vector<float> numbers_of(std::span<const std::byte> bytes, DataType type) {
  std::vector<float> values(bytes.size() / bytes_of(type));
  for (size_t i = 0; i < values.size(); ++i) {
    if (type == DataType::fp32) {
      std::memcpy(&values[i], bytes.data() + i * 4, 4);
    } else {
      uint16_t bits;
      std::memcpy(&bits, bytes.data() + i * 2, 2);
      values[i] = type == DataType::bf16 ? to_float(Bf16{bits}) : to_float(Fp16{bits});
    }
  }
  return values;
}

// fp32 numbers as bytes of a tensor, rounded.
inline std::vector<std::byte> bytes_from(std::span<const float> values, DataType type) {
  std::vector<std::byte> bytes(values.size() * bytes_of(type));
  for (size_t i = 0; i < values.size(); ++i) {
    const uint16_t bits = type == DataType::bf16 ? to_bf16(values[i]).bits : to_fp16(values[i]).bits;
    if (type == DataType::fp32) std::memcpy(bytes.data() + i * 4, &values[i], 4);
    if (type != DataType::fp32) std::memcpy(bytes.data() + i * 2, &bits, 2);
  }
  return bytes;
}

class InMemoryParameters final : public ParameterAccess {
 public:
  // fill(tensor, first_element, out) gives the first values.
  using Fill = std::function<void(TensorId, uint64_t, std::span<float>)>;
  InMemoryParameters(std::vector<TensorSpec> tensors, const Fill& fill) : tensors_(std::move(tensors)) {
    for (uint32_t i = 0; i < tensors_.size(); ++i) {
      std::vector<float> values(tensors_[i].element_count());
      fill(TensorId{i}, 0, values);
      entries_.push_back({bytes_from(values, tensors_[i].type), {}, 0, false});
      entries_.back().gradient.resize(entries_.back().parameter.size());
    }
  }

  // Gradients of the next micro-batch replace what is there.
  void begin_micro_batch() {
    for (Entry& entry : entries_) entry.uses = 0;
  }

  void begin_use(std::string_view operation, std::span<const TensorId> tensors, UseKind kind) override {
    TERRACE_ASSERT(!in_use_, "a use inside of another: " + std::string(operation));
    in_use_ = true;
    uses_.push_back({std::string(operation), kind, {tensors.begin(), tensors.end()}});
    for (const TensorId id : tensors) {
      Entry& entry = at(id);
      entry.leased = true;
      if (kind == UseKind::backward) ++entry.uses;
    }
  }
  void end_use() override {
    TERRACE_ASSERT(in_use_, "no use to end");
    in_use_ = false;
    for (const TensorId id : uses_.back().tensors) at(id).leased = false;
  }

  const std::byte* parameter(TensorId tensor) const override {
    TERRACE_ASSERT(at(tensor).leased, "not leased: " + spec(tensor).name);
    return at(tensor).parameter.data();
  }
  GradientView gradient(TensorId tensor) override {
    TERRACE_ASSERT(at(tensor).leased && uses_.back().kind == UseKind::backward && spec(tensor).trainable,
                   "no gradient leased: " + spec(tensor).name);
    TERRACE_ASSERT(at(tensor).uses <= spec(tensor).backward_uses, "used too often: " + spec(tensor).name);
    return {at(tensor).gradient.data(), at(tensor).uses > 1};
  }

  const std::vector<TensorSpec>& tensors() const { return tensors_; }
  const TensorSpec& spec(TensorId tensor) const { return tensors_[index_of(tensor)]; }
  std::span<std::byte> parameter_bytes(TensorId tensor) { return at(tensor).parameter; }
  std::span<const std::byte> gradient_bytes(TensorId tensor) const { return at(tensor).gradient; }
  std::vector<float> parameter_values(TensorId tensor) const {
    return numbers_of(at(tensor).parameter, spec(tensor).type);
  }
  std::vector<float> gradient_values(TensorId tensor) const {
    return numbers_of(at(tensor).gradient, spec(tensor).type);
  }
  // How many backward uses the tensor had in this micro-batch.
  uint32_t backward_uses(TensorId tensor) const { return at(tensor).uses; }
  // Every use so far.
  const std::vector<RecordedUse>& uses() const { return uses_; }

 private:
  struct Entry {
    std::vector<std::byte> parameter;
    std::vector<std::byte> gradient;
    uint32_t uses = 0;
    bool leased = false;
  };
  Entry& at(TensorId tensor) { return entries_[index_of(tensor)]; }
  const Entry& at(TensorId tensor) const { return entries_[index_of(tensor)]; }

  std::vector<TensorSpec> tensors_;
  std::vector<Entry> entries_;
  std::vector<RecordedUse> uses_;
  bool in_use_ = false;
};

// Records uses and has no memory: for dry runs.
class RecordingAccess final : public ParameterAccess {
 public:
  void begin_use(std::string_view operation, std::span<const TensorId> tensors, UseKind kind) override {
    uses_.push_back({std::string(operation), kind, {tensors.begin(), tensors.end()}});
  }
  void end_use() override {}
  const std::byte* parameter(TensorId) const override { return nullptr; }
  GradientView gradient(TensorId) override { return {}; }

  const std::vector<RecordedUse>& uses() const { return uses_; }

 private:
  std::vector<RecordedUse> uses_;
};

}  // namespace terrace::testing
