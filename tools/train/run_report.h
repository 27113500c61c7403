// RunReport: the record of a run of `terrace train`, made of the lines of its log, whether they go to a file
// or not, and the page of --report, which is made of the record. If the page can no longer be written, it
// warns and the run goes on.
#pragma once

#include <optional>
#include <string>

#include <terrace/base/error.h>
#include <terrace/runtime/observe/log/step_log.h>
#include <terrace/runtime/observe/page/report_file.h>
#include <terrace/runtime/observe/page/run_record.h>

#include "console.h"

namespace terrace {

class RunReport final : public RunObserver {
 public:
  // Without a path there is no page. From here on it gets a copy of the console's warnings.
  RunReport(const std::string& path, Console& console);
  ~RunReport() override;
  RunReport(const RunReport&) = delete;
  RunReport& operator=(const RunReport&) = delete;

  // Writes the page for the first time. Throws Error(io), so that a page that cannot be written is known
  // before anything is trained.
  void begin(const RunHeader& header);
  // From here on the record is of what `log` writes; the log observes the run before this does.
  void read(StepLog& log);
  const RunRecord& record() const { return record_; }
  // The warnings of the console, for the log.
  LogRecord& said() { return said_; }

  // Keeps the page current.
  void step_done(const StepReport& report) override;
  // Writes the last page, unless there was no first one.
  void ended(const RunEnd& end) override;
  // Writes the last page of a run whose trainer is gone or was never made.
  void give_up(const Error& failure);

 private:
  void write();
  void write_last();

  Console& console_;
  const SteadyClock clock_;
  LogRecord said_;
  std::optional<ReportFile> file_;  // nothing if there is no page
  RunRecord record_;
  bool begun_ = false;
};

}  // namespace terrace
