#include "train/progress_line.h"

#include <fmt/format.h>

#include <cmath>
#include <vector>

namespace terrace {
namespace {

// The sign of a NaN means nothing, so it is not shown.
double unsigned_nan(double value) {
  return std::isnan(value) ? std::abs(value) : value;
}

std::string rate_text(double per_second) {
  if (per_second < 9999.5) return fmt::format("{:.{}f}", per_second, per_second < 99.5 ? 1 : 0);
  return per_second < 9999500 ? fmt::format("{:.1f}k", per_second * 1e-3)
                              : fmt::format("{:.1f}M", per_second * 1e-6);
}

std::string short_remaining(double seconds) {
  const auto whole = static_cast<uint64_t>(std::max(seconds, 0.0) + 0.5);
  if (whole >= 86400) return fmt::format("{}d{:02}h", whole / 86400, whole / 3600 % 24);
  if (whole >= 3600) return fmt::format("{}h{:02}m", whole / 3600, whole / 60 % 60);
  return whole >= 60 ? fmt::format("{}m{:02}s", whole / 60, whole % 60) : fmt::format("{}s", whole);
}

uint64_t percent_of(const RunProgress& progress) {
  return progress.steps == 0 ? 100 : progress.step * 100 / progress.steps;
}

std::vector<std::string> long_parts(const RunProgress& p) {
  std::vector<std::string> parts = {fmt::format("step {}/{} {} %", p.step, p.steps, percent_of(p)),
                                    fmt::format("loss {:.4f}", unsigned_nan(p.loss))};
  if (p.held_out_loss) parts.push_back(fmt::format("held-out {:.4f}", unsigned_nan(*p.held_out_loss)));
  parts.push_back(fmt::format("lr {:.3g}", p.learning_rate));
  parts.push_back(fmt::format("norm {:.3g}", unsigned_nan(p.gradient_norm)));
  parts.push_back(fmt::format("{} tokens/s", rate_text(p.tokens_per_second)));
  parts.push_back(fmt::format("ETA {}", remaining_text(p.seconds_left)));
  return parts;
}

std::vector<std::string> short_parts(const RunProgress& p) {
  std::vector<std::string> parts = {fmt::format("{}/{} {}%", p.step, p.steps, percent_of(p)),
                                    fmt::format("loss {:.3f}", unsigned_nan(p.loss))};
  if (p.held_out_loss) parts.push_back(fmt::format("val {:.3f}", unsigned_nan(*p.held_out_loss)));
  parts.push_back(fmt::format("lr {:.2g}", p.learning_rate));
  parts.push_back(fmt::format("norm {:.2g}", unsigned_nan(p.gradient_norm)));
  parts.push_back(fmt::format("{} tok/s", rate_text(p.tokens_per_second)));
  parts.push_back(fmt::format("ETA {}", short_remaining(p.seconds_left)));
  return parts;
}

std::string joined(const std::vector<std::string>& parts, const char* between) {
  std::string line;
  for (const std::string& part : parts) line += (line.empty() ? "" : between) + part;
  return line;
}

}  // namespace

std::string remaining_text(double seconds) {
  const auto whole = static_cast<uint64_t>(std::max(seconds, 0.0) + 0.5);
  if (whole >= 86400) return fmt::format("{} d {:02} h", whole / 86400, whole / 3600 % 24);
  if (whole >= 3600) return fmt::format("{} h {:02} min", whole / 3600, whole / 60 % 60);
  return whole >= 60 ? fmt::format("{} min {:02} s", whole / 60, whole % 60) : fmt::format("{} s", whole);
}

std::string progress_line(const RunProgress& progress, size_t columns) {
  const std::string line = joined(long_parts(progress), "  ");
  if (columns == 0 || line.size() <= columns) return line;
  std::vector<std::string> parts = short_parts(progress);
  for (const char* between : {"  ", " "}) {
    if (std::string shorter = joined(parts, between); shorter.size() <= columns) return shorter;
  }
  while (parts.size() > 1 && joined(parts, " ").size() > columns) parts.pop_back();
  return joined(parts, joined(parts, "  ").size() <= columns ? "  " : " ").substr(0, columns);
}

}  // namespace terrace
