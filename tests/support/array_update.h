// Updates of plain arrays, where the product has records of tiles: what trainings of tests are compared with.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include <terrace/base/data_type.h>
#include <terrace/base/record_layout.h>
#include <terrace/optimizer_cpu/moment_codes.h>
#include <terrace/optimizer_cpu/optimizer.h>
#include <terrace/optimizer_cpu/update_kernels.h>

namespace terrace::testing {

// A run of `element_count` elements in plain arrays of any alignment. The types are those of `layout`, whose
// sizes are not used.
struct ArrayRun {
  RecordLayout layout = {};
  std::byte* master = nullptr;  // fp32, or int16 remainders; null where the parameters are the masters
  std::array<std::byte*, 2> moments{};
  const std::byte* gradients = nullptr;
  DataType gradient_type = DataType::fp32;
  std::byte* parameters = nullptr;  // parameters and old parameters are as in TileRun
  DataType parameter_type = DataType::fp32;
  const std::byte* old_parameters = nullptr;
  size_t element_count = 0;
  uint64_t rounding_place = 0;  // as in TileRun
};

inline void update_arrays(InstructionSet set, const OptimizerStep& step, const ArrayRun& arrays);

// Codes are of whole blocks, of which the last may have fewer elements.
inline void update_coded_arrays(InstructionSet set, const OptimizerStep& step, const ArrayRun& arrays) {
  const size_t count = (arrays.element_count + kMomentBlock - 1) / kMomentBlock * kMomentBlock;
  std::array<std::vector<float>, 2> numbers{std::vector<float>(count), std::vector<float>(count)};
  const bool has_second = arrays.layout.moment_count > 1;
  const std::array<float*, 2> at = {numbers[0].data(), has_second ? numbers[1].data() : nullptr};
  decode_blocks(set, {arrays.moments[0], arrays.moments[1]}, count, at);
  ArrayRun plain = arrays;
  plain.layout.moment_type = MomentType::fp32;
  plain.moments = {reinterpret_cast<std::byte*>(at[0]), reinterpret_cast<std::byte*>(at[1])};
  update_arrays(set, step, plain);
  encode_blocks(set, {at[0], at[1]}, count, Chance{step.rounding_key, arrays.rounding_place}, arrays.moments);
}

inline void update_arrays(InstructionSet set, const OptimizerStep& step, const ArrayRun& arrays) {
  if (arrays.element_count == 0) return;
  if (arrays.layout.has_codes()) return update_coded_arrays(set, step, arrays);
  const kernels::UpdateRun run{
      .master = arrays.master,
      .moments = arrays.moments,
      .gradients = arrays.gradients,
      .old_parameters = arrays.layout.master != MasterForm::whole ? arrays.old_parameters : nullptr,
      .parameters = arrays.parameters,
      .count = arrays.element_count,
      .form = arrays.layout.master,
      .moment_type = arrays.layout.moment_type,
      .gradient_type = arrays.gradient_type,
      .parameter_type = arrays.parameter_type,
      .master_gap_bytes = 0,
      .moment_gap_bytes = 0,
  };
  kernels::choose_update_kernel(set, step, arrays.layout, run)(step, run);
}

}  // namespace terrace::testing
