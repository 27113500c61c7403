// The toy model trained by an Offloader that commits, in folders that outlive it, and what any state of its
// training must be.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <terrace/aio/engines/engine_decorator.h>

#include "offload/toy_rig.h"

namespace terrace {

using CommitCase = ToyCase<RigKind::commits>;

class CommitRig : public ToyRig {
 public:
  CommitRig(const CommitCase& c, const std::vector<std::filesystem::path>& folders) : ToyRig(c, folders) {}
  CommitRig(const CommitCase& c, const std::filesystem::path& folder) : CommitRig(c, std::vector{folder}) {}

  // What lives in host memory of the records, in bytes of the tier.
  uint64_t cached_record_bytes() const;
  uint64_t trainable_elements() const;
};

// The state after every step, from 0 on, of the same training in host memory.
std::vector<std::vector<std::byte>> states_without_commits(CommitCase c, uint64_t steps);

std::string step_info(uint64_t step);
uint64_t step_of(const std::string& info);

// Holds every request until somebody waits for one, and then until `gate` returns.
class GateEngine final : public io::EngineDecorator {
 public:
  GateEngine(std::unique_ptr<io::Engine> base, std::function<void()> gate)
      : io::EngineDecorator(std::move(base)), gate_(std::move(gate)) {}
  void submit(std::span<const io::Request> requests) override {
    held_.insert(held_.end(), requests.begin(), requests.end());
  }
  size_t poll() override { return 0; }
  size_t wait(size_t min_count) override {
    gate_();
    const std::vector<io::Request> ready = std::move(held_);
    held_.clear();
    base().submit(ready);
    return base().wait(min_count);
  }
  uint64_t in_flight() const override { return held_.size() + base().in_flight(); }

 private:
  std::function<void()> gate_;
  std::vector<io::Request> held_;
};

// Opens when the step thread waits for a commit, or when it is told to; and in case of a mistake after a long
// while, so that the test ends.
class CommitGate {
 public:
  void operator()();
  void watch(const Offloader* offloader) { offloader_ = offloader; }
  void open(bool open) { open_ = open; }
  uint32_t waits_seen() const { return waits_seen_; }

 private:
  std::atomic<const Offloader*> offloader_{nullptr};
  std::atomic<bool> open_{true};
  std::atomic<uint32_t> waits_seen_{0};
};

// Trains four steps, of which the last two meet the commit of the second one while the gate holds it back.
void train_past_commit(CommitRig& rig, CommitGate& gate);

// What `c` has left in the folder is taken up as of that step.
void expect_commit(CommitCase c, const std::filesystem::path& folder, uint64_t step,
                   const std::vector<std::vector<std::byte>>& states);

// Decorates the engine of the commits alone.
WrapEngine decorate_commits(const CommitCase& c, WrapEngine wrap);

}  // namespace terrace
