#include "comm/thread_ports.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <thread>
#include <utility>

#include <terrace/base/assert.h>

namespace terrace::testing {
namespace {

constexpr uint32_t kTags = 3 * kLaneCount + 3;
constexpr uint32_t kNobody = UINT32_MAX;

}  // namespace

// A message that was sent and has not arrived.
struct ThreadPorts::Message {
  uint32_t sender = kNobody;  // whose slot waits for the message; nobody's where it was copied
  uint32_t slot = 0;
  std::span<const std::byte> bytes;
  std::vector<std::byte> copy;
  uint32_t looks_left = 0;
};

struct ThreadPorts::Channel {
  std::vector<Message> messages;   // oldest first
  std::vector<uint32_t> receives;  // slots of the receiver, oldest first
  uint32_t to = 0;
};

// The port of a rank; the lock of the ports guards it.
class ThreadPorts::Port final : public MessagePort {
 public:
  Port(ThreadPorts& ports, uint32_t rank) : ports_(ports), rank_(rank) {
    std::seed_seq seeds{ports.options_.seed, uint64_t{rank}};
    random_.seed(seeds);
    slots_.reserve(64);
    const MutexLock lock(ports_.mutex_);
    TERRACE_ASSERT(ports_.ports_[rank] == nullptr, "a rank has one port at a time");
    ports_.ports_[rank] = this;
  }

  ~Port() override {
    assert_thread();
    const MutexLock lock(ports_.mutex_);
    for (const Slot& slot : slots_) TERRACE_ASSERT(!slot.used, "a port ends with messages pending");
    ports_.ports_[rank_] = nullptr;
    ports_.ended_[rank_] = true;
  }

  uint32_t rank() const override { return rank_; }
  uint32_t size() const override { return ports_.options_.ranks; }
  uint64_t max_message_bytes() const override { return ports_.options_.max_message_bytes; }
  std::string reason() const override { return reason_; }

  MessageRequest start_send(uint32_t to, uint32_t tag, std::span<const std::byte> bytes) override;
  MessageRequest start_receive(uint32_t from, uint32_t tag, std::span<std::byte> bytes) override;
  MessageState test(MessageRequest request) override;
  void abandon(uint32_t blamed, const std::string& why) override;

 private:
  friend class ThreadPorts;
  struct Slot {
    bool used = false;
    bool sends = false;
    bool over = false;
    uint32_t other = 0;
    uint32_t tag = 0;
    std::span<std::byte> room;  // of a receive
    std::string failure;        // of a message of another length
  };
  void assert_thread() const {
    TERRACE_ASSERT(std::this_thread::get_id() == thread_, "the thread that made a port uses it");
  }
  uint32_t take_slot(bool sends, uint32_t other, uint32_t tag, uint64_t bytes);
  Channel& channel_of(const Slot& slot);
  void drop(uint32_t slot);
  std::string why_never(const Slot& slot);

  ThreadPorts& ports_;
  const uint32_t rank_;
  const std::thread::id thread_ = std::this_thread::get_id();
  std::mt19937_64 random_;
  std::vector<Slot> slots_;
  std::string reason_;
  bool abandoned_ = false;
};

uint32_t ThreadPorts::Port::take_slot(bool sends, uint32_t other, uint32_t tag, uint64_t bytes) {
  assert_thread();
  TERRACE_ASSERT(!abandoned_, "nothing is started on a port that was abandoned");
  TERRACE_ASSERT(other < size() && other != rank_ && tag < kTags, "a message goes to another rank");
  TERRACE_ASSERT(bytes > 0 && bytes <= max_message_bytes(), "a message has bytes, and no more than allowed");
  uint32_t slot = 0;
  while (slot < slots_.size() && slots_[slot].used) ++slot;
  if (slot == slots_.size()) slots_.emplace_back();
  slots_[slot].used = true;
  slots_[slot].over = false;
  slots_[slot].sends = sends;
  slots_[slot].other = other;
  slots_[slot].tag = tag;
  return slot;
}

ThreadPorts::Channel& ThreadPorts::Port::channel_of(const Slot& slot) {
  return slot.sends ? ports_.channel(rank_, slot.other, slot.tag)
                    : ports_.channel(slot.other, rank_, slot.tag);
}

MessageRequest ThreadPorts::Port::start_send(uint32_t to, uint32_t tag, std::span<const std::byte> bytes) {
  const MutexLock lock(ports_.mutex_);
  const uint32_t slot = take_slot(true, to, tag, bytes.size());
  Message message{.sender = rank_, .slot = slot, .bytes = bytes, .copy = {}, .looks_left = 0};
  if (ports_.options_.latest_looks > 0)
    message.looks_left = static_cast<uint32_t>(random_() % (ports_.options_.latest_looks + 1));
  if (ports_.options_.copies_some && random_() % 2 == 0) {
    message.copy.assign(bytes.begin(), bytes.end());
    message.bytes = message.copy;
    message.sender = kNobody;
    slots_[slot].over = true;
  }
  channel_of(slots_[slot]).messages.push_back(std::move(message));
  ++ports_.sent_messages_;
  ports_.longest_message_bytes_ = std::max<uint64_t>(ports_.longest_message_bytes_, bytes.size());
  return MessageRequest{slot};
}

MessageRequest ThreadPorts::Port::start_receive(uint32_t from, uint32_t tag, std::span<std::byte> bytes) {
  const MutexLock lock(ports_.mutex_);
  const uint32_t slot = take_slot(false, from, tag, bytes.size());
  slots_[slot].room = bytes;
  channel_of(slots_[slot]).receives.push_back(slot);
  return MessageRequest{slot};
}

MessageState ThreadPorts::Port::test(MessageRequest request) {
  assert_thread();
  const MutexLock lock(ports_.mutex_);
  ++ports_.tests_;
  const auto index = static_cast<uint32_t>(request);
  Slot& slot = slots_[index];
  TERRACE_ASSERT(slot.used, "the message is not over");
  if (!slot.over && !slot.sends && !ports_.lost_[slot.other]) ports_.deliver(channel_of(slot));
  if (!slot.over) {
    reason_ = why_never(slot);
    if (reason_.empty()) return MessageState::pending;
    drop(index);
    return MessageState::failed;
  }
  slot.used = false;
  reason_ = std::exchange(slot.failure, {});
  return reason_.empty() ? MessageState::done : MessageState::failed;
}

// Why the message will never be over; empty where it may.
std::string ThreadPorts::Port::why_never(const Slot& slot) {
  for (const uint32_t rank : {slot.other, rank_}) {
    if (ports_.lost_[rank]) return *ports_.lost_[rank];
  }
  if (!ports_.ended_[slot.other]) return {};
  return slot.sends || channel_of(slot).messages.empty() ? "its port has ended" : std::string();
}

void ThreadPorts::Port::drop(uint32_t slot) {
  Channel& channel = channel_of(slots_[slot]);
  if (slots_[slot].sends) {
    std::erase_if(channel.messages,
                  [&](const Message& sent) { return sent.sender == rank_ && sent.slot == slot; });
  } else {
    std::erase(channel.receives, slot);
  }
  slots_[slot].used = false;
}

void ThreadPorts::Port::abandon(uint32_t, const std::string&) {
  assert_thread();
  const MutexLock lock(ports_.mutex_);
  for (uint32_t slot = 0; slot < slots_.size(); ++slot) {
    if (slots_[slot].used) drop(slot);
  }
  abandoned_ = true;
}

// --- All ports ---

ThreadPorts::ThreadPorts(ThreadPortsOptions options)
    : options_(options),
      channels_(size_t{options.ranks} * options.ranks * kTags),
      ports_(options.ranks),
      ended_(options.ranks),
      lost_(options.ranks) {
  // Tests count allocations. A sender has eight messages of a tag pending at most, and copies are not
  // counted.
  for (Channel& channel : channels_) {
    channel.messages.reserve(8);
    channel.receives.reserve(8);
  }
}

ThreadPorts::~ThreadPorts() = default;

MakeMessagePort ThreadPorts::port_of(uint32_t rank) {
  return [this, rank] { return std::make_unique<Port>(*this, rank); };
}

void ThreadPorts::lose(uint32_t rank, const std::string& why) {
  const MutexLock lock(mutex_);
  if (!lost_[rank]) lost_[rank] = why;
}

ThreadPorts::Channel& ThreadPorts::channel(uint32_t from, uint32_t to, uint32_t tag) {
  Channel& channel = channels_[(size_t{from} * options_.ranks + to) * kTags + tag];
  channel.to = to;
  return channel;
}

// A look at the oldest message for the oldest receive, and at the next ones while they arrive.
void ThreadPorts::deliver(Channel& channel) {
  while (!channel.messages.empty() && !channel.receives.empty()) {
    Message& message = channel.messages.front();
    if (message.looks_left > 0) {
      --message.looks_left;
      return;
    }
    Port::Slot& receive = ports_[channel.to]->slots_[channel.receives.front()];
    receive.over = true;
    if (receive.room.size() != message.bytes.size()) {
      receive.failure = "a message has another length than its receive expects";
    } else {
      std::memcpy(receive.room.data(), message.bytes.data(), message.bytes.size());
    }
    if (message.sender != kNobody) ports_[message.sender]->slots_[message.slot].over = true;
    channel.messages.erase(channel.messages.begin());
    channel.receives.erase(channel.receives.begin());
  }
}

uint64_t ThreadPorts::sent_messages() const {
  const MutexLock lock(mutex_);
  return sent_messages_;
}

uint64_t ThreadPorts::longest_message_bytes() const {
  const MutexLock lock(mutex_);
  return longest_message_bytes_;
}

uint64_t ThreadPorts::tests() const {
  const MutexLock lock(mutex_);
  return tests_;
}

}  // namespace terrace::testing
