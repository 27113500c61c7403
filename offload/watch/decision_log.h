// DecisionLog: hears the decisions about device slots as they are made. An embedding program may keep them.
// Decisions depend on the uses alone, never on time: two runs of one configuration make the same decisions in
// the same order, whatever their engine, threads or speed.
#pragma once

#include <cstdint>
#include <string_view>

namespace terrace {

enum class DecisionKind : uint8_t {
  step,        // a training step begins; the number counts the offloader's steps from 1
  evaluation,  // an evaluation begins; the number counts evaluations from 1
  update,      // the step's update begins
  use,         // an operation begins
  fetch,       // a chunk's parameters are fetched because the operation needs them
  ahead,       // a chunk's parameters are fetched for a later use
  evict,       // a chunk's parameters leave to make room
  bypass,      // a chunk's parameters leave after a single use
  stale,       // a chunk's copy of parameters is dropped: it is out of date
  gradient,    // a chunk's gradient takes a slot
  landed,      // a chunk's gradient leaves its slot
};
std::string_view name_of(DecisionKind kind);

struct Decision {
  DecisionKind kind = DecisionKind::use;
  uint64_t number = 0;         // the step, the evaluation or the chunk
  std::string_view operation;  // of a use only

  bool operator==(const Decision&) const = default;
};

// DecisionLog receives every decision, on the step thread.
class DecisionLog {
 public:
  virtual ~DecisionLog() = default;
  virtual void add(const Decision& decision) = 0;
};

// Decisions hands an offloader's decisions to its log, which may be null.
class Decisions {
 public:
  explicit Decisions(DecisionLog* log) : log_(log) {}

  void made(const Decision& decision) {
    if (log_ != nullptr) log_->add(decision);
  }
  void made(DecisionKind kind, uint64_t number) { made(Decision{kind, number, {}}); }

 private:
  DecisionLog* const log_;
};

}  // namespace terrace
