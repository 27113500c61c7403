// What is remembered of a measured path, and when it is believed.
#include <terrace/runtime/config/tuning/tuning.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

#include <terrace/base/error.h>

#include "support/expect_error.h"
#include "support/scratch_folder.h"

namespace terrace::tuning_test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

PathTuning sample(const TunedPlace& place = {"machine-1", "/mnt/a \"b\"", "259:0 nvme0n1 Fast", "6.1"}) {
  return {place, "2026-01-31T12:00:00Z", io::EngineKind::libaio, 524288, 16, 2, 3.25e9, 2.5e9, 2.875e9};
}

// Whether the text is refused, and why.
std::string trouble(const std::string& text) {
  try {
    parse_tuning(text, "tune.json");
  } catch (const Error& error) {
    return error.what();
  }
  return "none";
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(Tuning, IsReadBackAsItWasWritten) {
  EXPECT_EQ(parse_tuning(tuning_text(sample()), "tune.json"), sample());
}

TEST(Tuning, OfAnythingButItsOwnFormIsRefused) {
  const std::string good = tuning_text(sample());
  EXPECT_EQ(trouble(good), "none");
  const std::vector<std::pair<std::string, std::string>> changes = {
      {"\"format\": 1", "\"format\": 2"},
      {"524288", "524289"},
      {"524288", "0"},
      {"\"queue_depth\": 16", "\"queue_depth\": 1.5"},
      {"\"queue_depth\": 16", "\"queue_depth\": 5000"},
      {"libaio", "laio"},
      {"\"kernel\": \"6.1\"", "\"kernel\": 6.1"},
      {"\"kernel\": \"6.1\",", ""},
      {"3250000000", "-1"},
      {"3250000000", "1e300"},
      {"\"format\"", "\"more\": 1, \"format\""},
  };
  for (const auto& [from, to] : changes)
    EXPECT_THAT(trouble(replaced(good, from, to)), HasSubstr("tune.json"));
  for (size_t length = 0; length + 2 < good.size(); length += 7)
    EXPECT_NE(trouble(good.substr(0, length)), "none") << length;
  EXPECT_NE(trouble("[]"), "none");
  EXPECT_NE(trouble(good + good), "none");
}

class TuningCache : public ::testing::Test {
 protected:
  TuningCache() : place_(find_tuned_place(disk_.path())) {}

  std::string why_not(const TunedPlace& place) {
    std::string reason;
    EXPECT_FALSE(find_tuning(cache(), place, reason).has_value());
    return reason;
  }
  fs::path cache() const { return home_ / "below" / "terrace"; }

  ScratchFolder home_;
  ScratchFolder disk_;
  ScratchFolder other_disk_;
  TunedPlace place_;
};

TEST_F(TuningCache, RemembersAPathUntilItsDriveOrTheKernelIsAnother) {
  EXPECT_THAT(why_not(place_), IsEmpty());
  save_tuning(cache(), sample(place_));
  std::string reason;
  EXPECT_EQ(find_tuning(cache(), place_, reason), sample(place_));
  TunedPlace changed = place_;
  changed.kernel += "-next";
  EXPECT_EQ(why_not(changed), "the kernel changed since 2026-01-31T12:00:00Z");
  changed = place_;
  changed.device = "8:0 sda";
  EXPECT_EQ(why_not(changed), "the drive changed since 2026-01-31T12:00:00Z");
  // Another machine with the same home, and another path, have files of their own.
  changed = place_;
  changed.machine = "other";
  EXPECT_THAT(why_not(changed), IsEmpty());
  EXPECT_THAT(why_not(find_tuned_place(other_disk_.path())), IsEmpty());
  save_tuning(cache(), sample(place_));
  EXPECT_EQ(std::distance(fs::directory_iterator(cache()), fs::directory_iterator()), 1);
}

TEST_F(TuningCache, KnowsAPathByAnyOfItsNames) {
  fs::create_directory_symlink(disk_.path(), other_disk_ / "link");
  EXPECT_EQ(find_tuned_place(other_disk_ / "link"), place_);
}

TEST_F(TuningCache, SaysWhatIsWrongWithADamagedFile) {
  save_tuning(cache(), sample(place_));
  std::ofstream(tuning_file(cache(), place_)) << "{";
  EXPECT_THAT(why_not(place_), HasSubstr(tuning_file(cache(), place_).string()));
}

}  // namespace
}  // namespace terrace::tuning_test
