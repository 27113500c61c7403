// terrace_plan and terrace_create with arguments that nobody means: whatever is given, they answer.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "capi/capi_rig.h"
#include "support/scratch_folder.h"

namespace terrace::arguments_test {
namespace {

using capi::Arguments;
using capi::expect_kind;
using capi::is_well;

// Tries to create a store of the arguments, and to train with it.
void try_to_create(const Arguments& arguments, const std::string& what) {
  SCOPED_TRACE(what);
  terrace_plan_result plan = TERRACE_INIT(terrace_plan_result);
  terrace_error_free(arguments.plan(&plan));
  terrace_store* store = nullptr;
  terrace_error* error = arguments.create(&store);
  EXPECT_EQ(error == nullptr, store != nullptr);
  EXPECT_NE(terrace_error_kind_of(error), static_cast<uint32_t>(TERRACE_INTERNAL))
      << terrace_error_text(error);
  terrace_error_free(error);
  if (store == nullptr) return;
  const uint32_t tensor = 0;
  uint64_t lease = 0;
  const auto fill = [](void*, uint32_t, uint64_t, uint64_t count, float* values) {
    std::fill(values, values + count, 1.0f);
    return 0;
  };
  terrace_error_free(terrace_fill_with(store, fill, nullptr));
  terrace_error_free(terrace_begin_step(store));
  terrace_error_free(terrace_lease(store, "op", TERRACE_BACKWARD, &tensor, 1, &lease));
  terrace_error_free(terrace_release(store, lease));
  terrace_error_free(terrace_end_micro_batch(store));
  terrace_error_free(terrace_begin_commit(store, "", 0));
  terrace_destroy(store);
}

const std::vector<uint64_t> kNumbers = {
    1,           2, 3, 4, 5, 77, 4096, 12288, 0x7fffffff, 0xffffffff, uint64_t{1} << 36, uint64_t{1} << 50,
    ~uint64_t{0}};

// The members of a struct that are numbers, by offset and size.
using Members = std::vector<std::pair<size_t, size_t>>;

template <typename Struct>
void try_numbers(const Arguments& arguments, Struct& given, const Members& members, const char* name) {
  const Struct good = given;
  for (const auto& [offset, size] : members) {
    for (const uint64_t number : kNumbers) {
      std::memcpy(reinterpret_cast<char*>(&given) + offset, &number, size);
      try_to_create(arguments,
                    std::string(name) + " at " + std::to_string(offset) + ": " + std::to_string(number));
      given = good;
    }
  }
}

TEST(CArguments, OfOptionsMayBeAnyNumber) {
  Members members;
  for (size_t offset = offsetof(terrace_options, accumulation_steps); offset < offsetof(terrace_options, log);
       offset += 4)
    members.emplace_back(offset, 4);
  for (const size_t offset : {offsetof(terrace_options, host_bytes), offsetof(terrace_options, work_bytes),
                              offsetof(terrace_options, chunk_elements)})
    members.emplace_back(offset, 8);
  members.emplace_back(offsetof(terrace_options, parameters), 4);
  members.emplace_back(offsetof(terrace_options, states), 4);
  for (const uint32_t placement : {TERRACE_DEVICE, TERRACE_CPU, TERRACE_NVME}) {
    const ScratchFolder folder;
    Arguments arguments({.parameters = placement, .states = placement}, folder.path());
    try_numbers(arguments, arguments.options, members, "options");
  }
}

TEST(CArguments, OfTensorsMayBeAnyNumber) {
  const ScratchFolder folder;
  Arguments arguments({}, folder.path());
  const Members members = {{offsetof(terrace_tensor, type), 4},
                           {offsetof(terrace_tensor, frozen), 4},
                           {offsetof(terrace_tensor, group), 4},
                           {offsetof(terrace_tensor, backward_uses), 4}};
  try_numbers(arguments, arguments.tensors[0], members, "tensor");
  uint64_t shape[2] = {0, 0};
  arguments.tensors[0].shape = shape;
  for (const uint64_t number : kNumbers) {
    shape[0] = shape[1] = number;
    if (number == 0x7fffffff || number == 77 || number >= 4096) arguments.tensors[0].rank = 2;
    try_to_create(arguments, "shape " + std::to_string(number));
  }
}

TEST(CArguments, OfDevicesMayBeAnyNumber) {
  const ScratchFolder folder;
  for (const uint64_t number : kNumbers) {
    Arguments arguments({}, folder.path());
    terrace_device_free(std::exchange(arguments.device, nullptr));
    terrace_simulated_options options = TERRACE_INIT(terrace_simulated_options);
    options.budget_bytes = options.h2d_bytes_per_second = options.d2h_bytes_per_second = number;
    terrace_error_free(terrace_device_simulated(&options, &arguments.device));
    options.h2d_bytes_per_second = options.d2h_bytes_per_second = 0;
    terrace_device_free(std::exchange(arguments.device, nullptr));
    terrace_error_free(terrace_device_simulated(&options, &arguments.device));
    try_to_create(arguments, "device " + std::to_string(number));
  }
}

TEST(CArguments, ThatAreMissingAreMisuse) {
  const ScratchFolder folder;
  Arguments a(capi::kOnNvme, folder.path());
  terrace_store* store = nullptr;
  expect_kind(TERRACE_MISUSE, terrace_create(nullptr, a.tensors.data(), 4, &a.options, nullptr, 0, &store));
  expect_kind(TERRACE_MISUSE, terrace_create(a.device, nullptr, 4, &a.options, nullptr, 0, &store));
  expect_kind(TERRACE_MISUSE, terrace_create(a.device, a.tensors.data(), 4, nullptr, nullptr, 0, &store));
  expect_kind(TERRACE_MISUSE, terrace_create(a.device, a.tensors.data(), 4, &a.options, nullptr, 1, &store));
  expect_kind(TERRACE_MISUSE, terrace_create(a.device, a.tensors.data(), 4, &a.options, nullptr, 0, nullptr));
  expect_kind(TERRACE_CONFIG, terrace_create(a.device, nullptr, 0, &a.options, nullptr, 0, &store));
  expect_kind(TERRACE_MISUSE, a.plan(nullptr));
  terrace_device_free(a.device);
  expect_kind(TERRACE_MISUSE, terrace_device_simulated(nullptr, &a.device));
  EXPECT_EQ(a.device, nullptr);
  expect_kind(TERRACE_MISUSE, terrace_device_cuda(nullptr, &a.device));
  terrace_simulated_options simulated = TERRACE_INIT(terrace_simulated_options);
  expect_kind(TERRACE_MISUSE, terrace_device_simulated(&simulated, nullptr));
}

TEST(CArguments, OfTensorsAreChecked) {
  const ScratchFolder folder;
  Arguments a(capi::kOnNvme, folder.path());
  terrace_plan_result plan = TERRACE_INIT(terrace_plan_result);
  const terrace_tensor good = a.tensors[1];
  const auto expect = [&](terrace_error_kind kind, const std::function<void(terrace_tensor&)>& change) {
    change(a.tensors[1]);
    expect_kind(kind, a.plan(&plan));
    a.tensors[1] = good;
  };
  expect(TERRACE_MISUSE, [](terrace_tensor& t) { t.name = nullptr; });
  expect(TERRACE_MISUSE, [](terrace_tensor& t) { t.shape = nullptr; });
  expect(TERRACE_MISUSE, [](terrace_tensor& t) { t.rank = 0; });
  expect(TERRACE_CONFIG, [](terrace_tensor& t) { t.type = 3; });
  expect(TERRACE_CONFIG, [&](terrace_tensor& t) { t.name = a.tensors[0].name; });
  a.options.nvme_path_count = 0;
  expect(TERRACE_CONFIG, [](terrace_tensor&) {});
  a.options.nvme_path_count = 1;
  a.options.tier_name = "..";
  terrace_store* store = nullptr;
  expect_kind(TERRACE_CONFIG, a.create(&store));
}

TEST(CArguments, OfUsesAreChecked) {
  const ScratchFolder folder;
  capi::Case c = capi::kOnNvme;
  c.announced = true;
  Arguments a(c, folder.path());
  terrace_plan_result plan = TERRACE_INIT(terrace_plan_result);
  const terrace_use good = a.uses[1];
  const uint32_t twice[2] = {1, 1}, unknown = 4;
  const auto expect = [&](terrace_error_kind kind, const std::function<void(terrace_use&)>& change) {
    change(a.uses[1]);
    expect_kind(kind, a.plan(&plan));
    a.uses[1] = good;
  };
  is_well(a.plan(&plan));
  expect(TERRACE_MISUSE, [](terrace_use& u) { u.key = nullptr; });
  expect(TERRACE_MISUSE, [](terrace_use& u) { u.tensors = nullptr; });
  expect(TERRACE_MISUSE, [&](terrace_use& u) { u.tensors = twice; });
  expect(TERRACE_MISUSE, [&](terrace_use& u) { u.tensors = &unknown, u.tensor_count = 1; });
  expect(TERRACE_MISUSE, [](terrace_use& u) { u.kind = TERRACE_FORWARD; });
  expect(TERRACE_CONFIG, [](terrace_use& u) { u.kind = 9; });
  expect(TERRACE_CONFIG, [](terrace_use& u) { u.reserved = 1; });
  a.uses[0].kind = a.uses[1].kind = TERRACE_BACKWARD;
  is_well(a.plan(&plan));
  a.uses[0].encloses = 1;
  is_well(a.plan(&plan));
  a.uses[0].encloses = 2;
  expect_kind(TERRACE_MISUSE, a.plan(&plan));
  a.uses[0].encloses = 0;
  a.uses[0].micro_batch = 1;
  expect_kind(TERRACE_MISUSE, a.plan(&plan));
  a.uses[0].micro_batch = 0;
  a.uses[0].kind = TERRACE_INFERENCE;
  expect_kind(TERRACE_MISUSE, a.plan(&plan));
}

}  // namespace
}  // namespace terrace::arguments_test
