// FlatSpace against hand-computed layouts, and against a naive model that writes the owner of every element
// down.
#include <terrace/memory/space/flat_space.h>

#include <map>
#include <random>
#include <string>

#include <gtest/gtest.h>
#include <terrace/base/error.h>
#include <terrace/base/units.h>

namespace terrace::flat_space_test {
namespace {

TensorSpec spec(std::string name, uint64_t elements, uint32_t group = 0, DataType type = DataType::bf16,
                bool trainable = true) {
  return {std::move(name), {elements}, type, trainable, group, 1};
}

// The message of the Error(config) that constructing throws; empty when it does not throw.
std::string refusal(std::vector<TensorSpec> tensors, uint64_t chunk_elements = kTileElements) {
  try {
    FlatSpace space(std::move(tensors), chunk_elements);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::config);
    EXPECT_FALSE(error.parts().advice.empty());
    return error.parts().subject.in(Door::cpp) + ": " + error.parts().reason;
  }
  return "";
}

std::vector<uint32_t> ids(std::span<const TensorId> tensors) {
  std::vector<uint32_t> result;
  for (TensorId id : tensors) result.push_back(index_of(id));
  return result;
}

TEST(FlatSpace, MakesSectionsInTheOrderInWhichTheirFirstTensorsAppear) {
  const FlatSpace space({spec("a", 10, 0, DataType::bf16, true), spec("b", 10, 0, DataType::fp32, true),
                         spec("c", 10, 0, DataType::bf16, false), spec("d", 10, 0, DataType::bf16, true)},
                        kTileElements);
  space.check();
  ASSERT_EQ(space.sections().size(), 3u);
  EXPECT_EQ(space.sections()[0].type, DataType::bf16);
  EXPECT_TRUE(space.sections()[0].trainable);
  EXPECT_EQ(space.sections()[1].type, DataType::fp32);
  EXPECT_FALSE(space.sections()[2].trainable);
  EXPECT_EQ(space.place(TensorId{3}).section, 0u);
  EXPECT_EQ(space.place(TensorId{3}).first_element, kTensorAlignment);
  EXPECT_EQ(space.section_of(ChunkId{1}).type, DataType::fp32);
}

TEST(FlatSpace, AlignsTensorsAndPadsTheSectionToWholeTiles) {
  const FlatSpace space({spec("a", 1), spec("b", 64), spec("c", 65), spec("d", 4096)}, 2 * kTileElements);
  space.check();
  EXPECT_EQ(space.place(TensorId{1}).first_element, 64u);
  EXPECT_EQ(space.place(TensorId{2}).first_element, 128u);
  EXPECT_EQ(space.place(TensorId{3}).first_element, 256u);
  EXPECT_EQ(space.sections()[0].elements, 8192u);
  EXPECT_EQ(space.chunk_count(), 1u);
}

TEST(FlatSpace, CutsTheLastChunkShort) {
  const FlatSpace space({spec("a", 4 * kTileElements + 1)}, 2 * kTileElements);
  space.check();
  ASSERT_EQ(space.chunk_count(), 3u);
  EXPECT_EQ(space.chunk(ChunkId{1}).elements, 2 * kTileElements);
  EXPECT_EQ(space.chunk(ChunkId{2}).elements, kTileElements);
  EXPECT_EQ(space.chunk(ChunkId{2}).first_element, 4 * kTileElements);
  EXPECT_EQ(space.chunk(ChunkId{2}).tile_count(), 1u);
  EXPECT_EQ(space.chunk(ChunkId{1}).tile_count() * RecordLayout{}.tile_bytes(),
            2 * RecordLayout{}.tile_bytes());
}

TEST(FlatSpace, SpansATensorOverAllChunksThatHoldAnElementOfIt) {
  const FlatSpace space({spec("a", 4000), spec("b", 9000), spec("c", 10)}, kTileElements);
  space.check();
  EXPECT_EQ(space.place(TensorId{1}).first_element, 4032u);
  EXPECT_EQ(space.place(TensorId{1}).first_chunk, 0u);
  EXPECT_EQ(space.place(TensorId{1}).chunk_count, 4u);
  EXPECT_EQ(ids(space.tensors_of(ChunkId{0})), (std::vector<uint32_t>{0, 1}));
  EXPECT_EQ(ids(space.tensors_of(ChunkId{2})), (std::vector<uint32_t>{1}));
  EXPECT_EQ(ids(space.tensors_of(ChunkId{3})), (std::vector<uint32_t>{1, 2}));
}

TEST(FlatSpace, DoesNotListATensorThatEndsWhereTheChunkBegins) {
  const FlatSpace space({spec("a", kTileElements), spec("b", kTileElements)}, kTileElements);
  space.check();
  EXPECT_EQ(space.place(TensorId{0}).chunk_count, 1u);
  EXPECT_EQ(ids(space.tensors_of(ChunkId{1})), (std::vector<uint32_t>{1}));
}

TEST(FlatSpace, MergesSegmentsOfNeighboursInOneGroupAndGivesPaddingToTheTensorBefore) {
  const FlatSpace space({spec("a", 100, 7), spec("b", 100, 7), spec("c", 100, 8), spec("d", 100, 7)},
                        kTileElements);
  space.check();
  const auto segments = space.segments_of(ChunkId{0});
  ASSERT_EQ(segments.size(), 3u);
  EXPECT_EQ(segments[0].elements, 256u);  // a and b, each with 28 elements of padding
  EXPECT_EQ(segments[1].first_element, 256u);
  EXPECT_EQ(segments[1].elements, 128u);
  EXPECT_EQ(segments[2].first_element, 384u);
  EXPECT_EQ(segments[2].elements, kTileElements - 384);
  EXPECT_EQ(segments[2].group, 7u);
}

TEST(FlatSpace, StartsANewSegmentWithEveryChunk) {
  const FlatSpace space({spec("a", 3 * kTileElements, 5)}, kTileElements);
  space.check();
  for (uint32_t c = 0; c < 3; ++c) {
    ASSERT_EQ(space.segments_of(ChunkId{c}).size(), 1u);
    EXPECT_EQ(space.segments_of(ChunkId{c})[0].first_element, 0u);
    EXPECT_EQ(space.segments_of(ChunkId{c})[0].elements, kTileElements);
  }
}

TEST(FlatSpace, FindsTensorsByName) {
  const FlatSpace space({spec("wte", 10), spec("h.0.attn", 10), spec("h.0", 10)}, kTileElements);
  EXPECT_EQ(space.find("h.0.attn"), TensorId{1});
  EXPECT_EQ(space.find("h.0"), TensorId{2});
  EXPECT_EQ(space.find("h"), std::nullopt);
  EXPECT_EQ(space.find("zzz"), std::nullopt);
}

TEST(FlatSpace, CountsParametersWithoutPadding) {
  const FlatSpace space({spec("a", 10), spec("b", 20, 0, DataType::fp32, false), spec("c", 30)},
                        kTileElements);
  EXPECT_EQ(space.parameter_count(), 60u);
  EXPECT_EQ(space.trainable_count(), 40u);
}

TEST(FlatSpace, SizesASlotForTheWidestDataType) {
  EXPECT_EQ(FlatSpace({spec("a", 10)}, kTileElements).param_slot_bytes(), 2 * kTileElements);
  EXPECT_EQ(FlatSpace({spec("a", 10), spec("b", 1, 0, DataType::fp32)}, kTileElements).param_slot_bytes(),
            4 * kTileElements);
}

TEST(FlatSpace, IsEmptyWithoutTensors) {
  const FlatSpace space({}, kTileElements);
  space.check();
  EXPECT_EQ(space.chunk_count(), 0u);
  EXPECT_EQ(space.param_slot_bytes(), 0u);
  EXPECT_EQ(space.find("a"), std::nullopt);
}

TEST(FlatSpace, RefusesWhatCannotBePlacedNamingTheTensor) {
  EXPECT_EQ(refusal({spec("a", 1), spec("twin", 1), spec("twin", 2)}),
            "twin: tensors 1 and 2 of the model have this name");
  EXPECT_EQ(refusal({{"scalar", {}}}), "scalar: its shape has no dimension");
  EXPECT_EQ(refusal({spec("a", 1), {"hollow", {3, 0, 2}}}), "hollow: its shape [3, 0, 2] has a zero");
}

TEST(FlatSpace, RefusesSizesThatOverflowNamingTheTensor) {
  const uint64_t e = kMaxElements;
  EXPECT_EQ(refusal({{"wide", {uint64_t{1} << 32, uint64_t{1} << 32}}}, e).substr(0, 5), "wide:");
  EXPECT_EQ(refusal({{"wide", {e, 2}}}, e).substr(0, 5), "wide:");
  EXPECT_EQ(refusal({{"fits", {e}}}, e), "");
  EXPECT_EQ(refusal({spec("half", e / 2), spec("the other half", e / 2)}, e), "");
  EXPECT_EQ(refusal({spec("most", e - kTileElements), spec("one more", kTileElements + 1)}, e),
            "one more: with it the model has more than 2^59 elements");
  // Two sections: the sum over all of them is what is bounded.
  EXPECT_EQ(refusal({spec("most", e), spec("frozen", 1, 0, DataType::fp32, false)}, e),
            "frozen: with it the model has more than 2^59 elements");
  EXPECT_EQ(refusal({spec("a", 1), spec("many", uint64_t{1} << 44)}),
            "many: with it the model has more than 2^32 chunks and tensors");
}

TEST(FlatSpaceDeathTest, AssertsThatAChunkIsMadeOfWholeTiles) {
  EXPECT_DEATH(FlatSpace({}, 0), "whole tiles");
  EXPECT_DEATH(FlatSpace({}, kTileElements + 64), "whole tiles");
}

// The model: one entry per element of each section, naming the tensor it belongs to or kPadding.
constexpr uint32_t kPadding = ~0u;

struct Model {
  std::map<std::pair<DataType, bool>, std::vector<uint32_t>> owners;

  explicit Model(const std::vector<TensorSpec>& tensors) {
    for (uint32_t t = 0; t < tensors.size(); ++t) {
      auto& owner = owners[{tensors[t].type, tensors[t].trainable}];
      while (owner.size() % kTensorAlignment != 0) owner.push_back(kPadding);
      for (uint64_t i = 0; i < tensors[t].element_count(); ++i) owner.push_back(t);
    }
    for (auto& [key, owner] : owners) {
      while (owner.size() % kTileElements != 0) owner.push_back(kPadding);
    }
  }
};

std::vector<TensorSpec> random_tensors(std::mt19937& random) {
  const auto below = [&](uint32_t bound) { return static_cast<uint32_t>(random() % bound); };
  std::vector<TensorSpec> tensors(1 + below(12));
  for (size_t t = 0; t < tensors.size(); ++t) {
    tensors[t].name = "t" + std::to_string(t);
    tensors[t].shape = {1 + below(4), 1 + below(below(3) == 0 ? 4096 : 70)};
    if (below(6) == 0) tensors[t].shape = {kTileElements};
    tensors[t].type = below(3) == 0 ? DataType::fp32 : DataType::bf16;
    tensors[t].trainable = below(4) != 0;
    tensors[t].group = below(3);
  }
  return tensors;
}

void compare_chunk(const FlatSpace& space, ChunkId id, const std::vector<uint32_t>& owner) {
  const ChunkInfo& chunk = space.chunk(id);
  ASSERT_LE(chunk.first_element + chunk.elements, owner.size());
  std::vector<uint32_t> present;
  uint32_t group = kPadding;
  std::vector<uint32_t> group_of_element;
  for (uint64_t e = chunk.first_element; e < chunk.first_element + chunk.elements; ++e) {
    if (owner[e] != kPadding) {
      if (present.empty() || present.back() != owner[e]) present.push_back(owner[e]);
      group = space.tensor(TensorId{owner[e]}).group;
    }
    group_of_element.push_back(group);
  }
  EXPECT_EQ(ids(space.tensors_of(id)), present);
  std::vector<uint32_t> covered;
  for (const Segment& segment : space.segments_of(id)) {
    EXPECT_EQ(segment.first_element, covered.size());
    covered.insert(covered.end(), segment.elements, segment.group);
  }
  EXPECT_EQ(covered, group_of_element);
}

TEST(FlatSpace, MatchesTheNaiveModelOnRandomTensors) {
  for (uint32_t seed = 0; seed < 150; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const std::vector<TensorSpec> tensors = random_tensors(random);
    const FlatSpace space(tensors, kTileElements * (1 + random() % 3));
    space.check();
    const Model model(tensors);
    ASSERT_EQ(space.sections().size(), model.owners.size());
    const bool has_fp32 =
        model.owners.contains({DataType::fp32, false}) || model.owners.contains({DataType::fp32, true});
    EXPECT_EQ(space.param_slot_bytes(), space.chunk_elements() * (has_fp32 ? 4 : 2));
    uint32_t chunks = 0;
    for (const Section& section : space.sections()) {
      const auto& owner = model.owners.at({section.type, section.trainable});
      EXPECT_EQ(section.elements, owner.size());
      // A chunk of bf16 beside fp32 has twice the elements in the same bytes.
      const bool doubles = has_fp32 && section.type == DataType::bf16;
      chunks += static_cast<uint32_t>(divide_up(owner.size(), space.chunk_elements() * (doubles ? 2 : 1)));
    }
    ASSERT_EQ(space.chunk_count(), chunks);
    for (uint32_t c = 0; c < space.chunk_count(); ++c) {
      const Section& section = space.section_of(ChunkId{c});
      compare_chunk(space, ChunkId{c}, model.owners.at({section.type, section.trainable}));
    }
    for (uint32_t t = 0; t < tensors.size(); ++t) {
      const TensorPlace& place = space.place(TensorId{t});
      const auto& owner = model.owners.at({tensors[t].type, tensors[t].trainable});
      EXPECT_EQ(owner.at(place.first_element), t);
      EXPECT_EQ(owner.at(place.first_element + place.elements - 1), t);
      EXPECT_EQ(place.elements, tensors[t].element_count());
    }
  }
}

}  // namespace
}  // namespace terrace::flat_space_test
