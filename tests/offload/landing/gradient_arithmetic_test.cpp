// The arithmetic of gradients, by the workers and by a device that is played.
#include <terrace/offload/landing/gradient_arithmetic.h>

#include <gtest/gtest.h>

#include "offload/landing/gradient_rig.h"

namespace terrace::gradient_arithmetic_test {
namespace {

constexpr ChunkId kChunk{1};
constexpr double kOnes = kTileElements;  // the sum of squares of a tile of ones

// Does what a device would, at once.
class PlayedArithmetic final : public DeviceArithmetic {
 public:
  void update_tiles(const OptimizerStep&, const TileRun&) override {}
  void accumulate(const Accumulation& part) override { terrace::accumulate(InstructionSet::scalar, part); }
  void set_zero(std::byte* elements, DataType type, uint64_t count) override {
    std::memset(elements, 0, count * bytes_of(type));
  }
  void sums_of_squares(const std::byte* gradient, DataType type, uint64_t count,
                       std::span<double> sums) override {
    for (size_t b = 0; b < sums.size(); ++b)
      sums[b] =
          sum_of_squares_block(InstructionSet::scalar, gradient + b * kSumBlockElements * bytes_of(type),
                               type, std::min<uint64_t>(kSumBlockElements, count - b * kSumBlockElements));
  }
};

// One gradient of ones, which notes how often it was opened.
class OneGradient final : public GradientSource {
 public:
  DataType type(ChunkId) const override { return DataType::fp32; }
  std::byte* gradient(ChunkId) override { return reinterpret_cast<std::byte*>(elements.data()); }
  void open(ChunkId) override { ++open_count, is_open_now = true; }
  void close(ChunkId) override { is_open_now = false; }
  bool start_open(ChunkId, io::Engine&) override { return true; }
  bool is_open(ChunkId) const override { return true; }
  void release(ChunkId) override {}

  std::vector<float> elements = std::vector<float>(kTileElements, 1.0f);
  int open_count = 0;
  bool is_open_now = false;
};

struct GradientArithmeticTest : ::testing::Test {
  std::unique_ptr<GradientArithmetic> on_device() {
    return std::make_unique<ArithmeticByDevice>(rig.space, rig.sums(), rig.accumulating, played,
                                                DeviceSums(played, rig.device, scratch, rig.watch));
  }

  GradientRig rig;
  PlayedArithmetic played;
  std::span<std::byte> scratch = rig.device.allocate_work_memory(4096);
  std::vector<Bf16> ones = std::vector<Bf16>(kTileElements, to_bf16(1.0f));
  const std::byte* gradient = reinterpret_cast<const std::byte*>(ones.data());
};

TEST_F(GradientArithmeticTest, AddsMicroBatchesAndTheFirstOneReplaces) {
  for (const bool there : {false, true}) {
    const auto arithmetic = there ? on_device() : rig.arithmetic();
    std::byte* const sum = rig.slots[1];
    std::memset(sum, 0x7f, kTileElements * sizeof(float));
    arithmetic->add(rig.landing(kChunk, 0, 2), sum, gradient, false);
    EXPECT_TRUE(all_are(sum, 1.0f));
    EXPECT_FALSE(arithmetic->sums().is_complete(kChunk));
    arithmetic->add(rig.landing(kChunk, 1, 2), sum, gradient, true);
    EXPECT_TRUE(all_are(sum, 2.0f));
    EXPECT_TRUE(arithmetic->sums().is_complete(kChunk));
  }
}

TEST_F(GradientArithmeticTest, MakesAnAccumulatorZeroWhereNothingHasLandedBefore) {
  for (const bool there : {false, true}) {
    const auto arithmetic = there ? on_device() : rig.arithmetic();
    std::byte* const sum = rig.slots[1];
    std::memset(sum, 0x7f, kTileElements * sizeof(float));
    arithmetic->add(rig.landing(kChunk, 0, 1), sum, nullptr, true);
    EXPECT_TRUE(all_are(sum, 0.0f));
    arithmetic->add(rig.landing(kChunk, 1, 2), sum, nullptr, true);
    EXPECT_TRUE(all_are(sum, 0.0f));
  }
}

// 1 and three times 2^-24: one by one each is lost beside 1, and two of them together are not.
TEST_F(GradientArithmeticTest, SumsGroupsOfMicroBatchesBeforeTheyJoin) {
  constexpr uint32_t kMicroBatches = 4;
  rig.accumulating.micro_batches = kMicroBatches;
  rig.accumulating.gradient_group = 2;
  const std::vector<Bf16> small(kTileElements, to_bf16(0x1p-24f));
  for (const bool there : {false, true}) {
    const auto arithmetic = there ? on_device() : rig.arithmetic();
    std::byte* const sum = rig.take(2 * kTileElements * sizeof(float));
    for (uint32_t m = 0; m < kMicroBatches; ++m) {
      const GradientLanding landing = rig.landing(kChunk, m, kMicroBatches);
      rig.whole.open_group = m == 0 ? 0 : (m - 1) / 2 + 1;
      arithmetic->add(landing, sum, m == 0 ? gradient : reinterpret_cast<const std::byte*>(small.data()),
                      m + 1 == kMicroBatches);
    }
    EXPECT_TRUE(all_are(sum, 1 + 0x1p-23f)) << there;
    if (!there) {
      EXPECT_EQ(arithmetic->sums().of(kChunk)[0],
                sum_of_squares_block(InstructionSet::scalar, sum, DataType::fp32, kTileElements));
    }
  }
}

TEST_F(GradientArithmeticTest, OfWorkersTakesSumsWithTheLastAddition) {
  const auto arithmetic = rig.arithmetic();
  arithmetic->sums().of(kChunk)[0] = -1;
  arithmetic->add(rig.landing(kChunk, 0, 2), rig.slots[1], gradient, false);
  EXPECT_EQ(arithmetic->sums().of(kChunk)[0], -1);
  arithmetic->add(rig.landing(kChunk, 1, 2), rig.slots[1], gradient, true);
  EXPECT_EQ(arithmetic->sums().of(kChunk)[0], 4 * kOnes);
  arithmetic->take(kChunk, DataType::bf16, gradient);
  EXPECT_EQ(arithmetic->sums().of(kChunk)[0], kOnes);
}

TEST_F(GradientArithmeticTest, OfADeviceTakesTheSumsOfWhatIsCompleteWhenTheStepEnds) {
  const auto arithmetic = on_device();
  for (uint32_t c = 0; c < HomesRig::kChunks; ++c) arithmetic->sums().of(ChunkId{c})[0] = -1;
  arithmetic->take(kChunk, DataType::bf16, gradient);
  EXPECT_EQ(arithmetic->sums().of(kChunk)[0], -1);
  OneGradient source;
  arithmetic->finish_step(source);
  EXPECT_EQ(arithmetic->sums().of(kChunk)[0], kOnes);
  EXPECT_EQ(arithmetic->sums().of(ChunkId{0})[0], -1);
  EXPECT_EQ(source.open_count, 1);
  EXPECT_FALSE(source.is_open_now);
}

}  // namespace
}  // namespace terrace::gradient_arithmetic_test
