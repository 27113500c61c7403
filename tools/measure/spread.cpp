#include "measure/spread.h"

#include <algorithm>

#include <terrace/base/assert.h>

namespace terrace {

Spread spread_of(std::vector<double> values) {
  TERRACE_ASSERT(!values.empty(), "a measurement has at least one round");
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  const double median = values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
  return {median, values.front(), values.back()};
}

void write_spread(JsonWriter& json, std::string_view key, const Spread& spread, int decimals) {
  json.object(key, {{"median", json_fixed(spread.median, decimals)},
                    {"least", json_fixed(spread.least, decimals)},
                    {"most", json_fixed(spread.most, decimals)}});
}

}  // namespace terrace
