// What is decided about the slots of the device, as it is decided: an embedding program may keep it, and may
// have a run decide as an earlier one did. Decisions depend on the uses alone, never on time: two runs of one
// configuration make the same ones in the same order, whatever engine, threads or speed they have.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <terrace/base/log.h>

namespace terrace {

enum class DecisionKind : uint8_t {
  step,        // a training step begins; the number counts those of this offloader, from 1
  evaluation,  // the same of an evaluation
  update,      // the step's update begins
  use,         // an operation begins
  fetch,       // a chunk's parameters come because the operation needs them
  ahead,       // they come for a use that is still to come
  evict,       // they leave to make room
  bypass,      // the same after a single use: they passed through
  stale,       // their copy is worthless
  gradient,    // a chunk's gradient takes a slot
  landed,      // it leaves, complete
};
std::string_view name_of(DecisionKind kind);

struct Decision {
  DecisionKind kind = DecisionKind::use;
  uint64_t number = 0;         // of the step or evaluation, or the chunk
  std::string_view operation;  // of a use

  bool operator==(const Decision&) const = default;
};

// Told of every decision, on the step thread.
class DecisionLog {
 public:
  virtual ~DecisionLog() = default;
  virtual void add(const Decision& decision) = 0;
};

// The decisions of an earlier run, one after the other.
class DecisionSource {
 public:
  virtual ~DecisionSource() = default;
  // The next one, the same until advance(); null at the end.
  virtual const Decision* next() = 0;
  virtual void advance() = 0;
  // Where it stands, for messages: "decisions.jsonl:17".
  virtual std::string place() const = 0;
};

// Both of an offloader; either may be null.
class Decisions {
 public:
  Decisions(DecisionLog* log, DecisionSource* replay, Log& user_log)
      : log_(log), replay_(replay), user_log_(user_log) {}

  // Throws Error(config) naming the place where a run that replays others' decisions comes to another.
  void made(const Decision& decision);
  void made(DecisionKind kind, uint64_t number) { made(Decision{kind, number, {}}); }
  // What is to be decided next; null where nothing is prescribed.
  const Decision* prescribed();
  // What is prescribed cannot be done.
  [[noreturn]] void refuse(const std::string& reason) const;

 private:
  DecisionLog* const log_;
  DecisionSource* replay_;
  Log& user_log_;
};

}  // namespace terrace
