// A save by a thread of its own: what it leaves on the disk is what a save that training waits for leaves.
#include <terrace/runtime/checkpoint/background_save.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <condition_variable>
#include <mutex>

#include "runtime/checkpoint/checkpoint_rig.h"

namespace terrace::background_save_test {
namespace {

using namespace checkpoint_tests;

// A copy of the state as it was, given only as far as the test allows.
class HeldSource final : public StateSource {
 public:
  HeldSource(Offloader& offloader, const FlatSpace& flat_space) : space_(flat_space) {
    offloader.state().export_records(
        [&](auto run) { states_.insert(states_.end(), run.begin(), run.end()); });
    offloader.state().export_frozen([&](auto run) { frozen_.insert(frozen_.end(), run.begin(), run.end()); });
  }

  const FlatSpace& space() const override { return space_; }
  RecordLayout layout() const override { return {}; }
  uint64_t states_bytes() const override { return states_.size(); }
  uint64_t frozen_bytes() const override { return frozen_.size(); }
  void read_states(Sink sink) override {
    const auto whole = std::span<const std::byte>(states_);
    sink(whole.first(RecordLayout{}.tile_bytes()));
    while (endless_) sink(whole.first(RecordLayout{}.tile_bytes()));  // until it is given up
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return released_; });
    if (!failure_.empty()) throw Error(ErrorKind::corrupt, {"cannot read", failure_, "it is bad", "stop"});
    sink(whole.subspan(RecordLayout{}.tile_bytes()));
  }
  void read_frozen(Sink sink) override { sink(frozen_); }
  bool clone_states(int fd) override {
    if (!can_clone_) return false;
    return pwrite(fd, states_.data(), states_.size(), 0) == static_cast<ssize_t>(states_.size());
  }

  void release(std::string failure = "") {
    const std::scoped_lock lock(mutex_);
    failure_ = std::move(failure);
    released_ = true;
    changed_.notify_all();
  }
  void let_clone() { can_clone_ = true; }
  void never_end() { endless_ = true; }

 private:
  const FlatSpace& space_;
  std::vector<std::byte> states_, frozen_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool released_ = false;
  bool can_clone_ = false;
  bool endless_ = false;
  std::string failure_;
};

RigOptions small_with_frozen() {
  RigOptions options;
  options.unused_columns = 1000;
  options.with_frozen = true;
  return options;
}

CheckpointInfo info_of(TrainingRig& rig, uint64_t step) {
  CheckpointInfo info = rig.info(step);
  info.tensor_hash = hash_of_tensors(rig.space);
  return info;
}

void expect_same_files(const fs::path& one, const fs::path& other) {
  std::vector<std::string> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(one)) {
    names.push_back(entry.path().filename());
    EXPECT_TRUE(text_of(entry.path()) == text_of(other / names.back())) << names.back();
  }
  EXPECT_EQ(names.size(), 3u);
}

TEST(BackgroundSave, LeavesTheBytesOfASaveOfItsStepWhileTrainingGoesOn) {
  for (const bool cloned : {false, true}) {
    SCOPED_TRACE(cloned);
    const ScratchFolder folder;
    TrainingRig rig(small_with_frozen());
    rig.initialise().train(1, 1).save(folder.path() / "waited", 1);
    auto source = std::make_unique<HeldSource>(*rig.offloader, rig.space);
    HeldSource& held = *source;
    if (cloned) held.let_clone();
    const CheckpointFolder saves(folder.path() / "meanwhile", rig.log);
    BackgroundSave save(saves, info_of(rig, 1), std::move(source), rig.log);
    rig.train(2, 3);
    EXPECT_FALSE(save.done());
    EXPECT_FALSE(fs::exists(folder.path() / "meanwhile" / "latest"));
    held.release();
    EXPECT_EQ(save.finish(), folder.path() / "meanwhile" / "step-00000001");
    expect_same_files(folder.path() / "waited" / "step-00000001",
                      folder.path() / "meanwhile" / "step-00000001");
    EXPECT_EQ(read_checkpoint_info(folder.path() / "meanwhile").step, 1u);
  }
}

TEST(BackgroundSave, FailsWhereItIsFinishedAndLeavesTheCheckpointBefore) {
  const ScratchFolder folder;
  TrainingRig rig(small_with_frozen());
  rig.initialise().train(1, 1).save(folder.path(), 1);
  rig.train(2, 2);
  auto source = std::make_unique<HeldSource>(*rig.offloader, rig.space);
  HeldSource& held = *source;
  const CheckpointFolder saves(folder.path(), rig.log);
  BackgroundSave save(saves, info_of(rig, 2), std::move(source), rig.log);
  held.release("block 3");
  expect_error(ErrorKind::corrupt, {"block 3"}, [&] { save.finish(); });
  EXPECT_EQ(read_checkpoint_info(folder.path()).step, 1u);
  EXPECT_THAT(hidden_names(folder.path()), ::testing::IsEmpty());
}

TEST(BackgroundSave, ThatNobodyWaitsForLeavesNothing) {
  const ScratchFolder folder;
  TrainingRig rig(small_with_frozen());
  rig.initialise().train(1, 1).save(folder.path(), 1);
  rig.train(2, 2);
  auto source = std::make_unique<HeldSource>(*rig.offloader, rig.space);
  source->never_end();
  const CheckpointFolder saves(folder.path(), rig.log);
  std::make_unique<BackgroundSave>(saves, info_of(rig, 2), std::move(source), rig.log).reset();
  EXPECT_EQ(read_checkpoint_info(folder.path()).step, 1u);
  EXPECT_FALSE(fs::exists(folder.path() / "step-00000002"));
  EXPECT_THAT(hidden_names(folder.path()), ::testing::IsEmpty());
}

}  // namespace
}  // namespace terrace::background_save_test
