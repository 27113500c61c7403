// Spread: the median, least and greatest result of several rounds of a measurement.
#pragma once

#include <string_view>
#include <vector>

#include <terrace/base/text/json_writer.h>

namespace terrace {

inline constexpr double kGigabyte = 1e9;

struct Spread {
  double median = 0, least = 0, most = 0;
};

// `values` must not be empty.
Spread spread_of(std::vector<double> values);
// Writes the member {"median": 1.5, "least": 1.0, "most": 2.0}, with this many decimals.
void write_spread(JsonWriter& json, std::string_view key, const Spread& spread, int decimals = 6);

}  // namespace terrace
