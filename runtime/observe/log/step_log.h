// StepLog: the run as JSON lines, one object per line, for programs. docs/steps_jsonl.md lists the keys.
// It must never write part of a line where another writer, or the same run resumed, could continue it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include <terrace/comm/operations/communicator.h>
#include <terrace/runtime/observe/log/log_lines.h>
#include <terrace/runtime/observe/log/log_record.h>

namespace terrace {

// Takes every line of a log as it is written, without its newline.
using LineReader = std::function<void(std::string_view)>;

class StepLog final : public RunObserver {
 public:
  // An empty path makes a log without a file. A file that exists is appended to, on a new line. Steps have
  // what moved over the lanes of `ranks`, and the lines of `said` stand before them; both may be null, and
  // outlive this. Throws Error(io).
  explicit StepLog(const std::string& path, const Communicator* ranks = nullptr, LogRecord* said = nullptr);
  ~StepLog() override;
  StepLog(const StepLog&) = delete;
  StepLog& operator=(const StepLog&) = delete;

  // From now on `reader` gets every line.
  void copy_to(LineReader reader) { reader_ = std::move(reader); }

  // These functions throw Error(io) if the line is not in the file as a whole.
  void start(const RunHeader& header);
  void fault_on_purpose(uint64_t step, const std::string& spec);
  void memory(uint64_t step, const RunMemory& memory);
  // `picture` is JSON.
  void picture(uint64_t step, std::string_view picture);
  void step_done(const StepReport& report) override;
  void update_finished(const FinishedUpdate& update) override;
  void evaluated(uint64_t step, double validation_loss) override;
  void state_kept(const KeptState& kept) override;
  void commits_removed() override;
  void ended(const RunEnd& end) override;

 private:
  void put(const std::string& line);
  void put_said();
  void put(JsonWriter& line) { put(line.end().take()); }
  void write_lanes(JsonWriter& json, const OffloadCounters& moved);

  std::string path_;
  const Communicator* const ranks_;
  LogRecord* const said_;
  LineReader reader_;
  uint64_t completed_steps_ = 0;
  CommCounters lanes_{};  // when the last step ended
  int fd_ = -1;
};

}  // namespace terrace
