// A log of decisions, as --replay-decisions takes it. What is accepted is read as the same when it is
// written.
#include <terrace/runtime/train/planning/decision_file.h>

#include <sstream>
#include <string>
#include <vector>

#include "fuzz_input.h"

namespace {

using namespace terrace;

constexpr DecisionSubject kSubject{9, 4};

struct Read {
  std::vector<Decision> decisions;
  std::vector<std::string> operations;  // of each of them
};

Read read(std::string text) {
  Read found;
  DecisionReplay replay(std::make_unique<std::istringstream>(std::move(text)), "fuzz.jsonl", kSubject);
  for (const Decision* decision = replay.next(); decision != nullptr; decision = replay.next()) {
    found.decisions.push_back({decision->kind, decision->number, {}});
    found.operations.emplace_back(decision->operation);
    replay.advance();
  }
  return found;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Read found;
  const bool accepted =
      fuzz::accepts({ErrorKind::config}, [&] { found = read(std::string(fuzz::as_text(data, size))); });
  if (!accepted) return 0;
  std::string written = "{\"terrace_decisions\": 1, \"chunks\": 9, \"slots\": 4}\n";
  for (size_t d = 0; d < found.decisions.size(); ++d) {
    Decision decision = found.decisions[d];
    decision.operation = found.operations[d];
    written += decision_line(decision);
  }
  const Read again = read(std::move(written));
  fuzz::require(again.decisions == found.decisions && again.operations == found.operations,
                "it is read as it was written");
  return 0;
}
