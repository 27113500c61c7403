// Law 3, not one byte: whichever byte of a tier's files changes after a commit, the next run says in which
// file, chunk and place before any weight is made of it; or no epoch needed that byte, and the state is what
// it was. What an epoch needs is decided by a reader that is not the product's.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>
#include <random>

#include <terrace/base/error.h>

#include "laws/durable_toy.h"
#include "laws/naive_tier.h"
#include "support/sanitized.h"

namespace terrace {
namespace {

namespace fs = std::filesystem;
using laws::DurableToy;
using laws::DurableToyOptions;
using laws::NaiveTier;

constexpr uint64_t kSteps = 3;
constexpr uint64_t kFlips = 1000 / testing::kOneIn;

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

// Half of them in tier files, the others in labels and manifests, each file as likely as any other there.
std::vector<Flip> choose_flips(const std::vector<fs::path>& folders) {
  std::vector<fs::path> data, words;
  for (const fs::path& folder : folders) {
    for (const auto& entry : fs::directory_iterator(folder)) {
      if (entry.path().filename() == "lock") continue;
      (entry.path().extension() == ".tier" ? data : words).push_back(entry.path());
    }
  }
  std::mt19937_64 random(20260110);
  std::vector<Flip> flips;
  for (uint64_t i = 0; i < kFlips; ++i) {
    const std::vector<fs::path>& files = i % 2 == 0 ? data : words;
    const fs::path& file = files[random() % files.size()];
    flips.push_back({file, random() % fs::file_size(file), static_cast<unsigned char>(1 + random() % 255)});
  }
  return flips;
}

// Where the space lies and as it was committed, to be put back after each flip.
class Tier {
 public:
  Tier() {
    for (const char* name : {"a", "b"}) {
      fs::create_directory(folder_.path() / name);
      options_.paths.push_back(folder_.path() / name);
    }
    options_.cached_records = 4;
    DurableToy toy(options_);
    toy.initialise();
    for (uint64_t step = 1; step <= kSteps; ++step) {
      toy.train(step);
      toy.begin_commit(step);
      toy.offloader->finish_commit();
    }
    state_ = toy.state();
  }
  void keep() {
    fs::copy(folder_.path(), kept_.path(),
             fs::copy_options::recursive | fs::copy_options::overwrite_existing);
  }
  void put_back() {
    for (const fs::path& path : options_.paths) fs::remove_all(path);
    fs::copy(kept_.path(), folder_.path(), fs::copy_options::recursive);
  }
  std::vector<fs::path> folders() const {
    std::vector<fs::path> folders;
    for (const fs::path& path : options_.paths) folders.push_back(path / "terrace-tier");
    return folders;
  }
  // What resuming says; empty: it gave the state as it was.
  std::string resume() {
    DurableToyOptions options = options_;
    options.start = TierStart::resume;
    try {
      DurableToy toy(options);
      return toy.state() == state_ && toy.taken_up_step() == kSteps ? "" : "another state";
    } catch (const Error& error) {
      return error.what();
    }
  }

 private:
  toy::ScratchFolder folder_, kept_;
  DurableToyOptions options_;
  std::vector<std::byte> state_;
};

TEST(FlipLaw, EveryFlippedByteIsNamedOrNobodys) {
  Tier tier;
  tier.keep();
  ASSERT_EQ(tier.resume(), "");
  tier.put_back();
  const NaiveTier naive(tier.folders());
  uint64_t owned = 0, words = 0, nobodys = 0;
  for (const Flip& flip : choose_flips(tier.folders())) {
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
      ++nobodys;
      // The mark at the end of a file is no epoch's, and yet a file without it is not taken for one.
      EXPECT_TRUE(said.empty() || said.find(flip.file.filename().string()) != std::string::npos) << said;
    } else {
      ++words;
      EXPECT_NE(said.find(flip.file.filename().string()), std::string::npos) << said;
    }
    if (said.empty()) {
      tier.put_back();
    } else {
      apply(flip);  // twice is not at all
    }
  }
  EXPECT_EQ(tier.resume(), "") << "a refused resume changes nothing";
  EXPECT_GT(owned, 100 / testing::kOneIn);
  EXPECT_GT(nobodys, 50 / testing::kOneIn);
  EXPECT_EQ(words, kFlips / 2);
}

}  // namespace
}  // namespace terrace
