// Filling a store, values, addresses, DLPack, counters and plans.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "capi/capi_rig.h"
#include "support/scratch_folder.h"

namespace terrace::values_test {
namespace {

// DLManagedTensor as dlpack.h 0.8 has it, for a program that reads the tensor.
struct Dlpack {
  void* data;
  int32_t device_type, device_id, ndim;
  uint8_t code, bits;
  uint16_t lanes;
  int64_t *shape, *strides;
  uint64_t byte_offset;
  void* context;
  void (*deleter)(DLManagedTensor*);
};
const Dlpack& read(const DLManagedTensor* managed) {
  return *reinterpret_cast<const Dlpack*>(managed);
}

using capi::expect_kind;
using capi::is_well;
using capi::Training;

std::vector<std::vector<float>> initial_values() {
  std::vector<std::vector<float>> all;
  for (uint32_t t = 0; t < capi::specs().size(); ++t) {
    std::vector<float>& values = all.emplace_back(capi::specs()[t].element_count());
    for (uint64_t e = 0; e < values.size(); ++e) values[e] = capi::initial_value(t, e);
  }
  return all;
}

TEST(CValues, ComeFromACallbackFromArraysAndFromFiles) {
  const ScratchFolder folder, drive;
  const std::vector<std::vector<float>> values = initial_values();
  Training expected(capi::kOnNvme, drive.path());
  const std::vector<float> state = expected.state();
  expected.end();
  Training training(capi::kOnNvme, drive.path(), false);
  std::vector<terrace_array> arrays(4, TERRACE_INIT(terrace_array));
  std::ofstream file(folder / "weights", std::ios::binary);
  file << "head";
  const std::string name = (folder / "weights").string();
  std::vector<terrace_file_part> parts(4, TERRACE_INIT(terrace_file_part));
  for (uint32_t t = 0; t < 4; ++t) {
    arrays[t].tensor = parts[t].tensor = t;
    arrays[t].data = values[t].data();
    parts[t].path = name.c_str();
    parts[t].offset = static_cast<uint64_t>(file.tellp());
    file.write(reinterpret_cast<const char*>(values[t].data()),
               static_cast<std::streamsize>(values[t].size() * sizeof(float)));
  }
  file.close();
  is_well(terrace_fill_arrays(training.get(), arrays.data(), 4));
  EXPECT_EQ(training.state(), state);
  const float other = 7;
  is_well(terrace_write_values(training.get(), 3, TERRACE_MASTER, 2999, 1, &other));
  EXPECT_NE(training.state(), state);
  is_well(terrace_fill_files(training.get(), parts.data(), 4));
  EXPECT_EQ(training.state(), state);
  expect_kind(TERRACE_MISUSE, terrace_fill_arrays(training.get(), arrays.data(), 3));
  EXPECT_EQ(training.state(), state);  // a list that is refused has changed nothing
  parts[1].path = "/nowhere/at/all";
  expect_kind(TERRACE_IO, terrace_fill_files(training.get(), parts.data(), 4));
  training.fill();
  EXPECT_EQ(training.state(), state);
}

TEST(CValues, AreReadAndWrittenInPlace) {
  const ScratchFolder folder;
  Training training(capi::kOnNvme, folder.path());
  const std::vector<float> wanted = {1.5f, -2.5f, 3.0f};
  for (const uint32_t what : {TERRACE_SECOND_MOMENT, TERRACE_FIRST_MOMENT, TERRACE_MASTER}) {
    is_well(terrace_write_values(training.get(), 1, what, 4095, 3, wanted.data()));
    std::vector<float> read(3);
    is_well(terrace_read_values(training.get(), 1, what, 4095, 3, read.data()));
    EXPECT_EQ(read, wanted);
  }
  std::vector<float> read(3);
  is_well(terrace_read_values(training.get(), 1, TERRACE_PARAMETER, 4095, 3, read.data()));
  EXPECT_EQ(read, wanted);
  expect_kind(TERRACE_MISUSE, terrace_read_values(training.get(), 1, TERRACE_MASTER, 9999, 2, read.data()));
  expect_kind(TERRACE_MISUSE,
              terrace_read_values(training.get(), capi::kFrozen, TERRACE_MASTER, 0, 1, read.data()));
  expect_kind(TERRACE_MISUSE, terrace_read_values(training.get(), 4, TERRACE_MASTER, 0, 1, read.data()));
}

TEST(CValues, HaveAddressesThatStay) {
  const ScratchFolder folder;
  Training training(capi::kOnNvme, folder.path());
  void *parameter = nullptr, *gradient = nullptr;
  is_well(terrace_parameter_address(training.get(), 3, &parameter));
  is_well(terrace_gradient_address(training.get(), 3, &gradient));
  training.step(1, [&](const char* place) {
    if (std::string(place) != "in a lease") return;
    const void* leased = nullptr;
    terrace_error* error = terrace_parameter(training.get(), 3, &leased);
    if (error == nullptr) {
      EXPECT_EQ(leased, parameter);
    }
    terrace_error_free(error);
  });
  EXPECT_NE(parameter, gradient);
}

TEST(CValues, GoOutAsDlpackAndItsDeleterOutlivesTheStore) {
  const ScratchFolder folder;
  Training training(capi::kOnNvme, folder.path());
  DLManagedTensor* one = nullptr;
  DLManagedTensor* other = nullptr;
  is_well(terrace_dlpack(training.get(), 0, 0, &one));
  is_well(terrace_dlpack(training.get(), 1, 1, &other));
  void* address = nullptr;
  is_well(terrace_parameter_address(training.get(), 0, &address));
  const Dlpack& a = read(one);
  EXPECT_EQ(a.data, address);
  EXPECT_EQ(a.device_type, 1);
  EXPECT_EQ(a.code, 2);
  EXPECT_EQ(a.bits, 32);
  EXPECT_EQ(a.lanes, 1);
  EXPECT_EQ(a.strides, nullptr);
  EXPECT_EQ(std::vector<int64_t>(a.shape, a.shape + a.ndim), (std::vector<int64_t>{64, 100}));
  EXPECT_EQ(read(other).code, 4);
  EXPECT_EQ(read(other).bits, 16);
  read(other).deleter(other);
  expect_kind(TERRACE_MISUSE, terrace_dlpack(training.get(), capi::kFrozen, 1, &other));
  EXPECT_EQ(other, nullptr);
  is_well(terrace_dlpack(training.get(), 1, 1, &other));
  training.end();
  a.deleter(one);
  read(other).deleter(other);
}

TEST(CCounters, HaveKeysAndCountWhatMoves) {
  const ScratchFolder folder;
  Training training(capi::kOnNvme, folder.path());
  training.step(1);
  training.step(2);
  std::vector<uint64_t> all(terrace_counter_count()), last(terrace_counter_count());
  is_well(terrace_counters(training.get(), all.data(), terrace_counter_count()));
  is_well(terrace_step_counters(training.get(), last.data(), terrace_counter_count()));
  std::map<std::string, uint32_t> by_key;

  for (uint32_t number = 0; number < terrace_counter_count(); ++number) {
    terrace_counter counter = TERRACE_INIT(terrace_counter);
    is_well(terrace_counter_get(number, &counter));
    EXPECT_TRUE(by_key.emplace(counter.key, number).second) << counter.key;
    EXPECT_GE(all[number], last[number]) << counter.key;
  }
  EXPECT_GT(last[by_key.at("h2d")], 0u);
  EXPECT_GT(all[by_key.at("h2d")], last[by_key.at("h2d")]);
  EXPECT_GT(last[by_key.at("overhead")], 0u);

  expect_kind(TERRACE_MISUSE, terrace_counters(training.get(), all.data(), terrace_counter_count() + 1));
}

TEST(CPlans, AreKeptByTheStoreAndAllocateNothing) {
  const ScratchFolder folder;
  capi::Arguments arguments(capi::kOnNvme, folder.path());
  arguments.options.chunk_elements = 0;
  arguments.options.work_bytes = 4096;
  terrace_plan_result plan = TERRACE_INIT(terrace_plan_result), kept = TERRACE_INIT(terrace_plan_result);
  is_well(arguments.plan(&plan));
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  EXPECT_EQ(plan.fits, 1u);
  EXPECT_EQ(plan.chunk_elements % 4096, 0u);
  EXPECT_GT(plan.file_bytes, 0u);
  terrace_store* store = nullptr;
  is_well(arguments.create(&store));
  is_well(terrace_plan_of(store, &kept));
  EXPECT_EQ(std::memcmp(&plan, &kept, sizeof(plan)), 0);
  void* work = nullptr;
  void* stream = &work;
  uint64_t bytes = 0;
  is_well(terrace_work_memory(store, &work, &bytes));
  EXPECT_EQ(bytes, 4096u);
  std::memset(work, 1, bytes);
  is_well(terrace_compute_stream(store, &stream));
  EXPECT_EQ(stream, nullptr);
  terrace_destroy(store);
}

TEST(CPlans, OfBudgetsThatAreTooSmallNameTheLeast) {
  const ScratchFolder folder;
  capi::Arguments arguments(capi::kOnNvme, folder.path());
  arguments.options.host_bytes = 1;
  for (const uint64_t chunk : {uint64_t{4096}, uint64_t{0}}) {
    arguments.options.chunk_elements = chunk;
    terrace_plan_result plan = TERRACE_INIT(terrace_plan_result);
    expect_kind(TERRACE_CAPACITY, arguments.plan(&plan));
    EXPECT_EQ(plan.fits, 0u);
    EXPECT_GT(plan.host_least_bytes, 1u);
    EXPECT_EQ(plan.device_least_bytes, 0u);
    EXPECT_EQ(plan.parameter_count, 24400u);
  }
}

TEST(CStores, TrainBesideEachOther) {
  const ScratchFolder one, other;
  Training first(capi::kOnNvme, one.path()), second(capi::kOnNvme, other.path());
  for (uint64_t step = 1; step <= 3; ++step) first.step(step), second.step(step);
  EXPECT_EQ(first.state(), second.state());
}

}  // namespace
}  // namespace terrace::values_test
