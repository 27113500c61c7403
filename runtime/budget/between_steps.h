// BetweenSteps: work for the state between two steps, whose bytes and time go into the report of the next
// step. It must never count work that failed.
#pragma once

#include <utility>

#include <terrace/base/function_ref.h>
#include <terrace/offload/offloader.h>
#include <terrace/runtime/checkpoint/state_keeper.h>

namespace terrace {

class BetweenSteps {
 public:
  // `offloader` outlives this.
  explicit BetweenSteps(Offloader& offloader) : offloader_(offloader) {}

  // Does `action`; counts and returns the bytes that it moved and the time that it took.
  OffloadCounters count(FunctionRef<void()> action) {
    const OffloadCounters before = offloader_.report().counters();
    action();
    const OffloadCounters moved = offloader_.report().counters() - before;
    moved_ = moved_ + moved;
    return moved;
  }
  // Does `action` for keeping the state; its time counts as that of a commit.
  KeptState keep(FunctionRef<KeptState()> action) {
    KeptState kept;
    count([&] {
      const TimeScope keeping(offloader_.time(), TimeCause::commit);
      kept = action();
    });
    return kept;
  }
  void finish_update() {
    keep([&] {
      offloader_.finish_update();
      return KeptState{};
    });
  }
  // Returns and resets everything counted since the last call.
  OffloadCounters take() { return std::exchange(moved_, {}); }

 private:
  Offloader& offloader_;
  OffloadCounters moved_;
};

}  // namespace terrace
