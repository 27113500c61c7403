// Spread: what several rounds of a measurement come to.
#pragma once

#include <string>
#include <vector>

namespace terrace {

struct Spread {
  double median = 0, least = 0, most = 0;
};

// Of at least one value.
Spread spread_of(std::vector<double> values);
// {"median": 1.5, "least": 1, "most": 2}, with so many decimals.
std::string spread_json(const Spread& spread, int decimals = 6);

}  // namespace terrace
