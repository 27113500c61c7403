// Saved states: what is written comes back, what is damaged is named, and nothing but states is ever
// replaced.
#include <terrace/runtime/saved/saved_state.h>

#include <gtest/gtest.h>

#include "runtime/train/checkpoint/checkpoint_rig.h"

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
