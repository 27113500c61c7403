// StepLog: the run as JSON lines, one object per line, for programs. docs/steps_jsonl.md lists the keys.
// It must never write part of a line where another writer, or the same run resumed, could continue it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include <terrace/base/text/json_writer.h>
#include <terrace/comm/operations/communicator.h>
#include <terrace/runtime/observe/log/run_observer.h>

namespace terrace {

constexpr double seconds(uint64_t ns) {
  return static_cast<double>(ns) * 1e-9;
}

// Writes a member with nanoseconds by cause, which add up exactly.
void write_time_parts(JsonWriter& json, std::string_view key, const TimeParts& parts);

// Writes the member "uses": the purposes of a tier's bytes.
void write_uses(JsonWriter& json, std::span<const TierUse> uses);

class StepLog final : public RunObserver {
 public:
  // An empty path makes a log that keeps nothing. A file that exists is appended to, on a new line. Steps
  // have what moved over the lanes of `ranks`, which may be null and outlives this. Throws Error(io).
  explicit StepLog(const std::string& path, const Communicator* ranks = nullptr);
  ~StepLog() override;
  StepLog(const StepLog&) = delete;
  StepLog& operator=(const StepLog&) = delete;

  // These functions throw Error(io) if the line is not in the file as a whole. `config` is a JSON object: the
  // values in force by their keys.
  void start(uint64_t completed_steps, uint64_t steps, const std::string& model, std::string_view config);
  void fault_on_purpose(uint64_t step, const std::string& spec);
  void step_done(const StepReport& report) override;
  void evaluated(uint64_t step, double validation_loss) override;
  void state_kept(const KeptState& kept) override;
  void ended(const RunEnd& end) override;

 private:
  void put(const std::string& line);
  void put(JsonWriter& line) { put(line.end().take()); }
  void write_lanes(JsonWriter& json, const OffloadCounters& moved);

  std::string path_;
  const Communicator* const ranks_;
  CommCounters lanes_{};  // when the last step ended
  int fd_ = -1;
};

}  // namespace terrace
