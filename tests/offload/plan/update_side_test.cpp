// Updates on the device of states that live below it: which chunks, the same bits, the plan's memory.
#include <terrace/offload/plan/update_side.h>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include <terrace/base/error.h>

#include "offload/offloader_rig.h"
#include "offload/watch/recorded_steps.h"
#include "support/sanitized.h"

namespace terrace::update_side_test {
namespace {

constexpr double kShares[] = {0, 0.3, 0.5};

std::vector<TensorSpec> rows_of_chunks(uint32_t chunks, bool with_frozen) {
  std::vector<TensorSpec> specs;
  for (uint32_t c = 0; c < chunks; ++c) {
    const bool trainable = !with_frozen || c % 3 != 0;
    specs.push_back({fmt::format("t{}", c), {kTileElements}, DataType::bf16, trainable, 0, 1});
  }
  return specs;
}

OffloadOptions with_share(double share, Placement states = Placement::cpu) {
  OffloadOptions options;
  options.states = states;
  options.processor_share = share;
  return options;
}

TEST(UpdateSide, IsTheProcessorsOrTheDevicesAlone) {
  const FlatSpace space(rows_of_chunks(7, true), kTileElements);
  uint32_t trainable = 0;
  for (uint32_t c = 0; c < space.chunk_count(); ++c)
    trainable += space.section_of(ChunkId{c}).trainable ? 1 : 0;
  EXPECT_EQ(std::ranges::count(updated_on_device(space, with_share(1)), true), 0);
  EXPECT_EQ(std::ranges::count(updated_on_device(space, with_share(0)), true), trainable);
  EXPECT_EQ(std::ranges::count(updated_on_device(space, with_share(0, Placement::none)), true), 0);
}

TEST(UpdateSide, HasItsShareOfEveryRowOfChunks) {
  for (const double share : {0.1, 0.3, 0.5, 0.9}) {
    const FlatSpace space(rows_of_chunks(100, false), kTileElements);
    const std::vector<bool> on_device = updated_on_device(space, with_share(share));
    EXPECT_EQ(on_device, updated_on_device(space, with_share(share)));
    int64_t here = 0;
    for (uint32_t c = 0; c < space.chunk_count(); ++c) {
      here += on_device[c] ? 0 : 1;
      EXPECT_LE(std::abs(static_cast<double>(here) - share * (c + 1)), 0.5 + 1e-9) << share << " at " << c;
    }
  }
}

// Three sections of as many tiles, in chunks of four, or of two in fp32, the last one of each short; and one
// that is not trained.
FlatSpace rows_of_tiles(std::array<uint64_t, 3> tiles) {
  constexpr std::array kTypes = {DataType::bf16, DataType::fp16, DataType::fp32};
  std::vector<TensorSpec> specs = {{"frozen", {5 * kTileElements}, DataType::bf16, false, 0, 1}};
  for (size_t s = 0; s < tiles.size(); ++s)
    specs.push_back({fmt::format("t{}", s), {tiles[s] * kTileElements}, kTypes[s], true, 0, 1});
  return FlatSpace(specs, 2 * kTileElements);
}

struct Seconds {
  double processor = 0;
  double device = 0;
  double all() const { return std::max(processor, device); }
};

// The bytes of an element each way: a record of Adam in fp32, and a gradient or a parameter.
double link_bytes_of(DataType type) {
  return 12.0 + bytes_of(type);
}

// Of records of Adam in fp32, which are 24 bytes of an element for the drives.
// From nvme nothing is begun before the drives begin with it, and is over before they are.
Seconds seconds_of(const FlatSpace& space, const std::vector<bool>& on_device, const UpdateRates& rates) {
  Seconds done;
  double drives = 0;
  for (uint32_t c = 0; c < space.chunk_count(); ++c) {
    if (!space.section_of(ChunkId{c}).trainable) continue;
    const auto elements = static_cast<double>(space.chunk(ChunkId{c}).elements);
    double& side = on_device[c] ? done.device : done.processor;
    side = std::max(side, drives) +
           (on_device[c] ? link_bytes_of(space.section_of(ChunkId{c}).type) * elements / rates.link_bytes
                         : elements / rates.processor_elements);
    if (rates.nvme_bytes > 0) drives += 24 * elements / rates.nvme_bytes;
    side = std::max(side, drives);
  }
  return done;
}

double best_of_all(const FlatSpace& space, const UpdateRates& rates) {
  std::vector<uint32_t> trained;
  for (uint32_t c = 0; c < space.chunk_count(); ++c) {
    if (space.section_of(ChunkId{c}).trainable) trained.push_back(c);
  }
  double best = std::numeric_limits<double>::infinity();
  for (uint32_t choice = 0; choice < 1u << trained.size(); ++choice) {
    std::vector<bool> on_device(space.chunk_count(), false);
    for (size_t i = 0; i < trained.size(); ++i) on_device[trained[i]] = (choice >> i & 1) != 0;
    best = std::min(best, seconds_of(space, on_device, rates).all());
  }
  return best;
}

OffloadOptions with_rates(const UpdateRates& rates) {
  OffloadOptions options = with_share(1, rates.nvme_bytes > 0 ? Placement::nvme : Placement::cpu);
  options.parameters = Placement::cpu;
  options.update_rates = rates;
  return options;
}

TEST(UpdateSide, IsThatWhichIsDoneWithAChunkFirst) {
  const FlatSpace space = rows_of_tiles({40, 40, 40});
  for (const double link : {4e9, 16e9, 20e9, 100e9}) {
    const UpdateRates rates{1e9, link, 0};
    const std::vector<bool> on_device = updated_on_device(space, with_rates(rates));
    const Seconds seconds = seconds_of(space, on_device, rates);
    const double chunk = 4 * kTileElements * std::max(16 / link, 1e-9);
    EXPECT_LE(std::abs(seconds.processor - seconds.device), chunk * (1 + 1e-9)) << link;
    const double share = share_of_processor(space, on_device);
    const auto share_of_section = [&](DataType type) { return 1 / (1 + link / (link_bytes_of(type) * 1e9)); };
    const double expected = (share_of_section(DataType::bf16) + share_of_section(DataType::fp16) +
                             share_of_section(DataType::fp32)) /
                            3;
    EXPECT_NEAR(share, expected, 1.0 / 30) << link;
  }
}

TEST(UpdateSide, IsTheDevicesAsFarAsItsLinkIsFast) {
  const FlatSpace space = rows_of_tiles({40, 22, 7});
  const auto share = [&](const UpdateRates& rates) {
    return share_of_processor(space, updated_on_device(space, with_rates(rates)));
  };
  EXPECT_EQ(share({1e9, 1e18, 0}), 0);
  EXPECT_EQ(share({1e9, 1e6, 0}), 1);
  // Both are done with the first chunk at once.
  EXPECT_FALSE(updated_on_device(space, with_rates({1e9, 14e9, 0}))[2]);
}

// What goes over the link depends on the form of the state and on where parameters live.
TEST(UpdateSide, CountsTheBytesThatAChunkTakesOverTheLink) {
  const FlatSpace space(rows_of_chunks(100, false), kTileElements);
  const auto share = [&](Placement parameters, MasterForm master, uint32_t accumulation) {
    OffloadOptions options = with_rates({1e9, 14e9, 0});
    options.parameters = parameters;
    options.record_layout.master = master;
    options.micro_batches = accumulation;
    return share_of_processor(space, updated_on_device(space, options));
  };
  const auto expected = [](double bytes) { return 1 / (1 + 14 / bytes); };
  EXPECT_NEAR(share(Placement::cpu, MasterForm::whole, 1), expected(14), 0.01);
  EXPECT_NEAR(share(Placement::cpu, MasterForm::remainder, 1), expected(14), 0.01);
  EXPECT_NEAR(share(Placement::none, MasterForm::remainder, 1), expected(12), 0.01);
  EXPECT_NEAR(share(Placement::cpu, MasterForm::whole, 2), expected(16), 0.01);
  // More comes back than goes up: fp32 parameters, and gradients that were added up in bf16.
  const FlatSpace wide = rows_of_tiles({160, 160, 160});
  OffloadOptions options = with_rates({1e9, 14e9, 0});
  options.micro_batches = 2;
  options.accumulation_type = DataType::bf16;
  EXPECT_NEAR(share_of_processor(wide, updated_on_device(wide, options)),
              (2 * expected(14) + expected(16)) / 3, 0.01);
}

TEST(UpdateSide, IsTheProcessorsWhereTheDrivesAreNoFaster) {
  const FlatSpace space = rows_of_tiles({40, 22, 7});
  UpdateRates rates{1e9, 1e18, 24e9};
  EXPECT_EQ(share_of_processor(space, updated_on_device(space, with_rates(rates))), 1);
  rates.nvme_bytes = 25e9;
  EXPECT_LT(share_of_processor(space, updated_on_device(space, with_rates(rates))), 1);
  // Records in host memory wait for none.
  OffloadOptions options = with_rates({1e9, 1e18, 1e6});
  options.states = Placement::cpu;
  EXPECT_EQ(share_of_processor(space, updated_on_device(space, options)), 0);
}

// Of all ways to divide them none is over sooner by more than a chunk's time on the faster side.
TEST(UpdateSide, IsNearTheBestOfAllWaysToDivide) {
  constexpr std::array<uint64_t, 3> kTiles[] = {{16, 16, 8}, {13, 6, 15}, {1, 17, 14}, {3, 2, 1}, {9, 5, 10}};
  for (const std::array<uint64_t, 3>& tiles : kTiles) {
    const FlatSpace space = rows_of_tiles(tiles);
    for (const double link : {2e9, 11e9, 16e9, 33e9, 160e9}) {
      for (const double nvme : {0.0, 20e9, 36e9, 60e9}) {
        const UpdateRates rates{1e9, link, nvme};
        const double chunk = 4 * kTileElements * std::min(14 / link, 1e-9);
        const std::vector<bool> on_device = updated_on_device(space, with_rates(rates));
        EXPECT_LE(seconds_of(space, on_device, rates).all(), best_of_all(space, rates) + chunk)
            << tiles[0] << " " << tiles[1] << " " << tiles[2] << " tiles, " << link << ", " << nvme;
      }
    }
  }
}

class UpdateSides : public ::testing::TestWithParam<Case> {};

TEST_P(UpdateSides, TrainBitForBitLikePlainVectors) {
  Rig rig(GetParam());
  expect_to_train(rig, 3);
  EXPECT_EQ(rig.device->used_bytes(), rig.offloader->plan().device_bytes);
  EXPECT_GT(rig.offloader->plan().device_update_chunks(), 0u);
}

std::vector<Case> cases() {
  constexpr UpdateMode kModes[] = {UpdateMode::after_backward, UpdateMode::during_backward};
  std::vector<Case> list;
  for (const UpdateMode mode : kModes) {
    for (const Placement parameters : {Placement::none, Placement::cpu, Placement::nvme}) {
      for (const Placement states : {Placement::cpu, Placement::nvme}) {
        const size_t number = list.size();
        Case c{parameters, states, DataType::bf16, number % 2 == 0 ? 1u : 3u};
        c.processor_share = kShares[number % std::size(kShares)];
        c.mode = mode;
        c.tight = c.strict = number % 4 < 2;
        c.chunk_elements = c.tight ? kTileElements : 4 * kTileElements;
        c.with_frozen = !c.tight;
        c.engine = io::EngineKind::threads;
        if (number % 5 == 0) c.type = DataType::fp32;
        list.push_back(c);
      }
    }
  }
  return list;
}

std::string case_name(const ::testing::TestParamInfo<Case>& info) {
  const Case& c = info.param;
  return fmt::format("{}_{}_{}_{}_{}", name_of(c.mode), name_of(c.parameters), name_of(c.states),
                     c.accumulation, static_cast<int>(c.processor_share * 10));
}

INSTANTIATE_TEST_SUITE_P(All, UpdateSides, ::testing::ValuesIn(testing::thinned(cases())), case_name);

// A byte less than the lanes take is refused, and the refusal says what they take.
TEST(UpdateSide, TakesItsLanesFromTheDeviceBudgetToTheByte) {
  const std::vector<TensorSpec> specs = toy::tensors(DataType::bf16, false);
  const FlatSpace space(specs, kTileElements);
  const std::vector<TensorUse> uses = toy::trace(specs, 1);
  OffloadOptions options = with_share(1);
  options.parameters = Placement::cpu;
  options.device_budget_bytes = options.host_budget_bytes = kGiB;
  const MemoryPlan here = plan_memory(space, uses, options);
  options.processor_share = 0.5;
  const MemoryPlan both = plan_memory(space, uses, options);
  // Four lanes of one tile: its record, its gradient and its parameters.
  const uint64_t lanes = 4 * (kTileElements * 12 + kTileElements * 2 + kTileElements * 2);
  EXPECT_EQ(both.device_lanes_bytes(), lanes);
  EXPECT_EQ(both.device_minimum_bytes, here.device_minimum_bytes + lanes);
  EXPECT_EQ(useful_device_bytes(both), useful_device_bytes(here) + lanes);
  options.device_budget_bytes = both.device_minimum_bytes - 1;
  try {
    plan_memory(space, uses, options);
    ADD_FAILURE() << "it fits";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::capacity);
    EXPECT_NE(std::string(error.what()).find("buffers of updates on the device 256.0 KiB"), std::string::npos)
        << error.what();
  }
}

std::vector<TraceEvent> events_of_step(RecordedSteps& recorded, double share, TraceKind kind) {
  Case c{Placement::cpu, Placement::cpu};
  c.processor_share = share;
  c.d2h_bytes_per_second = 4 * kMiB;  // a run is longer on its way back than it takes to come
  c.step_events = &recorded.events;
  {
    Rig rig(c);
    recorded.begin(1, *rig.offloader);
    rig.step(1, 1);
    recorded.end(*rig.offloader);
  }
  recorded.take();
  EXPECT_EQ(recorded.difference(), "");
  return recorded.of(kind);
}

TEST(UpdateSide, BringsRunsWhileOthersGo) {
  RecordedSteps recorded;
  const std::vector<TraceEvent> transfers = events_of_step(recorded, 0, TraceKind::transfer);
  size_t ups = 0, beside = 0;
  for (const TraceEvent& up : transfers) {
    if (up.role != TransferRole::state || up.link != TraceLink::h2d) continue;
    ++ups;
    beside += std::ranges::any_of(transfers, [&](const TraceEvent& down) {
      return down.role == TransferRole::state && down.link == TraceLink::d2h && down.chunk != up.chunk &&
             down.begin_ns < up.begin_ns && up.begin_ns < down.end_ns;
    });
  }
  EXPECT_GT(ups, 4u);
  EXPECT_GT(beside, 0u);
}

// Whether the processor updated something while the device had runs of its own on their way.
bool works_on_both_sides() {
  RecordedSteps recorded;
  const std::vector<TraceEvent> updates = events_of_step(recorded, 0.5, TraceKind::update);
  uint64_t first_ns = UINT64_MAX, last_ns = 0;  // of what the device updates, on its way there and back
  for (const TraceEvent& transfer : recorded.of(TraceKind::transfer)) {
    if (transfer.role != TransferRole::state) continue;
    first_ns = std::min(first_ns, transfer.begin_ns);
    last_ns = std::max(last_ns, transfer.end_ns);
  }
  return std::ranges::any_of(updates, [&](const TraceEvent& update) {
    return update.lane != kDeviceUpdateLane && first_ns < update.begin_ns && update.end_ns < last_ns;
  });
}

// On a busy machine the processor may be done before the device's thread is let run; not every time.
TEST(UpdateSide, LeavesTheProcessorToItsOwnMeanwhile) {
  bool seen = false;
  for (int attempt = 0; attempt < 30 && !seen; ++attempt) seen = works_on_both_sides();
  EXPECT_TRUE(seen);
}

// Records would wait behind parameters that wait for them.
TEST(UpdateSide, IsTheProcessorsAloneInTheNextForward) {
  Case c{Placement::cpu, Placement::cpu};
  c.processor_share = 0.5;
  Rig rig(c);
  EXPECT_EQ(rig.offloader->why_not(UpdateMode::during_backward), "");
  try {
    rig.offloader->set_update_mode(UpdateMode::next_forward);
    ADD_FAILURE() << "it is possible";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::config);
    EXPECT_NE(std::string(error.what()).find("OffloadOptions::processor_share to 1"), std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace terrace::update_side_test
