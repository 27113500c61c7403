// The page of a run: one HTML file that needs only a browser. It loads nothing over the network, and its own
// content security policy forbids it to.
#pragma once

#include <cstdint>
#include <string>

#include <terrace/runtime/observe/page/run_record.h>

namespace terrace {

// `written_at`: seconds since 1970.
std::string report_page(const RunRecord& record, int64_t written_at);

}  // namespace terrace
