// Values of single tensors beside a naive copy of the whole state: read, written and trained on with.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <random>

#include <terrace/aio/engines/engine_decorator.h>
#include <terrace/base/error.h>
#include <terrace/optimizer_cpu/moment_codes.h>

#include "offload/commits/commit_rig.h"
#include "offload/offloader_rig.h"
#include "support/expect_error.h"
#include "support/sanitized.h"

namespace terrace::tensor_values_test {
namespace {

using testing::expect_error;

constexpr std::array<ValueKind, 4> kKinds = {ValueKind::parameter, ValueKind::master, ValueKind::first_moment,
                                             ValueKind::second_moment};
constexpr std::array<Placement, 3> kPlacements = {Placement::none, Placement::cpu, Placement::nvme};

float as_held(float value, DataType type) {
  std::array<std::byte, sizeof(float)> bytes;
  toy::store(bytes.data(), 0, type, value);
  return toy::load(bytes.data(), 0, type);
}

// Every value of every tensor, by kind. Frozen tensors have parameters only.
class NaiveValues {
 public:
  explicit NaiveValues(ToyRig& rig) : rig_(rig), of_(rig.space.tensor_count()) {
    const RecordLayout layout = rig.options.record_layout.canonical();
    const std::vector<std::byte> records = rig.records();
    uint64_t section_tile = 0;
    for (uint32_t s = 0; s < rig.space.sections().size(); ++s) {
      const Section& section = rig.space.sections()[s];
      for (uint32_t t = 0; t < rig.space.tensor_count(); ++t) {
        const TensorPlace& place = rig.space.place(TensorId{t});
        if (place.section != s) continue;
        read_parameters(t, section.type);
        for (uint32_t part = 0; section.trainable && part < 1 + layout.moment_count; ++part) {
          std::vector<float>& values = of_[t][1 + part];
          for (uint64_t e = 0; e < place.elements; ++e) {
            const uint64_t at = place.first_element + e;
            const std::byte* const tile =
                records.data() + (section_tile + at / kTileElements) * layout.tile_bytes();
            const std::byte* const run = part == 0 ? tile : tile + layout.moment_offset(part - 1);
            values.push_back(toy::load(run, at % kTileElements,
                                       part == 0 ? DataType::fp32 : number_type_of(layout.moment_type)));
          }
        }
      }
      section_tile += section.trainable ? section.elements / kTileElements : 0;
    }
  }
  bool operator==(const NaiveValues& other) const { return of_ == other.of_; }

  const std::vector<float>& of(uint32_t tensor, ValueKind kind) const {
    return of_[tensor][static_cast<size_t>(kind)];
  }
  void write(uint32_t tensor, ValueKind kind, uint64_t first, const std::vector<float>& values) {
    const bool of_moment = kind == ValueKind::first_moment || kind == ValueKind::second_moment;
    for (size_t i = 0; i < values.size(); ++i) {
      if (of_moment) {
        of_[tensor][static_cast<size_t>(kind)][first + i] =
            as_held(values[i], number_type_of(rig_.options.record_layout.moment_type));
        continue;
      }
      of_[tensor][0][first + i] = as_held(values[i], rig_.specs[tensor].type);
      if (rig_.specs[tensor].trainable) of_[tensor][1][first + i] = values[i];
    }
    if (of_moment && rig_.options.record_layout.has_codes()) code_anew(tensor);
  }

 private:
  // Moments are what the codes of their blocks stand for.
  void code_anew(uint32_t tensor) {
    const size_t elements = of_[tensor][2].size(), count = round_up(elements, kMomentBlock);
    std::array<std::vector<std::byte>, 2> codes{std::vector<std::byte>(count), std::vector<std::byte>(count)};
    std::array<std::vector<float>, 2> moments{of_[tensor][2], of_[tensor][3]};
    for (std::vector<float>& moment : moments) moment.resize(count);
    encode_blocks(InstructionSet::scalar, {moments[0].data(), moments[1].data()}, count, {},
                  {codes[0].data(), codes[1].data()});
    decode_blocks(InstructionSet::scalar, {codes[0].data(), codes[1].data()}, count,
                  {moments[0].data(), moments[1].data()});
    for (size_t m = 0; m < 2; ++m) std::copy_n(moments[m].begin(), elements, of_[tensor][2 + m].begin());
  }
  void read_parameters(uint32_t tensor, DataType type) {
    const std::vector<std::byte> bytes = rig_.parameters(tensor);
    for (uint64_t e = 0; e < bytes.size() / bytes_of(type); ++e)
      of_[tensor][0].push_back(toy::load(bytes.data(), e, type));
  }

  ToyRig& rig_;
  std::vector<std::array<std::vector<float>, 4>> of_;  // by tensor and kind
};

std::vector<float> random_values(std::mt19937_64& random, uint64_t count) {
  std::vector<float> values(count);
  for (float& value : values) value = static_cast<float>(random() % 20001) / 4096.0f - 2.0f;
  return values;
}

// Runs of all lengths, of every tensor, in all of its kinds.
template <typename Body>
void for_random_runs(const ToyRig& rig, uint64_t runs, uint64_t seed, Body body) {
  std::mt19937_64 random(seed);
  for (uint64_t r = 0; r < runs; ++r) {
    const auto tensor = static_cast<uint32_t>(r % rig.specs.size());
    const ValueKind kind = rig.specs[tensor].trainable ? kKinds[random() % 4] : ValueKind::parameter;
    const uint64_t elements = rig.specs[tensor].element_count();
    const uint64_t first = random() % elements;
    const uint64_t longest = r % 3 == 0 ? 3 : elements;
    body(tensor, kind, first, 1 + random() % std::min(longest, elements - first), random);
  }
}

void expect_to_read(ToyRig& rig, const NaiveValues& naive, uint64_t seed) {
  for (uint32_t t = 0; t < rig.specs.size(); ++t) {
    for (const ValueKind kind : kKinds) {
      if (kind != ValueKind::parameter && !rig.specs[t].trainable) continue;
      std::vector<float> all(rig.specs[t].element_count());
      rig.offloader->state().read_values(TensorId{t}, kind, 0, all);
      EXPECT_EQ(all, naive.of(t, kind)) << rig.specs[t].name << ": " << name_of(kind);
    }
  }
  for_random_runs(rig, 60, seed, [&](uint32_t t, ValueKind kind, uint64_t first, uint64_t count, auto&) {
    std::vector<float> run(count);
    rig.offloader->state().read_values(TensorId{t}, kind, first, run);
    EXPECT_TRUE(std::equal(run.begin(), run.end(), naive.of(t, kind).begin() + static_cast<int64_t>(first)))
        << rig.specs[t].name << ": " << name_of(kind) << " from " << first << ", seed " << seed;
  });
}

void write_both(ToyRig& rig, NaiveValues& naive, uint64_t seed) {
  for_random_runs(rig, 40, seed,
                  [&](uint32_t t, ValueKind kind, uint64_t first, uint64_t count, std::mt19937_64& random) {
                    const std::vector<float> values = random_values(random, count);
                    rig.offloader->state().write_values(TensorId{t}, kind, first, values);
                    naive.write(t, kind, first, values);
                  });
}

// The state of `from`, loaded into a training in host memory.
void take_state(Rig& into, ToyRig& from) {
  const std::vector<std::byte> records = from.records();
  size_t taken = 0;
  into.offloader->state().import_records([&](std::span<std::byte> tiles) {
    std::copy_n(records.begin() + static_cast<int64_t>(taken), tiles.size(), tiles.begin());
    taken += tiles.size();
  });
  std::vector<std::byte> frozen;
  from.offloader->state().export_frozen(
      [&](std::span<const std::byte> run) { frozen.insert(frozen.end(), run.begin(), run.end()); });
  size_t taken_frozen = 0;
  into.offloader->state().import_frozen([&](std::span<std::byte> run) {
    std::copy_n(frozen.begin() + static_cast<int64_t>(taken_frozen), run.size(), run.begin());
    taken_frozen += run.size();
  });
}

struct Kind {
  const char* name;
  DataType type;
  RecordLayout layout = {};
  uint64_t chunk_elements = kTileElements;
  uint64_t unused_columns = 0;
  bool tight = true;
};

class TensorValues : public ::testing::TestWithParam<std::tuple<Placement, Placement, Kind>> {
 protected:
  static Case base() {
    const Kind& kind = std::get<2>(GetParam());
    return {.parameters = std::get<0>(GetParam()),
            .states = std::get<1>(GetParam()),
            .type = kind.type,
            .with_frozen = true,
            .chunk_elements = kind.chunk_elements,
            .unused_columns = kind.unused_columns,
            .tight = kind.tight,
            .layout = kind.layout};
  }
  static bool is_possible() {
    const Case c = base();
    return c.layout.master == MasterForm::whole || c.states != Placement::none ||
           c.parameters == Placement::none;
  }
};

TEST_P(TensorValues, AreReadAndWrittenWhereTheyLie) {
  if (!is_possible()) return;
  constexpr uint64_t kSeed = 17;
  Rig rig(base());
  rig.step(1);
  NaiveValues naive(rig);
  expect_to_read(rig, naive, kSeed);
  write_both(rig, naive, kSeed + 1);
  EXPECT_TRUE(NaiveValues(rig) == naive) << "seed " << kSeed + 1;
  expect_to_read(rig, naive, kSeed + 2);
  Case plain = base();
  plain.parameters = plain.states = Placement::cpu;
  Rig other(plain);
  take_state(other, rig);
  for (uint64_t step = 2; step <= 3; ++step) {
    rig.step(step);
    other.step(step);
    EXPECT_EQ(rig.state(), other.state()) << "step " << step;
  }
}

// Chunks of several blocks, and a tensor that takes most of one.
constexpr uint64_t kManyTiles = 256 / testing::kOneIn * kTileElements;
constexpr uint64_t kColumns = 1000 / testing::kOneIn;

INSTANTIATE_TEST_SUITE_P(
    Everywhere, TensorValues,
    ::testing::Combine(
        ::testing::ValuesIn(kPlacements), ::testing::ValuesIn(kPlacements),
        ::testing::Values(Kind{"fp32", DataType::fp32},
                          Kind{"fp16_ample", DataType::fp16, {}, 3 * kTileElements, 0, false},
                          Kind{"bf16_moments", DataType::bf16, {MasterForm::whole, 2, MomentType::bf16}},
                          Kind{"codes", DataType::fp32, kCoded}, Kind{"compact", DataType::bf16, kCompact},
                          Kind{"compact_codes", DataType::bf16, kCompactCoded},
                          Kind{"compact_blocks", DataType::bf16, kCompact, kManyTiles, kColumns, false},
                          Kind{"fp32_blocks", DataType::fp32, {}, kManyTiles, kColumns})),
    [](const auto& instance) {
      return fmt::format("{}_{}_{}", name_of(std::get<0>(instance.param)),
                         name_of(std::get<1>(instance.param)), std::get<2>(instance.param).name);
    });

TEST(TensorValuesOfCommits, AreThoseOfTheNextCommitAndNotOfTheLast) {
  for (const Placement parameters : kPlacements) {
    for (const RecordLayout layout : {RecordLayout{}, kCompact}) {
      for (const uint32_t quarters : {0u, 2u, 4u}) {
        if (testing::kSanitized && quarters == 2) continue;
        SCOPED_TRACE(fmt::format("parameters {}, {}, {}/4", name_of(parameters), text_of(layout), quarters));
        CommitCase c{.parameters = parameters, .cached_quarters = quarters, .layout = layout};
        const ScratchFolder folder;
        std::vector<std::byte> before, after;
        const auto expect_taken_up = [&](const std::vector<std::byte>& state) {
          CommitCase resumed = c;
          resumed.start = TierStart::resume;
          CommitRig rig(resumed, folder.path());
          EXPECT_TRUE(rig.state() == state) << rig.offloader->commits().taken_up_info();
        };
        {
          CommitRig rig(c, folder.path());
          rig.step(1);
          before = rig.state();
          rig.offloader->commits().begin("before");
          NaiveValues naive(rig);
          write_both(rig, naive, 5);  // beside the commit in progress
          EXPECT_TRUE(NaiveValues(rig) == naive);
          rig.offloader->commits().finish();
          write_both(rig, naive, 6);
          EXPECT_TRUE(NaiveValues(rig) == naive);
        }
        expect_taken_up(before);
        {
          CommitCase resumed = c;
          resumed.start = TierStart::resume;
          CommitRig rig(resumed, folder.path());
          NaiveValues naive(rig);
          write_both(rig, naive, 7);
          rig.offloader->commits().begin("after");
          after = rig.state();
          rig.offloader->commits().finish();
        }
        expect_taken_up(after);
      }
    }
  }
}

// One frozen chunk has room for a second version beside the commit; of several the tier has no second one.
TEST(TensorValuesOfCommits, FrozenOnesAreWrittenWhereTheTierHasRoom) {
  CommitCase c{.parameters = Placement::nvme, .with_frozen = true, .cached_quarters = 0};
  for (const uint64_t tiles : {uint64_t{1}, uint64_t{2}}) {
    c.chunk_elements = tiles * kTileElements;  // the frozen tensor takes two tiles
    const ScratchFolder folder;
    CommitRig rig(c, folder.path());
    const std::vector<float> values(rig.specs[5].element_count(), 0.25f);
    ASSERT_FALSE(rig.specs[5].trainable);
    const auto write = [&] {
      rig.offloader->state().write_values(TensorId{5}, ValueKind::parameter, 0, values);
    };
    write();
    rig.step(1);
    rig.offloader->commits().begin("one");
    rig.offloader->commits().finish();
    if (tiles == 1) {
      expect_error(ErrorKind::misuse, {"cannot write frozen parameters", "commit 1", "no room"}, write);
    } else {
      write();
      expect_error(ErrorKind::capacity, {"frozen", "room for 0", "commit"}, write);
      rig.offloader->commits().begin("two");
      rig.offloader->commits().finish();
      write();
    }
    EXPECT_TRUE(rig.offloader->has_whole_state());
    rig.step(2);
  }
}

TEST(TensorValuesMisuse, IsRefusedAndChangesNothing) {
  Case c{.with_frozen = true};
  c.layout.moment_count = 1;
  c.kind = OptimizerKind::lion;
  Rig rig(c);
  TrainingState& state = rig.offloader->state();
  const std::vector<std::byte> before = rig.state();
  std::vector<float> values(71, 9.0f);
  struct Refused {
    uint32_t tensor;
    ValueKind kind;
    uint64_t first;
    std::vector<std::string> fragments;
  };
  const std::vector<Refused> all = {
      {99, ValueKind::parameter, 0, {"tensor 99", "there are 8"}},
      {1, ValueKind::master, 0, {"bias0", "it has 70 elements", "71 from element 0"}},
      {1, ValueKind::master, 71, {"bias0", "it has 70 elements"}},
      {1, ValueKind::parameter, UINT64_MAX, {"bias0", "it has 70 elements"}},
      {5, ValueKind::master, 0, {"frozen", "has no master"}},
      {5, ValueKind::first_moment, 0, {"frozen", "has no first moment"}},
      {0, ValueKind::second_moment, 0, {"shared", "whole masters and 1 moment", "second moment"}}};
  for (const Refused& refused : all) {
    std::vector<std::string> fragments = refused.fragments;
    fragments.push_back("cannot read values of");
    expect_error(ErrorKind::misuse, fragments,
                 [&] { state.read_values(TensorId{refused.tensor}, refused.kind, refused.first, values); });
    fragments.back() = "cannot write values of";
    expect_error(ErrorKind::misuse, fragments,
                 [&] { state.write_values(TensorId{refused.tensor}, refused.kind, refused.first, values); });
  }
  state.write_values(TensorId{1}, ValueKind::master, 70, {});
  EXPECT_EQ(rig.state(), before);
  rig.offloader->begin_step();
  expect_error(ErrorKind::cancelled, {"cannot write values of"},
               [&] { state.write_values(TensorId{0}, ValueKind::master, 0, values); });
  rig.offloader->abandon_step();
  EXPECT_EQ(rig.state(), before);
}

TEST(TensorValuesOfUpdates, AreThoseAfterAPendingOne) {
  for (const UpdateMode mode : {UpdateMode::next_forward, UpdateMode::during_backward}) {
    Case c{.parameters = Placement::nvme, .states = Placement::nvme, .mode = mode};
    Rig rig(c), other(c);
    for (uint64_t step = 1; step <= 3; ++step) {
      rig.step(step);
      std::vector<float> values(300);
      rig.offloader->state().read_values(TensorId{2}, ValueKind::master, 17, values);
      EXPECT_FALSE(rig.offloader->update_pending());
      rig.step(++step);
      rig.offloader->state().write_values(TensorId{2}, ValueKind::master, 17, values);
      other.step(step - 1);
      other.step(step);
      other.offloader->finish_update();
      other.offloader->state().write_values(TensorId{2}, ValueKind::master, 17, values);
      EXPECT_EQ(rig.state(), other.state());
    }
  }
}

// While it `fails`, requests of one kind go to no file.
class FailingEngine final : public io::EngineDecorator {
 public:
  FailingEngine(std::unique_ptr<io::Engine> base, io::OpKind kind, const std::atomic<bool>& fails)
      : io::EngineDecorator(std::move(base)), kind_(kind), fails_(fails) {}
  void submit(std::span<const io::Request> requests) override {
    for (io::Request request : requests) {
      if (fails_ && request.kind == kind_) request.fd = -1;
      base().submit({&request, 1});
    }
  }

 private:
  const io::OpKind kind_;
  const std::atomic<bool>& fails_;
};

TEST(TensorValuesFailures, LeaveNoWholeStateOnceAnythingWasWritten) {
  for (const io::OpKind operation : {io::OpKind::read, io::OpKind::write}) {
    Case c{.parameters = Placement::nvme, .states = Placement::nvme, .engine = io::EngineKind::threads};
    std::atomic<bool> fails = false;
    c.decorate = [&](std::unique_ptr<io::Engine> engine) -> std::unique_ptr<io::Engine> {
      return std::make_unique<FailingEngine>(std::move(engine), operation, fails);
    };
    Rig rig(c);
    rig.step(1);
    const std::vector<float> values(10, 1.0f);
    fails = true;
    EXPECT_THROW(rig.offloader->state().write_values(TensorId{2}, ValueKind::master, 5, values), Error);
    fails = false;
    const bool has_changed = operation == io::OpKind::write;
    EXPECT_EQ(rig.offloader->has_whole_state(), !has_changed);
    if (!has_changed) continue;
    expect_error(ErrorKind::cancelled, {"writing values did not end"}, [&] { rig.offloader->begin_step(); });
    toy::initialise(*rig.offloader);
    rig.step(1);
  }
}

// Counts what passes.
class CountingEngine final : public io::EngineDecorator {
 public:
  CountingEngine(std::unique_ptr<io::Engine> base, std::array<std::atomic<uint64_t>, 2>& bytes)
      : io::EngineDecorator(std::move(base)), bytes_(bytes) {}
  void submit(std::span<const io::Request> requests) override {
    for (const io::Request& request : requests) bytes_[static_cast<size_t>(request.kind)] += request.bytes;
    base().submit(requests);
  }

 private:
  std::array<std::atomic<uint64_t>, 2>& bytes_;
};

// A chunk has sixteen blocks of records and four of parameters.
TEST(TensorValuesTraffic, IsThatOfTheBlocksThatHoldThem) {
  std::array<std::atomic<uint64_t>, 2> bytes{};
  Case c{.parameters = Placement::nvme,
         .states = Placement::nvme,
         .type = DataType::fp32,
         .accumulation = 2,  // so that no parameters stay in the place of gradients
         .chunk_elements = 256 * kTileElements,
         .unused_columns = 5000,
         .engine = io::EngineKind::threads,
         .threads = 1};
  c.decorate = [&](std::unique_ptr<io::Engine> engine) -> std::unique_ptr<io::Engine> {
    return std::make_unique<CountingEngine>(std::move(engine), bytes);
  };
  Rig rig(c);
  const auto unused = TensorId{static_cast<uint32_t>(rig.specs.size() - 1)};
  const uint64_t record_block = rig.offloader->plan().ring_slot_bytes;
  const uint64_t parameter_block = rig.offloader->plan().param_block_bytes();
  ASSERT_GE(rig.offloader->plan().record_slot_bytes, 16 * record_block);
  ASSERT_GE(rig.offloader->plan().slot_bytes, 4 * parameter_block);
  std::vector<float> values(100);
  const auto expect_moved = [&](uint64_t read, uint64_t written) {
    EXPECT_EQ(bytes[static_cast<size_t>(io::OpKind::read)], read);
    EXPECT_EQ(bytes[static_cast<size_t>(io::OpKind::write)], written);
    bytes[0] = bytes[1] = 0;
  };
  bytes[0] = bytes[1] = 0;
  TrainingState& state = rig.offloader->state();
  state.read_values(unused, ValueKind::parameter, 300'000, values);
  expect_moved(parameter_block, 0);
  state.read_values(unused, ValueKind::second_moment, 300'000, values);
  expect_moved(record_block, 0);
  state.write_values(unused, ValueKind::first_moment, 300'000, values);
  expect_moved(record_block, record_block);
  state.write_values(unused, ValueKind::master, 300'000, values);
  expect_moved(record_block + parameter_block, record_block + parameter_block);
}

}  // namespace
}  // namespace terrace::tensor_values_test
