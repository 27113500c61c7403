// The socket of a job: who may use its folder, what comes of sockets of dead jobs, and what clients do.
#include <terrace/runtime/observe/control/control_server.h>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <thread>

#include <terrace/base/units.h>
#include <terrace/runtime/observe/control/control_client.h>
#include <terrace/runtime/observe/control/job_status.h>

#include "support/expect_error.h"
#include "support/scratch_folder.h"

namespace terrace::server_test {
namespace {

namespace fs = std::filesystem;
using testing::expect_error;
using ::testing::HasSubstr;

std::optional<std::string> status_at_once(const ControlRequest& request) {
  if (request.command != ControlCommand::status) return std::nullopt;
  return control_answer({{"step", 3}});
}

// A client of bytes, not of requests.
class RawClient {
 public:
  explicit RawClient(const fs::path& socket) : fd_(connect_to_job(socket)) {}
  void send(std::string_view text) const {
    ASSERT_EQ(::send(fd_.get(), text.data(), text.size(), MSG_NOSIGNAL), static_cast<ssize_t>(text.size()));
  }
  // The next line, or "" at the end of the connection.
  std::string line() {
    while (true) {
      const size_t end = text_.find('\n');
      if (end != std::string::npos) {
        const std::string line = text_.substr(0, end);
        text_.erase(0, end + 1);
        return line;
      }
      pollfd watched{fd_.get(), POLLIN, 0};
      poll(&watched, 1, -1);
      char bytes[256];
      const ssize_t count = recv(fd_.get(), bytes, sizeof(bytes), 0);
      if (count <= 0) return "";
      text_.append(bytes, static_cast<size_t>(count));
    }
  }
  void close() { fd_.reset(); }

 private:
  OwnedFd fd_;
  std::string text_;
};

constexpr const char* kStatus = "{\"terrace\": 1, \"command\": \"status\"}\n";
constexpr const char* kSave = "{\"terrace\": 1, \"command\": \"save\"}\n";

struct Fixture {
  ScratchFolder scratch;
  fs::path folder = scratch.path() / "control";
  ControlServer server{folder, status_at_once};

  // Waits until so many requests are queued, and answers them.
  std::vector<ControlRequest> serve(size_t count) {
    std::vector<ControlRequest> seen;
    while (seen.size() < count) {
      server.serve([&](const ControlRequest& request) {
        seen.push_back(request);
        return control_answer({{"number", seen.size()}});
      });
      std::this_thread::yield();
    }
    return seen;
  }
};

TEST(ControlServer, AnswersAtOnceWithoutTheStepThread) {
  Fixture f;
  ControlClient client(f.server.socket());
  for (int i = 0; i < 3; ++i)
    EXPECT_EQ(json_whole_number(client.ask({ControlCommand::status, 0}), "step"), 3u);
  EXPECT_FALSE(f.server.has_requests());
}

TEST(ControlServer, QueuesTheRestForTheStepThread) {
  Fixture f;
  RawClient client(f.server.socket());
  client.send("{\"terrace\": 1, \"command\": \"set\", \"key\": \"host-memory\", \"value\": 77}\n");
  const std::vector<ControlRequest> seen = f.serve(1);
  EXPECT_EQ(seen[0].command, ControlCommand::set);
  EXPECT_EQ(seen[0].host_memory_bytes, 77u);
  EXPECT_EQ(client.line(), R"({"terrace": 1, "ok": true, "number": 1})");
}

TEST(ControlServer, TakesLinesInPiecesAndSeveralAtOnce) {
  Fixture f;
  RawClient client(f.server.socket());
  for (const char* c = kStatus; *c != 0; ++c) client.send({c, 1});
  EXPECT_THAT(client.line(), HasSubstr("\"step\": 3"));
  client.send(std::string(kStatus) + kSave + kStatus);
  EXPECT_THAT(client.line(), HasSubstr("\"step\": 3"));
  f.serve(1);
  EXPECT_THAT(client.line(), HasSubstr("\"number\": 1"));
  EXPECT_THAT(client.line(), HasSubstr("\"step\": 3"));  // in the order in which they were asked
}

TEST(ControlServer, OutlivesClientsThatTalkNonsenseOrLeave) {
  Fixture f;
  RawClient client(f.server.socket());
  client.send("nonsense\n\n");
  EXPECT_THAT(client.line(), HasSubstr("\"ok\": false"));
  EXPECT_THAT(client.line(), HasSubstr("\"ok\": false"));
  client.send(kStatus);
  EXPECT_THAT(client.line(), HasSubstr("\"step\": 3"));
  client.send(std::string(kLongestRequestBytes, 'x'));
  EXPECT_THAT(client.line(), HasSubstr("at most 4096 bytes"));
  EXPECT_EQ(client.line(), "");  // what follows cannot be understood
  RawClient leaves(f.server.socket());
  leaves.send(kSave);
  while (!f.server.has_requests()) std::this_thread::yield();
  leaves.close();
  f.serve(1);
  RawClient half(f.server.socket());
  half.send("{\"terrace\": 1, ");
  half.close();
  ControlClient other(f.server.socket());
  EXPECT_EQ(json_whole_number(other.ask({ControlCommand::status, 0}), "step"), 3u);
}

TEST(ControlServer, RefusesMoreConnectionsAndRequestsThanItTakes) {
  Fixture f;
  {
    std::vector<std::unique_ptr<RawClient>> clients;
    for (size_t c = 0; c < kMostControlConnections; ++c) {
      clients.push_back(std::make_unique<RawClient>(f.server.socket()));
      clients.back()->send(kStatus);
      clients.back()->line();
    }
    RawClient one_more(f.server.socket());
    EXPECT_THAT(one_more.line(), HasSubstr("as many as it takes"));
    EXPECT_EQ(one_more.line(), "");
  }
  std::string refused;
  for (size_t asked = 0; refused.empty(); ++asked) {
    ASSERT_LE(asked, kMostQueuedRequests);
    RawClient client(f.server.socket());
    client.send(kSave);
    client.send(kStatus);
    if (asked == kMostQueuedRequests) refused = client.line();
    client.close();  // what it asked for stays queued
    // Seen before the next one comes.
    ControlClient probe(f.server.socket());
    probe.ask({ControlCommand::status, 0});
  }
  EXPECT_THAT(refused, HasSubstr("too many wait"));
  EXPECT_EQ(f.serve(kMostQueuedRequests).size(), kMostQueuedRequests);
}

TEST(ControlServer, TellsOfFailuresAndPassesThemOn) {
  Fixture f;
  RawClient client(f.server.socket());
  client.send(kSave);
  while (!f.server.has_requests()) std::this_thread::yield();
  const auto fail = [](const ControlRequest&) -> std::string {
    throw Error(ErrorKind::io, {"cannot write", "a file", "it is full", "make room"});
  };
  expect_error(ErrorKind::io, {"it is full"}, [&] { f.server.serve(fail); });
  EXPECT_THAT(client.line(), HasSubstr("it is full"));
}

TEST(ControlServer, RefusesWhatIsQueuedWhenTheRunEnds) {
  const ScratchFolder scratch;
  auto server = std::make_unique<ControlServer>(scratch.path() / "control", status_at_once);
  const fs::path socket = server->socket();
  RawClient client(socket);
  client.send(kSave);
  while (!server->has_requests()) std::this_thread::yield();
  server.reset();
  EXPECT_THAT(client.line(), HasSubstr("the run is ending"));
  EXPECT_EQ(client.line(), "");
  EXPECT_FALSE(fs::exists(socket));
  expect_error(ErrorKind::io, {socket.string()}, [&] { RawClient late(socket); });
}

TEST(ControlFolder, IsMadeForThisUserAlone) {
  Fixture f;
  struct stat status {};
  ASSERT_EQ(stat(f.folder.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 0700u);
  ASSERT_EQ(stat(f.server.socket().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 0600u);
}

TEST(ControlFolder, IsRefusedWhereItIsALinkOrOpenToOthers) {
  const ScratchFolder scratch;
  const auto refused = [](const fs::path& folder, const std::string& reason) {
    expect_error(ErrorKind::io, {folder.string(), reason}, [&] { ControlServer(folder, status_at_once); });
  };
  fs::create_directory(scratch.path() / "open");
  fs::permissions(scratch.path() / "open", fs::perms::owner_all | fs::perms::group_read);
  refused(scratch.path() / "open", "its mode is 740");
  fs::create_directory(scratch.path() / "mine");
  fs::permissions(scratch.path() / "mine", fs::perms::owner_all);
  fs::create_directory_symlink(scratch.path() / "mine", scratch.path() / "link");
  refused(scratch.path() / "link", "");
  std::ofstream(scratch.path() / "file") << "x";
  refused(scratch.path() / "file", "Not a directory");
  refused(scratch.path() / "no/where", "No such file");
  EXPECT_TRUE(fs::is_empty(scratch.path() / "mine"));
}

// A socket without anybody who listens, as a killed job leaves it.
void leave_socket(const ControlFolder& folder, uint64_t pid) {
  const OwnedFd fd = folder.listen(pid);
}

TEST(ControlFolder, RemovesSocketsOfDeadJobsAndNothingElse) {
  Fixture f;
  const ControlFolder folder(f.folder);
  leave_socket(folder, 1);
  std::ofstream(f.folder / "2.sock") << "a file";
  std::ofstream(f.folder / "drive.token") << "another";
  ASSERT_TRUE(fs::exists(folder.socket_of(1)));
  const std::vector<RunningJob> jobs = folder.jobs();
  ASSERT_EQ(jobs.size(), 1u);
  EXPECT_EQ(jobs[0].pid, static_cast<uint64_t>(getpid()));
  EXPECT_EQ(jobs[0].socket, f.server.socket());
  EXPECT_FALSE(fs::exists(folder.socket_of(1)));
  EXPECT_TRUE(fs::exists(f.folder / "2.sock"));
  EXPECT_TRUE(fs::exists(f.folder / "drive.token"));
}

TEST(ControlFolder, ReplacesADeadJobsSocketAndNeverALivingOnes) {
  const ScratchFolder scratch;
  const ControlFolder folder(scratch.path() / "control");
  leave_socket(folder, static_cast<uint64_t>(getpid()));
  leave_socket(folder, 1);
  const ControlServer server(folder.path(), status_at_once);
  EXPECT_FALSE(fs::exists(folder.socket_of(1)));
  expect_error(ErrorKind::io, {"somebody listens there"},
               [&] { ControlServer second(folder.path(), status_at_once); });
  ControlClient client(server.socket());
  EXPECT_EQ(json_whole_number(client.ask({ControlCommand::status, 0}), "step"), 3u);
}

TEST(ControlFolder, WorksUnderPathsThatNoAddressHasRoomFor) {
  const ScratchFolder scratch;
  fs::path folder = scratch.path();
  for (int level = 0; level < 4; ++level) folder /= std::string(60, 'a' + level);
  fs::create_directories(folder);
  const ControlServer server(folder / "control", status_at_once);
  ControlClient client(server.socket());
  EXPECT_EQ(json_whole_number(client.ask({ControlCommand::status, 0}), "step"), 3u);
}

}  // namespace
}  // namespace terrace::server_test
