// Programs and libraries of different age: structs that are shorter or longer than the library's.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#include "capi/capi_rig.h"
#include "support/scratch_folder.h"

namespace terrace::structs_test {
namespace {

using capi::Arguments;
using capi::expect_kind;
using capi::is_well;
using capi::kind_of;

// A struct as a later header may have it.
template <typename Struct>
struct Later {
  Struct known;
  uint64_t more[2];
};

TEST(CStructs, OfAnOlderProgramHaveTheDefaultsInWhatItDoesNotKnow) {
  const ScratchFolder folder;
  Arguments arguments(capi::kOnNvme, folder.path());
  terrace_plan_result plan = TERRACE_INIT(terrace_plan_result);
  arguments.options.io_engine = 77;  // beyond the end of the older struct
  arguments.options.size = offsetof(terrace_options, discard_commits) & ~uint32_t{7};
  ASSERT_LE(arguments.options.size, offsetof(terrace_options, io_engine));
  is_well(arguments.plan(&plan));
  arguments.options.size = sizeof(terrace_options);
  EXPECT_EQ(kind_of(arguments.plan(&plan)), static_cast<uint32_t>(TERRACE_CONFIG));
}

TEST(CStructs, OfALaterProgramAreTakenWhereItSetsNothingNew) {
  const ScratchFolder folder;
  Arguments arguments(capi::kOnNvme, folder.path());
  terrace_plan_result plan = TERRACE_INIT(terrace_plan_result);
  Later<terrace_options> options{arguments.options, {0, 0}};
  options.known.size = sizeof(options);
  const auto planned = [&] {
    return terrace_plan(arguments.device, arguments.tensors.data(), 4, &options.known, nullptr, 0, &plan);
  };
  is_well(planned());
  options.more[1] = uint64_t{1} << 63;
  expect_kind(TERRACE_CONFIG, planned());
}

TEST(CStructs, InListsAreAsLongAsTheFirst) {
  const ScratchFolder folder;
  Arguments arguments(capi::kOnNvme, folder.path());
  terrace_plan_result plan = TERRACE_INIT(terrace_plan_result);
  std::vector<Later<terrace_tensor>> tensors;
  for (const terrace_tensor& tensor : arguments.tensors) {
    tensors.push_back({tensor, {0, 0}});
    tensors.back().known.size = sizeof(tensors.back());
  }
  const auto planned = [&] {
    return terrace_plan(arguments.device, &tensors[0].known, 4, &arguments.options, nullptr, 0, &plan);
  };
  is_well(planned());
  EXPECT_EQ(plan.parameter_count, 6400u + 10000 + 5000 + 3000);
  EXPECT_EQ(plan.trainable_count, 6400u + 10000 + 3000);
  tensors[2].known.size = sizeof(terrace_tensor);
  expect_kind(TERRACE_CONFIG, planned());
  tensors[2].known.size = 0;
  expect_kind(TERRACE_CONFIG, planned());
}

TEST(CStructs, WithoutASizeAreRefused) {
  const ScratchFolder folder;
  Arguments arguments({}, folder.path());
  terrace_plan_result plan = TERRACE_INIT(terrace_plan_result);
  for (const uint32_t size : {0u, 4u, 12u, 0xffffffffu}) {
    arguments.options.size = size;
    expect_kind(TERRACE_CONFIG, arguments.plan(&plan));
  }
  arguments.options.size = sizeof(terrace_options);
  plan.size = 0;
  expect_kind(TERRACE_CONFIG, arguments.plan(&plan));
}

TEST(CStructs, ThatAreResultsAreWrittenToTheirEnd) {
  const ScratchFolder folder;
  const Arguments arguments({}, folder.path());
  Later<terrace_plan_result> later;
  std::memset(&later, 0xab, sizeof(later));
  later.known.size = sizeof(later);
  is_well(arguments.plan(&later.known));
  EXPECT_EQ(later.known.size, sizeof(later));
  EXPECT_EQ(later.known.fits, 1u);
  EXPECT_EQ(later.more[0] | later.more[1], 0u);
  terrace_plan_result older;
  std::memset(&older, 0xab, sizeof(older));
  older.size = offsetof(terrace_plan_result, file_bytes);
  is_well(arguments.plan(&older));
  EXPECT_GT(older.device_least_bytes, 0u);
  EXPECT_EQ(older.file_bytes, 0xababababababababu);
}

}  // namespace
}  // namespace terrace::structs_test
