// The contents of a page as one JSON object that may stand in a page: no text in it can end its element. Its
// size has a bound that no length of run exceeds. Times are nanoseconds, curves are columns; numbers that are
// not finite are null.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include <terrace/runtime/observe/page/run_record.h>

namespace terrace {

std::string report_json(const RunRecord& record, int64_t written_at);

// Returns a JSON text without characters that mean something in HTML: <, > and & are written \u003c and so
// on.
std::string json_for_html(std::string_view json);

}  // namespace terrace
