// ThreadPorts: the ports of ranks that are threads of one process, for tests. Messages wait in memory; each
// is late by a seeded number of looks at it, and some are copied when they are sent, as small ones are by
// real libraries. A rank can be lost, and a port that ends is missed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <terrace/base/mutex.h>
#include <terrace/comm/messages/message_port.h>
#include <terrace/comm/operations/communicator.h>

namespace terrace::testing {

struct ThreadPortsOptions {
  uint32_t ranks = 1;
  uint64_t max_message_bytes = uint64_t{1} << 20;
  uint32_t latest_looks = 0;  // of a receive at a message until it finds it
  bool copies_some = false;   // half of the messages are done when they are sent
  uint64_t seed = 0;
};

// Thread-safe; outlives its ports. Each port asserts that one thread uses it and that it keeps the rules of
// MessagePort.
class ThreadPorts {
 public:
  explicit ThreadPorts(ThreadPortsOptions options);
  ~ThreadPorts();

  // Makes the port of a rank, which has one at a time.
  MakeMessagePort port_of(uint32_t rank);
  // From now on every message to or from the rank fails that is not over, and says why.
  void lose(uint32_t rank, const std::string& why);

  uint64_t sent_messages() const;
  uint64_t longest_message_bytes() const;
  uint64_t tests() const;  // calls of test()

 private:
  class Port;
  struct Message;
  struct Channel;
  Channel& channel(uint32_t from, uint32_t to, uint32_t tag) TERRACE_REQUIRES(mutex_);
  void deliver(Channel& channel) TERRACE_REQUIRES(mutex_);

  const ThreadPortsOptions options_;
  mutable Mutex mutex_;
  std::vector<Channel> channels_ TERRACE_GUARDED_BY(mutex_);
  std::vector<Port*> ports_ TERRACE_GUARDED_BY(mutex_);
  std::vector<bool> ended_ TERRACE_GUARDED_BY(mutex_);
  std::vector<std::optional<std::string>> lost_ TERRACE_GUARDED_BY(mutex_);  // why
  uint64_t sent_messages_ TERRACE_GUARDED_BY(mutex_) = 0;
  uint64_t longest_message_bytes_ TERRACE_GUARDED_BY(mutex_) = 0;
  uint64_t tests_ TERRACE_GUARDED_BY(mutex_) = 0;
};

}  // namespace terrace::testing
