// Law 3 for saved states, by the calls that the PyTorch engine saves with: whatever the disk holds after the
// power went, the last state whose save had returned is the latest, or a later one, whole. One that is saved
// over itself is there as it was or as it is.
#include <gtest/gtest.h>

#include <terrace/runtime/saved/saved_state.h>

#include "power_cut/cut_power.h"
#include "support/scratch_folder.h"

namespace terrace::saved_state_power_cut_test {
namespace {

namespace fs = std::filesystem;
using power_cut::CutCase;
using power_cut::CutDisk;
using power_cut::DiskLog;

const std::vector<std::string> kFiles = {"weights", "moments"};

void save(const fs::path& folder, const std::string& name, const std::string& text, Log& log) {
  saved::StateWriter writer(folder, name, kFiles, log);
  for (const std::string& file : kFiles) {
    writer.begin_file(file);
    const std::string bytes = text + " " + file + std::string(9000, '.');
    writer.write(std::as_bytes(std::span(bytes)));
  }
  writer.complete(text, true);
}

// The text that a state was saved with, whose every byte is right.
std::string whole_text(const fs::path& folder, const std::optional<std::string>& name) {
  saved::StateReader reader(folder, name, kFiles);
  reader.verify();
  for (const std::string& file : kFiles) {
    std::string bytes(reader.bytes_of(file), ' ');
    reader.read(file, 0, std::as_writable_bytes(std::span(bytes)));
    EXPECT_EQ(bytes, reader.facts() + " " + file + std::string(9000, '.'));
  }
  return reader.facts();
}

TEST(SavedStatePowerCut, LeavesTheLastStateOrALaterOneWhole) {
  const ScratchFolder folder;
  MemoryLog log;
  DiskLog disk_log(folder.path());
  // The second and the last are saved over a state of their name.
  const std::vector<std::string> names = {"last", "last", "other", "last"};
  for (size_t number = 0; number < names.size(); ++number) {
    save(folder.path() / "saves", names[number], std::to_string(number + 1), log);
    disk_log.mark(std::to_string(number + 1));
  }
  uint64_t cuts = 0;
  power_cut::for_each_cut(disk_log.stop(), 20261129, 8, [&](const CutCase& cut, const CutDisk& disk) {
    SCOPED_TRACE(cut.words);
    ++cuts;
    const uint64_t durable = cut.marked.empty() ? 0 : std::stoull(cut.marked);
    const fs::path saves = disk() / "saves";
    uint64_t found = 0;
    try {
      found = std::stoull(whole_text(saves, std::nullopt));
    } catch (const Error& error) {
      EXPECT_EQ(durable, 0u) << error.what();
    }
    EXPECT_GE(found, durable);
    if (durable >= 1) whole_text(saves, "last");
    if (durable >= 3) {
      EXPECT_EQ(whole_text(saves, "other"), "3");
    }
    if (found == 0) return;
    save(saves, "next", "9", log);  // brings the folder in order
    EXPECT_EQ(whole_text(saves, std::nullopt), "9");
    for (const fs::directory_entry& entry : fs::directory_iterator(saves))
      EXPECT_FALSE(entry.path().filename().string().starts_with('.')) << entry.path();
  });
  EXPECT_GT(cuts, 200u);
}

}  // namespace
}  // namespace terrace::saved_state_power_cut_test
