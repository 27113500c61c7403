// A state set from arrays and from parts of files is that of the same values given by a callback.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>

#include <terrace/base/error.h>
#include <terrace/optimizer_cpu/gradient.h>

#include "offload/offloader_rig.h"
#include "support/expect_error.h"
#include "support/sanitized.h"

namespace terrace::load_parts_test {
namespace {

using testing::expect_error;

constexpr std::array<DataType, 3> kTypes = {DataType::fp32, DataType::bf16, DataType::fp16};

// The initial values of the toy model, each tensor in some type, one after the other at odd offsets.
class Values {
 public:
  // Tensor t has the type t + `shift`, of all types in turn.
  Values(const std::vector<TensorSpec>& specs, size_t shift) {
    for (uint32_t t = 0; t < specs.size(); ++t) {
      const DataType type = kTypes[(t + shift) % kTypes.size()];
      const uint64_t count = specs[t].element_count();
      bytes_.resize(bytes_.size() + 3);
      places_.push_back({bytes_.size(), type});
      std::vector<float> values(count);
      for (uint64_t e = 0; e < count; ++e) values[e] = toy::initial_value(t, e);
      bytes_.resize(bytes_.size() + count * bytes_of(type));
      convert_from_float(best_instruction_set(), values.data(), bytes_.data() + places_[t].offset, type,
                         count);
    }
  }
  std::vector<TensorArray> arrays() const {
    std::vector<TensorArray> arrays;
    for (uint32_t t = 0; t < places_.size(); ++t)
      arrays.push_back({TensorId{t}, bytes_.data() + places_[t].offset, places_[t].type});
    std::ranges::reverse(arrays);  // in no particular order
    return arrays;
  }
  // Two files with every other tensor.
  std::vector<FilePart> parts(const std::filesystem::path& folder) const {
    std::vector<FilePart> parts;
    for (uint32_t t = 0; t < places_.size(); ++t) {
      const std::filesystem::path path = folder / fmt::format("part{}", t % 2);
      std::ofstream(path, std::ios::binary)
          .write(reinterpret_cast<const char*>(bytes_.data()), static_cast<std::streamsize>(bytes_.size()));
      parts.push_back({TensorId{t}, path, places_[t].offset, places_[t].type});
    }
    std::ranges::reverse(parts);
    return parts;
  }
  void fill(TensorId tensor, uint64_t first, std::span<float> values) const {
    const Place& place = places_[index_of(tensor)];
    convert_to_float(best_instruction_set(), bytes_.data() + place.offset + first * bytes_of(place.type),
                     place.type, values.data(), values.size());
  }

 private:
  struct Place {
    uint64_t offset;
    DataType type;
  };
  std::vector<std::byte> bytes_;
  std::vector<Place> places_;
};

std::vector<Case> cases() {
  std::vector<Case> cases;
  for (const Placement parameters : {Placement::none, Placement::cpu, Placement::nvme}) {
    for (const Placement states : {Placement::none, Placement::cpu, Placement::nvme}) {
      for (const DataType type : kTypes) {
        cases.push_back({.parameters = parameters, .states = states, .type = type, .with_frozen = true});
        if (type == DataType::bf16 && (states != Placement::none || parameters == Placement::none))
          cases.push_back({.parameters = parameters,
                           .states = states,
                           .type = type,
                           .with_frozen = true,
                           .layout = kCompact});
      }
    }
  }
  return cases;
}

TEST(LoadParts, AreTheValuesOfACallback) {
  size_t shift = 0;
  for (const Case& c : testing::thinned(cases())) {
    SCOPED_TRACE(fmt::format("parameters {}, states {}, {}, {}", name_of(c.parameters), name_of(c.states),
                             name_of(c.type), text_of(c.layout)));
    Rig rig(c);
    const Values values(rig.specs, ++shift);
    TrainingState& state = rig.offloader->state();
    state.initialise(
        [&](TensorId tensor, uint64_t first, std::span<float> run) { values.fill(tensor, first, run); });
    rig.step(1);
    const std::vector<std::byte> expected = rig.state();
    state.load_arrays(values.arrays());
    rig.step(1);
    EXPECT_EQ(rig.state(), expected) << "from arrays";
    state.load_file_parts(values.parts(rig.folder.path()));
    rig.step(1);
    EXPECT_EQ(rig.state(), expected) << "from files";
  }
}

TEST(LoadParts, NameEveryTensorOnce) {
  Rig rig(Case{.with_frozen = true});
  const std::vector<std::byte> before = rig.state();
  const Values values(rig.specs, 0);
  TrainingState& state = rig.offloader->state();
  std::vector<TensorArray> arrays = values.arrays();
  const TensorArray first = arrays.front();  // of the last tensor
  arrays.erase(arrays.begin());
  expect_error(ErrorKind::misuse, {"cannot initialise", "norm", "no values"},
               [&] { state.load_arrays(arrays); });
  arrays.push_back(first);
  arrays.push_back(first);
  expect_error(ErrorKind::misuse, {"norm", "twice"}, [&] { state.load_arrays(arrays); });
  arrays.back().tensor = TensorId{50};
  expect_error(ErrorKind::misuse, {"tensor 50", "there are 8"}, [&] { state.load_arrays(arrays); });
  arrays.pop_back();
  arrays.back().data = nullptr;
  expect_error(ErrorKind::misuse, {"norm", "no address"}, [&] { state.load_arrays(arrays); });
  std::vector<FilePart> parts = values.parts(rig.folder.path());
  parts.pop_back();
  expect_error(ErrorKind::misuse, {"shared", "no values"}, [&] { state.load_file_parts(parts); });
  EXPECT_EQ(rig.state(), before);
}

TEST(LoadParts, OfAShortFileAreRefusedBeforeAnythingChanges) {
  Rig rig(Case{});
  const std::vector<std::byte> before = rig.state();
  const Values values(rig.specs, 0);
  std::vector<FilePart> parts = values.parts(rig.folder.path());
  TrainingState& state = rig.offloader->state();
  const uint64_t bytes = rig.specs[6].element_count() * bytes_of(parts[0].type);
  std::filesystem::resize_file(parts[0].path, parts[0].offset + bytes - 1);
  expect_error(ErrorKind::corrupt,
               {fmt::format("cannot read {} bytes at offset {} of", bytes, parts[0].offset), parts[0].path,
                fmt::format("the file has {} bytes", parts[0].offset + bytes - 1)},
               [&] { state.load_file_parts(parts); });
  parts[0].offset = UINT64_MAX;
  expect_error(ErrorKind::corrupt, {parts[0].path}, [&] { state.load_file_parts(parts); });
  parts[0].path = rig.folder.path() / "nowhere";
  EXPECT_THROW(state.load_file_parts(parts), Error);
  EXPECT_EQ(rig.state(), before);
}

}  // namespace
}  // namespace terrace::load_parts_test
