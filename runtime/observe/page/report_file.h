// ReportFile: the page of a run as a file. It is replaced as a whole, so a browser that loads it meanwhile
// sees the old page or the new one. Its cost is bounded: a page is written at least kLeastPauseNs after the
// last, and takes at most one part in kShare of the run's time.
#pragma once

#include <cstdint>
#include <filesystem>

#include <terrace/base/clock.h>
#include <terrace/runtime/observe/page/run_record.h>

namespace terrace {

class ReportFile {
 public:
  static constexpr uint64_t kLeastPauseNs = 15'000'000'000;
  static constexpr uint64_t kShare = 200;

  // `clock` outlives it.
  ReportFile(std::filesystem::path path, const Clock& clock) : path_(std::move(path)), clock_(clock) {}

  const std::filesystem::path& path() const { return path_; }
  // True if the page is old enough to be written again.
  bool is_due() const { return clock_.now_ns() >= due_ns_; }
  // Replaces the file at the path, or leaves it unchanged if writing fails. Throws Error(io).
  void write(const RunRecord& record, int64_t written_at);

 private:
  const std::filesystem::path path_;
  const Clock& clock_;
  uint64_t due_ns_ = 0;
};

}  // namespace terrace
