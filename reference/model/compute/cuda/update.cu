// The optimizers' update of records in device memory. optimizer_cpu/update_scalar.cpp is the specification:
// the same operations in the same order, each rounded once. nvcc must not fuse them (-fmad=false) nor
// approximate roots and quotients (-prec-sqrt=true -prec-div=true) nor flush denormals (-ftz=false).
#include <terrace/base/assert.h>
#include <terrace/optimizer_cpu/gradient.h>
#include <terrace/optimizer_cpu/moment_codes.h>
#include <terrace/optimizer_cpu/quantization.h>
#include <terrace/optimizer_cpu/update_kernels.h>

#include "internal/elements.cuh"

namespace terrace {
namespace compute {

using kernels::Rule;

struct MasterAndMoments {
  float p, m, v;
};

__device__ inline void update_adam(const OptimizerStep& step, float g, MasterAndMoments& e) {
  e.m = step.beta1 * e.m + step.one_minus_beta1 * g;
  e.v = step.beta2 * e.v + step.one_minus_beta2 * (g * g);
  e.p = e.p - step.step_size * (e.m / (sqrtf(e.v) * step.inverse_root + step.eps));
}

__device__ inline void update_lion(const OptimizerStep& step, float g, MasterAndMoments& e) {
  const float c = step.beta1 * e.m + step.one_minus_beta1 * g;
  e.p = e.p - step.decay * e.p;
  e.p = e.p - (c > 0 ? step.step_size : c < 0 ? -step.step_size : c);
  e.m = step.beta2 * e.m + step.one_minus_beta2 * g;
}

__device__ inline void update_sgd(const OptimizerStep& step, bool has_momentum, float g,
                                  MasterAndMoments& e) {
  g = g + step.decay * e.p;
  if (has_momentum) {
    e.m = step.first ? g : step.momentum * e.m + step.one_minus_dampening * g;
    g = step.nesterov ? g + step.momentum * e.m : e.m;
  }
  e.p = e.p - step.step_size * g;
}

__device__ inline void update_element(Rule rule, const OptimizerStep& step, float g, MasterAndMoments& e) {
  if (rule == Rule::adam) {
    update_adam(step, g + step.decay * e.p, e);
  } else if (rule == Rule::adamw) {
    e.p = e.p - step.decay * e.p;
    update_adam(step, g, e);
  } else if (rule == Rule::adagrad) {
    g = g + step.decay * e.p;
    e.m = e.m + g * g;
    e.p = e.p - step.step_size * (g / (sqrtf(e.m) + step.eps));
  } else if (rule == Rule::lion) {
    update_lion(step, g, e);
  } else {
    update_sgd(step, rule == Rule::sgd_momentum, g, e);
  }
  if (e.p != e.p) e.p = std::bit_cast<float>(kernels::kCanonicalNan);
}

template <int kCount>
__device__ inline Floats<kCount> load_masters(const TileRun& tiles, const std::byte* tile, uint64_t in_tile,
                                              uint64_t element) {
  if (tiles.layout.master == MasterForm::whole) {
    return load<kCount>(reinterpret_cast<const float*>(tile) + in_tile);
  }
  const auto below =
      *reinterpret_cast<const Halves<int16_t, kCount>*>(reinterpret_cast<const int16_t*>(tile) + in_tile);
  const auto above = *reinterpret_cast<const Halves<Bf16, kCount>*>(
      reinterpret_cast<const Bf16*>(tiles.old_parameters) + element);
  return each<kCount>([&](int k) { return kernels::join_master(above.at[k], below.at[k]); });
}

template <int kCount>
__device__ inline void store_masters(const TileRun& tiles, std::byte* tile, uint64_t in_tile,
                                     const Floats<kCount>& masters) {
  if (tiles.layout.master == MasterForm::whole) {
    return store(reinterpret_cast<float*>(tile) + in_tile, masters);
  }
  Halves<int16_t, kCount> below;
  for (int k = 0; k < kCount; ++k) below.at[k] = kernels::remainder_of(masters.at[k]);
  *reinterpret_cast<Halves<int16_t, kCount>*>(reinterpret_cast<int16_t*>(tile) + in_tile) = below;
}

struct UpdateTiles {
  Rule rule;
  OptimizerStep step;
  TileRun tiles;

  template <int kCount>
  __device__ void run(uint64_t i) const {
    const RecordLayout& layout = tiles.layout;
    const uint64_t element = tiles.first_element + i, in_tile = element % kTileElements;
    std::byte* const tile = tiles.record + element / kTileElements * layout.tile_bytes();
    std::byte* const moments[2] = {tile + layout.moment_offset(0), tile + layout.moment_offset(1)};
    Floats<kCount> p = load_masters<kCount>(tiles, tile, in_tile, element), m{}, v{};
    const DataType moment_type = number_type_of(layout.moment_type);
    if (layout.moment_count > 0) m = load_elements<kCount>(moments[0], moment_type, in_tile);
    if (layout.moment_count > 1) v = load_elements<kCount>(moments[1], moment_type, in_tile);
    const Floats<kCount> gradients = load_elements<kCount>(tiles.gradients, tiles.gradient_type, element);
    for (int k = 0; k < kCount; ++k) {
      MasterAndMoments e{p.at[k], m.at[k], v.at[k]};
      update_element(rule, step, gradients.at[k] * step.gradient_scale, e);
      p.at[k] = e.p;
      m.at[k] = e.m;
      v.at[k] = e.v;
    }
    store_masters(tiles, tile, in_tile, p);
    if (layout.moment_count > 0) store_elements(moments[0], moment_type, in_tile, m);
    if (layout.moment_count > 1) store_elements(moments[1], moment_type, in_tile, v);
    store_elements(tiles.parameters, tiles.parameter_type, element, p);
  }
};

__device__ inline uint32_t largest_of_lanes(uint32_t value) {
  for (unsigned width = kRowLanes / 2; width != 0; width /= 2) {
    const uint32_t other = __shfl_xor_sync(kWholeWarp, value, width);
    value = other > value ? other : value;
  }
  return value;
}
__device__ inline uint32_t union_of_lanes(uint32_t bits) {
  for (unsigned width = kRowLanes / 2; width != 0; width /= 2) bits |= __shfl_xor_sync(kWholeWarp, bits, width);
  return bits;
}

// Moments as codes (moment_codes.h). A row updates a block, of which each lane has four elements.
static_assert(kMomentBlock == 4 * kRowLanes);

struct LaneCodes {
  uint8_t at[4];
};

// The moments of a block in one lane.
struct CodedMoments {
  bool is_alone;
  kernels::MomentCode code;
  Floats<4> m{}, v{};

  __device__ explicit CodedMoments(bool alone) : is_alone(alone), code(alone) {}
  __device__ uint32_t sign_bit() const { return is_alone ? 6 : 7; }

  // `first` and `top` are the lane's codes of the first moment and of the one with the scales' bits.
  __device__ void decode(const LaneCodes& first, const LaneCodes& top, unsigned lane) {
    uint32_t own = 0;
    for (int k = 0; k < 4; ++k) own |= static_cast<uint32_t>(top.at[k] >> 7) << (4 * (lane % 8) + k);
    const float lower = std::bit_cast<float>(union_of_lanes(lane < 8 ? own : 0));
    const float upper = std::bit_cast<float>(union_of_lanes(lane < 8 ? 0 : own));
    for (int k = 0; k < 4; ++k) {
      m.at[k] = code.value_of(first.at[k] & code.levels(), first.at[k] >> sign_bit() & 1u,
                              is_alone ? lower : upper);
      if (!is_alone) v.at[k] = code.value_of(top.at[k] & code.levels(), 0, lower);
    }
  }
  __device__ uint32_t scale_of(const Floats<4>& values) const {
    uint32_t largest = 0;
    for (int k = 0; k < 4; ++k) {
      const uint32_t own = std::bit_cast<uint32_t>(values.at[k]) & 0x7fffffffu;
      largest = own > largest ? own : largest;
    }
    return code.scale_of(largest_of_lanes(largest));
  }
  // `m_random` and `v_random` are the block's.
  __device__ void encode(uint64_t m_random, uint64_t v_random, unsigned lane, LaneCodes& first,
                         LaneCodes& top) const {
    const uint32_t m_scale = scale_of(m), v_scale = is_alone ? 0 : scale_of(v);
    const uint32_t bits = lane < 8 ? (is_alone ? m_scale : v_scale) : (is_alone ? 0 : m_scale);
    for (unsigned k = 0; k < 4; ++k) {
      uint32_t byte = coded(m.at[k], m_scale, kernels::random_of(m_random, 4 * lane + k));
      if (kernels::MomentCode::codes(m_scale)) byte |= (std::bit_cast<uint32_t>(m.at[k]) >> 31) << sign_bit();
      first.at[k] = static_cast<uint8_t>(byte);
      const uint32_t of_top =
          is_alone ? byte : coded(v.at[k], v_scale, kernels::random_of(v_random, 4 * lane + k));
      top.at[k] = static_cast<uint8_t>(of_top | (bits >> (4 * (lane % 8) + k) & 1u) << 7);
    }
  }
  __device__ uint32_t coded(float value, uint32_t scale_bits, uint32_t random) const {
    if (!kernels::MomentCode::codes(scale_bits)) return 0;
    return code.code_of(std::bit_cast<uint32_t>(value) & 0x7fffffffu,
                        kernels::MomentCode::inverse_of(scale_bits), code.rounding_of(random));
  }
};

__global__ void update_coded(Rule rule, OptimizerStep step, TileRun tiles) {
  const RecordLayout& layout = tiles.layout;
  for_rows(divide_up(tiles.element_count, kMomentBlock), [&](uint64_t block, unsigned lane) {
    const uint64_t in_run = block * kMomentBlock + 4 * lane;
    // Rows that are not there shuffle too, and touch nothing.
    const bool is_there = block * kMomentBlock < tiles.element_count;
    const uint64_t element = tiles.first_element + (is_there ? in_run : 0), in_tile = element % kTileElements;
    std::byte* const tile = tiles.record + element / kTileElements * layout.tile_bytes();
    const bool is_alone = layout.moment_count == 1;
    auto* const first = reinterpret_cast<LaneCodes*>(tile + layout.moment_offset(0) + in_tile);
    auto* const top = reinterpret_cast<LaneCodes*>(tile + layout.moment_offset(is_alone ? 0 : 1) + in_tile);
    CodedMoments moments(is_alone);
    moments.decode(is_there ? *first : LaneCodes{}, is_there ? *top : LaneCodes{}, lane);
    for (uint64_t k = 0; k < 4 && in_run + k < tiles.element_count; ++k) {
      Floats<1> p = load_masters<1>(tiles, tile, in_tile + k, element + k);
      MasterAndMoments e{p.at[0], moments.m.at[k], moments.v.at[k]};
      const float g = load_element(tiles.gradients, tiles.gradient_type, element + k);
      update_element(rule, step, g * step.gradient_scale, e);
      p.at[0] = e.p;
      moments.m.at[k] = e.m;
      moments.v.at[k] = e.v;
      store_masters(tiles, tile, in_tile + k, p);
      store_elements(tiles.parameters, tiles.parameter_type, element + k, p);
    }
    LaneCodes first_codes, top_codes;
    const uint64_t number = (tiles.rounding_place + element) / kMomentBlock;
    const uint64_t random = kernels::random_of_block(step.rounding_key, number);
    moments.encode(random, kernels::random_of_second(random), lane, first_codes, top_codes);
    if (!is_there) return;
    *first = first_codes;
    *top = top_codes;
  });
}

struct Accumulate {
  Accumulation part;
  template <int kCount>
  __device__ void run(uint64_t i) const {
    Floats<kCount> sum = load_elements<kCount>(part.gradient, part.gradient_type, i);
    if (!part.first) {
      const Floats<kCount> before = load_elements<kCount>(part.accumulator, part.accumulator_type, i);
      for (int k = 0; k < kCount; ++k) sum.at[k] = before.at[k] + sum.at[k];
    }
    store_elements(part.accumulator, part.accumulator_type, i, sum);
  }
};

// Rounds a block as round_to_quantized() of optimizer_cpu/quantization.h does. Each lane of a row has four of
// its elements, `values`; those behind the end are zeros.
__device__ inline Floats<4> rounded_block(const Floats<4>& values, DataType type, uint32_t bits) {
  uint32_t magnitude = 0;
  for (int k = 0; k < 4; ++k) {
    const uint32_t own = std::bit_cast<uint32_t>(values.at[k]) & 0x7fffffffu;
    magnitude = own > magnitude ? own : magnitude;
  }
  const uint16_t scale = kernels::scale_of(largest_of_lanes(magnitude), type);
  if (scale == 0) return each<4>([](int) { return 0.0f; });
  if (kernels::is_nan_scale(scale))
    return each<4>([](int) { return std::bit_cast<float>(kernels::kCanonicalNan); });
  const auto levels = static_cast<float>(kernels::levels_of(bits));
  const float largest = kernels::largest_of(scale);
  const float inverse_step = levels / largest, step = largest / levels;
  return each<4>([&](int k) { return kernels::code_of(values.at[k], inverse_step, levels) * step; });
}

// Calls land(element, value) with the rounded value of each of `count` elements; a row rounds a block.
template <typename Land>
__device__ inline void for_rounded(const std::byte* elements, DataType type, uint64_t count, uint32_t bits,
                                   Land land) {
  static_assert(kQuantizedBlock == 4 * kRowLanes);
  for_rows(divide_up(count, kQuantizedBlock), [&](uint64_t block, unsigned lane) {
    const uint64_t first = block * kQuantizedBlock + 4 * lane;
    const Floats<4> values =
        each<4>([&](int k) { return first + k < count ? load_element(elements, type, first + k) : 0.0f; });
    const Floats<4> rounded = rounded_block(values, type, bits);
    for (int k = 0; k < 4; ++k) {
      if (first + k < count) land(first + k, rounded.at[k]);
    }
  });
}

__device__ inline void store_element(std::byte* to, DataType type, uint64_t index, float value) {
  store_elements(to, type, index, Floats<1>{value});
}

__global__ void accumulate_rounded(Accumulation part) {
  for_rounded(part.gradient, part.gradient_type, part.count, part.bits, [&](uint64_t i, float value) {
    // As it was written in the accumulator's type.
    if (part.accumulator_type == DataType::bf16) value = to_float(to_bf16(value));
    if (part.accumulator_type == DataType::fp16) value = to_float(to_fp16(value));
    const float sum = part.first ? value : load_element(part.accumulator, part.accumulator_type, i) + value;
    store_element(part.accumulator, part.accumulator_type, i, sum);
  });
}

__global__ void round_elements(std::byte* elements, DataType type, uint64_t count, uint32_t bits) {
  for_rounded(elements, type, count, bits,
              [&](uint64_t i, float value) { store_element(elements, type, i, value); });
}

struct ZeroElements {
  std::byte* elements;
  DataType type;
  template <int kCount>
  __device__ void run(uint64_t i) const {
    store_elements(elements, type, i, each<kCount>([](int) { return 0.0f; }));
  }
};

// 16 lanes in fp64 and their tree, as gradient.h has it.
__global__ void sum_squares(ParameterView gradient, uint64_t count, double* sums) {
  for_rows(divide_up(count, kSumBlockElements), [&](uint64_t block, unsigned lane) {
    const uint64_t first = block * kSumBlockElements;
    const uint64_t end = first + kSumBlockElements < count ? first + kSumBlockElements : count;
    double sum = 0.0;
    for (uint64_t i = first + lane; i < end; i += kRowLanes) {
      const double value = static_cast<double>(load_element(gradient.data, gradient.type, i));
      sum += value * value;
    }
    sum = sum_of_lanes(sum);
    if (lane == 0 && first < count) sums[block] = sum;
  });
}

Rule rule_of_step(const OptimizerStep& step) {
  switch (step.kind) {
    case OptimizerKind::adam:
      return step.decoupled_decay ? Rule::adamw : Rule::adam;
    case OptimizerKind::adagrad:
      return Rule::adagrad;
    case OptimizerKind::lion:
      return Rule::lion;
    case OptimizerKind::muon:
      TERRACE_ASSERT(false, "matrices are updated by the processor");
    case OptimizerKind::sgd:
      break;
  }
  return step.has_momentum ? Rule::sgd_momentum : Rule::sgd;
}

bool goes_by_quads(const TileRun& tiles) {
  const bool is_compact = tiles.layout.master == MasterForm::remainder;
  return tiles.first_element % 4 == 0 &&
         are_aligned_for_quads({{tiles.record},
                                {tiles.gradients, tiles.gradient_type},
                                {tiles.parameters, tiles.parameter_type},
                                {is_compact ? tiles.old_parameters : nullptr, DataType::bf16}});
}

uint64_t blocks_for_rounding(uint64_t count) {
  return divide_up(divide_up(count, kQuantizedBlock), kRowsOfBlock);
}

}  // namespace compute

void cuda_update_tiles(const CudaLaunch& where, const OptimizerStep& step, const TileRun& tiles) {
  const RecordLayout& layout = tiles.layout;
  TERRACE_ASSERT(step.keeps || layout.moment_count == moment_count(step.kind, step.has_momentum ? 1 : 0),
                 "records of " + std::to_string(layout.moment_count) + " moments for another optimizer");
  TERRACE_ASSERT(layout.master == MasterForm::whole ||
                     (tiles.parameter_type == DataType::bf16 && tiles.old_parameters != nullptr),
                 "remainders without the bf16 parameters that they belong to");
  if (layout.has_codes() && !step.keeps) {
    compute::launch(where,
                    divide_up(divide_up(tiles.element_count, kMomentBlock), compute::kRowsOfBlock),
                    compute::kThreads, compute::update_coded, compute::rule_of_step(step), step, tiles);
  } else {
    compute::launch_elements(where, compute::UpdateTiles{compute::rule_of_step(step), step, tiles},
                             tiles.element_count, compute::goes_by_quads(tiles));
  }
  if (tiles.parameter_bits == 0) return;
  compute::launch(where, compute::blocks_for_rounding(tiles.element_count), compute::kThreads,
                  compute::round_elements,
                  tiles.parameters + tiles.first_element * bytes_of(tiles.parameter_type),
                  tiles.parameter_type, tiles.element_count, tiles.parameter_bits);
}

void cuda_accumulate(const CudaLaunch& where, const Accumulation& part) {
  if (part.bits > 0)
    return compute::launch(where, compute::blocks_for_rounding(part.count), compute::kThreads,
                           compute::accumulate_rounded, part);
  compute::launch_elements(where, compute::Accumulate{part}, part.count,
                           compute::are_aligned_for_quads({{part.accumulator, part.accumulator_type},
                                                           {part.gradient, part.gradient_type}}));
}

void cuda_set_zero(const CudaLaunch& where, std::byte* elements, DataType type, uint64_t count) {
  compute::launch_elements(where, compute::ZeroElements{elements, type}, count,
                           compute::are_aligned_for_quads({{elements, type}}));
}

void cuda_sums_of_squares(const CudaLaunch& where, ParameterView gradient, uint64_t count,
                          std::span<double> sums) {
  TERRACE_ASSERT(sums.size() == divide_up(count, kSumBlockElements), "another number of blocks");
  compute::launch(where, divide_up(sums.size(), compute::kRowsOfBlock), compute::kThreads,
                  compute::sum_squares, gradient, count, sums.data());
}

}  // namespace terrace
