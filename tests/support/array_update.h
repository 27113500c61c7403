// Updates of plain arrays, where the product has records of tiles: what trainings of tests are compared with.
#pragma once

#include <array>
#include <cstddef>

#include <terrace/base/data_type.h>
#include <terrace/base/record_layout.h>
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
};

inline void update_arrays(InstructionSet set, const OptimizerStep& step, const ArrayRun& arrays) {
  if (arrays.element_count == 0) return;
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
