// The place of a process among those of a launcher, from the variables that the launcher has set.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <string>

#include <terrace_run.h>

#include "capi/capi_rig.h"

namespace terrace::ranks_test {
namespace {

using capi::expect_kind;
using capi::is_well;

// Takes away what the run's own launcher may have set, and after each test what that has set.
class CRanks : public ::testing::Test {
 protected:
  CRanks() {
    for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "TERRACE_RANK",
                             "TERRACE_RANKS", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_RANK",
                             "PMI_SIZE", "SLURM_STEP_ID", "MASTER_ADDR", "MASTER_PORT"})
      unsetenv(name);
  }
  ~CRanks() override { unsetenv("RANK"), unsetenv("WORLD_SIZE"); }

  terrace_error* look() { return terrace_launched(&rank_, &ranks_, &launcher_); }

  uint32_t rank_ = 77;
  uint32_t ranks_ = 77;
  const char* launcher_ = nullptr;
};

TEST_F(CRanks, AreThoseOfTheLauncher) {
  is_well(look());
  EXPECT_EQ(rank_, 0u);
  EXPECT_EQ(ranks_, 1u);
  EXPECT_STREQ(launcher_, "");
  setenv("RANK", "1", 1);
  setenv("WORLD_SIZE", "3", 1);
  is_well(look());
  EXPECT_EQ(rank_, 1u);
  EXPECT_EQ(ranks_, 3u);
  EXPECT_STREQ(launcher_, "torchrun");
}

TEST_F(CRanks, AreRefusedWhereVariablesContradictEachOther) {
  setenv("RANK", "3", 1);
  setenv("WORLD_SIZE", "3", 1);
  expect_kind(TERRACE_CONFIG, look());
  unsetenv("WORLD_SIZE");
  terrace_error* half = look();
  EXPECT_NE(std::string(terrace_error_text(half)).find("WORLD_SIZE is not set"), std::string::npos);
  terrace_error_free(half);
  EXPECT_EQ(ranks_, 77u);
  expect_kind(TERRACE_MISUSE, terrace_launched(&rank_, &ranks_, nullptr));
}

}  // namespace
}  // namespace terrace::ranks_test
