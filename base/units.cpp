#include <terrace/base/units.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <utility>

#include <terrace/base/duration_text.h>
#include <terrace/base/error.h>

namespace terrace {
namespace {

[[noreturn]] void bad_size(std::string_view text, std::string_view what) {
  throw Error(ErrorKind::config, {fmt::format("cannot read the size given for {}", what), std::string(text),
                                  text.empty() ? "it is empty" : "it is no number with a unit of bytes",
                                  "write a number and a unit, for example 512MiB or 4GiB"});
}

double unit_factor(std::string_view unit, std::string_view text, std::string_view what) {
  std::string lower;
  for (char c : unit) lower += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  static constexpr std::array<std::string_view, 7> prefixes = {"", "k", "m", "g", "t", "p", "e"};
  for (size_t power = 0; power < prefixes.size(); ++power) {
    const std::string prefix(prefixes[power]);
    if (lower == prefix + "ib" || lower == prefix || (power == 0 && lower == "b"))
      return std::pow(1024.0, power);
    if (lower == prefix + "b") return std::pow(1000.0, power);
  }
  bad_size(text, what);
}

}  // namespace

uint64_t parse_bytes(std::string_view text, std::string_view what) {
  double number = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (status != std::errc() || !(number >= 0)) bad_size(text, what);
  std::string_view unit(end, static_cast<size_t>(text.data() + text.size() - end));
  while (!unit.empty() && unit.front() == ' ') unit.remove_prefix(1);
  const double bytes = number * unit_factor(unit, text, what);
  if (!(bytes < 9.2e18)) {
    throw Error(ErrorKind::config, {fmt::format("cannot use the size given for {}", what), std::string(text),
                                    "it is 8 EiB or more", "write less, for example 512MiB or 4GiB"});
  }
  return static_cast<uint64_t>(std::llround(bytes));
}

std::string format_bytes(uint64_t bytes) {
  static constexpr std::array<const char*, 7> names = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < names.size()) {
    value /= 1024;
    ++unit;
  }
  if (unit == 0) return fmt::format("{} B", bytes);
  return fmt::format("{:.{}f} {}", value, value < 10 ? 2 : 1, names[unit]);
}

std::string format_duration(uint64_t ns) {
  const double value = static_cast<double>(ns);
  if (value < 1e3) return fmt::format("{} ns", ns);
  if (value < 1e6) return fmt::format("{:.3g} us", value / 1e3);
  if (value < 1e9) return fmt::format("{:.3g} ms", value / 1e6);
  return value < 99.95e9 ? fmt::format("{:.3g} s", value / 1e9) : format_seconds(value / 1e9);
}

std::string format_seconds(double seconds) {
  constexpr double kMost = 1e15;  // 30 million years; no value below it is too large for a whole number
  const auto whole = static_cast<uint64_t>((seconds > 0 ? std::min(seconds, kMost) : 0.0) + 0.5);
  if (whole >= 86400) return fmt::format("{} d {:02} h", whole / 86400, whole / 3600 % 24);
  if (whole >= 3600) return fmt::format("{} h {:02} min", whole / 3600, whole / 60 % 60);
  return whole >= 60 ? fmt::format("{} min {:02} s", whole / 60, whole % 60) : fmt::format("{} s", whole);
}

}  // namespace terrace
