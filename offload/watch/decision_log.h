// DecisionLog and DecisionSource: the decisions about device slots, as they are made. An embedding program
// may keep them, and may replay those of an earlier run. Decisions depend on the uses alone, never on time:
// two runs of one configuration make the same decisions in the same order, whatever their engine, threads or
// speed.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <terrace/base/log.h>

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

// DecisionSource gives the decisions of an earlier run, one after the other.
class DecisionSource {
 public:
  virtual ~DecisionSource() = default;
  // The next decision, the same until advance(); null at the end.
  virtual const Decision* next() = 0;
  virtual void advance() = 0;
  // The position of the next decision, for messages: "decisions.jsonl:17".
  virtual std::string place() const = 0;
};

// Decisions joins an offloader's log and source; either may be null.
class Decisions {
 public:
  Decisions(DecisionLog* log, DecisionSource* replay, Log& user_log)
      : log_(log), replay_(replay), user_log_(user_log) {}

  // Logs the decision. Throws Error(config), which names the place, where it differs from the prescribed one.
  void made(const Decision& decision);
  void made(DecisionKind kind, uint64_t number) { made(Decision{kind, number, {}}); }
  // The prescribed next decision; null where nothing is prescribed.
  const Decision* prescribed();
  // Throws Error(config) because the prescribed decision cannot be carried out.
  [[noreturn]] void refuse(const std::string& reason) const;

 private:
  DecisionLog* const log_;
  DecisionSource* replay_;
  Log& user_log_;
};

}  // namespace terrace
