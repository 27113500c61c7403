#include "offload/offloader_rig.h"

#include <gtest/gtest.h>

namespace terrace {

void expect_same_as_reference(Rig& rig, const Reference& reference) {
  for (uint32_t t = 0; t < rig.specs.size(); ++t) {
    EXPECT_EQ(rig.parameters(t), reference.parameters(t)) << rig.specs[t].name;
  }
}

void expect_to_train(Rig& rig, uint64_t steps) {
  const OffloadOptions& options = rig.options;
  Reference reference(rig.specs, options.micro_batches, options.accumulation_type);
  reference.keep_moments_as(options.record_layout);
  for (uint64_t step = 1; step <= steps; ++step) {
    EXPECT_TRUE(rig.step(step, options.micro_batches).applied);
    reference.step(step);
  }
  expect_same_as_reference(rig, reference);
}

}  // namespace terrace
