#include <terrace/base/cgroups.h>

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "support/scratch_folder.h"

namespace terrace::cgroups_test {
namespace {

// The folders below the root, each with the cgroup that it is called.
std::vector<std::string> found_in(const ScratchFolder& root) {
  std::vector<std::string> found;
  for (const CgroupFolder& one : memory_cgroups(root.path().string()))
    found.push_back((one.is_v2 ? "2 " : "1 ") + one.cgroup + " " +
                    one.folder.substr(root.path().string().size()));
  return found;
}

TEST(Cgroups, AreNoneWhereTheSystemHasNone) {
  const ScratchFolder root;
  EXPECT_TRUE(found_in(root).empty());
  root.write("proc/self/cgroup", "4:cpuset:/job\n1:name=memory:/no\nnonsense\n");
  EXPECT_TRUE(found_in(root).empty());
}

TEST(Cgroups, OfTheSecondVersionAreAtBothMountsBeforeTheirAncestors) {
  const ScratchFolder root;
  root.write("proc/self/cgroup", "0::/job/step\n");
  const std::vector<std::string> expected = {"2 /job/step /sys/fs/cgroup/job/step",
                                             "2 /job /sys/fs/cgroup/job",
                                             "2 / /sys/fs/cgroup",
                                             "2 /job/step /sys/fs/cgroup/unified/job/step",
                                             "2 /job /sys/fs/cgroup/unified/job",
                                             "2 / /sys/fs/cgroup/unified"};
  EXPECT_EQ(found_in(root), expected);
}

TEST(Cgroups, OfTheFirstVersionAreThoseOfMemory) {
  const ScratchFolder root;
  root.write("proc/self/cgroup", "5:cpu,memory:/job\n4:cpuset:/other\n");
  const std::vector<std::string> expected = {"1 /job /sys/fs/cgroup/memory/job", "1 / /sys/fs/cgroup/memory"};
  EXPECT_EQ(found_in(root), expected);
}

TEST(Cgroups, AboveTheNamespaceOfTheProcessAreItsRoot) {
  const ScratchFolder root;
  root.write("proc/self/cgroup", "3:memory:/../../job\n");
  EXPECT_EQ(found_in(root), std::vector<std::string>{"1 / /sys/fs/cgroup/memory"});
}

TEST(SystemFiles, AreReadWholeOrAreNotThere) {
  const ScratchFolder root;
  root.write("sys/one", "1\n");
  EXPECT_EQ(text_of_system_file(under_root(root.path().string() + "//", "sys/one")), "1\n");
  EXPECT_FALSE(text_of_system_file(under_root(root.path().string(), "sys/two")));
  EXPECT_EQ(trimmed(" \t a b\n"), "a b");
  EXPECT_EQ(trimmed(" \n"), "");
}

}  // namespace
}  // namespace terrace::cgroups_test
