#include <algorithm>
#include <vector>

#include <terrace/base/error.h>
#include <terrace/memory/cuda/cuda_device.h>
#include <terrace/memory/cuda/cuda_plain_copies.h>
#include <terrace/memory/device/copy_rates.h>
#include <terrace/memory/host/host_arena.h>

#include "fake_cuda_driver.h"

namespace terrace::cuda_copy_rates_test {
namespace {

using testing::FakeCudaDriver;

constexpr uint64_t kBuffer = 64 * kKiB;
constexpr uint64_t kPiece = 24 * kKiB;  // no multiple of any copy: registrations end within copies

struct Rig {
  CopyBuffers host() { return {arena.memory().first(kBuffer), arena.memory().subspan(kBuffer, kBuffer)}; }

  FakeCudaDriver driver;
  MemoryLog log;
  CudaGpu gpu{FakeCudaDriver::table(), 0, log};
  CopyPlan plan{
      .sizes = {4 * kKiB, kBuffer}, .buffer_bytes = kBuffer, .moved_bytes = 4 * kBuffer, .rounds = 2};
  CudaDevice device{
      gpu, {.budget_bytes = plan.device_bytes(gpu.facts().granularity_bytes), .host_piece_bytes = kPiece}};
  HostArena arena{{.budget_bytes = 2 * kBuffer, .lock_pages = false}, log};
  CudaPageLock lock{gpu, arena.memory(), kPiece};
  StreamCopies streams{device, kBuffer};
  CopyBuffers work{device.allocate_work_memory(kBuffer), device.allocate_work_memory(kBuffer)};
  std::unique_ptr<CopyWay> plain = make_plain_cuda_copies(gpu, work, kPiece);
};

TEST(CudaCopyRates, BothWaysCopyPageLockedMemoryOnStreamsOfTheGpu) {
  Rig rig;
  ASSERT_TRUE(rig.lock.locked());
  const std::vector<HostMemoryKind> memories = {{"page-locked", rig.host()}};
  const std::vector<CopyMeasurement> results =
      measure_copies(rig.plan, memories, rig.streams, *rig.plain, [](uint64_t) {});
  ASSERT_EQ(results.size(), 6u);
  for (const CopyMeasurement& result : results) {
    EXPECT_EQ(result.stream_bytes_per_second.size(), 2u);
    EXPECT_GT(result.plain_bytes_per_second[0], 0);
  }
  // Three rounds, two measurements of each direction: 64 copies of 4 KiB and 4 of 64 KiB.
  EXPECT_EQ(rig.device.h2d_bytes(), 3 * 2 * 2 * 4 * kBuffer);
  EXPECT_EQ(rig.device.d2h_bytes(), 3 * 2 * 2 * 4 * kBuffer);
  EXPECT_GE(rig.driver.calls("cuMemcpyHtoDAsync"), 2u * 3 * 2 * (64 + 4));
}

TEST(CudaCopyRates, PlainCopiesArriveWhole) {
  Rig rig;
  const CopyBuffers host = rig.host();
  for (size_t i = 0; i < kBuffer; ++i) {
    host.to_device[i] = static_cast<std::byte>(i % 251);
    rig.work.to_host[i] = static_cast<std::byte>(i % 241);
  }
  EXPECT_GT(rig.plain->run_ns({CopyDirections::both, host, kBuffer, 2}), 0u);
  EXPECT_TRUE(std::equal(host.to_device.begin(), host.to_device.end(), rig.work.to_device.begin()));
  EXPECT_TRUE(std::equal(host.to_host.begin(), host.to_host.end(), rig.work.to_host.begin()));
}

TEST(CudaCopyRates, ACopyThatFailsEndsTheMeasurementWithItsError) {
  Rig rig;
  for (const char* call : {"cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync", "cuStreamSynchronize"}) {
    rig.driver.fail(call, 1, CUDA_ERROR_ILLEGAL_ADDRESS);
    try {
      rig.plain->run_ns({CopyDirections::both, rig.host(), kKiB, 3});
      ADD_FAILURE() << call;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::device);
      EXPECT_NE(error.parts().reason.find(call), std::string::npos) << error.what();
    }
  }
  rig.driver.fail("cuMemcpyDtoHAsync", 2, CUDA_ERROR_ILLEGAL_ADDRESS);
  EXPECT_THROW(rig.streams.run_ns({CopyDirections::both, rig.host(), kKiB, 3}), Error);
}

}  // namespace
}  // namespace terrace::cuda_copy_rates_test
