// Activations that pass through host memory to nvme and back: the same bytes, those that must move and no
// others, and every failure said.
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include <terrace/aio/engines/fault_plan.h>
#include <terrace/base/error.h>
#include <terrace/base/units.h>
#include <terrace/memory/device/simulated_device.h>
#include <terrace/memory/host/host_arena.h>
#include <terrace/offload/activations/nvme_activations.h>

#include "support/expect_error.h"
#include "support/fault_engine.h"
#include "support/scratch_folder.h"

namespace terrace::nvme_activations_test {
namespace {

using testing::expect_error;

constexpr uint64_t kEntryBytes = 12 * kKiB;  // two blocks, the last one short
constexpr uint64_t kEntryFloats = kEntryBytes / sizeof(float) - 7;
constexpr uint32_t kEntries = 9;
constexpr uint32_t kSlots = 4;

std::vector<uint32_t> backwards() {
  std::vector<uint32_t> order(kEntries);
  std::iota(order.rbegin(), order.rend(), 0u);
  return order;
}

std::unique_ptr<io::Engine> threads_engine() {
  io::EngineOptions options;
  options.kind = io::EngineKind::threads;
  return io::make_engine(options);
}

class Rig {
 public:
  explicit Rig(std::vector<uint32_t> order = backwards(), std::vector<io::Fault> faults = {})
      : tier_({.paths = {{folder_.path()}}}, log_),
        engine_(threads_engine()),
        store_(tier_, options(), *engine_, log_),
        io_(std::make_unique<io::FaultEngine>(threads_engine(), std::move(faults))),
        arena_({kSlots * kEntryBytes, false}, log_),
        activations_(arena_.take(kSlots * kEntryBytes, "slots"), std::move(order),
                     {store_, io_, device_, watch_}) {}

  static BlockStoreOptions options() {
    BlockStoreOptions options;
    options.name = "acts";
    options.block_bytes = 8 * kKiB;
    options.chunk_bytes.assign(kEntries, kEntryBytes);
    return options;
  }
  // As a forward pass does: every entry leaves while the next one is made.
  void put_all(float first) {
    for (uint32_t e = 0; e < kEntries; ++e) {
      const std::span<float> values = buffer(e);
      std::iota(values.begin(), values.end(), first + 10000.0f * static_cast<float>(e));
      activations_.start_put(e, values);
      if (e > 0) activations_.wait(e - 1);
    }
    activations_.wait(kEntries - 1);
  }
  void get(uint32_t entry) {
    std::ranges::fill(buffer(entry), -1.0f);
    activations_.start_get(entry, buffer(entry));
  }
  void expect(uint32_t entry, float first) {
    activations_.wait(entry);
    for (uint64_t i = 0; i < kEntryFloats; ++i) {
      ASSERT_EQ(buffer(entry)[i], first + 10000.0f * static_cast<float>(entry) + static_cast<float>(i))
          << entry << " " << i;
    }
  }
  std::span<float> buffer(uint32_t entry) { return buffer_at(entry % 2); }
  // One that put_all and get never touch.
  std::span<float> third_buffer() { return buffer_at(2); }
  NvmeActivations& activations() { return activations_; }

 private:
  std::span<float> buffer_at(uint32_t index) {
    return {reinterpret_cast<float*>(work_.data() + index * kEntryBytes), kEntryFloats};
  }

  ScratchFolder folder_;
  MemoryLog log_;
  TierSpace tier_;
  std::unique_ptr<io::Engine> engine_;
  BlockStore store_;
  io::IoThread io_;
  HostArena arena_;
  SimulatedDevice device_{{.budget_bytes = 64 * kKiB}};
  std::span<std::byte> work_ = device_.allocate_work_memory(3 * kEntryBytes);
  StepWatch watch_;
  NvmeActivations activations_;
};

TEST(NvmeActivations, ComeBackAsTheyWerePutAndMoveNoMoreThanTheyMust) {
  Rig rig;
  for (const float first : {1.0f, 5.0f}) {
    rig.put_all(first);
    rig.get(kEntries - 1);
    for (uint32_t e = kEntries; e-- > 0;) {
      rig.expect(e, first);
      if (e > 0) rig.get(e - 1);
    }
  }
  EXPECT_EQ(rig.activations().write_bytes(), 2 * kEntries * kEntryBytes);
  // What was put last is still in the slots.
  EXPECT_EQ(rig.activations().read_bytes(), 2 * (kEntries - kSlots) * kEntryBytes);
  EXPECT_EQ(rig.activations().d2h_bytes(), 2 * kEntries * kEntryFloats * sizeof(float));
  EXPECT_EQ(rig.activations().h2d_bytes(), rig.activations().d2h_bytes());
}

// Groups in descending order, ascending within: as micro-batches that run together have them.
TEST(NvmeActivations, ComeBackInAnyOrder) {
  const std::vector<uint32_t> order = {6, 7, 8, 3, 4, 5, 0, 1, 2};
  Rig rig(order);
  for (const float first : {1.0f, 5.0f}) {
    rig.put_all(first);
    rig.get(order[0]);
    for (size_t turn = 0; turn < order.size(); ++turn) {
      rig.expect(order[turn], first);
      if (turn + 1 < order.size()) rig.get(order[turn + 1]);
    }
  }
  EXPECT_EQ(rig.activations().read_bytes(), 2 * (kEntries - kSlots) * kEntryBytes);
}

TEST(NvmeActivations, GiveUpTheSlotOfWhatIsWantedBackLast) {
  Rig rig({0, 5, 6, 7, 8, 1, 2, 3, 4}, {{.index = 2, .error = EIO, .operation = io::OpKind::read}});
  rig.put_all(1.0f);
  for (const uint32_t entry : {0, 5, 6, 7}) {
    rig.get(entry);
    rig.expect(entry, 1.0f);
  }
  expect_error(ErrorKind::io, {"activation checkpoint 8"}, [&] {
    rig.get(8);
    rig.expect(8, 1.0f);
  });
}

TEST(NvmeActivations, OfAMicroBatchThatWasGivenUpAreForgotten) {
  Rig rig;
  for (uint32_t e = 0; e < 5; ++e) {
    rig.activations().start_put(e, rig.buffer(e));
    rig.activations().wait(e);
  }
  rig.activations().start_put(5, rig.third_buffer());  // nobody waits for this one
  rig.put_all(3.0f);
  for (uint32_t e = kEntries; e-- > 0;) {
    rig.get(e);
    rig.expect(e, 3.0f);
  }
}

TEST(NvmeActivations, SayWhoseBytesTheDiskDidNotTake) {
  Rig rig(backwards(), {{io::kEveryIndex, io::FaultKind::fail, 0, ENOSPC}});
  expect_error(ErrorKind::io, {"acts.tier", "activation checkpoint 0", "ENOSPC"}, [&] { rig.put_all(1.0f); });
}

TEST(NvmeActivations, SayWhoseBytesTheDiskDidNotGiveBack) {
  Rig rig(backwards(), {{.error = EIO, .operation = io::OpKind::read}});
  rig.put_all(1.0f);
  expect_error(ErrorKind::io, {"acts.tier", "activation checkpoint 4", "EIO"}, [&] {
    for (uint32_t e = kEntries; e-- > 0;) {
      rig.get(e);
      rig.expect(e, 1.0f);
    }
  });
}

}  // namespace
}  // namespace terrace::nvme_activations_test
