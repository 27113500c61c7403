#include <terrace/comm/identity/launcher_claim.h>

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include <terrace/base/error.h>

#include "support/expect_error.h"

namespace terrace::launcher_claim_test {
namespace {

using testing::expect_error;

std::optional<LauncherClaim> claim_by(Launcher launcher, const Environment& variables) {
  for (const LauncherVariables& row : launcher_table())
    if (row.launcher == launcher) return claim_of(variables, row);
  ADD_FAILURE() << "the launcher is not in the table";
  return std::nullopt;
}

TEST(LauncherClaim, SaysWhatToUnset) {
  const auto rank = claim_by(Launcher::torchrun, {{"RANK", "1"}, {"WORLD_SIZE", "4"}});
  ASSERT_TRUE(rank);
  EXPECT_EQ(rank->size_name, "WORLD_SIZE");
  EXPECT_EQ(to_unset(*rank), "RANK and WORLD_SIZE");
  const auto task =
      claim_by(Launcher::slurm, {{"SLURM_STEP_ID", "0"}, {"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "2"}});
  ASSERT_TRUE(task);
  EXPECT_EQ(task->size_name, "SLURM_NTASKS");
  EXPECT_EQ(to_unset(*task), "SLURM_STEP_ID");
}

TEST(LauncherClaim, IsNothingForAnotherLauncher) {
  const Environment torchrun = {{"RANK", "1"}, {"WORLD_SIZE", "4"}};
  for (const LauncherVariables& row : launcher_table())
    EXPECT_EQ(claim_of(torchrun, row).has_value(), row.launcher == Launcher::torchrun) << row.name;
}

TEST(LauncherClaim, NamesTheVariableThatIsMissing) {
  struct Row {
    Launcher launcher;
    Environment variables;
    std::vector<std::string> said;
  };
  const std::vector<Row> rows = {
      {Launcher::torchrun, {{"WORLD_SIZE", "4"}}, {"WORLD_SIZE=4", "RANK is not set"}},
      {Launcher::torchrun, {{"RANK", "1"}}, {"RANK=1", "WORLD_SIZE is not set"}},
      {Launcher::torchrun, {{"RANK", "1"}, {"WORLD_SIZE", ""}}, {"RANK=1", "WORLD_SIZE is not set"}},
      {Launcher::terrace, {{"TERRACE_RANKS", "2"}}, {"TERRACE_RANKS=2", "TERRACE_RANK is not set"}},
      {Launcher::mpich, {{"PMI_SIZE", "2"}}, {"PMI_SIZE=2", "PMI_RANK is not set"}},
      {Launcher::mpich, {{"PMI_RANK", "0"}}, {"PMI_RANK=0", "PMI_SIZE is not set"}},
      {Launcher::openmpi,
       {{"OMPI_COMM_WORLD_SIZE", "2"}},
       {"OMPI_COMM_WORLD_SIZE=2", "OMPI_COMM_WORLD_RANK is not set"}},
      {Launcher::slurm,
       {{"SLURM_STEP_ID", "0"}, {"SLURM_NTASKS", "2"}},
       {"SLURM_NTASKS=2", "SLURM_PROCID is not set"}},
      {Launcher::slurm,
       {{"SLURM_STEP_ID", "0"}, {"SLURM_PROCID", "0"}},
       {"SLURM_PROCID=0", "SLURM_STEP_NUM_TASKS is not set"}},
  };
  for (const Row& row : rows)
    expect_error(ErrorKind::config, row.said, [&] { claim_by(row.launcher, row.variables); });
}

TEST(LauncherClaim, NamesTheVariableThatIsWrong) {
  struct Row {
    Environment variables;
    std::vector<std::string> said;
  };
  const auto world = [](Environment local) {
    local.insert({{"RANK", "1"}, {"WORLD_SIZE", "4"}});
    return local;
  };
  std::vector<Row> rows = {
      {{{"RANK", "0"}, {"WORLD_SIZE", "0"}}, {"WORLD_SIZE=0", "at least one"}},
      {{{"RANK", "4"}, {"WORLD_SIZE", "4"}}, {"RANK=4", "less than WORLD_SIZE=4"}},
      {{{"RANK", "1"}, {"WORLD_SIZE", "1"}}, {"RANK=1", "less than WORLD_SIZE=1"}},
      {{{"RANK", "first"}, {"WORLD_SIZE", "2"}}, {"RANK=first", "whole number"}},
      {world({{"LOCAL_RANK", "4"}}), {"LOCAL_RANK=4", "less than WORLD_SIZE=4"}},
      {world({{"LOCAL_RANK", "2"}, {"LOCAL_WORLD_SIZE", "2"}}), {"LOCAL_RANK=2", "LOCAL_WORLD_SIZE=2"}},
      {world({{"LOCAL_WORLD_SIZE", "5"}}), {"LOCAL_WORLD_SIZE=5", "WORLD_SIZE=4"}},
      {world({{"LOCAL_WORLD_SIZE", "0"}}), {"LOCAL_WORLD_SIZE=0"}},
      {world({{"LOCAL_RANK", "x"}}), {"LOCAL_RANK=x", "whole number"}},
  };
  for (const char* text :
       {"two", "2x", " 2", "2 ", "-2", "+2", "2.0", "0x2", "4294967296", "99999999999999999999"})
    rows.push_back(
        {{{"RANK", "0"}, {"WORLD_SIZE", text}}, {std::string("WORLD_SIZE=") + text, "whole number"}});
  for (const Row& row : rows)
    expect_error(ErrorKind::config, row.said, [&] { claim_by(Launcher::torchrun, row.variables); });
  Environment task = {
      {"SLURM_STEP_ID", "0"}, {"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "2"}, {"SLURM_LOCALID", "2"}};
  expect_error(ErrorKind::config, {"SLURM_LOCALID=2", "SLURM_NTASKS=2"},
               [&] { claim_by(Launcher::slurm, task); });
}

}  // namespace
}  // namespace terrace::launcher_claim_test
