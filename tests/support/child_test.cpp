#include "support/child_test.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

extern char** environ;

namespace terrace::testing {
namespace {

constexpr const char* kFolder = "TERRACE_CHILD_FOLDER";
constexpr const char* kSeed = "TERRACE_CHILD_SEED";

}  // namespace

int run_test_in_child(const std::string& filter, uint32_t seed, const std::filesystem::path& folder) {
  setenv(kFolder, folder.c_str(), 1);
  setenv(kSeed, std::to_string(seed).c_str(), 1);
  // The child's one test need not be in the shard that this process runs.
  unsetenv("GTEST_TOTAL_SHARDS");
  unsetenv("GTEST_SHARD_INDEX");
  std::string program = std::filesystem::read_symlink("/proc/self/exe").string();
  std::string chosen = "--gtest_filter=" + filter, also = "--gtest_also_run_disabled_tests";
  char* arguments[] = {program.data(), chosen.data(), also.data(), nullptr};
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  pid_t child = 0;
  EXPECT_EQ(posix_spawn(&child, program.c_str(), &actions, nullptr, arguments, environ), 0);
  posix_spawn_file_actions_destroy(&actions);
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return status;
}

uint32_t child_seed() {
  return static_cast<uint32_t>(std::stoul(std::getenv(kSeed)));
}

std::filesystem::path child_folder() {
  return std::getenv(kFolder);
}

}  // namespace terrace::testing
