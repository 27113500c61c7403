// ControlServer: one small thread that owns the control socket of a job. It reads requests, answers at once
// if it can, and queues the other requests for the step thread. It must never wait for the step thread, nor
// the step thread for it. No act or omission of a client may end the run.
//
// A connection has one request in progress: nothing more is read from it until that is answered and the
// answer is taken. Connections and queued requests are bounded; further ones are refused in words.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <terrace/base/function_ref.h>
#include <terrace/base/mutex.h>
#include <terrace/base/wake_event.h>
#include <terrace/runtime/observe/control/control_folder.h>
#include <terrace/runtime/observe/control/control_protocol.h>

namespace terrace {

inline constexpr size_t kMostControlConnections = 16;  // further ones are refused in words
inline constexpr size_t kMostQueuedRequests = 16;  // further ones are refused; clients of some may have left

class ControlServer {
 public:
  // Returns the answer's line, or nothing if the step thread shall answer. Called on the socket's thread.
  using AtOnce = std::function<std::optional<std::string>(const ControlRequest&)>;

  // Listens in `folder` under the number of this process, and removes the sockets of dead jobs. Throws
  // Error(io).
  ControlServer(const std::filesystem::path& folder, AtOnce at_once);
  // Refuses the queued requests and removes the socket.
  ~ControlServer();
  ControlServer(const ControlServer&) = delete;
  ControlServer& operator=(const ControlServer&) = delete;

  std::filesystem::path socket() const { return folder_.socket_of(pid_); }
  // True if a request is queued. Any thread may call it; it costs nothing.
  bool has_requests() const { return queued_count_.load(std::memory_order_relaxed) > 0; }
  // Called by the step thread: `carry_out` returns an answer's line for each queued request. An exception
  // that it throws is answered as a refusal and passed on.
  void serve(FunctionRef<std::string(const ControlRequest&)> carry_out);

 private:
  struct Connection {
    uint64_t id = 0;
    OwnedFd fd;
    LineBuffer input{kLongestRequestBytes};
    std::string output;
    bool waits = false;  // for the step thread
    bool ends = false;   // close the connection when its output is sent
  };
  struct Queued {
    uint64_t connection = 0;
    ControlRequest request;
  };
  struct Answer {
    uint64_t connection = 0;
    std::string line;
  };

  void run();
  void poll_once();
  void take_answers();
  void accept_one();
  void read_from(Connection& connection);
  void advance(Connection& connection);
  void answer_line(Connection& connection, const std::string& line);
  void write_to(Connection& connection);
  void refuse_queued();

  const ControlFolder folder_;
  const uint64_t pid_;
  const AtOnce at_once_;
  const WakeEvent wake_;
  OwnedFd listener_;
  std::atomic<size_t> queued_count_{0};
  std::atomic<bool> stop_{false};

  // The members below belong to the socket's thread.
  std::vector<Connection> connections_;
  uint64_t next_id_ = 1;

  Mutex mutex_;
  std::deque<Queued> queued_ TERRACE_GUARDED_BY(mutex_);
  std::vector<Answer> answers_ TERRACE_GUARDED_BY(mutex_);

  std::thread thread_;
};

}  // namespace terrace
