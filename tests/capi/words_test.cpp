// Tensors of TERRACE_WORD: four bytes of anything, which no conversion touches, wherever they lie.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "capi/capi_rig.h"
#include "support/scratch_folder.h"

namespace terrace::words_test {
namespace {

using capi::expect_kind;
using capi::is_well;
using capi::kFrozen;

// As floats these are NaN that signal, denormals, and others that arithmetic would change.
std::vector<uint32_t> noise(uint64_t count) {
  std::vector<uint32_t> words(count);
  uint64_t state = 0x9e3779b97f4a7c15u;
  for (uint64_t i = 0; i < count; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    words[i] = static_cast<uint32_t>(state >> 32);
    if (i % 3 == 0) words[i] = 0x7f800001u + (words[i] & 0x803ffffeu);
    if (i % 5 == 0) words[i] &= 0x807fffffu;
  }
  return words;
}

struct Store {
  Store(const capi::Case& c, const std::filesystem::path& folder) : arguments(c, folder) {
    arguments.tensors[kFrozen].type = TERRACE_WORD;
    is_well(arguments.create(&store));
  }
  ~Store() { terrace_destroy(store); }

  uint64_t count() const { return capi::specs()[kFrozen].element_count(); }
  // All tensors, with words of this type for the one that has them.
  terrace_error* fill(const std::vector<uint32_t>& words, uint32_t type = TERRACE_WORD) {
    std::vector<std::vector<float>> values;
    std::vector<terrace_array> arrays;
    for (uint32_t t = 0; t < capi::specs().size(); ++t) {
      values.emplace_back(capi::specs()[t].element_count(), 0.5f);
      terrace_array array = TERRACE_INIT(terrace_array);
      array.tensor = t;
      array.data = values.back().data();
      arrays.push_back(array);
    }
    arrays[kFrozen].data = words.data();
    arrays[kFrozen].type = type;
    return terrace_fill_arrays(store, arrays.data(), static_cast<uint32_t>(arrays.size()));
  }
  std::vector<uint32_t> read() {
    std::vector<uint32_t> words(count());
    is_well(terrace_read_values(store, kFrozen, TERRACE_PARAMETER, 0, words.size(),
                                reinterpret_cast<float*>(words.data())));
    return words;
  }
  std::vector<uint32_t> leased() {
    std::vector<uint32_t> words(count());
    is_well(terrace_begin_evaluation(store));
    uint64_t lease = 0;
    is_well(terrace_lease(store, "look", TERRACE_INFERENCE, &kFrozen, 1, &lease));
    const void* parameter = nullptr;
    is_well(terrace_parameter(store, kFrozen, &parameter));
    std::memcpy(words.data(), parameter, words.size() * sizeof(uint32_t));
    is_well(terrace_release(store, lease));
    is_well(terrace_end_evaluation(store));
    return words;
  }

  capi::Arguments arguments;
  terrace_store* store = nullptr;
};

constexpr capi::Case kPlaces[] = {{.parameters = TERRACE_DEVICE, .states = TERRACE_DEVICE},
                                  {.parameters = TERRACE_CPU, .states = TERRACE_CPU},
                                  capi::kOnNvme,
                                  {.parameters = TERRACE_NVME, .states = TERRACE_NVME, .least_host = true}};

TEST(CWords, KeepTheirBytesWhereverTheyLie) {
  for (const capi::Case& place : kPlaces) {
    const ScratchFolder folder;
    Store store(place, folder.path());
    std::vector<uint32_t> words = noise(store.count());
    is_well(store.fill(words));
    EXPECT_EQ(store.leased(), words);
    EXPECT_EQ(store.read(), words);
    const std::vector<uint32_t> written = noise(77);
    is_well(terrace_write_values(store.store, kFrozen, TERRACE_PARAMETER, 123, written.size(),
                                 reinterpret_cast<const float*>(written.data())));
    std::ranges::copy(written, words.begin() + 123);
    EXPECT_EQ(store.read(), words);
    EXPECT_EQ(store.leased(), words);
  }
}

TEST(CWords, ComeFromACommitAsTheyWere) {
  const ScratchFolder folder;
  capi::Case c = capi::kOnNvme;
  c.durable = 1;
  std::vector<uint32_t> words;
  {
    Store store(c, folder.path());
    words = noise(store.count());
    is_well(store.fill(words));
    is_well(terrace_begin_commit(store.store, "", 0));
    uint64_t number = 0;
    is_well(terrace_finish_commit(store.store, &number));
  }
  c.resume = 1;
  Store store(c, folder.path());
  EXPECT_EQ(store.read(), words);
  EXPECT_EQ(store.leased(), words);
}

TEST(CWords, AreWrittenByACallbackAsTheyAre) {
  const ScratchFolder folder;
  Store store(capi::kOnNvme, folder.path());
  std::vector<uint32_t> words = noise(store.count());
  const auto fill = [](void* context, uint32_t tensor, uint64_t first, uint64_t count, float* values) {
    if (tensor == kFrozen)
      std::memcpy(values, static_cast<const uint32_t*>(context) + first, count * sizeof(uint32_t));
    return 0;
  };
  is_well(terrace_fill_with(store.store, fill, words.data()));
  EXPECT_EQ(store.read(), words);
}

TEST(CWords, AreOfFrozenTensorsAndOfNoNumbers) {
  const ScratchFolder folder;
  capi::Arguments arguments({}, folder.path());
  arguments.tensors[0].type = TERRACE_WORD;
  terrace_store* refused = nullptr;
  expect_kind(TERRACE_CONFIG, arguments.create(&refused));
  Store store({}, folder.path());
  const std::vector<uint32_t> words = noise(store.count());
  expect_kind(TERRACE_MISUSE, store.fill(words, TERRACE_FP32));
  is_well(store.fill(words));
  EXPECT_EQ(store.read(), words);  // what was refused has changed nothing
  expect_kind(TERRACE_CONFIG, terrace_hand_over(store.store, 0, words.data(), TERRACE_WORD, 0));
}

}  // namespace
}  // namespace terrace::words_test
