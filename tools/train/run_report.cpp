#include "train/run_report.h"

#include <ctime>

namespace terrace {
namespace {

constexpr size_t kPointsWithoutPage = 2;  // nobody looks at a curve

}  // namespace

RunReport::RunReport(const std::string& path, Console& console)
    : console_(console), record_(path.empty() ? kPointsWithoutPage : RunRecord::kPoints) {
  if (!path.empty()) file_.emplace(path, clock_);
  console_.copy_to(&said_);
}

RunReport::~RunReport() {
  console_.copy_to(nullptr);
}

void RunReport::begin(const RunHeader& header) {
  record_.add(start_line(header));
  if (!file_) return;
  file_->write(record_, std::time(nullptr));
  begun_ = true;
}

void RunReport::read(StepLog& log) {
  log.copy_to([this](std::string_view line) { record_.add(line); });
}

void RunReport::step_done(const StepReport&) {
  if (file_ && file_->is_due()) write();
}

void RunReport::ended(const RunEnd&) {
  write_last();
}

void RunReport::give_up(const Error& failure) {
  if (!begun_) return;
  for (const LoggedLine& line : said_.take()) record_.add(warning_line(line));
  record_.add(end_line({.step = record_.completed_steps(),
                        .failed = true,
                        .stopped_by = failure.parts().what_failed.in(Door::program),
                        .survives = "",
                        .told = failure.in(Door::program)}));
  write_last();
}

void RunReport::write_last() {
  if (begun_) write();
  begun_ = false;
}

void RunReport::write() {
  try {
    file_->write(record_, std::time(nullptr));
  } catch (const Error& unwritten) {
    console_.warning_once(unwritten.in(Door::program));  // training goes on as well without the page
  }
}

}  // namespace terrace
