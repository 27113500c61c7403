#include <terrace/comm/identity/own_addresses.h>

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string_view>

namespace terrace {

std::vector<std::string> own_addresses(const std::string& host_name) {
  std::vector<std::string> numbers;
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return {host_name};
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> list(all, freeifaddrs);
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* one = list.get(); one != nullptr; one = one->ifa_next) {
      const bool counts = (one->ifa_flags & IFF_UP) != 0 && (one->ifa_flags & IFF_LOOPBACK) == 0;
      if (!counts || one->ifa_addr == nullptr || one->ifa_addr->sa_family != family) continue;
      std::array<char, NI_MAXHOST> number{};
      const socklen_t length = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
      if (getnameinfo(one->ifa_addr, length, number.data(), number.size(), nullptr, 0, NI_NUMERICHOST) == 0 &&
          std::string_view(number.data()).find('%') == std::string_view::npos)
        numbers.emplace_back(number.data());
    }
  }
  numbers.insert(numbers.begin() + static_cast<std::ptrdiff_t>(std::min<size_t>(numbers.size(), 5)),
                 host_name);
  return numbers;
}

}  // namespace terrace
