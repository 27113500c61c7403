#include <terrace/comm/identity/hostfile.h>

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include <terrace/base/error.h>

#include "support/expect_error.h"
#include "support/scratch_folder.h"

namespace terrace::hostfile_test {
namespace {

using testing::expect_error;
using Hosts = std::vector<HostSlots>;

const Hosts kTwo = {{"worker-1", {0, 1, 2, 3}}, {"worker-2", {0, 1, 2, 3}}};

TEST(Hostfile, ReadsHostsInTheOrderOfItsLines) {
  struct Row {
    const char* text;
    Hosts hosts;
  };
  const std::vector<Row> rows = {
      {"a slots=1", {{"a", {0}}}},
      {"a slots=1\n", {{"a", {0}}}},
      {"b slots=2\na slots=1\n", {{"b", {0, 1}}, {"a", {0}}}},
      {"# all of them\n\n  a.example \t slots=2  # the fast one\n   \n#b slots=9\n10.0.0.7 slots=1#\n",
       {{"a.example", {0, 1}}, {"10.0.0.7", {0}}}},
      {"a slots=1\r\n\r\nb_2 slots=03\r\n", {{"a", {0}}, {"b_2", {0, 1, 2}}}},
      {"A slots=1\na slots=1\n", {{"A", {0}}, {"a", {0}}}},
  };
  for (const Row& row : rows) EXPECT_EQ(parse_hostfile(row.text, "hosts"), row.hosts) << row.text;
  EXPECT_EQ(parse_hostfile("a slots=4096", "hosts")[0].slots.back(), 4095u);
}

TEST(Hostfile, NamesTheLineThatIsWrong) {
  struct Row {
    std::string text;
    std::vector<std::string> said;
  };
  std::vector<Row> rows = {
      {"a slots=1\n\nb\n", {"hosts:3", "host b has no"}},
      {"a # slots=4\n", {"hosts:1", "host a has no"}},
      {"# one\na slots=2\nb slots=1\na slots=1\n", {"hosts:4", "host a comes again", "line 2"}},
      {"a slots=0\n", {"hosts:1", "\"0\" is not a number of slots", "from 1 to 4096"}},
      {"slots=4\n", {"hosts:1", "\"slots=4\" is not the name of a host"}},
      {"a slots = 4\n", {"hosts:1", "\"slots\" stands where"}},
      {"a max_slots=4\n", {"hosts:1", "\"max_slots=4\" stands where"}},
      {"a SLOTS=4\n", {"hosts:1"}},
      {"a slots=4 max_slots=8\n", {"hosts:1", "\"max_slots=8\" follows"}},
      {"a big host slots=4\n", {"hosts:1", "\"big\" stands where"}},
      {"-oProxyCommand=x slots=1\n", {"hosts:1", "not the name of a host"}},
      {"user@a slots=1\n", {"hosts:1", "\"user@a\""}},
      {"fe80::1 slots=1\n", {"hosts:1", "\"fe80::1\""}},
      {std::string("a\0b slots=1", 11), {"hosts:1"}},
      {"a slots=1\n\xff\xfe\n", {"hosts:2"}},
      {std::string(100'000, 'a'), {"hosts:1"}},
  };
  for (const char* number :
       {"", "x", "4x", "-4", "+4", "4.0", "0x4", "4097", "4294967296", "99999999999999999999"})
    rows.push_back({std::string("ok slots=1\na slots=") + number, {"hosts:2", "is not a number of slots"}});
  for (const Row& row : rows)
    expect_error(ErrorKind::config, row.said, [&] { parse_hostfile(row.text, "hosts"); });
}

TEST(Hostfile, QuotesLittleOfALineThatIsNone) {
  try {
    parse_hostfile(std::string(100'000, '!'), "hosts");
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_LT(std::string(error.what()).size(), 1000u);
  }
}

TEST(Hostfile, RefusesAFileWithoutAHost) {
  for (const char* text : {"", "\n", "# a slots=4\n\n   \n"})
    expect_error(ErrorKind::config, {"hosts", "no host is in it"}, [&] { parse_hostfile(text, "hosts"); });
}

TEST(Hostfile, ReadsAFile) {
  const ScratchFolder folder;
  folder.write("hosts", "a slots=2\n");
  folder.write("empty", "");
  folder.write("bad", "a slots=2\nb\n");
  EXPECT_EQ(read_hostfile(folder / "hosts"), (Hosts{{"a", {0, 1}}}));
  expect_error(ErrorKind::config, {(folder / "empty").string(), "no host"},
               [&] { read_hostfile(folder / "empty"); });
  expect_error(ErrorKind::config, {(folder / "bad").string() + ":2"}, [&] { read_hostfile(folder / "bad"); });
  expect_error(ErrorKind::config, {(folder / "missing").string(), "ENOENT"},
               [&] { read_hostfile(folder / "missing"); });
  expect_error(ErrorKind::config, {folder.path().string(), "EISDIR"}, [&] { read_hostfile(folder.path()); });
}

TEST(Hostfile, ChoosesWhatAFilterLeaves) {
  struct Row {
    HostFilter filter;
    Hosts hosts;
  };
  const std::vector<Row> rows = {
      {{}, kTwo},
      {{.include = "worker-2"}, {kTwo[1]}},
      {{.include = "worker-2:0,3"}, {{"worker-2", {0, 3}}}},
      {{.include = "worker-2:3,0,3"}, {{"worker-2", {0, 3}}}},
      {{.include = "worker-2:1@worker-1"}, {kTwo[0], {"worker-2", {1}}}},
      {{.include = "worker-1:1@worker-1:0,1"}, {{"worker-1", {0, 1}}}},
      {{.include = "worker-1:1@worker-1"}, {kTwo[0]}},
      {{.exclude = "worker-1"}, {kTwo[1]}},
      {{.exclude = "worker-1:0,1,2,3"}, {kTwo[1]}},
      {{.exclude = "worker-1:0@worker-2:0,1"}, {{"worker-1", {1, 2, 3}}, {"worker-2", {2, 3}}}},
      {{.exclude = "worker-2:2@worker-1"}, {{"worker-2", {0, 1, 3}}}},
  };
  for (const Row& row : rows)
    EXPECT_EQ(choose_slots(kTwo, row.filter), row.hosts) << row.filter.include << "|" << row.filter.exclude;
}

TEST(Hostfile, RefusesAFilterThatNamesWhatIsNotThere) {
  struct Row {
    const char* list;
    std::vector<std::string> said;
  };
  const std::vector<Row> rows = {
      {"jeff", {"jeff", "no host jeff", "worker-1, worker-2"}},
      {"worker-1@jeff:0", {"no host jeff"}},
      {"Worker-1", {"no host Worker-1"}},
      {"worker-1:4", {"worker-1:4", "has no slot 4", "0, 1, 2, 3"}},
      {"worker-1:0@worker-2:99", {"host worker-2 has no slot 99"}},
      {"worker-1@worker-2:1@5", {"no host 5"}},
      {"worker-1:x", {"\"x\" is not a slot"}},
      {"worker-1:-1", {"\"-1\" is not a slot"}},
      {"worker-1:0-2", {"\"0-2\" is not a slot"}},
      {"worker-1:4294967296", {"\"4294967296\" is not a slot"}},
      {"worker-1:0:1", {"\"0:1\" is not a slot"}},
      {"worker-1: 0", {"\" 0\" is not a slot"}},
      {"worker-1:", {"slot of host worker-1 is missing"}},
      {"worker-1:@worker-2", {"slot of host worker-1 is missing"}},
      {"worker-1:0,", {"slot of host worker-1 is missing"}},
      {"worker-1:,0", {"\"\" is not a slot"}},
      {"worker-1:0,,1", {"\"\" is not a slot"}},
      {"@", {"host is missing"}},
      {"@worker-1", {"host is missing"}},
      {"worker-1@", {"host is missing"}},
      {"worker-1@@worker-2", {"host is missing"}},
      {":0", {"host is missing"}},
      {"worker-1,worker-2", {"no host worker-1,worker-2"}},
  };
  for (const Row& row : rows) {
    expect_error(ErrorKind::config, row.said, [&] { choose_slots(kTwo, {.include = row.list}); });
    expect_error(ErrorKind::config, row.said, [&] { choose_slots(kTwo, {.exclude = row.list}); });
  }
}

TEST(Hostfile, RefusesAFilterThatLeavesNothingOrHasTwoSides) {
  expect_error(ErrorKind::config, {"no slot of any host is left"},
               [] { choose_slots(kTwo, {.exclude = "worker-1@worker-2:0,1,2,3"}); });
  expect_error(ErrorKind::config, {"worker-1 and worker-2", "both"},
               [] { choose_slots(kTwo, {.include = "worker-1", .exclude = "worker-2"}); });
}

TEST(Hostfile, UsesTheFirstHostsAndSlots) {
  const Hosts hosts = {{"a", {0, 1, 2}}, {"b", {1, 3}}};
  EXPECT_EQ(limit_slots(hosts, {}), hosts);
  EXPECT_EQ(limit_slots(hosts, {.hosts = 1}), (Hosts{{"a", {0, 1, 2}}}));
  EXPECT_EQ(limit_slots(hosts, {.slots_of_host = 1}), (Hosts{{"a", {0}}, {"b", {1}}}));
  EXPECT_EQ(limit_slots(hosts, {.hosts = 1, .slots_of_host = 3}), (Hosts{{"a", {0, 1, 2}}}));
  expect_error(ErrorKind::config, {"3 hosts", "there are 2"}, [&] { limit_slots(hosts, {.hosts = 3}); });
  expect_error(ErrorKind::config, {"3 slots", "host b has 2"},
               [&] { limit_slots(hosts, {.slots_of_host = 3}); });
}

TEST(Hostfile, ListsNoMoreThanTheFirstOfManyHosts) {
  Hosts many;
  for (int i = 0; i < 100; ++i) many.push_back({"host" + std::to_string(i), {0}});
  expect_error(ErrorKind::config, {"host0, host1", "host15 and 84 more"},
               [&] { choose_slots(many, {.include = "jeff"}); });
}

}  // namespace
}  // namespace terrace::hostfile_test
