#include "comm/pull/thread_pulls.h"

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <shared_mutex>
#include <thread>
#include <utility>

#include <terrace/comm/pull/pull_engine.h>

namespace terrace {
namespace {

// What is waited for may be done without a word.
constexpr std::chrono::microseconds kPause(200);

}  // namespace

class ThreadPulls::Side final : public PullWire {
 public:
  Side(ThreadPulls& world, uint32_t rank)
      : world_(world), rank_(rank), engine_(rank, world.ranks_, [this] { call(); }), boxes_(world.ranks_) {
    thread_ = std::thread(&Side::work, this);
  }
  ~Side() override { stop(); }

  // Nothing moves from now on.
  void stop() {
    {
      const MutexLock lock(mutex_);
      stop_ = true;
    }
    called_.notify_one();
    if (thread_.joinable()) thread_.join();
  }

  Pulls& pulls() { return engine_; }
  void lose(const std::exception_ptr& failure) {
    {
      const MutexLock lock(mutex_);
      if (lost_ == nullptr) lost_ = failure;
    }
    call();
  }

  void send(uint32_t to, const PullHeader& header) override {
    Side& other = world_.side(to);
    {
      const MutexLock lock(other.mutex_);
      other.boxes_[rank_].push_back(header);
    }
    other.call();
  }
  bool receive(uint32_t from, PullHeader& header) override {
    const MutexLock lock(mutex_);
    if (boxes_[from].empty()) return false;
    header = boxes_[from].front();
    boxes_[from].pop_front();
    return true;
  }
  bool is_read_by(uint32_t, uint64_t) const override { return true; }
  bool reads(uint32_t, uint64_t) const override { return true; }
  // What a rank has given up may be used for anything.
  void read(uint32_t other, uint64_t address, std::span<std::byte> into) override {
    Side& owner = world_.side(other);
    const std::shared_lock lock(owner.memory_);
    if (owner.given_up_ != nullptr) std::rethrow_exception(owner.given_up_);
    std::memcpy(into.data(), reinterpret_cast<const std::byte*>(address), into.size());
  }
  uint32_t send_bytes(uint32_t, std::span<const std::byte>) override { return 0; }
  uint32_t receive_bytes(uint32_t, std::span<std::byte>) override { return 0; }
  bool is_over(uint32_t) override { return true; }

 private:
  void call() {
    {
      const MutexLock lock(mutex_);
      is_called_ = true;
    }
    called_.notify_one();
  }
  void give_up(const std::exception_ptr& failure) {
    {
      const std::unique_lock lock(memory_);
      if (given_up_ == nullptr) given_up_ = failure;
    }
    engine_.fail(failure);
  }
  // Sleeps where nothing has moved, and returns false at the end.
  bool wait(bool moved, std::exception_ptr& failure) {
    const MutexLock lock(mutex_);
    const auto is_wanted = [this] { return is_called_ || stop_; };
    if (!moved && !engine_.is_active()) called_.wait(mutex_, is_wanted);
    if (!moved && engine_.is_active()) called_.wait_for(mutex_, kPause, is_wanted);
    is_called_ = false;
    failure = lost_;
    return !stop_;
  }
  void work() {
    bool moved = false;
    for (std::exception_ptr failure; wait(moved, failure);) {
      moved = false;
      if (failure != nullptr) {
        if (given_up_ == nullptr) give_up(failure);
        moved = engine_.advance(*this);
        continue;
      }
      try {
        moved = engine_.advance(*this);
      } catch (...) {
        give_up(std::current_exception());
        world_.failed_(rank_, std::current_exception());
      }
    }
  }

  ThreadPulls& world_;
  const uint32_t rank_;
  PullEngine engine_;
  std::shared_mutex memory_;
  std::exception_ptr given_up_;  // others read it under memory_
  Mutex mutex_;
  std::condition_variable_any called_;
  std::vector<std::deque<PullHeader>> boxes_ TERRACE_GUARDED_BY(mutex_);  // by sender
  bool is_called_ TERRACE_GUARDED_BY(mutex_) = false;
  bool stop_ TERRACE_GUARDED_BY(mutex_) = false;
  std::exception_ptr lost_ TERRACE_GUARDED_BY(mutex_);
  std::thread thread_;
};

ThreadPulls::ThreadPulls(uint32_t ranks, std::function<void(uint32_t, const std::exception_ptr&)> failed)
    : ranks_(ranks), failed_(std::move(failed)), sides_(ranks) {}

// No thread may send to a side that is gone.
ThreadPulls::~ThreadPulls() {
  std::vector<Side*> sides;
  {
    const MutexLock lock(mutex_);
    for (const std::unique_ptr<Side>& side : sides_) {
      if (side != nullptr) sides.push_back(side.get());
    }
  }
  for (Side* const side : sides) side->stop();
}

ThreadPulls::Side& ThreadPulls::side(uint32_t rank) {
  const MutexLock lock(mutex_);
  std::unique_ptr<Side>& side = sides_[rank];
  if (side == nullptr) {
    side = std::make_unique<Side>(*this, rank);
    if (lost_ != nullptr) side->lose(lost_);
  }
  return *side;
}

Pulls& ThreadPulls::rank(uint32_t rank) {
  return side(rank).pulls();
}

void ThreadPulls::lose(const std::exception_ptr& failure) {
  const MutexLock lock(mutex_);
  if (lost_ == nullptr) lost_ = failure;
  for (const std::unique_ptr<Side>& side : sides_) {
    if (side != nullptr) side->lose(lost_);
  }
}

}  // namespace terrace
