// terrace_run.h: saved states, the question for a commit, and arguments that nobody means.
#include <gtest/gtest.h>

#include <cstddef>
#include <fstream>
#include <string>
#include <vector>

#include <terrace_run.h>

#include "capi/capi_rig.h"
#include "support/scratch_folder.h"

namespace terrace::saved_states_test {
namespace {

using capi::expect_kind;
using capi::is_well;

static_assert(sizeof(terrace_state_options) == 56);
static_assert(offsetof(terrace_state_options, file_count) == 4);
static_assert(offsetof(terrace_state_options, folder) == 8);
static_assert(offsetof(terrace_state_options, name) == 16);
static_assert(offsetof(terrace_state_options, files) == 24);
static_assert(offsetof(terrace_state_options, log) == 32);
static_assert(offsetof(terrace_state_options, log_context) == 40);
static_assert(offsetof(terrace_state_options, is_checkpoint) == 48);
static_assert(sizeof(terrace_checkpoint) == 64);
static_assert(offsetof(terrace_checkpoint, precision) == 4);
static_assert(offsetof(terrace_checkpoint, run) == 8);
static_assert(offsetof(terrace_checkpoint, step) == 16);
static_assert(offsetof(terrace_checkpoint, samples) == 24);
static_assert(offsetof(terrace_checkpoint, model) == 32);
static_assert(offsetof(terrace_checkpoint, optimizer) == 40);
static_assert(offsetof(terrace_checkpoint, loss_scale) == 48);
static_assert(offsetof(terrace_checkpoint, architecture) == 56);

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

// Every value of a tensor, as a store gives it and as a checkpoint of it does.
void expect_same_values(terrace_store* store, terrace_state_reader* reader, uint32_t tensor, uint32_t what) {
  const uint64_t elements = capi::specs()[tensor].element_count();
  std::vector<float> held(elements), saved(elements, -1);
  ASSERT_TRUE(is_well(terrace_read_values(store, tensor, what, 0, elements, held.data())));
  const uint64_t half = elements / 2;
  ASSERT_TRUE(is_well(terrace_state_values(reader, tensor, what, 0, half, saved.data())));
  ASSERT_TRUE(
      is_well(terrace_state_values(reader, tensor, what, half, elements - half, saved.data() + half)));
  EXPECT_EQ(held, saved) << tensor << " " << what;
}

struct CheckpointOptions : Options {
  explicit CheckpointOptions(const std::filesystem::path& path) : Options(path) {
    given.files = all;
    given.file_count = 3;
    given.is_checkpoint = 1;
    scale.scale = 1024;
    scale.hysteresis = 2;
    scale.skipped_steps = 1;
    facts.run = 0xff;
    facts.step = 3;
    facts.samples = 12;
    facts.precision = TERRACE_BF16;
    facts.optimizer = TERRACE_ADAM;
    facts.loss_scale = &scale;
  }
  const char* all[3] = {"states.bin", "frozen.bin", "mine"};
  terrace_loss_scale_state scale = TERRACE_INIT(terrace_loss_scale_state);
  terrace_checkpoint facts = TERRACE_INIT(terrace_checkpoint);
};

TEST(CCheckpoints, HaveTheStatesOfAStoreAndFilesOfTheProgram) {
  for (const bool callers : {false, true}) {
    SCOPED_TRACE(callers);
    const ScratchFolder folder;
    capi::Case on_host;
    on_host.callers = callers;
    if (callers) on_host.gradients = TERRACE_HANDED_OVER;
    capi::Training training(on_host, folder.path());
    for (uint64_t step = 1; step <= 3; ++step) training.step(step);
    CheckpointOptions options(folder.path() / "saves");
    terrace_state_writer* writer = nullptr;
    ASSERT_TRUE(is_well(terrace_state_begin(&options.given, &writer)));
    ASSERT_TRUE(is_well(terrace_state_checkpoint(writer, training.get(), &options.facts)));
    ASSERT_TRUE(is_well(terrace_state_file(writer, "mine")));
    ASSERT_TRUE(is_well(terrace_state_write(writer, "1", 1)));
    ASSERT_TRUE(is_well(terrace_state_complete(writer, nullptr, 1)));
    terrace_state_end(writer);
    options.given.file_count = 0;
    options.given.name = nullptr;
    terrace_state_reader* reader = nullptr;
    ASSERT_TRUE(is_well(terrace_state_open(&options.given, &reader)));
    ASSERT_TRUE(is_well(terrace_state_verify(reader)));
    for (uint32_t tensor = 0; tensor < capi::specs().size(); ++tensor) {
      const bool is_frozen = tensor == capi::kFrozen;
      for (uint32_t what = is_frozen ? 0 : 1; what < (is_frozen ? 1 : 4); ++what)
        expect_same_values(training.get(), reader, tensor, what);
    }
    float value = 0;
    expect_kind(TERRACE_MISUSE, terrace_state_values(reader, capi::kFrozen, TERRACE_MASTER, 0, 1, &value));
    expect_kind(TERRACE_MISUSE, terrace_state_values(reader, 0, TERRACE_PARAMETER, 0, 1, &value));
    expect_kind(TERRACE_MISUSE, terrace_state_values(reader, 1000, TERRACE_MASTER, 0, 1, &value));
    expect_kind(TERRACE_MISUSE, terrace_state_values(reader, 0, TERRACE_MASTER, ~uint64_t{0}, 1, &value));
    const char* facts = nullptr;
    ASSERT_TRUE(is_well(terrace_state_facts(reader, &facts)));
    const std::string text = facts;
    for (const char* part :
         {R"("format": "terrace-checkpoint", "version": 5, "run": "00000000000000ff", "step": 3)",
          R"("data_position": {"consumed_samples": 12})", R"("skipped_steps": 1)",
          R"("settings": {"optimizer.type": "\"Adam\""})"})
      EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
    EXPECT_EQ(text.find("apart") != std::string::npos, callers);
    terrace_state_close(reader);
  }
}

// The store goes on, whatever becomes of a save.
TEST(CCheckpoints, AnswerToWhateverIsGiven) {
  const ScratchFolder folder;
  capi::Training training({}, folder.path());
  training.step(1);
  CheckpointOptions options(folder.path() / "saves");
  const auto expect = [&](uint32_t kind, const terrace_checkpoint* facts) {
    terrace_state_writer* writer = nullptr;
    ASSERT_TRUE(is_well(terrace_state_begin(&options.given, &writer)));
    expect_kind(kind, terrace_state_checkpoint(writer, training.get(), facts));
    expect_kind(TERRACE_MISUSE, terrace_state_complete(writer, "facts", 1));
    terrace_state_end(writer);
  };
  expect(TERRACE_MISUSE, nullptr);
  for (const auto member : {&terrace_checkpoint::precision, &terrace_checkpoint::optimizer}) {
    terrace_checkpoint facts = options.facts;
    facts.*member = 9;
    expect(TERRACE_CONFIG, &facts);
  }
  terrace_checkpoint without_run = options.facts;
  without_run.run = 0;
  expect(TERRACE_CONFIG, &without_run);
  options.scale.scale = -1;
  expect(TERRACE_CORRUPT, &options.facts);
  expect_kind(TERRACE_MISUSE, terrace_state_checkpoint(nullptr, training.get(), &options.facts));
  expect_kind(TERRACE_MISUSE, terrace_state_values(nullptr, 0, 0, 0, 0, nullptr));
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "saves" / "latest"));
  training.step(2);
  terrace_state_reader* reader = nullptr;
  expect_kind(TERRACE_IO, terrace_state_open(&options.given, &reader));
}

// A job that died in its first commit leaves a manifest without its name: that is none.
TEST(CCommits, AreThereOrNotBeforeAStoreIsCreated) {
  const ScratchFolder folder;
  const capi::Arguments arguments(capi::kOnNvme, folder.path());
  terrace_options options = arguments.options;
  uint32_t has_commit = 7;
  EXPECT_TRUE(is_well(terrace_has_commit(&options, &has_commit)));
  EXPECT_EQ(has_commit, 0u);
  std::filesystem::create_directory(folder.path() / "terrace-tier");
  std::ofstream(folder.path() / "terrace-tier/commit-0000000000000001.manifest.new") << "cut short";
  EXPECT_TRUE(is_well(terrace_has_commit(&options, &has_commit)));
  EXPECT_EQ(has_commit, 0u);
  std::filesystem::remove_all(folder.path() / "terrace-tier");
  capi::Case on_nvme = capi::kOnNvme;
  on_nvme.durable = 1;
  {
    capi::Training training(on_nvme, folder.path());
    ASSERT_TRUE(is_well(terrace_begin_commit(training.get(), "", 0)));
    ASSERT_TRUE(is_well(terrace_finish_commit(training.get(), nullptr)));
  }
  EXPECT_TRUE(is_well(terrace_has_commit(&options, &has_commit)));
  EXPECT_EQ(has_commit, 1u);
  options.tier_name = "another";
  EXPECT_TRUE(is_well(terrace_has_commit(&options, &has_commit)));
  EXPECT_EQ(has_commit, 0u);
  options.tier_name = "../another";
  expect_kind(TERRACE_CONFIG, terrace_has_commit(&options, &has_commit));
  expect_kind(TERRACE_MISUSE, terrace_has_commit(nullptr, &has_commit));
  expect_kind(TERRACE_MISUSE, terrace_has_commit(&options, nullptr));
}

}  // namespace
}  // namespace terrace::saved_states_test
