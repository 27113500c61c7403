#include <terrace/memory/cuda/cuda_device.h>

#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <thread>

#include <terrace/base/error.h>
#include <terrace/memory/cuda/internal/cuda_memory.h>
#include <terrace/memory/host/pages.h>

#include "fake_cuda_driver.h"
#include "memory/device/device_suite.h"
#include "memory/host/os_memory.h"
#include "support/expect_error.h"

namespace terrace::cuda_device_test {
namespace {

using testing::Bytes;
using testing::DeviceSuite;
using testing::DeviceSuiteDeathTest;
using testing::FakeCudaDriver;
using testing::read_slot;
using testing::write_slot;

class FakeCudaRig final : public testing::DeviceRig {
 public:
  uint64_t granularity_bytes() const override { return gpu_.facts().granularity_bytes; }
  std::unique_ptr<Device> make(uint64_t budget_bytes, bool strict) override {
    auto device = std::make_unique<CudaDevice>(gpu_, CudaDeviceOptions{budget_bytes, strict});
    stream_ = device->compute_stream();
    return device;
  }
  // What was put in the order of the operations has happened.
  Bytes peek(const std::byte* address, uint64_t bytes) override {
    gpu_.driver().check(gpu_.driver().stream_synchronize(stream_), "cuStreamSynchronize", "a test");
    return {address, address + bytes};
  }
  void poke(std::byte* address, const Bytes& bytes) override {
    std::copy(bytes.begin(), bytes.end(), address);
  }
  bool is_mapped(const std::byte* address) override { return is_readable(address); }
  bool unmaps_at_once() const override { return false; }

 private:
  FakeCudaDriver driver_;
  MemoryLog log_;
  CudaGpu gpu_{FakeCudaDriver::table(), 0, log_};
  CUstream_st* stream_ = nullptr;
};

// The first GPU of this machine, whose memory the host cannot touch.
class RealCudaRig final : public testing::DeviceRig {
 public:
  RealCudaRig() : gpu_(CudaGpu::open(0, log_)) {
    retain_ =
        reinterpret_cast<Retain>(dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuMemRetainAllocationHandle"));
  }
  uint64_t granularity_bytes() const override { return gpu_->facts().granularity_bytes; }
  std::unique_ptr<Device> make(uint64_t budget_bytes, bool strict) override {
    auto device = std::make_unique<CudaDevice>(*gpu_, CudaDeviceOptions{budget_bytes, strict});
    stream_ = device->compute_stream();
    return device;
  }
  Bytes peek(const std::byte* address, uint64_t bytes) override {
    Bytes result(bytes);
    const CudaContext context(*gpu_);
    const CudaDriver& driver = gpu_->driver();
    driver.check(driver.copy_to_host(result.data(), reinterpret_cast<CUdeviceptr>(address), bytes, stream_),
                 "cuMemcpyDtoHAsync", "a test");
    driver.check(driver.stream_synchronize(stream_), "cuStreamSynchronize", "a test");
    return result;
  }
  void poke(std::byte* address, const Bytes& bytes) override {
    if (bytes.empty()) return;
    const CudaContext context(*gpu_);
    const CudaDriver& driver = gpu_->driver();
    driver.check(
        driver.copy_to_device(reinterpret_cast<CUdeviceptr>(address), bytes.data(), bytes.size(), stream_),
        "cuMemcpyHtoDAsync", "a test");
    driver.check(driver.stream_synchronize(stream_), "cuStreamSynchronize", "a test");
  }
  bool is_mapped(const std::byte* address) override {
    CUmemGenericAllocationHandle handle = 0;
    if (retain_(&handle, const_cast<std::byte*>(address)) != CUDA_SUCCESS) return false;
    gpu_->report(gpu_->driver().memory_release(handle), "cuMemRelease", "a test");
    return true;
  }
  bool unmaps_at_once() const override { return false; }

 private:
  using Retain = CUresult (*)(CUmemGenericAllocationHandle*, void*);
  StderrLog log_;
  std::unique_ptr<CudaGpu> gpu_;
  CUstream_st* stream_ = nullptr;
  Retain retain_ = nullptr;
};

const testing::DeviceKind kFake{"OnAFakeDriver",
                                [](std::string&) { return std::make_unique<FakeCudaRig>(); }};
INSTANTIATE_TEST_SUITE_P(Cuda, DeviceSuite, ::testing::Values(kFake), testing::kind_name);
INSTANTIATE_TEST_SUITE_P(Cuda, DeviceSuiteDeathTest, ::testing::Values(kFake), testing::kind_name);

const testing::DeviceKind kReal{"Cuda", [](std::string& reason) -> std::unique_ptr<testing::DeviceRig> {
                                  try {
                                    return std::make_unique<RealCudaRig>();
                                  } catch (const Error& error) {
                                    reason = error.what();
                                    return nullptr;
                                  }
                                }};
INSTANTIATE_TEST_SUITE_P(RealGpu, DeviceSuite, ::testing::Values(kReal), testing::kind_name);

constexpr uint64_t kPage = 4096;

class CudaDeviceTest : public ::testing::Test {
 protected:
  void make(CudaDeviceOptions options) { device_.emplace(gpu_, options); }
  CudaDevice& device() { return *device_; }
  // Everything goes, and the driver has everything back, unless it refused to take it.
  void TearDown() override {
    device_.reset();
    if (!refused_) {
      EXPECT_EQ(driver_.leftovers(), "1 contexts; ");
      EXPECT_EQ(logged(), "");
    }
  }
  std::string logged() const {
    std::string text;
    for (const MemoryLog::Line& line : log_.lines()) text += line.text + "\n";
    return text;
  }

  FakeCudaDriver driver_{{.memory_bytes = 64 * kPage}};
  MemoryLog log_;
  CudaGpu gpu_{FakeCudaDriver::table(), 0, log_};
  std::optional<CudaDevice> device_;
  bool refused_ = false;
};

TEST_F(CudaDeviceTest, TakesMemoryOncePerSlotAndMapsItAnew) {
  make({.budget_bytes = 8 * kPage});
  const std::vector<DeviceSlot> slots = device().create_slots(2 * kPage, 4, "chunks");
  EXPECT_EQ(driver_.used_bytes(), device().used_bytes());
  std::byte* const flat = device().reserve_addresses(8 * kPage);
  for (int i = 0; i < 5; ++i) {
    for (uint32_t s = 0; s < 4; ++s) device().attach(slots[s], flat + 2 * kPage * ((s + i) % 4));
    for (const DeviceSlot slot : slots) device().detach(slot);
  }
  EXPECT_EQ(driver_.calls("cuMemCreate"), 4u);
  EXPECT_EQ(driver_.used_bytes(), device().used_bytes());
  device().attach(slots[0], flat);  // an attached slot is no obstacle to the end
}

// Detached under a running operation: its bytes are still reached by the flat address, a copy of the slot
// comes behind it, and the owner waits for neither.
TEST_F(CudaDeviceTest, KeepsCopiesAndUnmappingBehindTheOperationsThatUseASlot) {
  make({.budget_bytes = kPage});
  const DeviceSlot slot = device().create_slots(kPage, 1, "chunks")[0];
  std::byte* const flat = device().reserve_addresses(kPage);
  device().attach(slot, flat);
  driver_.run_operation(device().compute_stream(), [flat] { flat[3] = std::byte{77}; });
  device().detach(slot);
  const uint64_t unmapped = driver_.calls("cuMemUnmap");
  Bytes back(kPage);
  Event done;
  done.begin();
  device().copy_to_host(back.data(), slot, 0, kPage, nullptr, done);
  EXPECT_FALSE(done.done());
  EXPECT_TRUE(is_readable(flat));
  EXPECT_EQ(driver_.calls("cuMemUnmap"), unmapped);
  driver_.release_operations();
  done.wait();
  EXPECT_EQ(back[3], std::byte{77});
  device().attach(slot, flat);  // behind the unmapping
  EXPECT_EQ(driver_.calls("cuMemUnmap"), unmapped + 1);
}

// Who waits for one may let others write to the slot.
TEST_F(CudaDeviceTest, EndsAnEmptyCopyBehindTheOperationsThatUseASlot) {
  make({.budget_bytes = 2 * kPage});
  const DeviceSlot slot = device().create_slots(kPage, 1, "chunks")[0];
  std::byte* const work = device().allocate_work_memory(kPage).data();
  std::byte* const flat = device().reserve_addresses(kPage);
  device().attach(slot, flat);
  driver_.run_operation(device().compute_stream(), [flat] { flat[3] = std::byte{77}; });
  device().detach(slot);
  Event copied, moved;
  copied.begin();
  moved.begin();
  device().copy_to_device(slot, 0, nullptr, 0, nullptr, copied);
  device().copy_work_to_slot(slot, 0, work, 0, nullptr, moved);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(copied.done());
  EXPECT_FALSE(moved.done());
  driver_.release_operations();
  copied.wait();
  moved.wait();
  EXPECT_EQ(device().h2d_bytes(), 0u);
}

TEST_F(CudaDeviceTest, CopiesWorkMemoryBehindTheOperationsBeforeIt) {
  make({.budget_bytes = kPage});
  std::byte* const work = device().allocate_work_memory(kPage).data();
  driver_.run_operation(device().compute_stream(), [work] { work[9] = std::byte{9}; });
  Bytes back(kPage);
  Event done;
  done.begin();
  device().copy_work_to_host(back.data(), work, kPage, nullptr, done);
  EXPECT_FALSE(done.done());
  driver_.release_operations();
  done.wait();
  EXPECT_EQ(back[9], std::byte{9});
}

// The program's operation may still make what a slot is filled with, and another one writes over it
// afterwards.
TEST_F(CudaDeviceTest, FillsASlotBehindTheOperationsBeforeItAndBeforeThoseOfLater) {
  make({.budget_bytes = 2 * kPage});
  const DeviceSlot slot = device().create_slots(kPage, 1, "gradients")[0];
  std::byte* const work = device().allocate_work_memory(kPage).data();
  driver_.run_operation(device().compute_stream(), [work] { work[9] = std::byte{9}; });
  device().fill_in_order(slot, 0, work, 100);
  driver_.run_kernel(device().compute_stream(), [work] { work[9] = std::byte{10}; });
  Bytes back(kPage);
  Event done;
  done.begin();
  device().copy_to_host(back.data(), slot, 0, kPage, nullptr, done);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(done.done());
  driver_.release_operations();
  done.wait();
  EXPECT_EQ(back[9], std::byte{9});
}

// What runs on the stream of before comes first, and a copy comes behind what runs on the new one.
TEST_F(CudaDeviceTest, GoesOnOnAStreamOfTheProgram) {
  make({.budget_bytes = kPage});
  const CudaContext context(gpu_);
  const CudaStream own(gpu_, "a stream of the program");
  std::byte* const work = device().allocate_work_memory(kPage).data();
  CUstream_st* const first = device().compute_stream();
  driver_.run_operation(first, [work] { work[9] = std::byte{9}; });
  device().use_stream(own.get());
  EXPECT_EQ(device().compute_stream(), own.get());
  driver_.run_kernel(own.get(), [work] { work[10] = static_cast<std::byte>(static_cast<int>(work[9]) + 1); });
  Bytes back(kPage);
  Event done;
  done.begin();
  device().copy_work_to_host(back.data(), work, kPage, nullptr, done);
  EXPECT_FALSE(done.done());
  driver_.release_operations();
  done.wait();
  EXPECT_EQ(back[10], std::byte{10});
  const uint64_t events = driver_.calls("cuEventCreate");
  device().use_stream(own.get());
  device().use_stream(first);
  EXPECT_EQ(driver_.calls("cuEventCreate"), events);
  driver_.fail("cuStreamWaitEvent", 1, CUDA_ERROR_INVALID_VALUE);
  testing::expect_error(ErrorKind::device, {"cuStreamWaitEvent"}, [&] { device().use_stream(own.get()); });
  EXPECT_EQ(device().compute_stream(), first);
}

TEST_F(CudaDeviceTest, UsesTheEventOfACopyOfWorkMemoryAgainHoweverItEnds) {
  make({.budget_bytes = kPage});
  std::byte* const work = device().allocate_work_memory(kPage).data();
  const Bytes ones(kPage, std::byte{1});
  const uint64_t before = driver_.calls("cuEventCreate");
  for (int i = 0; i < 9; ++i) {
    Event after, done;
    after.begin();
    done.begin();
    if (i % 3 == 1) driver_.fail("cuMemcpyHtoDAsync", 1, CUDA_ERROR_INVALID_VALUE);
    device().copy_to_work(work, ones.data(), kPage, &after, done);
    after.complete_one(i % 3 == 2 ? testing::failure("the read failed") : nullptr);
    done.wait_done();
    EXPECT_EQ(done.failed(), i % 3 != 0);
  }
  EXPECT_EQ(driver_.calls("cuEventCreate"), before + 1);
}

TEST_F(CudaDeviceTest, HasSeveralCopiesOnTheLinkAtOnce) {
  make({.budget_bytes = 4 * kPage});
  const std::vector<DeviceSlot> slots = device().create_slots(kPage, 4, "chunks");
  const Bytes ones(kPage, std::byte{1});
  Event done;
  done.begin(4);
  driver_.hold_copies();
  for (const DeviceSlot slot : slots) device().copy_to_device(slot, 0, ones.data(), kPage, nullptr, done);
  while (driver_.calls("cuMemcpyHtoDAsync") < 4) std::this_thread::yield();
  EXPECT_FALSE(done.done());
  EXPECT_EQ(device().h2d_bytes(), 0u);
  driver_.let_copies_go();
  done.wait();
  EXPECT_EQ(device().h2d_bytes(), 4 * kPage);
  EXPECT_GT(device().h2d_busy_ns(), 0u);
}

TEST_F(CudaDeviceTest, SaysWhatTheGpuHasNoMemoryForAndKeepsNothing) {
  make({.budget_bytes = 1000 * kPage});  // more than there is
  device().create_slots(kPage, 60, "chunks");
  try {
    device().create_slots(2 * kPage, 3, "gradients");
    FAIL() << "there is not so much memory";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::capacity);
    EXPECT_EQ(error.parts().subject, "slot 2 of gradients (device tier)");
    EXPECT_NE(error.parts().reason.find("cuMemCreate"), std::string::npos) << error.what();
    EXPECT_NE(error.parts().reason.find("CUDA_ERROR_OUT_OF_MEMORY"), std::string::npos) << error.what();
  }
  EXPECT_EQ(device().used_bytes(), 60 * kPage);
  EXPECT_EQ(driver_.used_bytes(), 60 * kPage);
  EXPECT_THROW(device().allocate_work_memory(5 * kPage), Error);
  EXPECT_EQ(device().used_bytes(), 60 * kPage);
  device().create_slots(2 * kPage, 2, "gradients");
}

// Each call that making and attaching a slot takes, refused once: nothing is left behind, and it works the
// next time.
TEST_F(CudaDeviceTest, IsAsBeforeWhenTheDriverRefusesAnyOfItsCalls) {
  make({.budget_bytes = 4 * kPage});
  for (const char* call : {"cuMemAddressReserve", "cuMemCreate", "cuMemMap", "cuMemSetAccess",
                           "cuMemsetD8Async", "cuEventCreate", "cuStreamSynchronize"}) {
    driver_.fail(call, 1, CUDA_ERROR_INVALID_VALUE);
    try {
      device().create_slots(kPage, 2, "chunks");
      FAIL() << call << " did not fail";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::device);
      EXPECT_NE(error.parts().reason.find(call), std::string::npos) << error.what();
      EXPECT_NE(error.parts().subject.in(Door::cpp).find("chunks (device tier)"), std::string::npos)
          << error.what();
    }
    EXPECT_EQ(device().used_bytes(), 0u);
    EXPECT_EQ(driver_.used_bytes(), 0u);
  }
  const DeviceSlot slot = device().create_slots(kPage, 1, "chunks")[0];
  std::byte* const flat = device().reserve_addresses(kPage);
  for (const char* call : {"cuMemMap", "cuMemSetAccess"}) {
    driver_.fail(call, 1, CUDA_ERROR_INVALID_VALUE);
    EXPECT_THROW(device().attach(slot, flat), Error);
    EXPECT_FALSE(device().attached(slot));
  }
  device().attach(slot, flat);
  EXPECT_TRUE(is_readable(flat));
}

TEST_F(CudaDeviceTest, ReportsACopyThatCouldNotBeStartedAndGoesOn) {
  make({.budget_bytes = kPage});
  const DeviceSlot slot = device().create_slots(kPage, 1, "chunks")[0];
  const Bytes ones(kPage, std::byte{1});
  Event done;
  driver_.fail("cuMemcpyHtoDAsync", 1, CUDA_ERROR_INVALID_VALUE);
  done.begin();
  device().copy_to_device(slot, 0, ones.data(), kPage, nullptr, done);
  try {
    done.wait();
    FAIL() << "the copy did not fail";
  } catch (const Error& error) {
    EXPECT_EQ(error.parts().subject, "slot 0 of chunks (device tier)");
    EXPECT_NE(error.parts().reason.find("cuMemcpyHtoDAsync"), std::string::npos) << error.what();
  }
  EXPECT_EQ(device().h2d_bytes(), 0u);
  write_slot(device(), slot, 0, ones);
  EXPECT_EQ(read_slot(device(), slot, 0, kPage), ones);
}

TEST_F(CudaDeviceTest, ReportsALostDeviceToTheCopyUnderWay) {
  make({.budget_bytes = 2 * kPage});
  const DeviceSlot slot = device().create_slots(kPage, 1, "chunks")[0];
  std::byte* const work = device().allocate_work_memory(kPage).data();
  const Bytes ones(kPage, std::byte{1});
  Event under_way, later;
  under_way.begin();
  driver_.hold_copies();
  device().copy_to_device(slot, 0, ones.data(), kPage, nullptr, under_way);
  while (driver_.calls("cuMemcpyHtoDAsync") == 0) std::this_thread::yield();
  driver_.lose_device();
  EXPECT_THROW(under_way.wait(), Error);
  later.begin();
  device().copy_to_work(work, ones.data(), kPage, nullptr, later);
  EXPECT_THROW(later.wait(), Error);
  EXPECT_THROW(device().attach(slot, device().reserve_addresses(kPage)), Error);
  EXPECT_EQ(device().h2d_bytes(), 0u);
  device_.reset();
  EXPECT_NE(logged().find("CUDA_ERROR_DEVICE_UNAVAILABLE"), std::string::npos);
  refused_ = true;
}

TEST_F(CudaDeviceTest, StopsAttachingWhenUnmappingFailed) {
  make({.budget_bytes = kPage, .strict = true});
  const DeviceSlot slot = device().create_slots(kPage, 1, "chunks")[0];
  std::byte* const flat = device().reserve_addresses(2 * kPage);
  device().attach(slot, flat);
  driver_.fail("cuMemUnmap", 1, CUDA_ERROR_INVALID_VALUE);
  EXPECT_THROW(device().detach(slot), Error);
  EXPECT_THROW(device().attach(slot, flat + kPage), Error);
  refused_ = true;
}

TEST(CudaDevice, NeedsVirtualMemoryManagement) {
  const FakeCudaDriver driver({.virtual_memory = false});
  MemoryLog log;
  const CudaGpu gpu(FakeCudaDriver::table(), 0, log);
  try {
    const CudaDevice device(gpu, {.budget_bytes = kPage});
    FAIL() << "it works without";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::device);
    EXPECT_EQ(error.parts().subject, "Fake GPU");
    EXPECT_NE(error.parts().reason.find("virtual memory"), std::string::npos);
  }
}

// A copy must not go from one registration into another.
TEST_F(CudaDeviceTest, CutsCopiesWhereRegisteredMemoryIsCut) {
  make({.budget_bytes = 5 * kPage, .host_piece_bytes = 2 * kPage});
  const DeviceSlot slot = device().create_slots(5 * kPage, 1, "chunks")[0];
  PageMapping host = PageMapping::populated(8 * kPage, false, "a test");
  const CudaPageLock lock(gpu_, host.memory(), 2 * kPage);
  EXPECT_TRUE(lock.locked());
  EXPECT_EQ(driver_.registered_bytes(), 8 * kPage);
  EXPECT_EQ(driver_.largest_registration_bytes(), 2 * kPage);
  const std::span<std::byte> piece = host.memory().subspan(kPage + 5, 5 * kPage);
  std::fill(piece.begin(), piece.end(), std::byte{3});
  Event done;
  done.begin();
  device().copy_to_device(slot, 0, piece.data(), piece.size(), nullptr, done);
  done.wait();
  EXPECT_EQ(driver_.calls("cuMemcpyHtoDAsync"), 4u);
  done.begin();
  device().copy_to_host(piece.data(), slot, 0, piece.size(), nullptr, done);
  done.wait();
  EXPECT_EQ(read_slot(device(), slot, 0, piece.size()), Bytes(5 * kPage, std::byte{3}));
}

}  // namespace
}  // namespace terrace::cuda_device_test
