// Several offloaders on one path: each has the sub-folder of its name, and the tier of none is another's.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include <terrace/base/error.h>
#include <terrace/memory/tier/tier_space.h>
#include <terrace/offload/options/tier_name.h>
#include <terrace/offload/tiers/named_folders.h>

#include "offload/commits/commit_rig.h"
#include "support/expect_error.h"

namespace terrace::tier_name_test {
namespace {

namespace fs = std::filesystem;
using testing::expect_error;

CommitCase named(std::string name, TierStart start = TierStart::fresh) {
  CommitCase c;
  c.parameters = Placement::nvme;
  c.tier_name = std::move(name);
  c.start = start;
  return c;
}

TEST(TierName, LetsTwoOffloadersOfOneProcessTrainSideBySideAndGoOn) {
  const auto states = states_without_commits(named(""), 4);
  const ScratchFolder one, two;
  const std::vector<fs::path> folders = {one.path(), two.path()};
  {
    CommitRig policy(named("policy"), folders), reference(named("reference"), folders);
    policy.step(1);
    reference.step(1);
    policy.offloader->commits().begin(step_info(1));
    reference.step(2);
    policy.offloader->commits().finish();
    reference.offloader->commits().begin(step_info(2));
    policy.step(2);
    reference.offloader->commits().finish();
    EXPECT_EQ(policy.state(), states[2]);
    EXPECT_EQ(reference.state(), states[2]);
  }
  CommitRig policy(named("policy", TierStart::resume), folders);
  CommitRig reference(named("reference", TierStart::resume), folders);
  EXPECT_EQ(policy.offloader->commits().taken_up_info(), step_info(1));
  EXPECT_EQ(reference.offloader->commits().taken_up_info(), step_info(2));
  EXPECT_EQ(policy.state(), states[1]);
  EXPECT_EQ(reference.state(), states[2]);
  policy.step(2);
  reference.step(3);
  EXPECT_EQ(policy.state(), states[2]);
  EXPECT_EQ(reference.state(), states[3]);
}

TEST(TierName, IsRefusedWhileAnotherOffloaderOfThisProcessHasIt) {
  const auto states = states_without_commits(named(""), 2);
  const ScratchFolder folder;
  CommitRig rig(named("policy"), folder.path());
  rig.step(1);
  expect_error(ErrorKind::io, {folder / "policy/terrace-tier", "this process", "OffloadOptions::tier_name"},
               [&] { CommitRig(named("policy"), folder.path()); });
  rig.step(2);
  EXPECT_EQ(rig.state(), states[2]);
}

TEST(TierName, GivesTheFoldersThatATierIsFoundIn) {
  const ScratchFolder folder;
  OffloadOptions options;
  {
    CommitRig rig(named("policy"), folder.path());
    options = rig.options;
    EXPECT_EQ(rig.offloader->report().nvme_paths().front().path, folder / "policy");
    rig.step(1);
    rig.offloader->commits().begin(step_info(1));
    rig.offloader->commits().finish();
  }
  EXPECT_EQ(tier_folders(options), std::vector<fs::path>{folder / "policy"});
  EXPECT_TRUE(look_at_tier(tier_folders(options)).whole);
  options.tier_name = "reference";
  EXPECT_FALSE(look_at_tier(tier_folders(options)).present);
  options.tier_name.clear();
  EXPECT_FALSE(look_at_tier(tier_folders(options)).present);
}

TEST(TierName, ListsEveryFolderOnceAndThoseOfTheStatesFirst) {
  OffloadOptions options;
  options.states = options.parameters = Placement::nvme;
  options.state_paths = {{"/b"}, {"/a/"}};
  options.parameter_paths = {{"/c"}, {"/b"}};
  options.tier_name = "x";
  EXPECT_EQ(tier_folders(options), (std::vector<fs::path>{"/b/x", "/a/x", "/c/x"}));
  options.states = Placement::cpu;
  EXPECT_EQ(tier_folders(options), (std::vector<fs::path>{"/c/x", "/b/x"}));
  options.tier_name.clear();
  EXPECT_EQ(tier_folders(options), (std::vector<fs::path>{"/c", "/b"}));
}

TEST(TierName, IsTheNameOfOneFolder) {
  const ScratchFolder folder;
  for (const std::string& name :
       std::vector<std::string>{"..", "a/b", "/", "a..b", ".hidden", ".", "../a", std::string("a\0b", 3)}) {
    expect_error(ErrorKind::config, {"cannot use the tier name", "OffloadOptions::tier_name"},
                 [&] { CommitRig(named(name), folder.path()); });
  }
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

TEST(TierName, LeavesNoFolderThatItMadeUnlessSomethingIsInIt) {
  const ScratchFolder folder;
  const fs::path made = folder / "policy";
  const auto offload = [&] {
    CommitRig rig(named("policy"), folder.path());
    EXPECT_EQ(fs::status(made).permissions(), fs::perms::owner_all | fs::perms::sticky_bit);
    rig.step(1);
  };
  offload();
  EXPECT_FALSE(fs::exists(made));
  {
    CommitRig rig(named("policy"), folder.path());
    folder.write("policy/notes.txt", "precious");
  }
  EXPECT_TRUE(fs::exists(made / "notes.txt"));
  fs::remove(made / "notes.txt");
  offload();
  EXPECT_FALSE(fs::exists(made));
}

TEST(TierName, LeavesTheFoldersOfOthers) {
  const ScratchFolder folder, elsewhere;
  fs::create_directory(folder / "policy");
  fs::permissions(folder / "policy", fs::perms::owner_all);
  fs::create_directory_symlink(elsewhere.path(), folder / "reference");
  for (const char* const name : {"policy", "reference"}) {
    CommitRig rig(named(name), folder.path());
    rig.step(1);
  }
  EXPECT_TRUE(fs::is_empty(folder / "policy"));
  EXPECT_TRUE(fs::is_symlink(folder / "reference"));
  EXPECT_TRUE(fs::is_empty(elsewhere.path()));
}

// Calls `body` in a process that then ends as if it were killed.
template <typename Body>
void in_a_process_that_dies(Body body) {
  const pid_t child = fork();
  if (child == 0) {
    body();
    kill(getpid(), SIGKILL);
  }
  waitpid(child, nullptr, 0);
}

TEST(TierName, IsRemovedWhereItWasLeftByAJobThatWasKilled) {
  const ScratchFolder folder;
  OffloadOptions options;
  options.states = Placement::nvme;
  options.state_paths = {{folder.path()}};
  options.tier_name = "policy";
  MemoryLog log;
  in_a_process_that_dies([&] { new NamedFolders(options, log); });
  ASSERT_TRUE(fs::is_empty(folder / "policy"));
  {
    CommitRig rig(named("policy"), folder.path());
    rig.step(1);
  }
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

TEST(TierName, IsRemovedByTheLastOfThoseThatUseIt) {
  const ScratchFolder folder;
  OffloadOptions options;
  options.states = Placement::nvme;
  options.state_paths = {{folder.path()}};
  options.tier_name = "policy";
  MemoryLog log;
  auto one = std::make_unique<NamedFolders>(options, log),
       other = std::make_unique<NamedFolders>(options, log);
  one.reset();
  EXPECT_TRUE(fs::exists(folder / "policy"));
  other.reset();
  EXPECT_TRUE(fs::is_empty(folder.path()));
  EXPECT_EQ(log.lines().size(), 0u);
}

// Each of them comes while another one may be removing the folder.
TEST(TierName, IsThereForEveryOneOfManyThatComeAndGo) {
  const ScratchFolder folder;
  OffloadOptions options;
  options.states = Placement::nvme;
  options.state_paths = {{folder.path()}};
  options.tier_name = "policy";
  MemoryLog log;
  std::atomic<int> missing = 0;
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 4; ++i)
      threads.emplace_back([&] {
        for (int round = 0; round < 50; ++round) {
          const NamedFolders folders(options, log);
          missing += fs::exists(folder / "policy") ? 0 : 1;
        }
      });
  }
  EXPECT_EQ(missing, 0);
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

TEST(TierName, LeavesNothingWhereItCannotBegin) {
  const ScratchFolder one, two;
  two.write("policy", "a file");
  expect_error(ErrorKind::io, {two / "policy", "ENOTDIR"}, [&] {
    CommitRig(named("policy"), std::vector{one.path(), two.path()});
  });
  EXPECT_TRUE(fs::is_empty(one.path()));
  EXPECT_THROW(CommitRig(named("policy", TierStart::resume), one.path()), Error);
  EXPECT_TRUE(fs::is_empty(one.path()));
  expect_error(ErrorKind::io, {one / "no/policy", "ENOENT"},
               [&] { CommitRig(named("policy"), one.path() / "no"); });
}

TEST(TierName, IsMadeByNoPlan) {
  const ScratchFolder folder;
  CommitCase c = named("policy");
  c.dry = true;
  const CommitRig rig(c, folder.path());
  EXPECT_TRUE(fs::is_empty(folder.path()));
}

TEST(TierName, IsLeftAloneByAForkedChild) {
  const ScratchFolder folder;
  OffloadOptions options;
  options.states = Placement::nvme;
  options.state_paths = {{folder.path()}};
  options.tier_name = "policy";
  MemoryLog log;
  auto folders = std::make_unique<NamedFolders>(options, log);
  const pid_t child = fork();
  if (child == 0) {
    folders.reset();
    _exit(0);
  }
  waitpid(child, nullptr, 0);
  EXPECT_TRUE(fs::exists(folder / "policy"));
  folders.reset();
  EXPECT_FALSE(fs::exists(folder / "policy"));
}

}  // namespace
}  // namespace terrace::tier_name_test
