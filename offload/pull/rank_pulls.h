// RankPulls: the pulls of an offloader's rank (comm/pull/pulls.h). Other ranks ask for shares of chunks,
// which one part of the offloader has, and hand parts of gradients over, which another one hears of.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <span>
#include <string_view>

#include <terrace/comm/operations/communicator.h>
#include <terrace/comm/pull/pulls.h>

namespace terrace {

// The own shares of chunks. Called by the communication side; nothing blocks.
class ShareSource {
 public:
  virtual ~ShareSource() = default;
  // As PullHost::open_item() and close_item().
  virtual bool open_share(uint32_t chunk, uint64_t version, std::span<const std::byte>& bytes) = 0;
  virtual void close_share(uint32_t chunk) = 0;
};

// Who hears what ranks hand over. Called by the communication side; nothing blocks.
class PartListener {
 public:
  virtual ~PartListener() = default;
  virtual void hear(const HandedOver& part) = 0;
  virtual void lost(const std::exception_ptr& failure) = 0;
};

class RankPulls final : public PullHost {
 public:
  // `ranks` has pulls and outlives this.
  explicit RankPulls(Communicator& ranks) : ranks_(ranks), pulls_(*ranks.pulls()) {}
  // Leaves the ranks where they are not at their end.
  ~RankPulls() override;
  RankPulls(const RankPulls&) = delete;
  RankPulls& operator=(const RankPulls&) = delete;

  Pulls& pulls() { return pulls_; }
  Communicator& ranks() { return ranks_; }

  // Before begin(); both may stay null. They outlive end().
  void serve(ShareSource& shares) { shares_ = &shares; }
  void listen(PartListener& parts) { parts_ = &parts; }
  void begin();
  // Waits for the other ranks to end, and answers them meanwhile.
  void end();

  // Throws Error(peer) where a rank has ended without this step; where one ends so later, this rank leaves.
  void begin_step();

  bool open_item(uint32_t item, uint64_t version, std::span<const std::byte>& bytes) override {
    return shares_->open_share(item, version, bytes);
  }
  void close_item(uint32_t item) override { shares_->close_share(item); }
  void hear(const HandedOver& part) override;
  void ended(uint32_t) override {}
  void lost(const std::exception_ptr& failure) override {
    if (parts_ != nullptr) parts_->lost(failure);
  }

 private:
  Communicator& ranks_;
  Pulls& pulls_;
  ShareSource* shares_ = nullptr;
  PartListener* parts_ = nullptr;
  bool has_begun_ = false;
  std::atomic<uint64_t> step_{0};            // begun
  std::atomic<uint64_t> least_{UINT64_MAX};  // that a rank has begun which has ended
  std::atomic<uint32_t> ended_{0};           // that rank
};

}  // namespace terrace
