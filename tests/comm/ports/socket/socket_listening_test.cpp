// While ranks only listen for each other's pulls, their sockets wake them, and nobody looks.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include <terrace/comm/messages/message_communicator.h>
#include <terrace/comm/ports/socket/socket_port.h>

#include "comm/rank_worlds.h"
#include "support/scratch_folder.h"

namespace terrace::socket_listening_test {
namespace {

using testing::place_to_meet;

// A port that counts how often somebody looks at its messages.
class CountedPort final : public MessagePort {
 public:
  CountedPort(std::unique_ptr<MessagePort> port, std::atomic<uint64_t>& looks)
      : port_(std::move(port)), looks_(looks) {}
  uint32_t rank() const override { return port_->rank(); }
  uint32_t size() const override { return port_->size(); }
  uint64_t max_message_bytes() const override { return port_->max_message_bytes(); }
  MessageRequest start_send(uint32_t to, uint32_t tag, std::span<const std::byte> bytes) override {
    return port_->start_send(to, tag, bytes);
  }
  MessageRequest start_receive(uint32_t from, uint32_t tag, std::span<std::byte> bytes) override {
    return port_->start_receive(from, tag, bytes);
  }
  MessageState test(MessageRequest request) override {
    ++looks_;
    return port_->test(request);
  }
  void add_readable(std::vector<int>& descriptors) const override { port_->add_readable(descriptors); }
  std::string reason() const override { return port_->reason(); }
  void abandon(uint32_t blamed, const std::string& why) override { port_->abandon(blamed, why); }

 private:
  const std::unique_ptr<MessagePort> port_;
  std::atomic<uint64_t>& looks_;
};

// A rank that has one byte for others, and takes what is handed over to it.
class Host final : public PullHost {
 public:
  Host() { has_heard.begin(); }
  bool open_item(uint32_t, uint64_t, std::span<const std::byte>& bytes) override {
    bytes = item_;
    return true;
  }
  void close_item(uint32_t) override {}
  void hear(const HandedOver&) override { has_heard.complete_one(); }
  void ended(uint32_t) override {}
  void lost(const std::exception_ptr&) override {}

  Event has_heard;

 private:
  const std::array<std::byte, 1> item_{std::byte{7}};
};

class SocketListening : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Places, SocketListening, ::testing::Bool(),
                         [](const auto& over_tcp) { return over_tcp.param ? "Tcp" : "Path"; });

TEST_P(SocketListening, TakesAFewLooksAndHearsWhatComes) {
  constexpr uint32_t kRanks = 2;
  const ScratchFolder folder;
  const RendezvousPlace place = place_to_meet(folder, GetParam());
  std::array<std::atomic<uint64_t>, kRanks> looks{};
  const auto run = [&](uint32_t r) {
    const MakeMessagePort make = socket_port({.rank = r, .size = kRanks, .place = place, .run = "test"});
    std::vector<RankPlace> places(kRanks);
    for (uint32_t p = 0; p < kRanks; ++p) places[p].rank = p;
    MessageCommunicator rank(r, places, [&] { return std::make_unique<CountedPort>(make(), looks[r]); });
    Host host;
    Pulls& pulls = *rank.pulls();
    pulls.begin(host);
    const std::byte mine{1};
    std::array<std::byte, kRanks> all{};
    rank.ballot(Lane::control, {&mine, 1}, all);

    const uint64_t before = looks[r];
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    EXPECT_LT(looks[r] - before, 200u) << "a look every 20 ms is 25, and one every 200 us is 2500";

    pulls.hand_over(1 - r, {r, 0, 0, 0}, {}, nullptr, nullptr);
    host.has_heard.wait();
    std::array<std::byte, 1> got{};
    Event done;
    done.begin();
    pulls.read(1 - r, 0, 0, got, nullptr, done);
    done.wait();
    EXPECT_EQ(got.front(), std::byte{7});
    pulls.end();
  };
  std::jthread second([&] { run(1); });
  run(0);
}

}  // namespace
}  // namespace terrace::socket_listening_test
