// An Offloader whose device reads parameters on nvme by itself: CudaDevice with the driver and the cuFile
// that the tests play.
#include <fmt/format.h>

#include <terrace/memory/cuda/cuda_device.h>
#include <terrace/offload/dry/dry_device.h>
#include <terrace/offload/plan/use_trace.h>

#include "memory/cuda/fake_cuda_driver.h"
#include "memory/cuda/fake_cuda_file.h"
#include "offload/offloader_rig.h"
#include "offload/watch/recorded_steps.h"
#include "support/expect_error.h"

namespace terrace::device_cuda_file_reads_test {
namespace {

using testing::FakeCudaDriver;
using testing::FakeCuFile;

struct Gpu {
  Case with(Case c) {
    c.make_device = [this](uint64_t budget_bytes, bool strict) {
      return make_cuda_device(gpu, {.budget_bytes = budget_bytes, .strict = strict});
    };
    return c;
  }
  Case reading(Case c) {
    c.reads_past_host = true;
    return with(c);
  }

  explicit Gpu(uint32_t yields_to_host = 0)
      : driver({.waits_for_fills = true, .yields_to_host = yields_to_host}) {}

  FakeCudaDriver driver;
  FakeCuFile cu_file;
  MemoryLog log;
  CudaGpu gpu{FakeCudaDriver::table(), 0, log, FakeCuFile::table()};
};

std::string moved(const Offloader& offloader) {
  const OffloadCounters c = offloader.report().counters();
  return fmt::format("h2d {} d2h {} read {} direct {} written {} fetches {} demanded {} evictions {}",
                     c.h2d_bytes, c.d2h_bytes, c.param_read_bytes, c.direct_read_bytes, c.param_write_bytes,
                     c.fetch_count, c.demand_fetch_count, c.eviction_count);
}

std::string host_uses(const Offloader& offloader) {
  std::string text;
  for (const TierUse& use : offloader.budget().ledger())
    text += fmt::format("{} {}; ", use.purpose, use.bytes);
  return text;
}

class CudaOffloaderFileReads : public ::testing::TestWithParam<Case> {};

INSTANTIATE_TEST_SUITE_P(
    Cases, CudaOffloaderFileReads,
    ::testing::Values(
        Case{.parameters = Placement::nvme, .states = Placement::nvme},
        Case{.parameters = Placement::nvme, .states = Placement::cpu, .accumulation = 2},
        Case{.parameters = Placement::nvme, .states = Placement::none, .tight = false},
        Case{.parameters = Placement::nvme,
             .states = Placement::nvme,
             .with_frozen = true,
             .chunk_elements = 2 * kTileElements},
        Case{.parameters = Placement::nvme, .states = Placement::nvme, .mode = UpdateMode::next_forward},
        Case{.parameters = Placement::nvme,
             .states = Placement::nvme,
             .mode = UpdateMode::during_backward,
             .spills = true},
        Case{.parameters = Placement::nvme,
             .states = Placement::nvme,
             .accumulation = 2,
             .processor_share = 0.5},
        Case{.parameters = Placement::nvme,
             .states = Placement::cpu,
             .mode = UpdateMode::during_backward,
             .processor_share = 0},
        Case{.parameters = Placement::nvme,
             .states = Placement::cpu,
             .policy = PolicyKind::gemini,
             .announced = false,
             .engine = io::EngineKind::threads}));

// The same bits as in plain vectors, every byte counted once, and what was planned: no byte more on any link,
// no slot in host memory.
TEST_P(CudaOffloaderFileReads, TrainTheSameAndMoveWhatIsPlanned) {
  Gpu gpu;
  const Case c = GetParam();
  Rig rig(gpu.reading(c));
  EXPECT_EQ(rig.offloader->plan().staging_slots, 0u);
  const uint64_t made_bytes = rig.device->h2d_bytes();  // of states that begin there
  Case planned = c;
  planned.dry = planned.announced = planned.reads_past_host = true;
  Rig dry(planned);
  EXPECT_EQ(host_uses(*dry.offloader), host_uses(*rig.offloader));
  Reference reference(rig.specs, c.accumulation);
  for (uint64_t step = 1; step <= 3; ++step) {
    EXPECT_TRUE(rig.step(step, c.accumulation).applied);
    reference.step(step);
    if (!c.announced) continue;  // the first step is planned as it is announced
    EXPECT_TRUE(dry.step(step, c.accumulation).applied);
    EXPECT_EQ(moved(*dry.offloader), moved(*rig.offloader)) << "step " << step;
  }
  rig.offloader->finish_update();
  const OffloadCounters counted = rig.offloader->report().counters();
  EXPECT_GT(counted.direct_read_bytes, 0u);
  EXPECT_LE(counted.direct_read_bytes, counted.param_read_bytes);
  EXPECT_LE(rig.offloader->report().traffic_bound().direct_read_bytes, counted.direct_read_bytes);
  expect_same_as_reference(rig, reference);
  rig.offloader.reset();  // what was asked for is over
  EXPECT_EQ(gpu.cu_file.read_bytes(), counted.direct_read_bytes);
  EXPECT_EQ(rig.device->h2d_bytes() - made_bytes, counted.h2d_bytes);
  EXPECT_EQ(gpu.cu_file.leftovers(), "driver open");
  EXPECT_TRUE(gpu.log.lines().empty());
}

// What was nvme -> host and host -> device is nvme -> device, with the same decisions.
TEST(CudaOffloaderFileReads, TakeTheirBytesOffTheLinkOfTheHostAndTheirSlotsOutOfItsMemory) {
  const Case c{.parameters = Placement::nvme, .states = Placement::none};
  OffloadCounters through_host, past_host;
  uint64_t host_bytes = 0, slot_bytes = 0;
  for (const bool past : {false, true}) {
    Gpu gpu;
    Rig rig(past ? gpu.reading(c) : gpu.with(c));
    for (uint64_t step = 1; step <= 2; ++step) rig.step(step, 1);
    (past ? past_host : through_host) = rig.offloader->report().counters();
    const MemoryPlan& plan = rig.offloader->plan();
    slot_bytes = plan.staging_slots * plan.slot_bytes;
    if (!past) host_bytes = plan.host_bytes - slot_bytes;
    EXPECT_EQ(plan.host_bytes - slot_bytes, host_bytes);
    EXPECT_EQ(slot_bytes == 0, past);
  }
  EXPECT_EQ(past_host.param_read_bytes, through_host.param_read_bytes);
  EXPECT_EQ(past_host.direct_read_bytes, through_host.param_read_bytes);
  EXPECT_EQ(through_host.direct_read_bytes, 0u);
  EXPECT_EQ(past_host.h2d_bytes, through_host.h2d_bytes - through_host.param_read_bytes);
}

// A gradient is slow to leave, and the slot is taken for parameters meanwhile.
TEST(CudaOffloaderFileReads, ComeBehindTheGradientThatLeavesTheirSlot) {
  Gpu gpu(300);
  Rig rig(gpu.reading({.parameters = Placement::nvme, .states = Placement::cpu}));
  expect_to_train(rig, 2);
}

TEST(CudaOffloaderFileReads, AreRecordedAsWhatTheyMove) {
  Gpu gpu;
  RecordedSteps recorded;
  {
    Rig rig(gpu.reading({.parameters = Placement::nvme,
                         .states = Placement::cpu,
                         .strict = false,
                         .step_events = &recorded.events}));
    for (uint64_t step = 1; step <= 2; ++step) {
      recorded.begin(step, *rig.offloader);
      rig.step(step, 1);
      recorded.end(*rig.offloader);
    }
  }
  recorded.take();
  EXPECT_EQ(recorded.difference(), "");
}

TEST(CudaOffloaderFileReads, NameWhatCouldNotBeReadAndForWhom) {
  for (const int error : {EIO, 5044}) {
    Gpu gpu;
    Rig rig(gpu.reading({.parameters = Placement::nvme, .states = Placement::cpu}));
    gpu.cu_file.fail("cuFileRead", 1, error);
    testing::expect_error(ErrorKind::io,
                          {rig.folder.path().string(), "cannot read 8192 bytes at offset",
                           error == EIO ? "EIO" : "cuFileRead: the transfer failed (5044)",
                           "read by the device itself, for chunk", "(shared to"},
                          [&] { rig.step(1, 1); });
  }
}

TEST(CudaOffloaderFileReads, AreRefusedWhereTheirFileIs) {
  Gpu gpu;
  gpu.cu_file.fail("cuFileHandleRegister", 1, 5008);
  testing::expect_error(ErrorKind::device,
                        {"params", "is not supported (5008)", "OffloadOptions::reads_past_host"},
                        [&] { Rig(gpu.reading({.parameters = Placement::nvme, .states = Placement::cpu})); });
}

// Nothing compares these bytes: a run that is to compare is refused.
TEST(CudaOffloaderFileReads, AreRefusedWhereChecksumsAreToBeCompared) {
  const std::vector<TensorSpec> specs = toy::tensors(DataType::bf16, false);
  const FlatSpace space(specs, kTileElements);
  OffloadOptions options;
  options.parameters = options.states = Placement::nvme;
  options.device_budget_bytes = options.host_budget_bytes = kGiB;
  options.reads_past_host = true;
  testing::expect_error(ErrorKind::config,
                        {"OffloadOptions::reads_past_host", "OffloadOptions::verify_checksums"},
                        [&] { plan_memory(space, {}, options); });
}

}  // namespace
}  // namespace terrace::device_cuda_file_reads_test
