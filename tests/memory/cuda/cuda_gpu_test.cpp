#include <terrace/memory/cuda/cuda_gpu.h>

#include <optional>
#include <thread>

#include <terrace/base/error.h>
#include <terrace/memory/cuda/cuda_device.h>
#include <terrace/memory/cuda/cuda_library_stream.h>
#include <terrace/memory/cuda/cuda_page_lock.h>
#include <terrace/memory/cuda/internal/cuda_driver.h>
#include <terrace/memory/host/host_arena.h>

#include "fake_cuda_driver.h"
#include "support/expect_error.h"

namespace terrace::cuda_gpu_test {
namespace {

using testing::FakeCudaDriver;
using testing::FakeCudaOptions;

// What opening the first GPU of a machine like this says; empty if nothing.
std::optional<Error> refusal(FakeCudaOptions options) {
  const FakeCudaDriver driver(options);
  MemoryLog log;
  try {
    const CudaGpu gpu(FakeCudaDriver::table(), 0, log);
    return std::nullopt;
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::device);
    EXPECT_FALSE(error.parts().advice.empty());
    EXPECT_EQ(driver.leftovers(), "");
    return error;
  }
}

TEST(CudaDriver, SaysThatThereIsNoDriver) {
  try {
    CudaDriver::load("libterrace-no-such-driver.so.1");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::device);
    EXPECT_EQ(error.parts().subject, "libterrace-no-such-driver.so.1");
    EXPECT_NE(error.parts().reason.find("No such file"), std::string::npos) << error.what();
  }
}

TEST(CudaDriver, NamesTheCallThatAnOldDriverLacks) {
  try {
    CudaDriver::load("libm.so.6");
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(error.parts().reason.find("it lacks cuGetErrorName"), std::string::npos) << error.what();
  }
}

TEST(CudaLibraryStream, KnowsTheMemoryOfItsGpuAndWhenItsWorkIsOver) {
  FakeCudaDriver driver({.gpu_count = 2});
  MemoryLog log;
  {
    const CudaGpu first(FakeCudaDriver::table(), 0, log), second(FakeCudaDriver::table(), 1, log);
    CudaDevice device(second, {.budget_bytes = 4096});
    const std::byte* const work = device.allocate_work_memory(4096).data();
    const CudaLibraryStream of_first(first), of_second(second);
    const std::byte on_host{};
    EXPECT_FALSE(of_first.has(work));
    EXPECT_TRUE(of_second.has(work));
    EXPECT_FALSE(of_second.has(&on_host));
    EXPECT_TRUE(of_second.is_over());
    driver.run_operation(of_second.get(), [] {});
    EXPECT_FALSE(of_second.is_over());
    EXPECT_TRUE(of_first.is_over());
    driver.release_operations();
    while (!of_second.is_over()) std::this_thread::yield();
    driver.fail("cuStreamQuery", 1, CUDA_ERROR_ILLEGAL_ADDRESS);
    testing::expect_error(ErrorKind::device, {"cuStreamQuery", "stream of a library"},
                          [&] { of_second.is_over(); });
  }
  EXPECT_EQ(driver.leftovers(), "");
}

TEST(CudaGpu, SaysWhatItIs) {
  const FakeCudaDriver driver({.memory_bytes = 40 * kGiB});
  MemoryLog log;
  {
    const CudaGpu gpu(FakeCudaDriver::table(), 0, log);
    EXPECT_EQ(gpu.facts().name, "Fake GPU");
    EXPECT_EQ(cuda_version_text(gpu.facts().driver_version), "12.4");
    EXPECT_TRUE(gpu.facts().virtual_memory);
    EXPECT_EQ(gpu.facts().copy_engines, 2);
    EXPECT_EQ(gpu.facts().total_bytes, 40 * kGiB);
    EXPECT_EQ(gpu.facts().granularity_bytes, 4096u);
  }
  EXPECT_EQ(driver.leftovers(), "");
  EXPECT_TRUE(log.lines().empty());
}

TEST(CudaGpu, RefusesAnOldDriverAndAGpuThatIsNotThere) {
  const std::optional<Error> old = refusal({.driver_version = 10020});
  ASSERT_TRUE(old.has_value());
  EXPECT_NE(old->parts().reason.find("CUDA 10.2"), std::string::npos) << old->what();
  EXPECT_NE(old->parts().advice.in(Door::cpp).find("update"), std::string::npos);
  const std::optional<Error> none = refusal({.gpu_count = 0});
  ASSERT_TRUE(none.has_value());
  EXPECT_NE(none->parts().reason.find("CUDA_ERROR_NO_DEVICE"), std::string::npos) << none->what();
  EXPECT_FALSE(refusal({.virtual_memory = false}).has_value());  // a GPU to name, if not to train on
}

TEST(CudaGpu, GivesTheContextBackWhenALookAtItFails) {
  FakeCudaDriver driver;
  MemoryLog log;
  driver.fail("cuMemGetInfo", 1, CUDA_ERROR_INVALID_VALUE);
  EXPECT_THROW(CudaGpu(FakeCudaDriver::table(), 0, log), Error);
  EXPECT_EQ(driver.leftovers(), "");
}

TEST(CudaPageLock, RegistersAnArenaWholeInPiecesAndGivesItBack) {
  FakeCudaDriver driver;
  MemoryLog log;
  const CudaGpu gpu(FakeCudaDriver::table(), 0, log);
  HostArena arena({.budget_bytes = 64 * kKiB, .lock_pages = false}, log);
  {
    const CudaPageLock lock(gpu, arena.memory(), 24 * kKiB);
    EXPECT_TRUE(lock.locked());
    EXPECT_EQ(driver.registered_bytes(), 64 * kKiB);
    EXPECT_LE(driver.largest_registration_bytes(), 24 * kKiB);
  }
  EXPECT_EQ(driver.registered_bytes(), 0u);
  EXPECT_TRUE(log.lines().empty());
}

TEST(CudaPageLock, SaysOnceThatItWasRefusedAndKeepsNothingRegistered) {
  FakeCudaDriver driver;
  MemoryLog log;
  const CudaGpu gpu(FakeCudaDriver::table(), 0, log);
  HostArena arena({.budget_bytes = 64 * kKiB, .lock_pages = false}, log);
  driver.fail("cuMemHostRegister", 3, CUDA_ERROR_OUT_OF_MEMORY);
  const CudaPageLock lock(gpu, arena.memory(), 16 * kKiB);
  EXPECT_FALSE(lock.locked());
  EXPECT_EQ(driver.registered_bytes(), 0u);
  ASSERT_EQ(log.lines().size(), 1u);
  const std::string line = log.lines()[0].text;
  EXPECT_NE(line.find("64.0 KiB"), std::string::npos) << line;
  EXPECT_NE(line.find("CUDA_ERROR_OUT_OF_MEMORY"), std::string::npos) << line;
  EXPECT_NE(line.find("pageable memory"), std::string::npos) << line;
}

}  // namespace
}  // namespace terrace::cuda_gpu_test
