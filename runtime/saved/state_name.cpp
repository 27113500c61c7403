#include <terrace/runtime/saved/state_name.h>

#include <fmt/format.h>

#include <algorithm>

#include <terrace/base/text/utf8.h>

namespace terrace::saved {
namespace {

// With the dot and the suffix of a partial folder it stays a name that every file system takes.
constexpr size_t kMostNameBytes = 200;

}  // namespace

std::string why_no_state_name(std::string_view name) {
  if (name.empty()) return "it is empty";
  if (name.size() > kMostNameBytes)
    return fmt::format("it has {} bytes, and {} is the most", name.size(), kMostNameBytes);
  if (name.front() == '.') return "it begins with a dot";
  if (name.find_first_of("/\\") != std::string_view::npos) return "it holds a separator of paths";
  const auto is_control = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; };
  if (std::any_of(name.begin(), name.end(), is_control)) return "it holds a control character";
  if (well_formed_bytes(name) != name.size()) return "it is not UTF-8";
  if (name.front() == ' ' || name.back() == ' ') return "it begins or ends with a space";
  if (name == kLatestName || name == fmt::format("{}.new", kLatestName))
    return "the folder has a file of that name, which says what its newest checkpoint is";
  return "";
}

}  // namespace terrace::saved
