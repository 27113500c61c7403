// Reads of files into slots of a CudaDevice, on the driver and the cuFile that the tests play.
#include <terrace/memory/cuda/cuda_file_reads.h>

#include <atomic>
#include <optional>
#include <thread>

#include <terrace/aio/engine.h>
#include <terrace/aio/file.h>
#include <terrace/memory/cuda/cuda_device.h>
#include <terrace/memory/device/simulated_device.h>

#include "fake_cuda_driver.h"
#include "fake_cuda_file.h"
#include "memory/device/device_suite.h"
#include "support/expect_error.h"
#include "support/scratch_folder.h"

namespace terrace::cuda_cuda_file_reads_test {
namespace {

using testing::Bytes;
using testing::FakeCudaDriver;
using testing::FakeCuFile;

constexpr uint64_t kPage = 4096;

class CudaFileReads : public ::testing::Test {
 protected:
  CudaFileReads() {
    folder_.write("tier", std::string(8 * kPage, 'x'));
    file_.emplace(io::File::open(folder_ / "tier", {.access = io::FileAccess::read}));
    engine_ = device_.make_file_reader({.kind = io::EngineKind::threads, .thread_count = 3});
    EXPECT_TRUE(engine_->register_file(file_->fd()));
    flat_ = device_.reserve_addresses(4 * kPage);
    slot_ = device_.create_slots(2 * kPage, 1, "chunks")[0];
  }

  // Of the file's bytes from `offset`, into the slot's from there.
  io::Request read_of(std::byte* memory, uint64_t offset, uint64_t bytes) {
    return {.kind = io::OpKind::read,
            .fd = file_->fd(),
            .offset = offset,
            .data = memory,
            .bytes = bytes,
            .on_complete =
                [](void* context, const io::Completion& completion) noexcept {
                  auto& test = *static_cast<CudaFileReads*>(context);
                  test.last_ = completion;
                  test.device_.end_fill(test.slot_);
                },
            .context = this,
            .tag = 0};
  }
  // Both halves of the slot, each by a request.
  void start(const Event* after) {
    std::byte* const memory = device_.begin_fills(slot_, 2, after);
    const io::Request requests[] = {read_of(memory, 0, kPage), read_of(memory + kPage, kPage, kPage)};
    engine_->submit(requests);
  }
  void finish() {
    while (engine_->in_flight() > 0) engine_->wait(1);
  }
  Bytes slot_bytes() {
    device_.attach(slot_, flat_);
    const Bytes bytes(flat_, flat_ + 2 * kPage);
    device_.detach(slot_);
    return bytes;
  }

  ScratchFolder folder_;
  std::optional<io::File> file_;
  FakeCudaDriver driver_{{.memory_bytes = 64 * kPage}};
  FakeCuFile cu_file_;
  MemoryLog log_;
  CudaGpu gpu_{FakeCudaDriver::table(), 0, log_, FakeCuFile::table()};
  CudaDevice device_{gpu_, {.budget_bytes = 8 * kPage}};
  std::unique_ptr<io::Engine> engine_;
  std::byte* flat_ = nullptr;
  DeviceSlot slot_{};
  io::Completion last_{};
};

TEST_F(CudaFileReads, PutTheBytesOfAFileIntoASlotAndCountAsNoCopy) {
  start(nullptr);
  finish();
  EXPECT_EQ(last_.error, 0);
  EXPECT_EQ(slot_bytes(), Bytes(2 * kPage, std::byte{'x'}));
  EXPECT_EQ(cu_file_.read_bytes(), 2 * kPage);
  EXPECT_EQ(device_.h2d_bytes(), 0u);
  EXPECT_EQ(cu_file_.leftovers(), "driver open, 1 files");
  engine_.reset();
  EXPECT_EQ(cu_file_.leftovers(), "driver open");
}

TEST_F(CudaFileReads, GoOnWhereOneEndedShort) {
  cu_file_.read_at_most(kPage / 2);
  start(nullptr);
  finish();
  EXPECT_EQ(last_.error, 0);
  EXPECT_EQ(slot_bytes(), Bytes(2 * kPage, std::byte{'x'}));
  EXPECT_EQ(cu_file_.reads(), 4u);
}

// The slot was detached under a running operation, which still writes it.
TEST_F(CudaFileReads, ComeBehindTheOperationsThatUseTheSlot) {
  std::atomic<bool> has_written = false;
  std::atomic<bool> came_before = false;
  cu_file_.on_read([&] { came_before = came_before || !has_written; });
  device_.attach(slot_, flat_);
  driver_.run_operation(device_.compute_stream(), [&] {
    flat_[3] = std::byte{77};
    has_written = true;
  });
  device_.detach(slot_);
  const uint64_t waits = driver_.calls("cuEventSynchronize");
  start(nullptr);
  // Whoever does not wait reads now.
  while (driver_.calls("cuEventSynchronize") < waits + 2 && cu_file_.reads() == 0) std::this_thread::yield();
  EXPECT_EQ(cu_file_.reads(), 0u);
  driver_.release_operations();
  finish();
  EXPECT_FALSE(came_before);
  EXPECT_EQ(slot_bytes(), Bytes(2 * kPage, std::byte{'x'}));
}

TEST_F(CudaFileReads, ComeBehindTheCopyThatLeavesTheSlot) {
  Event left;
  left.begin();
  std::atomic<bool> came_before = false;
  cu_file_.on_read([&] { came_before = came_before || !left.done(); });
  Bytes back(2 * kPage);
  driver_.hold_copies();
  device_.copy_to_host(back.data(), slot_, 0, 2 * kPage, nullptr, left);
  start(&left);
  for (int i = 0; i < 1000; ++i) std::this_thread::yield();
  driver_.let_copies_go();
  finish();
  EXPECT_FALSE(came_before);
  EXPECT_EQ(back, Bytes(2 * kPage));
  EXPECT_EQ(slot_bytes(), Bytes(2 * kPage, std::byte{'x'}));
}

TEST_F(CudaFileReads, AreLeftOutWhereTheCopyBeforeThemFailed) {
  Event left;
  left.begin();
  left.complete_one(testing::failure("the gradient did not land"));
  start(&left);
  finish();
  EXPECT_EQ(last_.error, ECANCELED);
  EXPECT_EQ(cu_file_.reads(), 0u);
}

TEST_F(CudaFileReads, EndWithTheErrorOfTheSystemOrOfCuFile) {
  for (const int error : {EIO, 5044}) {
    cu_file_.fail("cuFileRead", 1, error);
    std::byte* const memory = device_.begin_fills(slot_, 1, nullptr);
    const io::Request request = read_of(memory, 0, kPage);
    engine_->submit({&request, 1});
    finish();
    EXPECT_EQ(last_.error, error);
    EXPECT_EQ(last_.bytes, 0u);
  }
}

TEST_F(CudaFileReads, EndWithAnErrorWhenTheDeviceIsLost) {
  driver_.lose_device();
  start(nullptr);
  finish();
  EXPECT_EQ(last_.error, ENODEV);
  ASSERT_FALSE(log_.lines().empty());
  EXPECT_NE(log_.lines()[0].text.find("CUDA_ERROR_DEVICE_UNAVAILABLE"), std::string::npos);
}

using CudaFileReadsDeathTest = CudaFileReads;

TEST_F(CudaFileReadsDeathTest, KeepTheSlotFromBeingAttachedUntilTheyAreOver) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  std::byte* const memory = device_.begin_fills(slot_, 2, nullptr);
  EXPECT_NE(memory, nullptr);
  device_.end_fill(slot_);
  EXPECT_DEATH(device_.attach(slot_, flat_), "cannot attach a slot with 1 copies in flight");
  device_.end_fill(slot_);
  device_.attach(slot_, flat_);
}

TEST_F(CudaFileReads, AreThereOrItIsSaidWhyNot) {
  const std::filesystem::path folder = folder_.path();
  const std::string reason = why_no_file_reads(gpu_, {&folder, 1});
  if (!reason.empty()) {  // a file system that has none
    EXPECT_NE(reason.find("no direct I/O"), std::string::npos) << reason;
    GTEST_SKIP() << reason;
  }
  cu_file_.fail("cuFileHandleRegister", 1, 5008);
  EXPECT_EQ(why_no_file_reads(gpu_, {&folder, 1}),
            "files in " + folder.string() +
                " cannot be read by cuFile: cuFileHandleRegister: the file system of this file is not "
                "supported (5008)");
  const std::filesystem::path nowhere = folder / "nowhere";
  EXPECT_NE(why_no_file_reads(gpu_, {&nowhere, 1}).find("No such file"), std::string::npos);
  // Nothing of it stays.
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), {}), 1);
}

TEST(CudaFileReadsAlone, AreNotThereWhereTheDriverOfCuFileDoesNotOpen) {
  FakeCudaDriver driver;
  FakeCuFile cu_file;
  MemoryLog log;
  {
    const CudaGpu gpu(FakeCudaDriver::table(), 0, log, FakeCuFile::table());
    cu_file.fail("cuFileDriverOpen", 1, 5001);
    const std::string reason = why_no_file_reads(gpu, {});
    EXPECT_NE(reason.find("cuFileDriverOpen: its kernel module nvidia-fs is not loaded"), std::string::npos)
        << reason;
    EXPECT_EQ(why_no_file_reads(gpu, {}), "");  // it opens the next time
    EXPECT_EQ(cu_file.leftovers(), "driver open");
  }
  EXPECT_EQ(cu_file.leftovers(), "");
  // What a program has opened for itself stays open.
  const CudaGpu gpu(FakeCudaDriver::table(), 0, log, FakeCuFile::table());
  cu_file.fail("cuFileDriverOpen", 1, cu_file::kAlreadyOpen);
  EXPECT_EQ(why_no_file_reads(gpu, {}), "");
}

TEST(CudaFileReadsAlone, AreRefusedByADeviceThatHasNone) {
  SimulatedDevice device(SimulatedDeviceOptions{kPage, false, 0, 0});
  testing::expect_error(ErrorKind::device, {"cannot read files", "OffloadOptions::reads_past_host"},
                        [&] { device.make_file_reader({}); });
}

}  // namespace
}  // namespace terrace::cuda_cuda_file_reads_test
