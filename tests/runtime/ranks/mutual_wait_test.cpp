// When ranks that wait for each other are given up, and when not.
#include <terrace/runtime/ranks/mutual_wait.h>

#include <gtest/gtest.h>

#include <vector>

namespace terrace::mutual_wait_test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

KnownStanding waiting(uint64_t operations) {
  KnownStanding known;
  known.standing.waits_for_ranks = true;
  known.standing.operations[0] = operations;
  return known;
}

class Looks {
 public:
  // Looks every second for so long; true where the ranks are given up.
  bool for_seconds(uint32_t count, const std::vector<KnownStanding>& all) {
    bool found = false;
    for (uint32_t i = 0; i < count; ++i) found = wait_.look(all, now_ += seconds(1)) || found;
    return found;
  }

 private:
  MutualWait wait_;
  MutualWait::Moment now_{};
};

constexpr uint32_t kLong = MutualWait::kPatience.count();

TEST(MutualWait, IsFoundWhereAllWaitForLongAndNothingMoves) {
  Looks looks;
  const std::vector<KnownStanding> all = {waiting(3), waiting(4)};
  EXPECT_FALSE(looks.for_seconds(kLong, all));
  EXPECT_TRUE(looks.for_seconds(1, all));
}

TEST(MutualWait, IsNoneWhereOneComputes) {
  Looks looks;
  std::vector<KnownStanding> all = {waiting(3), waiting(4)};
  EXPECT_FALSE(looks.for_seconds(kLong, all));
  all[1].standing.waits_for_ranks = false;
  EXPECT_FALSE(looks.for_seconds(3 * kLong, all));
  all[1].standing.waits_for_ranks = true;  // the time begins anew
  EXPECT_FALSE(looks.for_seconds(kLong, all));
}

TEST(MutualWait, IsNoneWhereOperationsAreCarriedOut) {
  Looks looks;
  for (uint64_t operations = 0; operations < 5; ++operations)
    EXPECT_FALSE(looks.for_seconds(kLong, {waiting(operations), waiting(0)}));
}

TEST(MutualWait, IsNoneWhereOneIsSilent) {
  Looks looks;
  std::vector<KnownStanding> all = {waiting(3), waiting(4)};
  all[0].age = milliseconds(4000);
  EXPECT_FALSE(looks.for_seconds(3 * kLong, all));
  EXPECT_FALSE(Looks().for_seconds(3 * kLong, {}));
}

}  // namespace
}  // namespace terrace::mutual_wait_test
