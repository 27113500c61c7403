// FaultEngine: an engine that goes wrong as a FaultPlan says. It counts requests, above the common engine;
// users of engines must survive its faults. FaultTransport, below the common engine, counts pieces.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include <terrace/aio/engines/engine_decorator.h>
#include <terrace/aio/engines/fault_plan.h>
#include <terrace/aio/engines/fault_transport.h>
#include <terrace/base/assert.h>

namespace terrace::io {

class FaultEngine final : public EngineDecorator {
 public:
  // Makes a plan of its own.
  FaultEngine(std::unique_ptr<Engine> base, std::vector<Fault> faults, FaultTime time = real_time());
  // Uses a plan that may be shared and must outlive the engine.
  FaultEngine(std::unique_ptr<Engine> base, FaultPlan& plan);
  ~FaultEngine() override;
  FaultEngine(const FaultEngine&) = delete;
  FaultEngine& operator=(const FaultEngine&) = delete;

  void submit(std::span<const Request> requests) override;
  size_t poll() override;
  size_t wait(size_t min_count) override;
  void wake() noexcept override;
  uint64_t in_flight() const override { return in_flight_; }
  // The plan's count. stats() are the base's, so a request that failed without reaching the base counts
  // nowhere.
  uint64_t faults_done() const { return plan_.faults_done(); }

 private:
  struct Tracked;
  FaultEngine(std::unique_ptr<Engine> base, std::unique_ptr<FaultPlan> own_plan);
  static void on_base_complete(void* context, const Completion& completion) noexcept;
  Request start(const Request& request, bool& goes_to_base);
  void finish(Tracked& tracked, const Completion& completion);
  void run(Tracked& tracked, const Completion& completion);
  void run_due();

  std::unique_ptr<FaultPlan> own_plan_;
  FaultPlan& plan_;
  FaultSleeper sleeper_;
  std::vector<std::unique_ptr<Tracked>> tracked_;
  std::vector<Tracked*> free_;
  std::vector<Tracked*> held_;  // finished below, not yet due
  uint64_t in_flight_ = 0;
  uint64_t completed_ = 0;
};

struct FaultEngine::Tracked {
  FaultEngine* owner;
  Request request;
  FaultEffects effects;
  Completion completion;
};

inline FaultEngine::FaultEngine(std::unique_ptr<Engine> base, std::vector<Fault> faults, FaultTime time)
    : FaultEngine(std::move(base), std::make_unique<FaultPlan>(std::move(faults), std::move(time))) {}

inline FaultEngine::FaultEngine(std::unique_ptr<Engine> base, std::unique_ptr<FaultPlan> own_plan)
    : FaultEngine(std::move(base), *own_plan) {
  own_plan_ = std::move(own_plan);
}

inline FaultEngine::FaultEngine(std::unique_ptr<Engine> base, FaultPlan& plan)
    : EngineDecorator(std::move(base)), plan_(plan) {
  for (const Fault& fault : plan_.faults()) {
    TERRACE_ASSERT(fault.kind != FaultKind::short_transfer,
                   "an engine never ends short: plan short transfers on a FaultTransport, below it");
  }
}

inline FaultEngine::~FaultEngine() {
  while (in_flight_ > 0) wait(in_flight_);
}

// What the base is asked to do for `request`, if anything.
inline Request FaultEngine::start(const Request& request, bool& goes_to_base) {
  if (free_.empty()) free_.push_back(tracked_.emplace_back(std::make_unique<Tracked>()).get());
  Tracked* tracked = free_.back();
  free_.pop_back();
  const FaultEffects effects = plan_.effects_on(request.kind, request.fd, request.bytes);
  *tracked = Tracked{this, request, effects, {}};
  ++in_flight_;
  Request below = request;
  below.bytes = effects.moved_bytes;
  below.on_complete = &FaultEngine::on_base_complete;
  below.context = tracked;
  goes_to_base = below.bytes > 0 || effects.error == 0;
  if (!goes_to_base) {
    tracked->completion = Completion{effects.error, 0, request.tag};
    held_.push_back(tracked);
  }
  return below;
}

inline void FaultEngine::submit(std::span<const Request> requests) {
  std::vector<Request> below;
  below.reserve(requests.size());
  for (const Request& request : requests) {
    bool goes_to_base = false;
    const Request changed = start(request, goes_to_base);
    if (goes_to_base) below.push_back(changed);
  }
  base().submit(below);
}

inline void FaultEngine::on_base_complete(void* context, const Completion& completion) noexcept {
  auto& tracked = *static_cast<Tracked*>(context);
  tracked.owner->finish(tracked, completion);
}

inline void FaultEngine::finish(Tracked& tracked, const Completion& completion) {
  const FaultEffects& effects = tracked.effects;
  Completion changed = completion;
  if (completion.error == 0) {
    changed.error = effects.error;
    if (effects.claims_all && effects.error == 0) changed.bytes = tracked.request.bytes;
  }
  effects.flip(tracked.request.data, completion.bytes);
  if (plan_.time().clock->now_ns() >= effects.due_ns) {
    run(tracked, changed);
  } else {
    tracked.completion = changed;
    held_.push_back(&tracked);
  }
}

inline void FaultEngine::run(Tracked& tracked, const Completion& completion) {
  const Request request = tracked.request;
  free_.push_back(&tracked);
  --in_flight_;
  ++completed_;
  request.on_complete(request.context, completion);
}

// In the order in which they became due.
inline void FaultEngine::run_due() {
  for (;;) {
    const auto first = std::min_element(held_.begin(), held_.end(), [](const Tracked* a, const Tracked* b) {
      return a->effects.due_ns < b->effects.due_ns;
    });
    if (first == held_.end() || (*first)->effects.due_ns > plan_.time().clock->now_ns()) return;
    Tracked* tracked = *first;
    held_.erase(first);
    run(*tracked, tracked->completion);
  }
}

inline size_t FaultEngine::poll() {
  const uint64_t before = completed_;
  base().poll();
  run_due();
  return completed_ - before;
}

inline size_t FaultEngine::wait(size_t min_count) {
  const uint64_t before = completed_;
  const uint64_t target = before + std::min<uint64_t>(min_count, in_flight_);
  base().poll();
  run_due();
  while (completed_ < target && !sleeper_.take_woken()) {
    if (base().in_flight() > 0) {
      base().wait(1);
    } else {
      uint64_t due_ns = std::numeric_limits<uint64_t>::max();
      for (const Tracked* tracked : held_) due_ns = std::min(due_ns, tracked->effects.due_ns);
      sleeper_.sleep_until(plan_.time(), due_ns);
    }
    run_due();
  }
  return completed_ - before;
}

inline void FaultEngine::wake() noexcept {
  sleeper_.wake();
  base().wake();
}

}  // namespace terrace::io
