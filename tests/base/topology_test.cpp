#include <terrace/base/topology.h>

#include <gtest/gtest.h>
#include <sched.h>

#include <atomic>
#include <map>
#include <numeric>
#include <thread>

#include <terrace/base/workers.h>

#include "support/scratch_folder.h"

namespace terrace::topology_test {
namespace {

namespace fs = std::filesystem;

// A machine in a folder.
class FakeMachine {
 public:
  void write(const std::string& path, const std::string& text) const { folder_.write(path, text + "\n"); }
  // Two nodes of two cores of two hardware threads, numbered as Linux does: 0-3 first threads, 4-7 second
  // ones.
  void write_two_nodes() const {
    write("sys/devices/system/node/online", "0-1");
    write("sys/devices/system/node/node0/cpulist", "0,2,4,6");
    write("sys/devices/system/node/node1/cpulist", "1,3,5,7");
    for (uint32_t cpu = 0; cpu < 8; ++cpu) {
      write("sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/thread_siblings_list",
            std::to_string(cpu % 4) + "," + std::to_string(cpu % 4 + 4));
    }
  }
  Topology read(const std::vector<uint32_t>& allowed) const {
    return read_topology(folder_.path().string(), allowed);
  }

 private:
  ScratchFolder folder_;
};

std::vector<uint32_t> first_cpus(uint32_t count) {
  std::vector<uint32_t> cpus(count);
  std::iota(cpus.begin(), cpus.end(), 0u);
  return cpus;
}

TEST(Topology, KnowsCoresAndNodesOfTheAllowedProcessors) {
  FakeMachine machine;
  machine.write_two_nodes();
  const Topology topology = machine.read({1, 2, 6});
  EXPECT_EQ(topology.cpus, (std::vector<Cpu>{{1, 1, 1}, {2, 2, 0}, {6, 2, 0}}));
  EXPECT_EQ(topology.nodes(), (std::vector<uint32_t>{0, 1}));
  EXPECT_EQ(topology.core_count(), 2u);
  EXPECT_EQ(topology.default_thread_count(), 3u);
}

TEST(Topology, GivesThreadsACoreEachFirstAndANodeAfterTheOther) {
  FakeMachine machine;
  machine.write_two_nodes();
  const Topology topology = machine.read(first_cpus(8));
  EXPECT_EQ(topology.binding_for(2).cpus, (std::vector<uint32_t>{0, 2}));
  EXPECT_EQ(topology.binding_for(4).cpus, (std::vector<uint32_t>{0, 2, 1, 3}));
  EXPECT_EQ(topology.binding_for(8).cpus, (std::vector<uint32_t>{0, 2, 1, 3, 4, 6, 5, 7}));
  EXPECT_EQ(topology.binding_for(4).reason, "one per core, node by node");
}

std::vector<uint32_t> ids(const Topology& topology) {
  std::vector<uint32_t> ids;
  for (const Cpu& cpu : topology.cpus) ids.push_back(cpu.id);
  return ids;
}

TEST(Topology, HasPartsOfWholeCoresOneNodeAfterTheOther) {
  FakeMachine machine;
  machine.write_two_nodes();
  const Topology topology = machine.read(first_cpus(8));
  EXPECT_EQ(ids(topology.part(0, 2)), (std::vector<uint32_t>{0, 2, 4, 6}));
  EXPECT_EQ(ids(topology.part(1, 2)), (std::vector<uint32_t>{1, 3, 5, 7}));
  EXPECT_EQ(ids(topology.part(2, 4)), (std::vector<uint32_t>{1, 5}));
  EXPECT_EQ(ids(topology.part(0, 3)), (std::vector<uint32_t>{0, 4}));
  EXPECT_EQ(ids(topology.part(2, 3)), (std::vector<uint32_t>{1, 3, 5, 7}));
  // There is no core for each: nobody is kept from any.
  EXPECT_EQ(ids(topology.part(4, 5)), first_cpus(8));
}

TEST(Topology, PartsHaveTheirShareOfTheQuota) {
  FakeMachine machine;
  Topology topology = machine.read(first_cpus(8));
  EXPECT_EQ(topology.part(1, 2).quota, 0u);
  topology.quota = 5;
  EXPECT_EQ(topology.part(1, 2).default_thread_count(), 2u);
  EXPECT_EQ(topology.part(1, 8).default_thread_count(), 1u);
}

TEST(Topology, ThreadsStayWhereTheyAreKept) {
  std::thread([] {
    const Topology before = read_topology();
    ASSERT_EQ(stay_on({before.cpus.back()}), 0);
    EXPECT_EQ(read_topology().cpus, std::vector{before.cpus.back()});
    EXPECT_NE(stay_on({}), 0);
  }).join();
}

TEST(Topology, LeavesThreadsAloneWhereBindingKeepsNothingApart) {
  FakeMachine machine;
  EXPECT_TRUE(machine.read(first_cpus(4)).binding_for(4).cpus.empty());  // nothing known: simple
  machine.write_two_nodes();
  EXPECT_TRUE(machine.read({0, 2}).binding_for(2).cpus.empty());  // one node, one thread of each core
  const Topology topology = machine.read(first_cpus(8));
  EXPECT_TRUE(topology.binding_for(1).cpus.empty());
  EXPECT_TRUE(topology.binding_for(9).cpus.empty());
  EXPECT_EQ(topology.binding_for(9).reason, "there are 8 processors for them");
}

TEST(Topology, KeepsToTheQuotaOfTheCgroupAndItsAncestors) {
  FakeMachine machine;
  machine.write_two_nodes();
  machine.write("proc/self/cgroup", "0::/job/step");
  machine.write("sys/fs/cgroup/job/step/cpu.max", "max 100000");
  EXPECT_EQ(machine.read(first_cpus(8)).default_thread_count(), 8u);
  machine.write("sys/fs/cgroup/job/cpu.max", "250000 100000");
  const Topology topology = machine.read(first_cpus(8));
  EXPECT_EQ(topology.quota, 3u);
  EXPECT_EQ(topology.default_thread_count(), 3u);
  EXPECT_EQ(topology.binding_for(3).cpus.size(), 3u);
  EXPECT_TRUE(topology.binding_for(4).cpus.empty());
  machine.write("sys/fs/cgroup/job/step/cpu.max", "200000 100000");
  EXPECT_EQ(machine.read(first_cpus(8)).quota, 2u);  // the least, wherever it stands
}

TEST(Topology, OfThisProcessHasTheProcessorsOfItsAffinity) {
  cpu_set_t set;
  ASSERT_EQ(sched_getaffinity(0, sizeof(set), &set), 0);
  const Topology topology = read_topology();
  EXPECT_EQ(topology.cpus.size(), static_cast<size_t>(CPU_COUNT(&set)));
  for (const Cpu& cpu : topology.cpus) EXPECT_TRUE(CPU_ISSET(cpu.id, &set));
}

TEST(Topology, ReadsListsOfNumbersAndNothingElse) {
  EXPECT_EQ(parse_number_list("0-2,7\n"), (std::vector<uint32_t>{0, 1, 2, 7}));
  EXPECT_EQ(parse_number_list(""), std::vector<uint32_t>{});
  for (const char* text : {"a", "1-", "3-1", "1,,2", "1,", "99999999"})
    EXPECT_FALSE(parse_number_list(text)) << text;
}

TEST(Workers, BindEveryThreadButTheCallersToItsOwnProcessorWhileTheyWork) {
  Topology topology = read_topology();
  if (topology.cpus.size() < 2) GTEST_SKIP() << "this process may use one processor";
  topology.cpus.resize(2);
  topology.cpus[1].node = topology.cpus[0].node + 1;  // something to keep apart
  topology.quota = 0;
  Workers workers(2, topology);
  ASSERT_EQ(workers.binding().cpus.size(), 2u);
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof(before), &before), 0);
  std::atomic<int> helped = 0;
  std::atomic<bool> wrong = false;
  for (int round = 0; round < 1000 && helped == 0; ++round) {
    workers.parallel_for(64, [&](size_t) {
      cpu_set_t now;
      if (sched_getaffinity(0, sizeof(now), &now) != 0) wrong = true;
      const size_t thread = workers.current_thread_index();
      if (thread == 0) {
        if (CPU_EQUAL(&now, &before) == 0) wrong = true;
        for (int i = 0; i < 10000 && helped == 0; ++i) sched_yield();
        return;
      }
      ++helped;
      if (CPU_COUNT(&now) != 1 || !CPU_ISSET(workers.binding().cpus[thread], &now)) wrong = true;
    });
  }
  EXPECT_GT(helped, 0);
  EXPECT_FALSE(wrong);
}

TEST(Workers, AreNotBoundUnlessAsked) {
  EXPECT_TRUE(Workers(2).binding().cpus.empty());
}

}  // namespace
}  // namespace terrace::topology_test
