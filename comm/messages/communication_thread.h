// CommunicationThread: the one thread that talks to a message library. It makes the port, takes the
// operations of all lanes, keeps one or two of each lane in flight, and completes their events. It sleeps
// while nothing is asked for, and while only words of other ranks can come, as far as the port can wake it;
// else it looks at what is in flight at the pace of PollPauses.
#pragma once

#include <poll.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <terrace/base/clock.h>
#include <terrace/base/mutex.h>
#include <terrace/base/wake_event.h>
#include <terrace/comm/messages/host_peers.h>
#include <terrace/comm/messages/message_flow.h>
#include <terrace/comm/messages/message_lane.h>
#include <terrace/comm/messages/message_port.h>
#include <terrace/comm/messages/port_pull_wire.h>
#include <terrace/comm/operations/operation_book.h>
#include <terrace/comm/operations/operation_ring.h>
#include <terrace/comm/operations/poll_pauses.h>
#include <terrace/comm/pull/pull_engine.h>

namespace terrace {

struct CommunicationThreadOptions {
  uint32_t rank = 0;
  uint32_t size = 1;
  uint32_t queue_depth = 64;  // operations of a lane that may wait
  CommHook* hook = nullptr;   // outlives the thread
  HostPeersOptions peers = {};
};

class CommunicationThread {
 public:
  // Blocks until the port is made, and throws what that threw, or Error(config) where the port is another
  // rank's. `book` outlives the thread.
  CommunicationThread(const MakeMessagePort& make_port, CommunicationThreadOptions options,
                      OperationBook& book);
  // What is not over fails. Nobody asks for operations any more.
  ~CommunicationThread();
  CommunicationThread(const CommunicationThread&) = delete;
  CommunicationThread& operator=(const CommunicationThread&) = delete;

  // Blocks while too many operations of the lane wait. Thread-safe.
  void enqueue(const CommOperation& operation);
  // Everything that is not over fails, and everything later, because of that rank. The first loss counts.
  // Thread-safe.
  void lose(PeerLoss loss);
  // HostPeers::sentence(); empty before the first operation is over. Thread-safe.
  std::string host_sentence() const;
  Pulls& pulls() { return pulls_; }

 private:
  void work(const MakeMessagePort& make_port, std::promise<void> made);
  void make(const MakeMessagePort& make_port);
  bool may_end(bool& moved);
  bool only_listens(bool moved);
  void sleep(uint64_t pause_ns);
  void listen();
  bool is_needed() const TERRACE_REQUIRES(mutex_);
  bool can_take() const TERRACE_REQUIRES(mutex_);
  bool take() TERRACE_REQUIRES(mutex_);
  bool advance();
  bool introduce();
  void give_up(PeerLoss loss);
  bool lanes_are_idle() const;
  bool is_idle() const;
  void call();
  void wake();

  const CommunicationThreadOptions options_;
  OperationBook& book_;

  mutable Mutex mutex_;
  std::condition_variable_any needed_;
  std::condition_variable_any not_full_;
  std::vector<OperationRing> rings_ TERRACE_GUARDED_BY(mutex_);  // by lane
  std::optional<PeerLoss> told_loss_ TERRACE_GUARDED_BY(mutex_);
  bool stop_ TERRACE_GUARDED_BY(mutex_) = false;
  bool is_called_ TERRACE_GUARDED_BY(mutex_) = false;  // by the pulls
  std::string host_sentence_ TERRACE_GUARDED_BY(mutex_);
  std::atomic<bool> is_listening_{false};  // set under the mutex
  const WakeEvent needed_while_listening_;

  // The thread's own.
  std::unique_ptr<MessagePort> port_;
  std::optional<HostPeers> peers_;
  std::vector<MessageLane> lanes_;
  PullEngine pulls_;
  std::optional<PortPullWire> wire_;
  SteadyClock clock_;
  PollPauses pauses_;
  std::vector<int> readable_;
  std::vector<pollfd> watched_;
  bool has_heard_ = false;  // the port has woken this thread
  uint32_t lost_rank_ = 0;
  std::exception_ptr lost_;  // null while all ranks can be reached

  std::thread thread_;
};

}  // namespace terrace
