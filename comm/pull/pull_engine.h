// PullEngine: the pulls of one rank over a wire. Threads ask, and the thread of the wire carries out what
// they asked for and what other ranks ask of this one.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <span>
#include <vector>

#include <terrace/base/mutex.h>
#include <terrace/comm/pull/pull_wire.h>
#include <terrace/comm/pull/pulls.h>

namespace terrace {

// Allocates nothing once it has carried as much at once as before.
class PullEngine final : public Pulls {
 public:
  // `wake` is called, by any thread, when there is something to do.
  PullEngine(uint32_t rank, uint32_t size, std::function<void()> wake);

  void begin(PullHost& host) override;
  void end() override;
  void read(uint32_t owner, uint32_t item, uint64_t version, std::span<std::byte> into, const Event* after,
            Event& done, const CopyNote& note) override;
  void hand_over(uint32_t to, const PullWords& words, std::span<const std::byte> bytes, const Event* after,
                 Event* taken) override;
  void take(const HandedOver& part, std::span<std::byte> into, Event& done, const CopyNote& note) override;
  void wake() override { wake_(); }
  uint64_t in_bytes() const override { return in_bytes_.load(std::memory_order_relaxed); }
  uint64_t out_bytes() const override { return out_bytes_.load(std::memory_order_relaxed); }

  // --- The thread of the wire ---
  // True between begin() and end() of all ranks, and while something waits to fail. Thread-safe.
  bool is_active() const {
    return active_.load(std::memory_order_acquire) || is_failing_.load(std::memory_order_acquire);
  }
  // True if nothing but a word of another rank, or wake(), can move anything.
  bool only_listens() const {
    return waiting_reads_.empty() && waiting_keeping_.empty() && waiting_taking_.empty() &&
           waiting_asked_.empty() && moving_.empty();
  }
  // Moves on what can move, and returns whether anything did. Throws what the wire and the host throw.
  bool advance(PullWire& wire);
  // All that is not over fails, and all later. The wire carries nothing of it any more.
  void fail(const std::exception_ptr& failure);

 private:
  // Who is told of bytes that have come, and from when on they were on their way.
  struct Arrival {
    Event* done = nullptr;
    CopyNote note = {};
    uint64_t begun_ns = 0;
    void begin() { begun_ns = note.observer != nullptr ? note.observer->now_ns() : 0; }
    void over(uint64_t bytes) const {
      if (note.observer != nullptr) note.observer->copied(note, bytes, begun_ns);
      done->complete_one();
    }
  };
  struct Read {
    uint32_t owner = 0, item = 0;
    uint64_t version = 0;
    std::span<std::byte> into;
    const Event* after = nullptr;
    Arrival arrival;
  };
  struct Keeping {
    uint32_t to = 0;
    PullWords words = {};
    std::span<const std::byte> bytes;
    const Event* after = nullptr;
    Event* taken = nullptr;
  };
  struct Taking {
    HandedOver part;
    std::span<std::byte> into;
    Arrival arrival;
  };
  struct Asked {  // by another rank
    uint32_t from = 0, item = 0;
    uint64_t version = 0, reply = 0;
  };
  // Bytes in messages: what happens when they have moved.
  struct Moving {
    uint32_t transfer = 0;
    uint64_t bytes = 0;
    Arrival arrival;    // of bytes that come; for those that leave only its event, or nothing
    int64_t item = -1;  // to be closed
  };
  // Things by a number of their own.
  template <typename T>
  struct Numbered {
    std::vector<T> all;
    std::vector<uint32_t> free;
    uint64_t add(const T& one) {
      if (free.empty()) {
        all.push_back(one);
        return all.size() - 1;
      }
      const uint32_t number = free.back();
      free.pop_back();
      all[number] = one;
      return number;
    }
    T remove(uint64_t number) {
      T one = all[number];
      all[number] = T{};
      free.push_back(static_cast<uint32_t>(number));
      return one;
    }
  };

  bool take_commands();
  bool begin_reads(PullWire& wire);
  bool begin_keeping(PullWire& wire);
  bool begin_taking(PullWire& wire);
  bool hear_all(PullWire& wire);
  void hear(PullWire& wire, uint32_t from, const PullHeader& header);
  bool answer(PullWire& wire, const Asked& asked);
  bool answer_waiting(PullWire& wire);
  void get(PullWire& wire, uint32_t from, uint64_t address, std::span<std::byte> into);
  bool finish_moving(PullWire& wire);
  bool end_if_over(PullWire& wire);
  bool fail_waiting();

  const uint32_t rank_, size_;
  const std::function<void()> wake_;
  std::atomic<bool> active_{false}, is_failing_{false};
  std::atomic<uint64_t> in_bytes_{0}, out_bytes_{0};

  Mutex mutex_;
  std::condition_variable_any ended_;
  std::vector<Read> asked_reads_ TERRACE_GUARDED_BY(mutex_);
  std::vector<Keeping> asked_keeping_ TERRACE_GUARDED_BY(mutex_);
  std::vector<Taking> asked_taking_ TERRACE_GUARDED_BY(mutex_);
  PullHost* host_ TERRACE_GUARDED_BY(mutex_) = nullptr;
  bool is_ending_ TERRACE_GUARDED_BY(mutex_) = false;
  std::exception_ptr failure_ TERRACE_GUARDED_BY(mutex_);

  // The thread's own.
  PullHost* answering_ = nullptr;
  std::exception_ptr failed_;
  bool ends_ = false, has_said_end_ = false;
  std::vector<Read> waiting_reads_;
  std::vector<Keeping> waiting_keeping_;  // from next_keeping_ on
  size_t next_keeping_ = 0;
  std::vector<Taking> waiting_taking_;
  std::vector<Asked> waiting_asked_;
  Numbered<Read> reads_;
  Numbered<Keeping> keeping_;
  Numbered<Taking> taking_;
  std::vector<Moving> moving_;
  std::vector<bool> gone_;            // by rank: it has ended, and answers what it was asked
  std::vector<uint32_t> unanswered_;  // by rank: what it was asked
};

}  // namespace terrace
