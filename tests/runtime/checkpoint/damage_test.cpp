// Whatever has happened to a checkpoint, loading it either gives the state that was saved or says what is
// wrong.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <random>

#include <terrace/runtime/checkpoint/internal/manifest.h>

#include "runtime/checkpoint/checkpoint_rig.h"

namespace terrace::damage_test {
namespace {

using namespace checkpoint_tests;
using checkpoint::kBlockBytes;

class CheckpointDamage : public ::testing::Test {
 protected:
  CheckpointDamage() : rig_(options()) {
    rig_.initialise().train(1, 1);
    path_ = rig_.save(folder_.path(), 1);
    saved_ = rig_.state();
  }
  static RigOptions options() {
    RigOptions options;
    options.unused_columns = 500;  // three and a half blocks
    options.with_frozen = true;
    return options;
  }
  void expect_load_error(ErrorKind kind, const std::vector<std::string>& fragments) {
    expect_error(kind, fragments, [&] { rig_.load(folder_.path()); });
  }

  ScratchFolder folder_;
  TrainingRig rig_;
  fs::path path_;
  std::vector<std::byte> saved_;
};

TEST_F(CheckpointDamage, OfOneByteIsReportedWithFileBlockOffsetAndChecksums) {
  std::mt19937_64 random(20);
  for (const char* name : {"states.bin", "frozen.bin"}) {
    const std::string good = text_of(path_ / name);
    ASSERT_GT(good.size(), kBlockBytes);
    std::vector<size_t> places = {0, kBlockBytes - 1, kBlockBytes, good.size() - 1};
    for (int i = 0; i < 12; ++i) places.push_back(random() % good.size());
    for (const size_t place : places) {
      std::string bad = good;
      bad[place] = static_cast<char>(bad[place] ^ (1 << random() % 8));
      write_text(path_ / name, bad);
      const uint64_t block = place / kBlockBytes;
      expect_load_error(ErrorKind::corrupt, {(path_ / name).string(), fmt::format("block {} (", block),
                                             fmt::format("offset {}", block * kBlockBytes), "checksum is ",
                                             "manifest says ", "another checkpoint"});
    }
    write_text(path_ / name, good);
  }
  rig_.load(folder_.path());
  EXPECT_TRUE(rig_.state() == saved_);
}

TEST_F(CheckpointDamage, InTheFirstBlockChangesNothing) {
  rig_.train(2, 2);
  const std::vector<std::byte> before = rig_.state();
  std::string states = text_of(path_ / "states.bin");
  states[kBlockBytes - 1] ^= 1;  // a byte that the first pieces of the block do not hold
  write_text(path_ / "states.bin", states);
  expect_load_error(ErrorKind::corrupt, {"block 0"});
  EXPECT_TRUE(rig_.state() == before);
}

TEST_F(CheckpointDamage, OfSizesIsReportedBeforeAnythingChanges) {
  rig_.train(2, 2);
  const std::vector<std::byte> before = rig_.state();
  for (const char* name : {"states.bin", "frozen.bin"}) {
    const std::string good = text_of(path_ / name);
    for (const size_t size : {size_t{0}, size_t{1}, kBlockBytes, good.size() - 1, good.size() + 1}) {
      std::string bad = good;
      bad.resize(size);
      write_text(path_ / name, bad);
      expect_load_error(ErrorKind::corrupt, {name, std::to_string(size), std::to_string(good.size())});
    }
    write_text(path_ / name, good);
  }
  EXPECT_TRUE(rig_.state() == before);
}

TEST_F(CheckpointDamage, ByMissingFilesIsReportedBeforeAnythingChanges) {
  rig_.train(2, 2);
  const std::vector<std::byte> before = rig_.state();
  for (const char* name : {"states.bin", "frozen.bin"}) {
    fs::rename(path_ / name, folder_.path() / "away");
    expect_load_error(ErrorKind::io, {(path_ / name).string(), "ENOENT"});
    fs::create_directory(path_ / name);
    expect_load_error(ErrorKind::io, {(path_ / name).string(), "not a regular file"});
    fs::remove(path_ / name);
    fs::rename(folder_.path() / "away", path_ / name);
  }
  fs::rename(path_ / "manifest.json", folder_.path() / "away");
  expect_load_error(ErrorKind::corrupt, {"latest", "step-00000001 lacks its manifest.json"});
  expect_error(ErrorKind::io, {path_.string(), "manifest.json"}, [&] { rig_.load(path_); });
  fs::create_directory(path_ / "manifest.json");
  expect_load_error(ErrorKind::io, {"manifest.json", "not a regular file"});
  EXPECT_TRUE(rig_.state() == before);
}

TEST_F(CheckpointDamage, OfLatestNamesTheCheckpointsThatAreThere) {
  const auto expect_for = [&](const std::string& latest, const std::string& fragment) {
    write_text(folder_.path() / "latest", latest);
    expect_load_error(ErrorKind::corrupt, {"latest", fragment, "step-00000001"});
  };
  expect_for("step-00000009\n", "names step-00000009, which is not there");
  for (const std::string text :
       {"", "\n", "../run/step-00000001\n", "step-00000001/..", "step-00000001\n\n", ".step-00000001"})
    expect_for(text, "does not hold the name of a checkpoint");
  for (const std::string text : {"step-1\n", "step-0000001x\n", "STEP-00000001\n"})
    expect_for(text, "which is not there");
  expect_for(std::string(8, '\0'), "does not hold the name of a checkpoint");
  write_text(folder_.path() / "latest", std::string(5000, 's'));
  EXPECT_THROW(rig_.load(folder_.path()), Error);
  fs::remove(folder_.path() / "latest");
  expect_load_error(ErrorKind::io, {folder_.path().string(), "neither \"latest\"", "step-00000001"});
  fs::remove_all(path_);
  expect_load_error(ErrorKind::io, {"name a folder in which a run has saved checkpoints"});
  write_text(folder_.path() / "config.json", "{}");
  expect_load_error(ErrorKind::io, {"give it as the model"});
  expect_error(ErrorKind::io, {"nowhere", "ENOENT"}, [&] { rig_.load(folder_.path() / "nowhere"); });
}

TEST_F(CheckpointDamage, OfAnyByteOfTheManifestIsReported) {
  const std::string good = text_of(path_ / "manifest.json");
  std::mt19937_64 random(21);
  for (size_t place = 0; place < good.size(); ++place) {
    std::string bad = good;
    bad[place] = static_cast<char>(bad[place] ^ (1 << random() % 8));
    write_text(path_ / "manifest.json", bad);
    expect_error(ErrorKind::corrupt, {(path_ / "manifest.json").string()},
                 [&] { read_checkpoint_info(path_); });
  }
  for (size_t size = 0; size < good.size(); size += size < 40 ? 1 : 37) {
    write_text(path_ / "manifest.json", good.substr(0, size));
    expect_error(ErrorKind::corrupt, {"manifest.json"}, [&] { read_checkpoint_info(path_); });
  }
  write_text(path_ / "manifest.json", good + "\n");
  expect_load_error(ErrorKind::corrupt, {"manifest.json"});
}

TEST_F(CheckpointDamage, IsNotAnotherModel) {
  RigOptions other = options();
  other.unused_columns = 501;
  TrainingRig rig(other);
  rig.initialise();
  const std::vector<std::byte> before = rig.state();
  expect_error(ErrorKind::config, {path_.string(), "\"toy\" with bf16 parameters", "trains \"another toy\""},
               [&] { load_checkpoint(folder_.path(), "another toy", rig.space, *rig.offloader, rig.log); });
  EXPECT_TRUE(rig.state() == before);
}

// A manifest that is whole and of the right tensors, and whose sizes are those of something else.
TEST_F(CheckpointDamage, OfSizesThatAManifestSwearsToIsReported) {
  checkpoint::Manifest manifest =
      checkpoint::parse_manifest(text_of(path_ / "manifest.json"), path_ / "manifest.json");
  const std::string states = text_of(path_ / "states.bin");
  manifest.states.bytes -= RecordLayout{}.tile_bytes();
  write_text(path_ / "manifest.json", checkpoint::manifest_text(manifest));
  write_text(path_ / "states.bin", states.substr(0, manifest.states.bytes));
  expect_load_error(ErrorKind::corrupt, {path_.string(), "states"});
}

}  // namespace
}  // namespace terrace::damage_test
