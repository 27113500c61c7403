// terrace_run.h: saved states, the question for a commit, and arguments that nobody means.
#include <gtest/gtest.h>

#include <cstddef>
#include <fstream>
#include <string>

#include <terrace_run.h>

#include "capi/capi_rig.h"
#include "support/scratch_folder.h"

namespace terrace::saved_states_test {
namespace {

using capi::expect_kind;
using capi::is_well;

static_assert(sizeof(terrace_state_options) == 48);
static_assert(offsetof(terrace_state_options, file_count) == 4);
static_assert(offsetof(terrace_state_options, folder) == 8);
static_assert(offsetof(terrace_state_options, name) == 16);
static_assert(offsetof(terrace_state_options, files) == 24);
static_assert(offsetof(terrace_state_options, log) == 32);
static_assert(offsetof(terrace_state_options, log_context) == 40);

struct Options {
  explicit Options(const std::filesystem::path& path) : folder(path.string()) {
    given.folder = folder.c_str();
    given.name = "one";
    given.files = files;
    given.file_count = 2;
  }
  const std::string folder;
  const char* files[2] = {"a", "b"};
  terrace_state_options given = TERRACE_INIT(terrace_state_options);
};

TEST(CSavedStates, AreWrittenAndRead) {
  const ScratchFolder folder;
  Options options(folder.path());
  terrace_state_writer* writer = nullptr;
  ASSERT_TRUE(is_well(terrace_state_begin(&options.given, &writer)));
  terrace_state_writer* second = nullptr;
  expect_kind(TERRACE_IO, terrace_state_begin(&options.given, &second));
  EXPECT_TRUE(is_well(terrace_state_file(writer, "a")));
  EXPECT_TRUE(is_well(terrace_state_write(writer, "123456", 6)));
  EXPECT_TRUE(is_well(terrace_state_write(writer, nullptr, 0)));
  EXPECT_TRUE(is_well(terrace_state_file(writer, "b")));
  EXPECT_TRUE(is_well(terrace_state_complete(writer, "facts", 1)));
  terrace_state_end(writer);
  options.given.name = nullptr;
  terrace_state_reader* reader = nullptr;
  ASSERT_TRUE(is_well(terrace_state_open(&options.given, &reader)));
  const char* text = nullptr;
  EXPECT_TRUE(is_well(terrace_state_facts(reader, &text)));
  EXPECT_STREQ(text, "facts");
  EXPECT_TRUE(is_well(terrace_state_path(reader, &text)));
  EXPECT_EQ(text, (folder.path() / "one").string());
  EXPECT_TRUE(is_well(terrace_state_verify(reader)));
  uint64_t bytes = 0;
  EXPECT_TRUE(is_well(terrace_state_size(reader, "a", &bytes)));
  EXPECT_EQ(bytes, 6u);
  char part[3] = {};
  EXPECT_TRUE(is_well(terrace_state_read(reader, "a", 2, 3, part)));
  EXPECT_EQ(std::string(part, 3), "345");
  expect_kind(TERRACE_CONFIG, terrace_state_read(reader, "a", 5, 2, part));
  expect_kind(TERRACE_CORRUPT, terrace_state_size(reader, "c", &bytes));
  terrace_state_close(reader);
}

TEST(CSavedStates, AnswerToWhateverIsGiven) {
  const ScratchFolder folder;
  Options options(folder.path());
  terrace_state_writer* writer = nullptr;
  terrace_state_reader* reader = nullptr;
  expect_kind(TERRACE_MISUSE, terrace_state_begin(nullptr, &writer));
  expect_kind(TERRACE_MISUSE, terrace_state_begin(&options.given, nullptr));
  expect_kind(TERRACE_MISUSE, terrace_state_open(nullptr, &reader));
  expect_kind(TERRACE_IO, terrace_state_open(&options.given, &reader));
  for (const char* name : {"", "..", "a/b", "latest"}) {
    options.given.name = name;
    expect_kind(TERRACE_CONFIG, terrace_state_begin(&options.given, &writer));
    expect_kind(TERRACE_CONFIG, terrace_state_open(&options.given, &reader));
  }
  options.given.name = nullptr;
  expect_kind(TERRACE_MISUSE, terrace_state_begin(&options.given, &writer));
  options.given.name = "one";
  options.files[1] = "../b";
  expect_kind(TERRACE_CONFIG, terrace_state_begin(&options.given, &writer));
  options.files[1] = nullptr;
  expect_kind(TERRACE_MISUSE, terrace_state_begin(&options.given, &writer));
  options.files[1] = "b";
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  ASSERT_TRUE(is_well(terrace_state_begin(&options.given, &writer)));
  expect_kind(TERRACE_MISUSE, terrace_state_write(writer, "1", 1));
  expect_kind(TERRACE_MISUSE, terrace_state_file(writer, "a"));  // the save has failed
  terrace_state_end(writer);
  ASSERT_TRUE(is_well(terrace_state_begin(&options.given, &writer)));
  expect_kind(TERRACE_MISUSE, terrace_state_complete(writer, "facts", 1));
  terrace_state_end(writer);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  for (const auto function : {terrace_state_verify}) expect_kind(TERRACE_MISUSE, function(nullptr));
  expect_kind(TERRACE_MISUSE, terrace_state_file(nullptr, "a"));
  terrace_state_end(nullptr);
  terrace_state_close(nullptr);
}

// A job that died in its first commit leaves a manifest without its name: that is none.
TEST(CCommits, AreThereOrNotBeforeAStoreIsCreated) {
  const ScratchFolder folder;
  const std::string path = folder.path().string();
  const char* paths[] = {path.c_str()};
  uint32_t has_commit = 7;
  EXPECT_TRUE(is_well(terrace_has_commit(paths, 1, nullptr, &has_commit)));
  EXPECT_EQ(has_commit, 0u);
  std::filesystem::create_directory(folder.path() / "terrace-tier");
  std::ofstream(folder.path() / "terrace-tier/commit-0000000000000001.manifest.new") << "cut short";
  EXPECT_TRUE(is_well(terrace_has_commit(paths, 1, nullptr, &has_commit)));
  EXPECT_EQ(has_commit, 0u);
  std::filesystem::remove_all(folder.path() / "terrace-tier");
  capi::Case on_nvme = capi::kOnNvme;
  on_nvme.durable = 1;
  {
    capi::Training training(on_nvme, folder.path());
    ASSERT_TRUE(is_well(terrace_begin_commit(training.get(), "", 0)));
    ASSERT_TRUE(is_well(terrace_finish_commit(training.get(), nullptr)));
  }
  EXPECT_TRUE(is_well(terrace_has_commit(paths, 1, nullptr, &has_commit)));
  EXPECT_EQ(has_commit, 1u);
  EXPECT_TRUE(is_well(terrace_has_commit(paths, 1, "another", &has_commit)));
  EXPECT_EQ(has_commit, 0u);
  expect_kind(TERRACE_CONFIG, terrace_has_commit(paths, 1, "../another", &has_commit));
  expect_kind(TERRACE_MISUSE, terrace_has_commit(nullptr, 1, nullptr, &has_commit));
  expect_kind(TERRACE_MISUSE, terrace_has_commit(paths, 1, nullptr, nullptr));
}

}  // namespace
}  // namespace terrace::saved_states_test
