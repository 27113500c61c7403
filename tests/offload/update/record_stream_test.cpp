// How the streamed update uses a disk that answers in bursts.
#include <gtest/gtest.h>

#include <algorithm>

#include "offload/commits/commit_rig.h"

namespace terrace::record_stream_test {
namespace {

// What was in flight whenever somebody waited.
struct Burst {
  size_t reads = 0;
  size_t writes = 0;
};

// Ends everything at once, and only when somebody waits.
class BurstEngine final : public io::EngineDecorator {
 public:
  BurstEngine(std::unique_ptr<io::Engine> base, std::vector<Burst>& bursts)
      : io::EngineDecorator(std::move(base)), bursts_(bursts) {}
  void submit(std::span<const io::Request> requests) override {
    held_.insert(held_.end(), requests.begin(), requests.end());
  }
  size_t poll() override { return 0; }
  size_t wait(size_t) override {
    const auto is_read = [](const io::Request& request) { return request.kind == io::OpKind::read; };
    const auto reads = static_cast<size_t>(std::ranges::count_if(held_, is_read));
    bursts_.push_back({reads, held_.size() - reads});
    const std::vector<io::Request> ready = std::move(held_);
    held_.clear();
    base().submit(ready);
    return base().wait(ready.size());
  }
  uint64_t in_flight() const override { return held_.size() + base().in_flight(); }

 private:
  std::vector<Burst>& bursts_;
  std::vector<io::Request> held_;
};

TEST(RecordStream, HasBothDirectionsInFlightBetweenFillAndDrain) {
  std::vector<Burst> bursts;
  CommitCase c;
  c.durable = false;
  c.cached_quarters = 0;
  c.decorate = [&](std::unique_ptr<io::Engine> engine) -> std::unique_ptr<io::Engine> {
    return std::make_unique<BurstEngine>(std::move(engine), bursts);
  };
  const ScratchFolder folder;
  CommitRig rig(c, folder.path());
  rig.step(1);
  bursts.clear();
  rig.step(2);
  ASSERT_GT(bursts.size(), 4u);
  const auto both =
      std::ranges::count_if(bursts, [](const Burst& burst) { return burst.reads > 0 && burst.writes > 0; });
  EXPECT_GE(both + 3, static_cast<ptrdiff_t>(bursts.size()));
}

}  // namespace
}  // namespace terrace::record_stream_test
