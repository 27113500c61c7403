// Law 3, not one byte: whichever byte of a tier's files changes after a commit, the next run says in which
// file, chunk and place before any weight is made of it; or no commit needed that byte, and the state is what
// it was. What a commit needs is decided by a reader that is not the product's.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>
#include <random>

#include <terrace/base/error.h>

#include "laws/kept_states.h"
#include "laws/law_training.h"
#include "laws/naive_tier.h"
#include "support/sanitized.h"
#include "support/scratch_folder.h"

namespace terrace::laws::flip_law_test {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kSteps = 2;
constexpr uint64_t kFlips = 24;  // of a combination

struct Flip {
  fs::path file;
  uint64_t offset;
  unsigned char mask;
};

void apply(const Flip& flip) {
  std::fstream file(flip.file, std::ios::binary | std::ios::in | std::ios::out);
  file.seekg(static_cast<std::streamoff>(flip.offset));
  const int byte = file.get();
  file.seekp(static_cast<std::streamoff>(flip.offset));
  file.put(static_cast<char>(byte ^ flip.mask));
  ASSERT_TRUE(file.flush().good()) << flip.file;
}

// Half of them in tier files, the others in labels and manifests, each file as likely as any other there. The
// first is of a byte that a commit owns: which slots are in use depends on the order in which writes end.
std::vector<Flip> choose_flips(const std::vector<fs::path>& folders, const NaiveTier& naive, size_t seed) {
  std::vector<fs::path> data, words;
  for (const fs::path& folder : folders) {
    for (const auto& entry : fs::directory_iterator(folder)) {
      if (entry.path().filename() == "lock") continue;
      (entry.path().extension() == ".tier" ? data : words).push_back(entry.path());
    }
  }
  std::mt19937_64 random(20260110 + seed);
  std::vector<Flip> flips;
  const auto draw = [&](const std::vector<fs::path>& files) {
    const fs::path& file = files[random() % files.size()];
    return Flip{file, random() % fs::file_size(file), static_cast<unsigned char>(1 + random() % 255)};
  };
  for (uint64_t i = 0; i < kFlips; ++i) {
    Flip flip = draw(i % 2 == 0 ? data : words);
    while (i == 0 && naive.owner(flip.file, flip.offset) == nullptr) flip = draw(data);
    flips.push_back(std::move(flip));
  }
  return flips;
}

// A tier as it was committed, to be put back after each flip.
class KeptTier {
 public:
  explicit KeptTier(const Combination& combination) : c_(combination) {
    LawTraining training(c_, {.folder = folder_.path()});
    while (training.completed_steps() < kSteps) {
      training.choose_mode();
      training.step();
      training.begin_commit();
      training.offloader().commits().finish();
    }
    state_ = training.state();
  }
  void keep() {
    fs::copy(folder_.path(), kept_.path(),
             fs::copy_options::recursive | fs::copy_options::overwrite_existing);
  }
  void put_back() {
    for (const fs::path& path : tier_folders(c_, folder_.path())) fs::remove_all(path);
    fs::copy(kept_.path(), folder_.path(), fs::copy_options::recursive);
  }
  std::vector<fs::path> folders() const {
    std::vector<fs::path> folders;
    for (const fs::path& path : tier_folders(c_, folder_.path())) folders.push_back(path / "terrace-tier");
    return folders;
  }
  // What resuming says; empty: it gave the state as it was.
  std::string resume() {
    try {
      LawTraining training(c_, {.folder = folder_.path(), .start = TierStart::resume});
      return same_bytes(training.state(), state_) && training.completed_steps() == kSteps ? ""
                                                                                          : "another state";
    } catch (const Error& error) {
      return error.what();
    }
  }

 private:
  const Combination& c_;
  ScratchFolder folder_, kept_;
  std::vector<std::byte> state_;
};

// What a reader sees depends neither on the engine that it reads through nor on older commits.
const std::vector<Combination>& combinations() {
  static const std::vector<Combination> list =
      covering_array_with_commits({{kEngine, {"threads"}}, {kRetained, {"0"}}, {kSaves, {"none"}}});
  return list;
}

void expect_named_or_nobodys(size_t number) {
  SCOPED_TRACE(describe(combinations()[number]));
  KeptTier tier(combinations()[number]);
  tier.keep();
  ASSERT_EQ(tier.resume(), "");
  tier.put_back();
  const NaiveTier naive(tier.folders());
  uint64_t owned = 0;
  for (const Flip& flip : choose_flips(tier.folders(), naive, number)) {
    SCOPED_TRACE(fmt::format("{} at {} with {:#x}", flip.file.string(), flip.offset, flip.mask));
    apply(flip);
    const std::string said = tier.resume();
    const NaiveTier::Owner* owner = naive.owner(flip.file, flip.offset);
    ASSERT_NE(said, "another state");
    if (owner != nullptr) {
      ++owned;
      EXPECT_NE(said.find(flip.file.string()), std::string::npos) << said;
      EXPECT_NE(said.find(fmt::format("chunk {}, offset {} ", owner->chunk, owner->block_offset_in_chunk)),
                std::string::npos)
          << said;
    } else if (flip.file.extension() == ".tier") {
      // The mark at the end of a file is no commit's, and yet a file without it is not taken for one.
      EXPECT_TRUE(said.empty() || said.find(flip.file.filename().string()) != std::string::npos) << said;
    } else {
      EXPECT_NE(said.find(flip.file.filename().string()), std::string::npos) << said;
    }
    if (said.empty()) {
      tier.put_back();
    } else {
      apply(flip);  // twice is not at all
    }
  }
  EXPECT_EQ(tier.resume(), "") << "a refused resume changes nothing";
  EXPECT_GT(owned, 0u);
}

class FlipLaw : public ::testing::TestWithParam<size_t> {};

TEST_P(FlipLaw, EveryFlippedByteIsNamedOrNobodys) {
  for (const size_t number : part_of_list(GetParam(), combinations().size(), 2 * testing::kOneIn))
    expect_named_or_nobodys(number);
}

INSTANTIATE_TEST_SUITE_P(Parts, FlipLaw, ::testing::Range(size_t{0}, kParts));

}  // namespace
}  // namespace terrace::laws::flip_law_test
