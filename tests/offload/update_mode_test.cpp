// Every mode of the update gives the bits of the others, whatever happens between two steps.
#include <terrace/offload/update_mode.h>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <limits>

#include <terrace/base/error.h>

#include "offload/offloader_rig.h"
#include "support/allocation_counter.h"

namespace terrace {
namespace {

constexpr UpdateMode kOtherModes[] = {UpdateMode::next_forward, UpdateMode::during_backward};

class UpdateModes : public ::testing::TestWithParam<Case> {};

TEST_P(UpdateModes, TrainBitForBitLikePlainVectors) {
  const Case& c = GetParam();
  Rig rig(c);
  Reference reference(rig.specs, c.accumulation, c.accumulation_type);
  for (uint64_t step = 1; step <= 4; ++step) {
    EXPECT_TRUE(rig.step(step, c.accumulation).applied);
    reference.step(step);
    if (step == 2) expect_same_as_reference(rig, reference);
  }
  expect_same_as_reference(rig, reference);
}

std::vector<Case> cases() {
  std::vector<Case> list;
  for (const UpdateMode mode : kOtherModes) {
    for (const Placement parameters : {Placement::none, Placement::cpu, Placement::nvme}) {
      for (const Placement states : {Placement::cpu, Placement::nvme}) {
        for (const uint32_t accumulation : {1u, 3u}) {
          for (const bool tight : {true, false}) {
            Case c{parameters, states, DataType::bf16, accumulation};
            c.mode = mode;
            c.tight = c.strict = tight;
            c.chunk_elements = tight ? kTileElements : 4 * kTileElements;
            c.with_frozen = !tight;
            c.engine = tight ? io::EngineKind::threads : io::EngineKind::io_uring;
            list.push_back(c);
            c.type = accumulation == 1 ? DataType::fp32 : DataType::fp16;
            c.accumulation_type = tight ? DataType::fp32 : c.type;
            c.announced = tight;
            list.push_back(c);
          }
        }
      }
    }
  }
  return list;
}

std::string case_name(const ::testing::TestParamInfo<Case>& info) {
  const Case& c = info.param;
  return fmt::format("{}_{}_{}_{}_{}_{}", name_of(c.mode), name_of(c.parameters), name_of(c.states),
                     name_of(c.type), c.accumulation, c.tight ? "tight" : "roomy");
}

INSTANTIATE_TEST_SUITE_P(All, UpdateModes, ::testing::ValuesIn(cases()), case_name);

}  // namespace
}  // namespace terrace
