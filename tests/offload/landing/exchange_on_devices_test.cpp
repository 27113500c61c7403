// Parts go from device to device, and a rank adds what one rank would add, in the order of micro-batches,
// whoever comes first; on the host or on the device.
#include <terrace/offload/landing/exchange_on_devices.h>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <thread>

#include <terrace/offload/landing/gradient_staging.h>

#include "comm/comm_faults.h"
#include "comm/thread_world.h"
#include "memory/device/forwarding_device.h"
#include "offload/landing/gradient_rig.h"
#include "support/rank_threads.h"

namespace terrace::exchange_on_devices_test {
namespace {

constexpr ChunkId kChunk{1};
constexpr uint64_t kGradientBytes = kTileElements * sizeof(Bf16);
constexpr uint64_t kHandedElements = kTileElements - 5;  // with padding behind them
enum class Added : uint8_t { on_host, on_device };

// What the program has made is late: it comes to its slot beside the step thread, as on a GPU, and copies of
// the slot wait for it.
class LateFills final : public ForwardingDevice {
 public:
  using ForwardingDevice::ForwardingDevice;
  ~LateFills() override {
    if (thread_.joinable()) thread_.join();
  }
  void fill_in_order(DeviceSlot slot, uint64_t offset, const std::byte* source, uint64_t bytes) override {
    if (thread_.joinable()) thread_.join();
    Event& filled = filled_[index_of(slot)];
    filled.begin();
    auto* const to = const_cast<std::byte*>(home(slot)) + offset;
    thread_ = std::thread([&filled, to, content = std::vector<std::byte>(source, source + bytes)] {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      std::ranges::copy(content, to);
      filled.complete_one();
    });
  }
  void copy_to_host(std::byte* destination, DeviceSlot slot, uint64_t offset, uint64_t bytes,
                    const Event* after, Event& done, const CopyNote& note) override {
    ForwardingDevice::copy_to_host(destination, slot, offset, bytes, behind(slot, after), done, note);
  }
  void copy_slot_to_work(std::byte* work, DeviceSlot slot, uint64_t offset, uint64_t bytes,
                         const Event* after, Event& done) override {
    ForwardingDevice::copy_slot_to_work(work, slot, offset, bytes, behind(slot, after), done);
  }

 private:
  const Event* behind(DeviceSlot slot, const Event* after) {
    return after != nullptr ? after : &filled_[index_of(slot)];
  }
  std::map<uint32_t, Event> filled_;  // by slot
  std::thread thread_;
};

// Chunks of one tile: the first rank owns all of them.
struct Rank {
  Rank(Communicator& communicator, Added added_, uint32_t micro_batches, SimulatedDeviceOptions options = {})
      : rig(with_budget(options)), shards(rig.space, communicator.rank(), communicator.size()) {
    const ExchangeRanks ranks{shards, communicator, rig.watch, {micro_batches, communicator.size()}};
    const uint64_t share = rig.plan.share_bytes, others = communicator.size() - 1;
    ExchangeOnDevices::Memory memory{device, {}, {}, share, 2};
    memory.on_device = rig.device.allocate_work_memory(2 * communicator.size() * share);
    if (added_ == Added::on_host) memory.on_host = {rig.take(others * share), rig.take(others * share)};
    slots = {rig.take(share), rig.take(share)};
    handed = rig.device.create_slots(rig.plan.slot_bytes, 2, "gradients that are handed over");
    program = rig.device.allocate_work_memory(kGradientBytes).data();
    exchange = std::make_unique<GradientStaging>(rig.space, device, *rig.cache,
                                                 GradientStaging::Slots{slots, handed},
                                                 std::make_unique<ExchangeOnDevices>(ranks, memory, 1));
  }
  static SimulatedDeviceOptions with_budget(SimulatedDeviceOptions device) {
    device.budget_bytes = 8 * kMiB;
    return device;
  }

  void land(uint32_t round, uint32_t rounds, float value, ChunkId chunk = kChunk) {
    make_gradient(*rig.cache, chunk, value);
    exchange->land(rig.landing(chunk, round, rounds), nullptr, adding);
  }
  // The program makes all but the last elements of the gradient on the device, and others there afterwards.
  void hand_over(uint32_t round, uint32_t rounds, float value, ChunkId chunk = kChunk) {
    auto* const gradient = reinterpret_cast<Bf16*>(program);
    std::fill_n(gradient, kTileElements, to_bf16(value));
    exchange->make_room(adding);
    exchange->land_part(rig.landing(chunk, round, rounds), {TensorId{0}, 0, program, kHandedElements});
    std::fill_n(gradient, kTileElements, to_bf16(-1));
  }
  // What was added: micro-batches and the first and the last element of their gradients; none where nothing
  // is in the own tiles.
  struct Addition {
    uint32_t micro_batch;
    bool ends;
    float first, last;
    bool operator==(const Addition&) const = default;
  };
  std::vector<Addition> added;
  std::function<void(const GradientLanding&, const std::byte*, bool)> adding =
      [this](const GradientLanding& own, const std::byte* gradient, bool) {
        const auto* const elements = reinterpret_cast<const Bf16*>(gradient);
        const bool has_runs = !own.runs.empty();
        added.push_back({own.micro_batch, own.ends, has_runs ? to_float(elements[0]) : 0,
                         has_runs ? to_float(elements[kTileElements - 1]) : 0});
      };

  GradientRig rig;
  LateFills device{rig.device};
  const ChunkShards shards;
  std::vector<std::byte*> slots;
  std::vector<DeviceSlot> handed;
  std::byte* program = nullptr;
  std::unique_ptr<GradientStaging> exchange;
};

void on_ranks(ThreadWorld& world, const std::function<void(Communicator&, Added)>& body) {
  for (const Added added : {Added::on_host, Added::on_device}) {
    SCOPED_TRACE(added == Added::on_host ? "added on the host" : "added on the device");
    for (const std::string& failure :
         testing::on_every_rank(world, [&](Communicator& communicator) { body(communicator, added); }))
      EXPECT_EQ(failure, "");
  }
}

// Late ranks, and a link on which the own part is long under way.
TEST(ExchangeOnDevices, HandsPartsOnInTheOrderOfMicroBatchesWhenTheyHaveArrived) {
  for (const bool slow : {false, true}) {
    CommFaults late({}, 3'000'000, 1);
    ThreadWorld world({.ranks = 3, .hook = &late});
    on_ranks(world, [&](Communicator& communicator, Added added) {
      Rank rank(
          communicator, added, 4,
          {.d2h_bytes_per_second = slow ? 300 * kGradientBytes : 0, .caller_makes_small_copies = !slow});
      const float mine = static_cast<float>(communicator.rank());
      rank.land(0, 2, 1 + mine);
      rank.land(1, 2, 4 + mine);  // a micro-batch of the first rank alone
      rank.exchange->finish_all(rank.adding);
      const float owns = communicator.rank() == 0 ? 1 : 0;
      const std::vector<Rank::Addition> expected = {{0, false, owns, owns},
                                                    {1, false, 2 * owns, 2 * owns},
                                                    {2, false, 3 * owns, 3 * owns},
                                                    {3, true, 4 * owns, 4 * owns}};
      EXPECT_EQ(rank.added, expected) << communicator.rank();
    });
  }
}

// There is one slot for the next gradient: that of the one before, which the others may not have yet.
TEST(ExchangeOnDevices, KeepsASlotUntilTheOthersHaveWhatIsInIt) {
  CommFaults late({}, 3'000'000, 2);
  ThreadWorld world({.ranks = 2, .hook = &late});
  on_ranks(world, [&](Communicator& communicator, Added added) {
    Rank rank(communicator, added, 8, {.caller_makes_small_copies = false});
    const float mine = static_cast<float>(communicator.rank());
    for (const ChunkId other : {ChunkId{0}, ChunkId{2}}) make_gradient(*rank.rig.cache, other, 0);
    for (uint32_t round = 0; round < 4; ++round) {
      rank.exchange->make_room(rank.adding);
      rank.land(round, 4, static_cast<float>(2 * round + 1) + mine);
    }
    rank.exchange->finish_all(rank.adding);
    ASSERT_EQ(rank.added.size(), 8u);
    for (const ChunkId other : {ChunkId{0}, ChunkId{2}}) rank.rig.cache->drop_gradient(other);
    for (uint32_t m = 0; m < 8 && communicator.rank() == 0; ++m)
      EXPECT_EQ(rank.added[m].last, static_cast<float>(m + 1));
  });
}

// What is handed over is copied at once, with zeros for the padding behind it, to the slot of a landing that
// the others have; there are two, and the others are late.
TEST(ExchangeOnDevices, TakesWhatIsHandedOverOnTheDevice) {
  for (const bool slow : {false, true}) {
    CommFaults late({}, 3'000'000, 4);
    ThreadWorld world({.ranks = 3, .hook = &late});
    on_ranks(world, [&](Communicator& communicator, Added added) {
      Rank rank(communicator, added, 11,
                {.strict = true,
                 .d2h_bytes_per_second = slow ? 300 * kGradientBytes : 0,
                 .caller_makes_small_copies = !slow});
      const float mine = static_cast<float>(communicator.rank());
      for (uint32_t round = 0; round < 4; ++round)
        rank.hand_over(round, 4, static_cast<float>(3 * round + 1) + mine);
      rank.exchange->finish_all(rank.adding);
      ASSERT_EQ(rank.added.size(), 11u);
      const bool owns = communicator.rank() == 0;
      for (uint32_t m = 0; m < 11; ++m) {
        const Rank::Addition expected{m, m == 10, owns ? static_cast<float>(m + 1) : 0, 0};
        EXPECT_EQ(rank.added[m], expected) << m;
      }
      const uint64_t copied = owns && added == Added::on_host ? 11 * kGradientBytes : 0;
      EXPECT_EQ(rank.exchange->d2h_bytes(), copied);
      EXPECT_EQ(rank.rig.device.d2h_bytes(), copied);
      EXPECT_EQ(rank.rig.device.h2d_bytes(), 0u);
    });
  }
}

// A rank copies its own part and those that are for it, and nothing of what it sends.
TEST(ExchangeOnDevices, CopiesToTheHostWhatItAddsThereAndNothingElse) {
  ThreadWorld world({.ranks = 3});
  on_ranks(world, [&](Communicator& communicator, Added added) {
    Rank rank(communicator, added, 4);
    rank.land(0, 2, 1);
    rank.land(1, 2, 2);
    rank.exchange->finish_all(rank.adding);
    const bool owns = communicator.rank() == 0;
    const uint64_t copied = owns && added == Added::on_host ? 4 * kGradientBytes : 0;
    EXPECT_EQ(rank.exchange->d2h_bytes(), copied);
    EXPECT_EQ(rank.rig.device.d2h_bytes(), copied);
    EXPECT_EQ(rank.exchange->moved().in, owns ? 2 * kGradientBytes : 0);
    EXPECT_EQ(rank.exchange->moved().out, owns ? 0 : kGradientBytes);
  });
}

// The failure of one is that of all; nobody adds anything, and what is under way ends.
TEST(ExchangeOnDevices, FailsOnAllRanksWhereItFailsOnOne) {
  CommFaults fault({{CommFaultKind::fail, Lane::exchange, 1, 1}});
  for (const Added added : {Added::on_host, Added::on_device}) {
    ThreadWorld world({.ranks = 3, .hook = &fault});
    for (const std::string& failure : testing::on_every_rank(world, [&](Communicator& communicator) {
           Rank rank(communicator, added, 6);
           rank.land(0, 2, 1);
           rank.land(1, 2, 2);
           try {
             rank.exchange->finish_all(rank.adding);
           } catch (...) {
             EXPECT_EQ(rank.added.size(), 3u);
             throw;
           }
         }))
      EXPECT_NE(failure.find("an injected fault"), std::string::npos) << failure;
  }
}

}  // namespace
}  // namespace terrace::exchange_on_devices_test
