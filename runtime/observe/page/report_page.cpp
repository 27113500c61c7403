#include <terrace/runtime/observe/page/report_page.h>

#include <fmt/format.h>

#include <terrace/base/assert.h>
#include <terrace/runtime/observe/page/internal/page_files.h>
#include <terrace/runtime/observe/page/report_json.h>

namespace terrace {
namespace {

// Puts a text in the place of a mark that the frame has once.
void fill_in(std::string& page, std::string_view mark, std::string_view text) {
  const size_t place = page.find(mark);
  TERRACE_ASSERT(place != std::string::npos, fmt::format("the frame of the page lacks {}", mark));
  page.replace(place, mark.size(), text);
}

}  // namespace

std::string report_page(const RunRecord& record, int64_t written_at) {
  std::string page(page_files::report_html);
  // The data last: no mark is looked for in them.
  fill_in(page, "/*STYLE*/", page_files::report_css);
  fill_in(page, "/*SCRIPT*/", page_files::script);
  fill_in(page, "/*DATA*/", report_json(record, written_at));
  return page;
}

}  // namespace terrace
