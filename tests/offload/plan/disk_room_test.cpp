#include <terrace/offload/plan/disk_room.h>

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include <terrace/aio/file.h>
#include <terrace/base/error.h>
#include <terrace/comm/agreement/rank_votes.h>

#include "comm/thread_world.h"
#include "support/expect_error.h"
#include "support/rank_threads.h"
#include "support/scratch_folder.h"

namespace terrace::disk_room_test {
namespace {

using testing::expect_error;

// A run whose states take so much of a folder.
struct Wish {
  Wish(const std::filesystem::path& folder, uint64_t bytes) {
    options.states = Placement::nvme;
    options.state_paths = {{folder}};
    plan.ring_slot_bytes = 4096;
    plan.record_file_bytes = bytes / 4096 * 4096;
  }
  OffloadOptions options;
  MemoryPlan plan;
};

TEST(DiskRoom, IsRefusedWhereItCannotBe) {
  const ScratchFolder folder;
  const uint64_t free = io::free_bytes_at(folder.path());
  const Wish modest(folder.path(), free / 10 * 6), vast(folder.path(), free / 10 * 12);
  require_disk_room(modest.plan, modest.options);
  expect_error(ErrorKind::capacity, {"no room for what lives on nvme", folder.path().string(), "are missing"},
               [&] { require_disk_room(vast.plan, vast.options); });
}

TEST(DiskRoom, IsAddedUpOfRanksThatShareAFileSystem) {
  const ScratchFolder folder;
  const uint64_t free = io::free_bytes_at(folder.path());
  const auto failures = [&](std::vector<uint64_t> tenths) {
    ThreadWorld world({.ranks = static_cast<uint32_t>(tenths.size())});
    return testing::on_every_rank(world, [&](Communicator& rank) {
      const Wish wish(folder.path(), free / 10 * tenths[rank.rank()]);
      const DiskNeed need = disk_need(wish.plan, wish.options, 0);
      require_disk_room(wish.plan, wish.options, need, RankVotes(&rank).of_all(need));
    });
  };
  const std::vector<std::string> none(2);
  EXPECT_EQ(failures({4, 5}), none);
  EXPECT_EQ(failures({6, 0}), none);  // a rank that owns nothing takes part
  for (const std::string& failure : failures({6, 6})) {
    EXPECT_NE(failure.find("are needed by 2 ranks"), std::string::npos) << failure;
    EXPECT_NE(failure.find("are missing"), std::string::npos) << failure;
  }
}

}  // namespace
}  // namespace terrace::disk_room_test
