#include <terrace/runtime/observe/page/report_file.h>

#include <algorithm>
#include <span>
#include <string>

#include <terrace/aio/aside_file.h>
#include <terrace/runtime/observe/page/report_page.h>

namespace terrace {
void ReportFile::write(const RunRecord& record, int64_t written_at) {
  const uint64_t begin_ns = clock_.now_ns();
  // What fails is not tried again at once.
  due_ns_ = begin_ns + kLeastPauseNs;
  const std::string page = report_page(record, written_at);
  io::AsideFile file(path_, {.suffix = ".new",
                             .for_the_user = true,
                             .what = "the report",
                             .advice = "name a file in a folder that can be written to",
                             .events = nullptr});
  file.write(0, std::as_bytes(std::span(page)));
  file.publish_undurably();  // a page is worth no wait for the disk
  const uint64_t end_ns = clock_.now_ns();
  due_ns_ = end_ns + std::max(kLeastPauseNs, (kShare - 1) * (end_ns - begin_ns));
}

}  // namespace terrace
