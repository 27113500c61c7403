#include <terrace/aio/io_thread.h>
#include <time.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <fstream>
#include <mutex>
#include <thread>

#include <terrace/base/event.h>

#include "aio/aio_support.h"
#include "support/patience.h"

namespace terrace::io::io_thread_test {
namespace {

// A transport whose pieces complete only when the test lets them, from any thread.
class GatedTransport final : public Transport {
 public:
  struct Gate {
    std::mutex mutex;
    std::condition_variable changed;
    uint64_t may_complete = 0;
    std::string order;  // 'c' or 'b' per piece started, told apart by descriptor 1 or 2
    bool woken = false;
    bool asleep = false;  // in a blocking reap

    void open(uint64_t count) {
      const std::lock_guard lock(mutex);
      may_complete += count;
      changed.notify_all();
    }
    void wait_started(size_t count) {
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return order.size() >= count; });
    }
    void wait_asleep() {
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return asleep; });
    }
    std::string started() {
      const std::lock_guard lock(mutex);
      return order;
    }
  };

  explicit GatedTransport(Gate& gate) : gate_(gate) {}
  EngineKind kind() const override { return EngineKind::threads; }
  void start(std::span<const Piece> pieces) override {
    const std::lock_guard lock(gate_.mutex);
    for (const Piece& piece : pieces) {
      pieces_.push_back(piece);
      gate_.order += piece.fd == 1 ? 'c' : 'b';
    }
    gate_.changed.notify_all();
  }
  Reaped reap(std::span<PieceResult> results, bool block) override {
    std::unique_lock lock(gate_.mutex);
    if (block) {
      gate_.asleep = true;
      gate_.changed.notify_all();
      gate_.changed.wait(lock, [&] { return gate_.woken || (gate_.may_complete > 0 && !pieces_.empty()); });
      gate_.asleep = false;
    }
    size_t count = 0;
    while (count < results.size() && gate_.may_complete > 0 && !pieces_.empty()) {
      results[count++] = PieceResult{pieces_.front().id, pieces_.front().bytes};
      pieces_.erase(pieces_.begin());
      --gate_.may_complete;
    }
    return Reaped{count, std::exchange(gate_.woken, false)};
  }
  void wake() noexcept override {
    const std::lock_guard lock(gate_.mutex);
    gate_.woken = true;
    gate_.changed.notify_all();
  }
  bool register_buffer(std::span<std::byte>) override { return false; }
  void unregister_buffer(std::span<std::byte>) override {}
  bool register_file(int) override { return false; }
  void unregister_file(int) override {}
  std::string_view registration_refusal() const override { return "gated"; }
  TransportStats stats() const override { return {}; }

 private:
  Gate& gate_;
  std::vector<Piece> pieces_;
};

// Counts completions, from the I/O thread.
struct Counter {
  std::atomic<uint64_t> done{0};
  std::atomic<uint64_t> failed{0};
  std::atomic<std::thread::id> thread{};
  static void count(void* context, const Completion& completion) noexcept {
    auto& counter = *static_cast<Counter*>(context);
    if (completion.error != 0) ++counter.failed;
    counter.thread = std::this_thread::get_id();
    ++counter.done;
  }
};

std::byte a_byte[4096];
Request piece_for(Counter& counter, Priority priority) {
  return Request{
      OpKind::write, priority == Priority::critical ? 1 : 2, 0, a_byte, 4096, &Counter::count, &counter, 0};
}

constexpr EngineOptions kDepthTwo{.queue_depth = 2, .block_bytes = 4096, .backlog_count = 4};

class IoThreadLaws : public ::testing::TestWithParam<EngineKind> {
 protected:
  void SetUp() override {
    const ProbeResult probe = probe_engine(GetParam());
    if (!probe.works) GTEST_SKIP() << probe.reason.text;
  }
  ScratchFolder folder_;
  File file_ = File::open(folder_ / "file", {.access = FileAccess::read_write, .create = true});
};

TEST_P(IoThreadLaws, TakesRequestsOfManyThreadsAndCompletesThemOnItsOwn) {
  constexpr uint64_t kThreads = 4;
  constexpr uint64_t kEach = 300;
  const Bytes out(kThreads * kEach * 512);
  out.fill_pattern(1);
  Counter counter;
  IoThread io(engine_of(GetParam(), 4, 4096, 8), {.queue_count = 16});
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (uint64_t i = 0; i < kEach; ++i) {
        const uint64_t offset = (t * kEach + i) * 512;
        io.submit(Request{OpKind::write, file_.fd(), offset, out.data() + offset, 512, &Counter::count,
                          &counter, i},
                  i % 3 == 0 ? Priority::critical : Priority::background);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  io.drain();
  EXPECT_EQ(counter.done, kThreads * kEach);
  EXPECT_EQ(counter.failed, 0u);
  EXPECT_NE(counter.thread.load(), std::this_thread::get_id());
  EXPECT_EQ(io.stats().requests, kThreads * kEach);
  const std::vector<std::byte> content = read_whole_file(folder_ / "file", kMiB);
  EXPECT_TRUE(std::ranges::equal(content, out.span()));
}

TEST_P(IoThreadLaws, EachRequestMayBeWaitedForAlone) {
  IoThread io(engine_of(GetParam()));
  Event event;
  const auto complete = [](void* context, const Completion& completion) noexcept {
    static_cast<Event*>(context)->complete_one(
        completion.error == 0 ? nullptr : std::make_exception_ptr(std::runtime_error("failed")));
  };
  for (int i = 0; i < 200; ++i) {
    event.begin();
    io.submit(Request{OpKind::write, file_.fd(), 0, a_byte, 4096, complete, &event, 0}, Priority::critical);
    event.wait();
  }
  event.begin();
  io.submit(Request{OpKind::write, -1, 0, a_byte, 4096, complete, &event, 0}, Priority::critical);
  EXPECT_THROW(event.wait(), std::runtime_error);
}

TEST_P(IoThreadLaws, TheDestructorFinishesWhatWasSubmitted) {
  Counter counter;
  {
    IoThread io(engine_of(GetParam(), 2, 4096, 4));
    for (uint64_t i = 0; i < 100; ++i) {
      io.submit(Request{OpKind::write, file_.fd(), i * 4096, a_byte, 4096, &Counter::count, &counter, 0},
                Priority::background);
    }
  }
  EXPECT_EQ(counter.done, 100u);
  EXPECT_EQ(file_.size_bytes(), 100u * 4096);
}

TEST_P(IoThreadLaws, RegistersMemoryAndFilesOnTheThreadThatUsesThem) {
  Counter counter;
  const Bytes memory(8 * 4096);
  IoThread io(engine_of(GetParam()));
  const bool registered = io.register_buffer(memory.span());
  EXPECT_EQ(registered, io.registration_refusal().empty());
  EXPECT_EQ(io.register_file(file_.fd()), registered);
  io.submit(Request{OpKind::write, file_.fd(), 0, memory.data(), 4096, &Counter::count, &counter, 0},
            Priority::critical);
  io.drain();
  EXPECT_EQ(io.stats().registered_pieces, registered ? 1u : 0u);
  EXPECT_EQ(io.stats().registered_file_pieces, registered ? 1u : 0u);
  if (!registered) return;
  io.unregister_buffer(memory.span());
  io.unregister_file(file_.fd());
}

// How often the I/O thread of this process has been switched, with its state: "S" and a number that stands
// still mean that it sleeps.
std::string activity_of_io_thread() {
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream status(task.path() / "status");
    std::string activity;
    bool is_io_thread = false;
    for (std::string line; std::getline(status, line);) {
      if (line == "Name:\tterrace-io") is_io_thread = true;
      if (line.starts_with("State:") || line.find("ctxt_switches") != std::string::npos)
        activity += line + " ";
    }
    if (is_io_thread) return activity;
  }
  return "no such thread";
}

TEST_P(IoThreadLaws, AnIdleThreadSleeps) {
  Counter counter;
  IoThread io(engine_of(GetParam()));
  io.submit(Request{OpKind::write, file_.fd(), 0, a_byte, 4096, &Counter::count, &counter, 0},
            Priority::critical);
  io.drain();
  std::string before;
  std::string after;
  EXPECT_TRUE(testing::comes_true([&] {
    before = activity_of_io_thread();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    after = activity_of_io_thread();
    return before == after && after.starts_with("State:\tS");
  })) << "it never came to rest: "
      << before << "then " << after;
}

INSTANTIATE_TEST_SUITE_P(Engines, IoThreadLaws,
                         ::testing::ValuesIn(engine_kinds().begin(), engine_kinds().end()),
                         [](const auto& instance) { return std::string(name_of(instance.param)); });

// Hangs if the I/O thread polls while something is in flight, or sleeps on when there is more to start.
TEST(IoThread, SleepsWhileRequestsAreInFlightAndWakesToStartAnother) {
  GatedTransport::Gate gate;
  Counter counter;
  IoThread io(make_engine_over(std::make_unique<GatedTransport>(gate), kDepthTwo));
  io.submit(piece_for(counter, Priority::critical), Priority::critical);
  gate.wait_started(1);
  gate.wait_asleep();
  io.submit(piece_for(counter, Priority::critical), Priority::critical);
  gate.wait_started(2);
  EXPECT_EQ(counter.done, 0u);
  gate.open(2);
  io.drain();
  EXPECT_EQ(counter.done, 2u);
}

TEST(IoThread, CriticalRequestsOvertakeBackgroundOnesThatWait) {
  GatedTransport::Gate gate;
  Counter counter;
  IoThread io(make_engine_over(std::make_unique<GatedTransport>(gate), kDepthTwo));
  for (int i = 0; i < 6; ++i) io.submit(piece_for(counter, Priority::background), Priority::background);
  gate.wait_started(2);
  for (int i = 0; i < 4; ++i) io.submit(piece_for(counter, Priority::critical), Priority::critical);
  gate.open(100);
  io.drain();
  EXPECT_EQ(gate.started(), "bbccccbbbb");
}

TEST(IoThread, SubmitBlocksWhileItsQueueIsFullAndGoesOnWhenThereIsRoom) {
  GatedTransport::Gate gate;
  Counter counter;
  IoThread io(make_engine_over(std::make_unique<GatedTransport>(gate), kDepthTwo), {.queue_count = 3});
  std::atomic<int> submitted{0};
  std::thread producer([&] {
    for (int i = 0; i < 20; ++i) {
      io.submit(piece_for(counter, Priority::background), Priority::background);
      ++submitted;
    }
  });
  gate.wait_started(2);
  // Two in the engine and three queued, and no more however long the producer tries.
  while (submitted < 5) std::this_thread::yield();
  for (int i = 0; i < 1000; ++i) std::this_thread::yield();
  EXPECT_EQ(submitted, 5);
  gate.open(100);
  producer.join();
  io.drain();
  EXPECT_EQ(counter.done, 20u);
}

// A callback that submits its successors through the thread's own submit().
struct Relay {
  IoThread* io;
  Counter* counter;
  int left;
  static void next(void* context, const Completion&) noexcept {
    auto& relay = *static_cast<Relay*>(context);
    ++relay.counter->done;
    if (relay.left-- <= 0) return;
    Request request = piece_for(*relay.counter, Priority::background);
    request.on_complete = &next;
    request.context = &relay;
    relay.io->submit(request, Priority::background);
  }
};

TEST(IoThread, CallbacksMaySubmitEvenWhenTheQueueIsFull) {
  GatedTransport::Gate gate;
  gate.open(10'000);
  Counter counter;
  IoThread io(make_engine_over(std::make_unique<GatedTransport>(gate), kDepthTwo), {.queue_count = 1});
  Relay relay{&io, &counter, 500};
  Request first = piece_for(counter, Priority::background);
  first.on_complete = &Relay::next;
  first.context = &relay;
  io.submit(first, Priority::background);
  for (int i = 0; i < 500; ++i) io.submit(piece_for(counter, Priority::background), Priority::background);
  io.drain();
  EXPECT_EQ(counter.done, 1001u);
}

// As in a plan, whose requests take no time.
TEST(IoThread, WithoutAThreadCompletesWhatItIsGivenBeforeSubmitReturns) {
  const ScratchFolder folder;
  const File file =
      File::open(folder / "file", {.access = FileAccess::read_write, .create = true, .direct = false});
  IoThread io(make_engine({.kind = EngineKind::threads, .queue_depth = 2}), {.without_thread = true});
  struct Twice {
    IoThread& io;
    Request request;
    std::thread::id thread;
    int completed = 0;
  };
  std::array<std::byte, 4096> bytes{};
  Twice twice{io, {}, {}};
  twice.request.kind = OpKind::write;
  twice.request.fd = file.fd();
  twice.request.data = bytes.data();
  twice.request.bytes = bytes.size();
  twice.request.context = &twice;
  twice.request.on_complete = [](void* context, const Completion& completion) noexcept {
    Twice& again = *static_cast<Twice*>(context);
    EXPECT_EQ(completion.error, 0);
    again.thread = std::this_thread::get_id();
    if (++again.completed == 1) again.io.submit(again.request, Priority::background);
  };
  io.submit(twice.request, Priority::critical);
  EXPECT_EQ(twice.completed, 2);
  EXPECT_EQ(twice.thread, std::this_thread::get_id());
  EXPECT_EQ(io.stats().requests, 2u);
  io.drain();
}

}  // namespace
}  // namespace terrace::io::io_thread_test
