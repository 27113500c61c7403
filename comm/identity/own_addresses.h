// OwnAddresses: at which addresses processes of other hosts may reach this one.
#pragma once

#include <string>
#include <vector>

namespace terrace {

// The numbers of this host's addresses that others may reach, at most five before `host_name`, which they may
// know. May be called from any thread.
std::vector<std::string> own_addresses(const std::string& host_name);

}  // namespace terrace
