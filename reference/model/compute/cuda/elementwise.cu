// What is done element by element: activations, rotations, sums, landing of gradients and conversions. Every
// operation is that of the host's kernels (rows.inc, rows_llama.inc) without a fused multiply-add.
#include "internal/elements.cuh"

namespace terrace {
namespace compute {

constexpr float kTwiceSlope = 2.0f * 0.7978845608028654f;
constexpr float kCubic = 0.044715f;

__device__ inline float gelu_gate(float x) {
  const float twice_u = (x + x * x * x * kCubic) * kTwiceSlope;
  return 1.0f / (1.0f + exp_of(-twice_u));
}

struct Gelu {
  const float* x;
  float* y;
  template <int kCount>
  __device__ void run(uint64_t i) const {
    const Floats<kCount> value = load<kCount>(x + i);
    store(y + i, each<kCount>([&](int k) { return value.at[k] * gelu_gate(value.at[k]); }));
  }
};

struct GeluBackward {
  const float* x;
  float* dy;
  template <int kCount>
  __device__ void run(uint64_t i) const {
    const Floats<kCount> values = load<kCount>(x + i), gradients = load<kCount>(dy + i);
    store(dy + i, each<kCount>([&](int k) {
            const float value = values.at[k], gate = gelu_gate(value);
            const float twice_u_slope = (1.0f + value * value * (3.0f * kCubic)) * kTwiceSlope;
            return gradients.at[k] * (gate + value * gate * (1.0f - gate) * twice_u_slope);
          }));
  }
};

struct Swiglu {
  const float *gate, *up;
  float* y;
  template <int kCount>
  __device__ void run(uint64_t i) const {
    const Floats<kCount> gates = load<kCount>(gate + i), ups = load<kCount>(up + i);
    store(y + i,
          each<kCount>([&](int k) { return gates.at[k] / (1.0f + exp_of(-gates.at[k])) * ups.at[k]; }));
  }
};

struct SwigluBackward {
  const float *gate, *up;
  float *dy, *dup;
  template <int kCount>
  __device__ void run(uint64_t i) const {
    const Floats<kCount> gates = load<kCount>(gate + i), ups = load<kCount>(up + i);
    const Floats<kCount> gradients = load<kCount>(dy + i);
    Floats<kCount> to_gate, to_up;
    for (int k = 0; k < kCount; ++k) {
      const float logistic = 1.0f / (1.0f + exp_of(-gates.at[k]));
      const float silu = gates.at[k] * logistic;
      to_up.at[k] = gradients.at[k] * silu;
      to_gate.at[k] = gradients.at[k] * ups.at[k] * (logistic + silu * (1.0f - logistic));
    }
    store(dup + i, to_up);
    store(dy + i, to_gate);
  }
};

struct Add {
  const float* x;
  float* y;
  template <int kCount>
  __device__ void run(uint64_t i) const {
    const Floats<kCount> a = load<kCount>(y + i), b = load<kCount>(x + i);
    store(y + i, each<kCount>([&](int k) { return a.at[k] + b.at[k]; }));
  }
};

struct SetZero {
  float* x;
  template <int kCount>
  __device__ void run(uint64_t i) const {
    store(x + i, each<kCount>([](int) { return 0.0f; }));
  }
};

struct Scale {
  float factor;
  float* x;
  template <int kCount>
  __device__ void run(uint64_t i) const {
    const Floats<kCount> value = load<kCount>(x + i);
    store(x + i, each<kCount>([&](int k) { return value.at[k] * factor; }));
  }
};

struct Land {
  const float* values;
  GradientTarget target;
  template <int kCount>
  __device__ void run(uint64_t i) const {
    land_elements(target, i, load<kCount>(values + i));
  }
};

struct Widen {
  ParameterView from;
  float* to;
  template <int kCount>
  __device__ void run(uint64_t i) const {
    store(to + i, load_elements<kCount>(from.data, from.type, i));
  }
};

// A weight, made of its words.
struct DecodeWeight {
  CodedWeight weight;
  const std::byte* words;
  std::byte* to;
  template <int kCount>
  __device__ void run(uint64_t i) const {
    const std::byte* const block = words + i / kCodedBlock * words_of_block(weight.code) * sizeof(float);
    const float factor = kernels::factor_of(weight.code, *reinterpret_cast<const float*>(block));
    const std::byte* const codes = block + sizeof(float);
    store_elements(to, weight.type, i, each<kCount>([&](int k) {
                     return kernels::code_value(weight.code, codes, i % kCodedBlock + k) * factor;
                   }));
  }
};

struct CopyRows {
  RowCopyShape shape;
  const float* x;
  float* y;
  template <int kCount>
  __device__ void run(uint64_t i) const {
    const uint64_t row = i / shape.width, column = i % shape.width;
    store(y + row * shape.to_stride + column, load<kCount>(x + row * shape.from_stride + column));
  }
};

// An element is the pair `i`: of a row, a head and an angle.
struct Rotate {
  uint64_t sequence, heads, half;
  const float *cosines, *sines;
  float direction;
  float* x;
  template <int kCount>
  __device__ void run(uint64_t i) const {
    static_assert(kCount == 1 || kCount == 4);
    for (uint64_t pair = i; pair < i + kCount; ++pair) {
      const uint64_t row = pair / (heads * half), head = pair / half % heads, angle = pair % half;
      float* const at = x + (row * heads + head) * 2 * half + angle;
      const float first = at[0], second = at[half];
      const float cosine = cosines[row % sequence * half + angle];
      const float sine = sines[row % sequence * half + angle] * direction;
      at[0] = first * cosine - second * sine;
      at[half] = second * cosine + first * sine;
    }
  }
};

}  // namespace compute

using compute::are_aligned_for_quads;
using compute::launch_elements;

std::span<int32_t> CudaOps::memory_for_ids(uint64_t count, StackArena& arena) const {
  return arena.allocate<int32_t>(count);
}

void CudaOps::send_ids(std::span<const int32_t> ids, std::span<int32_t> memory) const {
  TERRACE_ASSERT(ids.size() == memory.size(), "token ids have another number");
  if (!dry_run_) link_->send(std::as_writable_bytes(memory).data(), std::as_bytes(ids));
}

void CudaOps::fill_rotary(const RotaryTable& table, uint64_t pairs, RotaryFill fill, StackArena&) const {
  if (dry_run_) return;
  const size_t angles = table.cosines.size();
  host_values_.resize(2 * angles + pairs);
  const std::span<float> values(host_values_);
  const RotaryTable on_host{values.first(angles), values.subspan(angles, angles)};
  fill(on_host, values.subspan(2 * angles));
  link_->send(std::as_writable_bytes(table.cosines).data(), std::as_bytes(on_host.cosines));
  link_->send(std::as_writable_bytes(table.sines).data(), std::as_bytes(on_host.sines));
}

std::span<float> CudaOps::memory_for_results(std::span<float> wanted, StackArena& arena) const {
  return arena.allocate<float>(wanted.size());
}

void CudaOps::fetch(std::span<const float> results, std::span<float> wanted) const {
  TERRACE_ASSERT(results.size() == wanted.size(), "results have another number");
  if (!dry_run_) link_->fetch(std::as_writable_bytes(wanted), std::as_bytes(results).data());
}

void CudaOps::finish() const {
  if (link_ != nullptr) link_->finish();
}

void CudaOps::forget_results() const noexcept {
  if (link_ != nullptr) link_->forget();
}

void CudaOps::copy(std::span<const float> x, std::span<float> y) const {
  TERRACE_ASSERT(x.size() == y.size(), "a copy keeps the shape");
  convert_to_float({std::as_bytes(x).data(), DataType::fp32}, y);
}

void CudaOps::copy_rows(const RowCopyShape& shape, std::span<const float> x, std::span<float> y) const {
  compute::require_copied_rows(shape, x.size(), y.size());
  if (dry_run_) return;
  const bool in_quads = shape.width % 4 == 0 && shape.from_stride % 4 == 0 && shape.to_stride % 4 == 0;
  launch_elements(launch_, compute::CopyRows{shape, x.data(), y.data()}, shape.rows * shape.width,
                  in_quads && are_aligned_for_quads({{x.data()}, {y.data()}}));
}

void CudaOps::set_zero(std::span<float> x) const {
  if (dry_run_) return;
  launch_elements(launch_, compute::SetZero{x.data()}, x.size(), are_aligned_for_quads({{x.data()}}));
}

void CudaOps::gelu_forward(std::span<const float> x, std::span<float> y) const {
  TERRACE_ASSERT(x.size() == y.size(), "GELU keeps the shape");
  if (dry_run_) return;
  launch_elements(launch_, compute::Gelu{x.data(), y.data()}, x.size(),
                  are_aligned_for_quads({{x.data()}, {y.data()}}));
}

void CudaOps::gelu_backward(std::span<const float> x, std::span<float> dy) const {
  TERRACE_ASSERT(x.size() == dy.size(), "GELU keeps the shape");
  if (dry_run_) return;
  launch_elements(launch_, compute::GeluBackward{x.data(), dy.data()}, x.size(),
                  are_aligned_for_quads({{x.data()}, {dy.data()}}));
}

void CudaOps::swiglu_forward(std::span<const float> gate, std::span<const float> up,
                             std::span<float> y) const {
  compute::require_gated_units({gate.size(), up.size(), y.size()});
  if (dry_run_) return;
  launch_elements(launch_, compute::Swiglu{gate.data(), up.data(), y.data()}, y.size(),
                  are_aligned_for_quads({{gate.data()}, {up.data()}, {y.data()}}));
}

void CudaOps::swiglu_backward(std::span<const float> gate, std::span<const float> up, std::span<float> dy,
                              std::span<float> dup) const {
  compute::require_gated_units({gate.size(), up.size(), dy.size(), dup.size()});
  if (dry_run_) return;
  launch_elements(launch_, compute::SwigluBackward{gate.data(), up.data(), dy.data(), dup.data()}, dy.size(),
                  are_aligned_for_quads({{gate.data()}, {up.data()}, {dy.data()}, {dup.data()}}));
}

void CudaOps::add(std::span<const float> x, std::span<float> y) const {
  TERRACE_ASSERT(x.size() == y.size(), "a sum keeps the shape");
  if (dry_run_) return;
  launch_elements(launch_, compute::Add{x.data(), y.data()}, x.size(),
                  are_aligned_for_quads({{x.data()}, {y.data()}}));
}

void CudaOps::scale(float factor, std::span<float> values) const {
  if (dry_run_) return;
  launch_elements(launch_, compute::Scale{factor, values.data()}, values.size(),
                  are_aligned_for_quads({{values.data()}}));
}

void CudaOps::land(std::span<const float> values, const GradientTarget& target) const {
  if (dry_run_ || target.view.data == nullptr) return;
  launch_elements(launch_, compute::Land{values.data(), target}, values.size(),
                  are_aligned_for_quads({{values.data()}, {target.view.data, target.type}}));
}

void CudaOps::convert_from_float(std::span<const float> from, std::byte* to, DataType type) const {
  land(from, {{to, false}, type});
}

void CudaOps::convert_to_float(ParameterView from, std::span<float> to) const {
  if (dry_run_) return;
  launch_elements(launch_, compute::Widen{from, to.data()}, to.size(),
                  are_aligned_for_quads({{from.data, from.type}, {to.data()}}));
}

std::span<const float> CudaOps::as_floats(ParameterView parameter, uint64_t count, StackArena& arena) const {
  if (parameter.type == DataType::fp32) return {reinterpret_cast<const float*>(parameter.data), count};
  const std::span<float> values = arena.allocate<float>(count);
  convert_to_float(parameter, values);
  return values;
}

ParameterView CudaOps::decode_weight(const CodedWeight& weight, const std::byte* words,
                                     StackArena& arena) const {
  std::byte* const to = arena.allocate<std::byte>(weight.elements * bytes_of(weight.type)).data();
  if (!dry_run_) launch_elements(launch_, compute::DecodeWeight{weight, words, to}, weight.elements, true);
  return {to, weight.type};
}

void CudaOps::rotate(const RotaryShape& shape, const RotaryTable& table, bool inverse,
                     std::span<float> x) const {
  const uint64_t half = shape.head_size / 2;
  compute::require_rotary_rows(shape, table, x.size());
  if (dry_run_) return;
  launch_elements(launch_,
                  compute::Rotate{shape.sequence, shape.heads, half, table.cosines.data(), table.sines.data(),
                                  inverse ? -1.0f : 1.0f, x.data()},
                  shape.tokens * shape.heads * half, false);
}

}  // namespace terrace
