#include <terrace/reference/planning/rank_rates.h>

#include <unistd.h>

#include <algorithm>
#include <array>
#include <exception>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <terrace/base/clock.h>
#include <terrace/base/error.h>
#include <terrace/base/event.h>
#include <terrace/comm/messages/message_communicator.h>
#include <terrace/comm/ports/socket/socket_port.h>

namespace terrace {
namespace {

constexpr uint32_t kRanks = 2;
constexpr uint64_t kPartBytes = uint64_t{16} << 20;  // beyond the caches of most processors
constexpr uint64_t kSmallBytes = 64;
constexpr int kLeastRounds = 3;
constexpr int kMostRounds = 200;

// A folder that nobody else has.
class RendezvousFolder {
 public:
  RendezvousFolder() : name_((std::filesystem::temp_directory_path() / "terrace-rates.XXXXXX").string()) {
    if (mkdtemp(name_.data()) == nullptr)
      throw Error(ErrorKind::io, {"cannot make a folder for sockets", name_, system_reason(errno),
                                  "set TMPDIR to a folder that can be written"});
  }
  ~RendezvousFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(name_, ignored);
  }
  RendezvousFolder(const RendezvousFolder&) = delete;
  RendezvousFolder& operator=(const RendezvousFolder&) = delete;
  std::filesystem::path place() const { return std::filesystem::path(name_) / "meet"; }

 private:
  std::string name_;
};

// One of the two; what they do they do alike, so that each is timed while the other one does the same.
class Partner {
 public:
  Partner(uint32_t rank, const std::filesystem::path& place)
      : ranks_(rank, {{0, 0, 0, "", 0}, {1, 0, 1, "", 0}},
               socket_port({.rank = rank, .size = kRanks, .place = {.socket = place}, .run = "rates"})),
        sent_(kPartBytes, std::byte{1}),
        received_(kPartBytes) {}

  // The fastest exchange of so many bytes each way.
  double seconds(uint64_t bytes, uint64_t least_ns) {
    uint64_t best = UINT64_MAX;
    const uint64_t begin = clock_.now_ns();
    for (int round = 0; round < kMostRounds; ++round) {
      const uint64_t start = clock_.now_ns();
      exchange(bytes);
      const uint64_t end = clock_.now_ns();
      if (round > 0) best = std::min(best, end - start);  // the first one meets cold pages
      if (!goes_on(round + 1 < kLeastRounds || end - begin < least_ns)) break;
    }
    return static_cast<double>(std::max<uint64_t>(best, 1)) * 1e-9;
  }

 private:
  void exchange(uint64_t bytes) {
    const std::array<CommPart, kRanks> to = {CommPart{sent_.data(), bytes}, CommPart{sent_.data(), bytes}};
    std::array<CommPart, kRanks> from = {CommPart{received_.data(), bytes},
                                         CommPart{received_.data(), bytes}};
    Event done;
    done.begin();
    ranks_.exchange(Lane::gather, to, from, nullptr, done, {"rates", 0, ++count_});
    done.wait();
  }
  // Both end after the same exchange.
  bool goes_on(bool mine) {
    const std::array<std::byte, 1> own = {mine ? std::byte{1} : std::byte{0}};
    std::array<std::byte, kRanks> all{};
    ranks_.ballot(Lane::control, own, all);
    return all[0] == std::byte{1};
  }

  const SteadyClock clock_;
  MessageCommunicator ranks_;
  std::vector<std::byte> sent_, received_;
  uint64_t count_ = 0;
};

}  // namespace

void measure_rank_rates(uint64_t round_ns, MachineRates& rates) {
  const RendezvousFolder folder;
  std::array<std::exception_ptr, kRanks> failures;
  std::array<double, kRanks> large{}, small{};
  {
    std::vector<std::jthread> threads;
    for (uint32_t r = 0; r < kRanks; ++r) {
      threads.emplace_back([&, r] {
        try {
          Partner partner(r, folder.place());
          small[r] = partner.seconds(kSmallBytes, round_ns);
          large[r] = partner.seconds(kPartBytes, round_ns);
        } catch (...) {
          failures[r] = std::current_exception();
        }
      });
    }
  }
  for (const std::exception_ptr& failure : failures) {
    if (failure != nullptr) std::rethrow_exception(failure);
  }
  rates.rank_seconds = small[0];
  rates.rank_bytes = kPartBytes / std::max(large[0] - small[0], 1e-9);
}

}  // namespace terrace
