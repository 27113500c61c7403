#include <terrace/comm/messages/communication_thread.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <terrace/base/error.h>
#include <terrace/base/mutex.h>

#include "comm/thread_ports.h"
#include "support/expect_error.h"

namespace terrace::communication_thread_test {
namespace {

using ::testing::ElementsAre;
using testing::expect_error;
using testing::ThreadPorts;

// What happened, in its order. Thread-safe.
class Diary {
 public:
  Diary() { looked.begin(); }
  ~Diary() {
    if (!looked.done()) looked.complete_one();
  }
  void write(std::string what) {
    const MutexLock lock(mutex_);
    if (what == "looks") looked.complete_one();
    lines_.push_back(std::move(what));
  }
  std::vector<std::string> lines() const {
    const MutexLock lock(mutex_);
    return lines_;
  }

  Event looked;  // a port has looked at a message for the first time

 private:
  mutable Mutex mutex_;
  std::vector<std::string> lines_ TERRACE_GUARDED_BY(mutex_);
};

// A port of rank 0 of two over which nothing ever arrives, unless messages fail at once.
class SilentPort : public MessagePort {
 public:
  SilentPort(Diary& diary, std::string failure = "") : diary_(diary), failure_(std::move(failure)) {}
  ~SilentPort() override {
    diary_.write(std::this_thread::get_id() == thread_ ? "ends" : "ends on another thread");
  }
  uint32_t rank() const override { return 0; }
  uint32_t size() const override { return 2; }
  uint64_t max_message_bytes() const override { return 1000; }
  MessageRequest start_send(uint32_t, uint32_t, std::span<const std::byte>) override { return {}; }
  MessageRequest start_receive(uint32_t, uint32_t, std::span<std::byte>) override { return {}; }
  MessageState test(MessageRequest) override {
    if (!std::exchange(has_looked_, true)) diary_.write("looks");
    return failure_.empty() ? MessageState::pending : MessageState::failed;
  }
  std::string reason() const override { return failure_; }
  void abandon(uint32_t blamed, const std::string& why) override {
    diary_.write("abandons because of rank " + std::to_string(blamed) + ": " + why);
  }

 private:
  Diary& diary_;
  const std::string failure_;
  const std::thread::id thread_ = std::this_thread::get_id();
  bool has_looked_ = false;
};

// Sends as Open MPI does over TCP: by a write that nothing protects from SIGPIPE.
class PortToADeadRank final : public SilentPort {
 public:
  explicit PortToADeadRank(Diary& diary) : SilentPort(diary), diary_(diary) {}
  MessageRequest start_send(uint32_t, uint32_t, std::span<const std::byte>) override {
    std::array<int, 2> ends{};
    EXPECT_EQ(pipe(ends.data()), 0);
    close(ends[0]);
    const std::byte byte{};
    EXPECT_EQ(write(ends[1], &byte, 1), -1);
    if (errno == EPIPE) diary_.write("writes to the dead");
    close(ends[1]);
    return {};
  }

 private:
  Diary& diary_;
};

// A gathering of two ranks, of a byte each.
struct Gathering {
  CommOperation of(OperationBook& book, Lane lane = Lane::gather, const Event* after = nullptr) {
    done.begin();
    return book.all_gather(lane, whole, 1, after, done, {"parameters", 1, 2});
  }
  std::array<std::byte, 2> whole{};
  Event done;
};

struct Silence {
  explicit Silence(std::string failure = "")
      : thread([this, failure] { return std::make_unique<SilentPort>(diary, failure); },
               {.rank = 0, .size = 2}, book) {}
  Diary diary;
  OperationBook book{0, 2};
  CommunicationThread thread;
};

TEST(CommunicationThread, MakesAndEndsItsPortOnAThreadOfItsOwn) {
  Diary diary;
  OperationBook book(0, 2);
  std::thread::id maker;
  {
    CommunicationThread thread(
        [&] {
          maker = std::this_thread::get_id();
          return std::make_unique<SilentPort>(diary);
        },
        {.rank = 0, .size = 2}, book);
    EXPECT_NE(maker, std::this_thread::get_id());
    EXPECT_THAT(diary.lines(), ElementsAre());
  }
  EXPECT_THAT(diary.lines(), ElementsAre("ends"));
}

TEST(CommunicationThread, EndsThePortOfAnotherRankThatItRefuses) {
  Diary diary;
  OperationBook book(1, 2);
  expect_error(ErrorKind::config, {"rank 1 of 2", "rank 0 of 2"}, [&] {
    CommunicationThread thread([&] { return std::make_unique<SilentPort>(diary); }, {.rank = 1, .size = 2},
                               book);
  });
  EXPECT_THAT(diary.lines(), ElementsAre("ends"));
}

// Two ranks, whose queues have room for one operation.
TEST(CommunicationThread, CarriesMoreOperationsThanWaitInItsQueues) {
  ThreadPorts ports({.ranks = 2});
  constexpr size_t kOperations = 20;
  std::array<std::array<Gathering, kOperations>, 2> gatherings;
  const auto gather_as = [&](uint32_t rank) {
    OperationBook book(rank, 2);
    CommunicationThread thread(ports.port_of(rank), {.rank = rank, .size = 2, .queue_depth = 1}, book);
    for (Gathering& gathering : gatherings[rank]) {
      gathering.whole[rank] = std::byte(rank + 5);
      thread.enqueue(gathering.of(book));
    }
    for (Gathering& gathering : gatherings[rank]) gathering.done.wait();
    EXPECT_EQ(book.counters()[index_of(Lane::gather)].operations, kOperations);
  };
  std::jthread second([&] { gather_as(1); });
  gather_as(0);
}

// The port goes first: no message touches the memory of an operation that is told to have failed.
TEST(CommunicationThread, AbandonsItsPortBeforeItFailsWhatWaits) {
  Silence silent;
  std::array<Gathering, 3> gatherings;
  for (Gathering& gathering : gatherings) silent.thread.enqueue(gathering.of(silent.book));
  silent.diary.looked.wait();
  silent.thread.lose({1, "it answers nobody"});
  silent.thread.lose({0, "a later loss"});
  for (Gathering& gathering : gatherings) {
    expect_error(ErrorKind::peer, {"rank 1", "it answers nobody"}, [&] { gathering.done.wait(); });
    EXPECT_THAT(silent.diary.lines(), ElementsAre("looks", "abandons because of rank 1: it answers nobody"));
  }
}

TEST(CommunicationThread, GivesUpWhereAMessageFails) {
  Silence failing("its cable is cut");
  Gathering gathering;
  failing.thread.enqueue(gathering.of(failing.book));
  expect_error(ErrorKind::peer, {"rank 1", "its cable is cut"}, [&] { gathering.done.wait(); });
  EXPECT_THAT(failing.diary.lines(), ElementsAre("looks", "abandons because of rank 1: its cable is cut"));
}

TEST(CommunicationThread, OutlivesAWriteToARankThatHasDied) {
  Diary diary;
  OperationBook book(0, 2);
  CommunicationThread thread([&] { return std::make_unique<PortToADeadRank>(diary); }, {.rank = 0, .size = 2},
                             book);
  Gathering gathering;
  thread.enqueue(gathering.of(book));
  diary.looked.wait();
  thread.lose({1, "it has died"});
  expect_error(ErrorKind::peer, {"rank 1", "it has died"}, [&] { gathering.done.wait(); });
  EXPECT_THAT(diary.lines(),
              ElementsAre("writes to the dead", "looks", "abandons because of rank 1: it has died"));
}

// In all lanes, without a message.
TEST(CommunicationThread, FailsWhatIsAskedForAfterALoss) {
  Silence silent;
  silent.thread.lose({1, "gone"});
  for (const Lane lane : {Lane::gather, Lane::exchange, Lane::gather}) {
    Gathering gathering;
    silent.thread.enqueue(gathering.of(silent.book, lane));
    expect_error(ErrorKind::peer, {"rank 1", "gone"}, [&] { gathering.done.wait(); });
  }
  EXPECT_THAT(silent.diary.lines(), ElementsAre("abandons because of rank 1: gone"));
}

// The operation whose event is not done keeps its memory, and the thread waits for it.
TEST(CommunicationThread, EndsAfterTheEventsOfWhatWaits) {
  Event filled;
  filled.begin();
  std::array<Gathering, 2> gatherings;
  std::jthread filler;
  Diary diary;
  OperationBook book(0, 2);
  {
    CommunicationThread thread([&] { return std::make_unique<SilentPort>(diary); }, {.rank = 0, .size = 2},
                               book);
    thread.enqueue(gatherings[0].of(book, Lane::gather, &filled));
    thread.enqueue(gatherings[1].of(book, Lane::exchange));
    // The other lane fails as soon as the thread ends.
    filler = std::jthread([&] {
      gatherings[1].done.wait_done();
      EXPECT_FALSE(gatherings[0].done.done());
      filled.complete_one();
    });
  }
  for (Gathering& gathering : gatherings)
    expect_error(ErrorKind::peer, {"rank 0", "its communicator has ended"}, [&] { gathering.done.wait(); });
  EXPECT_EQ(diary.lines().back(), "ends");
}

TEST(CommunicationThread, SaysHowRanksOfAHostExchangeOnceTheyHaveMet) {
  ThreadPorts ports({.ranks = 2});
  const HostPeersOptions reading{.read_process = read_process_memory};
  OperationBook first_book(0, 2), second_book(1, 2);
  CommunicationThread first(ports.port_of(0), {.rank = 0, .size = 2, .peers = reading}, first_book);
  CommunicationThread second(ports.port_of(1), {.rank = 1, .size = 2, .peers = reading}, second_book);
  EXPECT_EQ(first.host_sentence(), "");
  EXPECT_EQ(ports.sent_messages(), 0u) << "nobody has asked for anything";
  Gathering one, other;
  first.enqueue(one.of(first_book));
  second.enqueue(other.of(second_book));
  one.done.wait(), other.done.wait();
  EXPECT_NE(first.host_sentence(), "");
}

}  // namespace
}  // namespace terrace::communication_thread_test
