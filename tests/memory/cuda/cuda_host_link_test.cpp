#include <terrace/memory/cuda/cuda_host_link.h>

#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <vector>

#include <terrace/base/error.h>
#include <terrace/memory/cuda/cuda_device.h>

#include "fake_cuda_driver.h"
#include "support/expect_error.h"

namespace terrace::cuda_host_link_test {
namespace {

using testing::FakeCudaDriver;

class CudaHostLinkTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kBytes = CudaHostLink::kSendBytes * 2 + 4096;

  // An operation that adds one to the first byte of the work memory, whenever the stream comes to it.
  void add_one() {
    driver_.run_kernel(device_.compute_stream(),
                       [this] { work_[0] = std::byte(std::to_integer<int>(work_[0]) + 1); });
  }

  FakeCudaDriver driver_;
  MemoryLog log_;
  CudaGpu gpu_{FakeCudaDriver::table(), 0, log_};
  CudaDevice device_{gpu_, {.budget_bytes = 4 * kMiB}};
  const std::span<std::byte> work_ = device_.allocate_work_memory(kBytes);
  CudaHostLink link_{gpu_, device_.compute_stream()};
};

TEST_F(CudaHostLinkTest, SendsAndFetchesInTheOrderOfTheOperations) {
  std::vector<std::byte> given(1, std::byte{5}), first(1), second(1);
  link_.send(work_.data(), given);
  given[0] = std::byte{9};
  add_one();
  link_.fetch(first, work_.data());
  add_one();
  link_.fetch(second, work_.data());
  link_.finish();
  EXPECT_EQ(first[0], std::byte{6});
  EXPECT_EQ(second[0], std::byte{7});
}

TEST_F(CudaHostLinkTest, TakesAnyAmount) {
  std::vector<uint32_t> given(kBytes / sizeof(uint32_t)), back(given.size());
  std::iota(given.begin(), given.end(), 1u);
  link_.send(work_.data(), std::as_bytes(std::span(given)));
  link_.fetch(std::as_writable_bytes(std::span(back)), work_.data());
  link_.finish();
  EXPECT_EQ(back, given);
  std::vector<std::vector<uint32_t>> parts(3, std::vector<uint32_t>(CudaHostLink::kFetchBytes / 6));
  for (size_t p = 0; p < parts.size(); ++p)
    link_.fetch(std::as_writable_bytes(std::span(parts[p])), work_.data() + p * 4);
  link_.finish();
  for (size_t p = 0; p < parts.size(); ++p) EXPECT_EQ(parts[p].back(), given[p + parts[p].size() - 1]) << p;
}

TEST_F(CudaHostLinkTest, LeavesAloneWhatNobodyWantsAnyMore) {
  std::byte gone{7};
  link_.fetch({&gone, 1}, work_.data());
  link_.forget();
  link_.finish();
  EXPECT_EQ(gone, std::byte{7});
}

TEST_F(CudaHostLinkTest, NamesWhatFailed) {
  std::byte wanted{0};
  driver_.fail("cuMemcpyDtoHAsync", 1, CUDA_ERROR_LAUNCH_FAILED);
  testing::expect_error(ErrorKind::device, {"cuMemcpyDtoHAsync", "device tier"}, [&] {
    link_.fetch({&wanted, 1}, work_.data());
  });
}

}  // namespace
}  // namespace terrace::cuda_host_link_test
