#include <terrace/comm/identity/rank_identity.h>

#include <gtest/gtest.h>

#include <array>
#include <optional>
#include <string>
#include <vector>

#include <terrace/base/error.h>

#include "support/expect_error.h"

namespace terrace::rank_identity_test {
namespace {

using testing::expect_error;

constexpr std::nullopt_t unknown = std::nullopt;

Environment joined(Environment one, const Environment& other) {
  one.insert(other.begin(), other.end());
  return one;
}

// A job step as srun sets it up; `per_host` is SLURM_STEP_TASKS_PER_NODE.
Environment slurm_step(int rank, int tasks, int hosts, const std::string& per_host, int host,
                       int local_rank) {
  return {{"SLURM_JOB_ID", "77"},
          {"SLURM_STEP_ID", "0"},
          {"SLURM_PROCID", std::to_string(rank)},
          {"SLURM_NTASKS", std::to_string(tasks)},
          {"SLURM_STEP_NUM_TASKS", std::to_string(tasks)},
          {"SLURM_STEP_NUM_NODES", std::to_string(hosts)},
          {"SLURM_STEP_TASKS_PER_NODE", per_host},
          {"SLURM_NODEID", std::to_string(host)},
          {"SLURM_LOCALID", std::to_string(local_rank)}};
}

// A script of sbatch that asked for eight tasks; only Slurm's own process of the job is running.
const Environment kBatchScript = {
    {"SLURM_JOB_ID", "77"}, {"SLURM_NTASKS", "8"},  {"SLURM_NPROCS", "8"}, {"SLURM_TASKS_PER_NODE", "8"},
    {"SLURM_PROCID", "0"},  {"SLURM_LOCALID", "0"}, {"SLURM_NODEID", "0"}};
const Environment kTorchrun = {{"RANK", "5"},        {"WORLD_SIZE", "8"},
                               {"LOCAL_RANK", "1"},  {"LOCAL_WORLD_SIZE", "4"},
                               {"MASTER_ADDR", "a"}, {"MASTER_PORT", "29500"}};
const Environment kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "5"},
                              {"OMPI_COMM_WORLD_SIZE", "8"},
                              {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                              {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}};

TEST(RankIdentity, IsAloneWhereNoLauncherSpeaksOfMore) {
  Environment interactive = slurm_step(0, 1, 1, "1", 0, 0);
  interactive["SLURM_NTASKS"] = "8";  // srun was told to preserve it
  for (const Environment& variables : {
           Environment{},
           Environment{{"PATH", "/bin"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "none"}},
           Environment{{"RANK", ""}, {"WORLD_SIZE", ""}},
           Environment{{"WORLD_SIZE", "1"}},
           Environment{{"RANK", "0"}, {"WORLD_SIZE", "1"}},
           Environment{{"TERRACE_RANK", "0"}, {"TERRACE_RANKS", "1"}, {"TERRACE_MEET", "nowhere"}},
           Environment{{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}},
           Environment{{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}},
           Environment{{"LOCAL_RANK", "3"}},
           Environment{{"SLURM_NTASKS", "8"}},  // the shell of salloc
           kBatchScript,
           slurm_step(0, 1, 1, "1", 0, 0),
           interactive,
           joined(kBatchScript, {{"RANK", "0"}, {"WORLD_SIZE", "1"}}),
       })
    EXPECT_EQ(identify_rank(variables), RankIdentity{});
}

TEST(RankIdentity, ReadsWhatEachLauncherLeaves) {
  const RendezvousPlace a{"a", 29500};
  struct Row {
    const char* what;
    Environment variables;
    RankIdentity expected;
  };
  const Environment terrace = {{"TERRACE_RANK", "2"}, {"TERRACE_RANKS", "4"}};
  const std::vector<Row> rows = {
      {"terrace", terrace, {2, 4, unknown, unknown, Launcher::terrace}},
      {"terrace, whole",
       joined(terrace,
              {{"TERRACE_LOCAL_RANK", "0"}, {"TERRACE_LOCAL_RANKS", "2"}, {"TERRACE_MEET", "a:29500"}}),
       {2, 4, 0, 2, Launcher::terrace, a}},
      {"Open MPI", kOpenMpi, {5, 8, 1, 4, Launcher::openmpi}},
      {"MPICH",
       {{"PMI_RANK", "3"}, {"PMI_SIZE", "4"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}},
       {3, 4, 1, 2, Launcher::mpich}},
      {"PMI alone", {{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}}, {0, 2, unknown, unknown, Launcher::mpich}},
      {"torchrun", kTorchrun, {5, 8, 1, 4, Launcher::torchrun, a}},
      {"what sets only the two",
       {{"RANK", "1"}, {"WORLD_SIZE", "2"}},
       {1, 2, unknown, unknown, Launcher::torchrun}},
      {"srun", slurm_step(9, 11, 3, "4(x2),3", 2, 1), {9, 11, 1, 3, Launcher::slurm}},
      {"srun, second host", slurm_step(4, 11, 3, "4(x2),3", 1, 0), {4, 11, 0, 4, Launcher::slurm}},
      {"srun of another form", slurm_step(4, 11, 3, "4*2,3", 1, 0), {4, 11, 0, unknown, Launcher::slurm}},
      {"srun with too few hosts", slurm_step(4, 11, 3, "4(x2)", 2, 0), {4, 11, 0, unknown, Launcher::slurm}},
      {"srun with an open bracket", slurm_step(4, 11, 3, "4(x", 1, 0), {4, 11, 0, unknown, Launcher::slurm}},
      {"srun that contradicts itself",
       slurm_step(4, 11, 3, "2(x3)", 1, 3),
       {4, 11, 3, unknown, Launcher::slurm}},
      {"an old srun",
       {{"SLURM_STEP_ID", "3"}, {"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "2"}},
       {1, 2, unknown, unknown, Launcher::slurm}},
      {"srun with a place to meet",
       joined(slurm_step(1, 2, 1, "2", 0, 1), {{"MASTER_ADDR", "a"}, {"MASTER_PORT", "29500"}}),
       {1, 2, 1, 2, Launcher::slurm, a}},
      {"half a place, where nobody meets",
       joined(kOpenMpi, {{"MASTER_ADDR", "a"}}),
       {5, 8, 1, 4, Launcher::openmpi}},
  };
  for (const Row& row : rows) EXPECT_EQ(identify_rank(row.variables), row.expected) << row.what;
}

TEST(RankIdentity, TakesLaunchersThatAgree) {
  const RendezvousPlace a{"a", 29500};
  const Environment bare = {{"RANK", "5"}, {"WORLD_SIZE", "8"}};
  struct Row {
    const char* what;
    Environment variables;
    RankIdentity expected;
  };
  const std::vector<Row> rows = {
      {"torchrun in a script of sbatch",
       joined(kTorchrun, kBatchScript),
       {5, 8, 1, 4, Launcher::torchrun, a}},
      {"torchrun in a step of one task",
       joined(kTorchrun, slurm_step(0, 1, 1, "1", 0, 0)),
       {5, 8, 1, 4, Launcher::torchrun, a}},
      {"mpirun in a script of sbatch", joined(kOpenMpi, kBatchScript), {5, 8, 1, 4, Launcher::openmpi}},
      {"variables of torch that a script sets under mpirun",
       joined(kOpenMpi, kTorchrun),
       {5, 8, 1, 4, Launcher::openmpi, a}},
      {"PMI of Slurm",
       joined(slurm_step(5, 8, 2, "4(x2)", 1, 1), {{"PMI_RANK", "5"}, {"PMI_SIZE", "8"}}),
       {5, 8, 1, 4, Launcher::mpich}},
      {"Slurm says the local rank that a script leaves out",
       joined(slurm_step(5, 8, 2, "4(x2)", 1, 1), bare),
       {5, 8, 1, 4, Launcher::torchrun}},
      {"a local rank of a script that shows one GPU to each",
       joined(slurm_step(5, 8, 2, "4(x2)", 1, 1), joined(bare, {{"LOCAL_RANK", "0"}})),
       {5, 8, 0, unknown, Launcher::torchrun}},
  };
  for (const Row& row : rows) EXPECT_EQ(identify_rank(row.variables), row.expected) << row.what;
}

// On each host, srun starts a torchrun or a daemon of mpirun, and that starts ranks.
TEST(RankIdentity, TellsTasksThatAreAgentsFromRanks) {
  const Environment agents = slurm_step(1, 2, 2, "1(x2)", 1, 0);
  EXPECT_EQ(identify_rank(joined(kTorchrun, agents)).rank, 5u);
  EXPECT_EQ(identify_rank(joined(kOpenMpi, agents)), (RankIdentity{5, 8, 1, 4, Launcher::openmpi}));
  // A torchrun with one rank on each host may count the hosts in an order of its own.
  const Environment one_each = {
      {"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "0"}, {"LOCAL_WORLD_SIZE", "1"}};
  EXPECT_EQ(identify_rank(joined(one_each, agents)), (RankIdentity{0, 2, 0, 1, Launcher::torchrun}));
  // Each task has started a run of its own.
  Environment own_run = kTorchrun;
  own_run["LOCAL_WORLD_SIZE"] = "8";
  expect_error(ErrorKind::config, {"WORLD_SIZE=8", "SLURM_STEP_NUM_TASKS=2"},
               [&] { identify_rank(joined(own_run, agents)); });
  expect_error(ErrorKind::config, {"WORLD_SIZE=2", "SLURM_STEP_NUM_TASKS=4"},
               [&] { identify_rank(joined(one_each, slurm_step(1, 4, 4, "1(x4)", 1, 0))); });
  // There are several tasks on a host.
  expect_error(ErrorKind::config, {"WORLD_SIZE=8", "SLURM_STEP_NUM_TASKS=4"},
               [&] { identify_rank(joined(kTorchrun, slurm_step(1, 4, 2, "2(x2)", 0, 1))); });
}

TEST(RankIdentity, RefusesLaunchersThatContradictEachOther) {
  struct Row {
    Environment variables;
    std::vector<std::string> said;
  };
  Environment other_rank = kTorchrun;
  other_rank["RANK"] = "6";
  const std::vector<Row> rows = {
      {joined(kOpenMpi, other_rank),
       {"OMPI_COMM_WORLD_RANK=5 and RANK=6", "Open MPI", "torchrun", "unset",
        "OMPI_COMM_WORLD_RANK and OMPI_COMM_WORLD_SIZE, or RANK and WORLD_SIZE"}},
      {joined(kOpenMpi, {{"PMI_RANK", "5"}, {"PMI_SIZE", "16"}}),
       {"OMPI_COMM_WORLD_SIZE=8 and PMI_SIZE=16", "PMI_RANK and PMI_SIZE"}},
      {joined(kOpenMpi, {{"TERRACE_RANK", "1"}, {"TERRACE_RANKS", "2"}}),
       {"TERRACE_RANKS=2 and OMPI_COMM_WORLD_SIZE=8"}},
      {joined(kTorchrun, slurm_step(2, 4, 1, "4", 0, 2)),
       {"WORLD_SIZE=8 and SLURM_STEP_NUM_TASKS=4", "or SLURM_STEP_ID"}},
      {{{"RANK", "2"},
        {"WORLD_SIZE", "4"},
        {"SLURM_STEP_ID", "0"},
        {"SLURM_PROCID", "1"},
        {"SLURM_NTASKS", "4"}},
       {"RANK=2 and SLURM_PROCID=1"}},
      // The third one does not agree with the first two.
      {joined(joined(kOpenMpi, kTorchrun), {{"TERRACE_RANK", "0"}, {"TERRACE_RANKS", "8"}}),
       {"TERRACE_RANK=0 and OMPI_COMM_WORLD_RANK=5"}},
  };
  for (const Row& row : rows)
    expect_error(ErrorKind::config, row.said, [&] { identify_rank(row.variables); });
}

TEST(RankIdentity, RefusesALauncherThatSaysHalf) {
  expect_error(ErrorKind::config, {"PMI_SIZE=8", "PMI_RANK is not set"}, [] {
    identify_rank(joined(kOpenMpi, {{"PMI_SIZE", "8"}}));
  });
}

TEST(RankIdentity, RefusesMoreRanksThanARunHas) {
  EXPECT_EQ(identify_rank({{"RANK", "5"}, {"WORLD_SIZE", "16384"}}).size, 16384u);
  expect_error(ErrorKind::config, {"WORLD_SIZE=16385", "at most 16384 ranks", "correct WORLD_SIZE"}, [] {
    identify_rank({{"RANK", "5"}, {"WORLD_SIZE", "16385"}});
  });
  expect_error(ErrorKind::config, {"ranks 99999999", "at most 16384 ranks"},
               [] { identify_rank({}, {.rank = 0, .ranks = 99999999}); });
}

TEST(RankIdentity, ComparesWithWhatTheCallerGives) {
  const Environment bare = {{"RANK", "1"}, {"WORLD_SIZE", "4"}};
  struct Row {
    const char* what;
    Environment variables;
    GivenRank given;
    RankIdentity expected;
  };
  const std::vector<Row> rows = {
      {"all of it", {}, {1, 4, 1}, {1, 4, 1, unknown, Launcher::given}},
      {"without the local rank", {}, {0, 2}, {0, 2, unknown, unknown, Launcher::given}},
      {"alone", {}, {0, 1, 0}, {}},
      {"alone by a rank", {}, {.rank = 0}, {}},
      {"a place to meet",
       {{"TERRACE_MEET", "a:1"}},
       {1, 2},
       {1, 2, unknown, unknown, Launcher::given, RendezvousPlace{"a", 1}}},
      {"a step of one task",
       slurm_step(0, 1, 1, "1", 0, 0),
       {1, 2},
       {1, 2, unknown, unknown, Launcher::given}},
      {"what the launcher says", kOpenMpi, {5, 8, 1}, {5, 8, 1, 4, Launcher::openmpi}},
      {"a part of it", kOpenMpi, {.local_rank = 1}, {5, 8, 1, 4, Launcher::openmpi}},
      {"a local rank that the launcher leaves out",
       bare,
       {.local_rank = 1},
       {1, 4, 1, unknown, Launcher::torchrun}},
  };
  for (const Row& row : rows) EXPECT_EQ(identify_rank(row.variables, row.given), row.expected) << row.what;

  struct Wrong {
    Environment variables;
    GivenRank given;
    std::vector<std::string> said;
  };
  const std::vector<Wrong> wrongs = {
      {{}, {.ranks = 4}, {"ranks 4", "no rank"}},
      {{}, {.rank = 1}, {"rank 1", "ranks is 1"}},
      {{}, {4, 4}, {"rank 4"}},
      {{}, {0, 0}, {"ranks 0"}},
      {{}, {0, 2, 2}, {"local rank 2"}},
      {{}, {.local_rank = 1}, {"local rank 1"}},
      {kOpenMpi, {5, 4}, {"ranks 4 and OMPI_COMM_WORLD_SIZE=8", "unset OMPI_COMM_WORLD_RANK"}},
      {kOpenMpi, {0, 1}, {"ranks 1 and OMPI_COMM_WORLD_SIZE=8"}},
      {kOpenMpi, {.rank = 4}, {"rank 4 and OMPI_COMM_WORLD_RANK=5"}},
      {kOpenMpi, {.local_rank = 2}, {"local rank 2 and OMPI_COMM_WORLD_LOCAL_RANK=1"}},
      {bare, {.local_rank = 4}, {"local rank 4", "torchrun has started 4 ranks"}},
  };
  for (const Wrong& wrong : wrongs)
    expect_error(ErrorKind::config, wrong.said, [&] { identify_rank(wrong.variables, wrong.given); });
}

TEST(RankIdentity, ReadsWhereToMeet) {
  const auto at = [](const std::string& place) {
    return joined(kTorchrun, {{"TERRACE_MEET", place}});  // which counts before MASTER_ADDR
  };
  EXPECT_EQ(identify_rank(at("b.example:65535")).rendezvous, (RendezvousPlace{"b.example", 65535}));
  EXPECT_EQ(identify_rank(at("10.0.0.1:1")).rendezvous, (RendezvousPlace{"10.0.0.1", 1}));
  EXPECT_EQ(identify_rank(at("[fe80::1]:29500")).rendezvous, (RendezvousPlace{"fe80::1", 29500}));
  EXPECT_EQ(identify_rank(at("/run/meet:1.sock")).rendezvous,
            (RendezvousPlace{.socket = "/run/meet:1.sock"}));
  for (const char* place : {"b", "b:", ":1", "b:0", "b:65536", "b:x", "b:-1", "fe80::1:29500", "[fe80::1]",
                            "[]:1", "run/meet.sock"})
    expect_error(ErrorKind::config, {std::string("TERRACE_MEET=") + place},
                 [&] { identify_rank(at(place)); });

  Environment variables = kTorchrun;
  variables["MASTER_PORT"] = "http";
  expect_error(ErrorKind::config, {"MASTER_PORT=http"}, [&] { identify_rank(variables); });
  variables.erase("MASTER_PORT");
  expect_error(ErrorKind::config, {"MASTER_ADDR=a", "MASTER_PORT is not set"},
               [&] { identify_rank(variables); });
  variables.erase("MASTER_ADDR");
  EXPECT_EQ(identify_rank(variables).rendezvous, std::nullopt);
  variables["MASTER_PORT"] = "29500";
  expect_error(ErrorKind::config, {"MASTER_PORT=29500", "MASTER_ADDR is not set"},
               [&] { identify_rank(variables); });
}

TEST(RankIdentity, CopiesTheVariablesOfAProcess) {
  const std::array<const char*, 6> entries = {"RANK=1", "EMPTY=", "no equals", "A=b=c", "RANK=2", nullptr};
  EXPECT_EQ(environment_from(entries.data()), (Environment{{"RANK", "1"}, {"EMPTY", ""}, {"A", "b=c"}}));
}

TEST(RankIdentity, NamesLaunchers) {
  EXPECT_EQ(name_of(Launcher::none), "no launcher");
  EXPECT_EQ(name_of(Launcher::given), "the caller");
  EXPECT_EQ(name_of(Launcher::openmpi), "Open MPI");
  EXPECT_EQ(name_of(Launcher::slurm), "Slurm");
}

}  // namespace
}  // namespace terrace::rank_identity_test
