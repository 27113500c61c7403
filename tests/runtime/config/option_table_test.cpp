// The table of options, held to what it names: members of the library, of terrace.h and of terrace_run.h, and
// keys of the schema.
#include <terrace/base/option.h>

#include <gtest/gtest.h>

#include <string_view>

#include <terrace.h>
#include <terrace/memory/space/flat_space.h>
#include <terrace/memory/tier/tier_space.h>
#include <terrace/offload/offloader.h>
#include <terrace/reference/data/training_data.h>
#include <terrace/reference/model/weights/export_weights.h>
#include <terrace/reference/trainer.h>
#include <terrace/runtime/config/schema/schema.h>
#include <terrace/runtime/observe/control/control_client.h>
#include <terrace/runtime/observe/watchdog.h>
#include <terrace/runtime/ranks/run_ranks.h>
#include <terrace_run.h>

namespace terrace::option_table_test {
namespace {

template <typename Cpp, typename C>
constexpr bool is_row(Cpp, C) {
  return true;
}

// It does not compile where the table names a member that there is not.
#define TERRACE_MEMBER(owner, member) &owner::member
#define TERRACE_C_MEMBER(owner, member) &owner::member
#define TERRACE_NONE nullptr
#define TERRACE_ROW(id, cpp, c, python, flag, key) static_assert(is_row(cpp, c));
TERRACE_OPTIONS(TERRACE_ROW)
#undef TERRACE_ROW
#undef TERRACE_MEMBER
#undef TERRACE_C_MEMBER
#undef TERRACE_NONE

TEST(OptionTable, NamesKeysOfTheSchema) {
  for (const Names& names : kOptionNames) {
    const std::string_view key = names.key.substr(0, names.key.find(' '));
    // Each role has a path of its own.
    if (key.empty() || key == "nvme_path" || names == names_of(Option::earlier_store)) continue;
    EXPECT_NE(find_path(key), nullptr) << key;
  }
}

TEST(OptionTable, HasANameForEveryOption) {
  for (const Names& names : kOptionNames) EXPECT_FALSE(names.cpp.empty() && names.c.empty()) << names.key;
}

}  // namespace
}  // namespace terrace::option_table_test
