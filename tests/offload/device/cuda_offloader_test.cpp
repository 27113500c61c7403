// An Offloader with a CudaDevice, on the driver that the tests play: what the operations of the toy compute
// with lies in memory of this machine there.
#include <terrace/memory/cuda/cuda_device.h>

#include "memory/cuda/fake_cuda_driver.h"
#include "offload/offloader_rig.h"

namespace terrace::cuda_offloader_test {
namespace {

using testing::FakeCudaDriver;

struct Gpu {
  Case with(Case c) {
    c.make_device = [this](uint64_t budget_bytes, bool strict) {
      return make_cuda_device(gpu, {.budget_bytes = budget_bytes, .strict = strict});
    };
    return c;
  }

  FakeCudaDriver driver{{.waits_for_fills = true}};
  MemoryLog log;
  CudaGpu gpu{FakeCudaDriver::table(), 0, log};
};

TEST(CudaOffloader, TrainsWithItsHostMemoryPageLockedForTheGpu) {
  Gpu gpu;
  for (const Placement states : {Placement::none, Placement::cpu, Placement::nvme}) {
    Rig rig(gpu.with({.parameters = Placement::cpu, .states = states, .lock_host_memory = true}));
    // Of the arena all that is not of records, which cross no link; and it is not more than the plan has.
    EXPECT_GT(gpu.driver.registered_bytes(), 0u);
    EXPECT_LE(gpu.driver.registered_bytes(), rig.options.host_budget_bytes);
    expect_to_train(rig, 2);
  }
  EXPECT_EQ(gpu.driver.registered_bytes(), 0u);
  EXPECT_TRUE(gpu.log.lines().empty());
}

TEST(CudaOffloader, TrainsTheSameWhereRegisteringIsRefusedAndSaysSoOnce) {
  Gpu gpu;
  gpu.driver.fail("cuMemHostRegister", 1, CUDA_ERROR_OUT_OF_MEMORY);
  Rig rig(gpu.with({.parameters = Placement::nvme, .states = Placement::nvme, .lock_host_memory = true}));
  EXPECT_EQ(gpu.driver.registered_bytes(), 0u);
  ASSERT_EQ(gpu.log.lines().size(), 1u);
  EXPECT_NE(gpu.log.lines()[0].text.find("CUDA_ERROR_OUT_OF_MEMORY"), std::string::npos);
  expect_to_train(rig, 2);
  EXPECT_EQ(gpu.log.lines().size(), 1u);
}

TEST(CudaOffloader, LocksNothingWhereThatIsNotWanted) {
  Gpu gpu;
  Rig rig(gpu.with({.parameters = Placement::cpu, .states = Placement::cpu}));
  EXPECT_EQ(gpu.driver.calls("cuMemHostRegister"), 0u);
}

}  // namespace
}  // namespace terrace::cuda_offloader_test
