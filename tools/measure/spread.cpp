#include "measure/spread.h"

#include <fmt/format.h>

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

std::string spread_json(const Spread& spread, int decimals) {
  return fmt::format(R"({{"median": {:.{}f}, "least": {:.{}f}, "most": {:.{}f}}})", spread.median, decimals,
                     spread.least, decimals, spread.most, decimals);
}

}  // namespace terrace
