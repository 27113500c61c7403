// Saved states: what is written comes back, what is damaged is named, and nothing but states is ever
// replaced.
#include <terrace/runtime/saved/saved_state.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <optional>

#include <terrace/runtime/saved/save_folder.h>

#include "runtime/checkpoint/checkpoint_rig.h"
#include "support/without_permission.h"

namespace terrace::saved_state_test {
namespace {

using namespace checkpoint_tests;
using saved::StateReader;
using saved::StateWriter;

const std::vector<std::string> kFiles = {"a", "b"};

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

void save(const fs::path& folder, const std::string& name, const std::string& a, Log& log,
          bool set_latest = true) {
  StateWriter writer(folder, name, kFiles, log);
  writer.begin_file("a");
  writer.write(bytes_of(a));
  writer.begin_file("b");
  writer.complete("of a test", set_latest);
}

std::string read_a(StateReader& reader) {
  std::string text(reader.bytes_of("a"), ' ');
  reader.read("a", 0, std::as_writable_bytes(std::span(text)));
  return text;
}

TEST(SavedState, ComesBackByNameAndAsTheLatest) {
  const ScratchFolder folder;
  MemoryLog log;
  const std::string large(3 * saved::kBlockBytes + 7, 'x');
  save(folder.path(), "one", large, log);
  save(folder.path(), "two é", "small", log, false);
  StateReader latest(folder.path(), std::nullopt, kFiles);
  EXPECT_EQ(latest.path(), folder.path() / "one");
  EXPECT_EQ(latest.facts(), "of a test");
  latest.verify();
  EXPECT_EQ(read_a(latest), large);
  std::string part(10, ' ');
  latest.read("a", saved::kBlockBytes - 3, std::as_writable_bytes(std::span(part)));
  EXPECT_EQ(part, std::string(10, 'x'));
  StateReader named(folder.path(), "two é", kFiles);
  EXPECT_EQ(read_a(named), "small");
  EXPECT_EQ(named.bytes_of("b"), 0u);
  EXPECT_TRUE(log.lines().empty());
}

TEST(SavedState, HasTheManifestOfThePage) {
  const ScratchFolder folder;
  MemoryLog log;
  save(folder.path(), "one", "abc", log);
  const std::string page = text_of(fs::path(TERRACE_TEST_SOURCES) / "../docs/saved_state_format.md");
  EXPECT_NE(page.find("```\n" + text_of(folder.path() / "one/manifest.json") + "```\n"), std::string::npos)
      << text_of(folder.path() / "one/manifest.json");
}

TEST(SavedState, NamesTheBlockThatIsDamaged) {
  const ScratchFolder folder;
  MemoryLog log;
  save(folder.path(), "one", std::string(2 * saved::kBlockBytes, 'x'), log);
  const fs::path file = folder.path() / "one/a";
  std::string bytes = text_of(file);
  bytes[saved::kBlockBytes + 5] ^= 1;
  write_text(file, bytes);
  StateReader reader(folder.path(), "one", kFiles);
  expect_error(ErrorKind::corrupt, {file.string(), "block 1", "offset 786432", "manifest says"},
               [&] { reader.verify(); });
  std::string part(4, ' ');
  reader.read("a", 0, std::as_writable_bytes(std::span(part)));
  EXPECT_EQ(part, "xxxx");
  expect_error(ErrorKind::corrupt, {"block 1"},
               [&] { reader.read("a", saved::kBlockBytes, std::as_writable_bytes(std::span(part))); });
  EXPECT_EQ(part, "xxxx");
}

TEST(SavedState, IsReplacedOnlyByItsLike) {
  const ScratchFolder folder;
  MemoryLog log;
  save(folder.path(), "one", "first", log);
  save(folder.path(), "one", "second", log);
  StateReader again(folder.path(), "one", kFiles);
  EXPECT_EQ(read_a(again), "second");
  write_text(folder.path() / "one/notes.txt", "mine");
  expect_error(ErrorKind::config, {"one", "notes.txt"}, [&] { save(folder.path(), "one", "third", log); });
  EXPECT_EQ(text_of(folder.path() / "one/notes.txt"), "mine");
  EXPECT_THAT(hidden_names(folder.path()), ::testing::IsEmpty());
  for (const char* name : {"", ".", "..", "a/b", ".x", "latest", "a\nb", "\xff"})
    expect_error(ErrorKind::config, {"the name"}, [&] { save(folder.path(), name, "", log); });
}

// Other tools have a manifest.json and weights under the same names.
TEST(SavedState, TakesThePlaceOfNothingWhoseManifestIsAnothers) {
  const ScratchFolder folder;
  MemoryLog log;
  for (const char* manifest : {"{\"made by\": \"another tool\"}", "{}", "", "{\"format\": \"pt\"}"}) {
    fs::create_directories(folder.path() / "theirs");
    write_text(folder.path() / "theirs/manifest.json", manifest);
    write_text(folder.path() / "theirs/a", "weights");
    expect_error(ErrorKind::config, {"theirs", "is no checkpoint", "move that away"},
                 [&] { save(folder.path(), "theirs", "new", log); });
    EXPECT_EQ(text_of(folder.path() / "theirs/manifest.json"), manifest);
    EXPECT_EQ(text_of(folder.path() / "theirs/a"), "weights");
  }
  // Ours is replaced though it is damaged.
  save(folder.path(), "one", "first", log);
  const std::string manifest = text_of(folder.path() / "one/manifest.json");
  write_text(folder.path() / "one/manifest.json", manifest.substr(0, manifest.size() / 2));
  fs::remove(folder.path() / "one/a");
  save(folder.path(), "one", "second", log);
  StateReader again(folder.path(), "one", kFiles);
  EXPECT_EQ(read_a(again), "second");
}

// What is given up while no file can be opened is a warning, since nothing may be thrown then.
TEST(SavedState, IsGivenUpWithoutAFileToSpare) {
  const ScratchFolder folder;
  MemoryLog log;
  std::optional<StateWriter> writer(std::in_place, folder.path(), "one", kFiles, log);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{.rlim_cur = 0, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  writer.reset();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  ASSERT_FALSE(log.lines().empty());
  EXPECT_THAT(log.lines().back().text,
              ::testing::AllOf(::testing::HasSubstr(".one.partial"), ::testing::HasSubstr("EMFILE"),
                               ::testing::HasSubstr("by hand")));
}

// What cannot be opened is neither not there nor damaged.
TEST(SavedState, IsNotTakenForAnotherWhereItCannotBeOpened) {
  const ScratchFolder folder;
  MemoryLog log;
  save(folder.path(), "one", "first", log);
  save(folder.path(), "two", "second", log);
  // A job died before it had named "one" the latest.
  write_text(folder / saved::kNextName, saved::next_text("one", text_of(folder / "one/manifest.json")));
  fs::remove(folder / "two/b");
  const saved::StateKind kind{.files = kFiles};
  for (const char* const locked : {"two/manifest.json", "two"}) {
    testing::lock(folder.path(), folder / locked);
    const testing::WithoutPermission nobody;
    expect_error(ErrorKind::io, {"two", "EACCES"}, [&] { saved::require_replaceable(folder / "two", kind); });
  }
  for (const char* const locked : {saved::kNextName, "one/manifest.json", "one"}) {
    testing::lock(folder.path(), folder / locked);
    const testing::WithoutPermission nobody;
    expect_error(ErrorKind::io, {locked, "EACCES"},
                 [&] { StateReader(folder.path(), std::nullopt, kFiles); });
  }
}

TEST(SavedState, LeavesNoTraceWhereItIsGivenUp) {
  const ScratchFolder folder;
  MemoryLog log;
  {
    StateWriter writer(folder.path() / "made", "one", kFiles, log);
    writer.begin_file("a");
    writer.write(bytes_of("half"));
    expect_error(ErrorKind::config, {"it was written already"}, [&] {
      writer.begin_file("b");
      writer.begin_file("b");
    });
    expect_error(ErrorKind::config, {"was not announced"}, [&] { writer.begin_file("c"); });
  }
  EXPECT_TRUE(fs::is_empty(folder.path() / "made"));
}

}  // namespace
}  // namespace terrace::saved_state_test
