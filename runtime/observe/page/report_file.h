// ReportFile: the page of a run on disk, replaced as a whole: a browser that loads it meanwhile sees the old
// one or the new one. It is kept current for what that costs: a page is written when at least kLeastPauseNs
// have passed since the last, and no more of the run's time than one part in kShare goes into it.
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
  // Whether the page is old enough.
  bool is_due() const { return clock_.now_ns() >= due_ns_; }
  // Takes the place of what has the path; nothing of it is there when the page is not. Throws Error(io).
  void write(const RunRecord& record, int64_t written_at);

 private:
  const std::filesystem::path path_;
  const Clock& clock_;
  uint64_t due_ns_ = 0;
};

}  // namespace terrace
