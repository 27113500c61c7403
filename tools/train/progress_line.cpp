#include "train/progress_line.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include <terrace/base/duration_text.h>

#include "wrapped_text.h"

namespace terrace {
namespace {

// The sign of a NaN means nothing, so it is not shown.
double unsigned_nan(double value) {
  return std::isnan(value) ? std::abs(value) : value;
}

constexpr double kMostWithDecimals = 1e6;

std::string short_loss(double loss) {
  return loss < kMostWithDecimals ? fmt::format("{:.3f}", unsigned_nan(loss))
                                  : fmt::format("{:.3g}", unsigned_nan(loss));
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
                                    "loss " + loss_text(p.loss)};
  if (p.held_out_loss) parts.push_back("held-out " + loss_text(*p.held_out_loss));
  parts.push_back(fmt::format("lr {:.3g}", p.learning_rate));
  parts.push_back(fmt::format("norm {:.3g}", unsigned_nan(p.gradient_norm)));
  parts.push_back(fmt::format("{} tokens/s", rate_text(p.tokens_per_second)));
  parts.push_back(fmt::format("ETA {}", format_seconds(p.seconds_left)));
  return parts;
}

// A part of the line, and its rank: where there is no room the part with the highest rank goes first.
struct LinePart {
  std::string text;
  int rank;
};

std::vector<LinePart> short_parts(const RunProgress& p) {
  std::vector<LinePart> parts = {{fmt::format("{}/{} {}%", p.step, p.steps, percent_of(p)), 0},
                                 {"loss " + short_loss(p.loss), 1}};
  if (p.held_out_loss) parts.push_back({"val " + short_loss(*p.held_out_loss), 3});
  parts.push_back({fmt::format("lr {:.2g}", p.learning_rate), 5});
  parts.push_back({fmt::format("norm {:.2g}", unsigned_nan(p.gradient_norm)), 6});
  parts.push_back({fmt::format("{} tok/s", rate_text(p.tokens_per_second)), 4});
  parts.push_back({fmt::format("ETA {}", short_remaining(p.seconds_left)), 2});
  return parts;
}

std::vector<std::string> texts_of(const std::vector<LinePart>& parts) {
  std::vector<std::string> texts;
  for (const LinePart& part : parts) texts.push_back(part.text);
  return texts;
}

}  // namespace

std::string loss_text(double loss) {
  return loss < kMostWithDecimals ? fmt::format("{:.4f}", loss) : fmt::format("{:.4g}", unsigned_nan(loss));
}

std::string progress_line(const RunProgress& progress, size_t columns) {
  const std::string line = joined(long_parts(progress), "  ");
  if (columns == 0 || line.size() <= columns) return line;
  std::vector<LinePart> parts = short_parts(progress);
  const auto width_with = [&](const char* between) { return joined(texts_of(parts), between).size(); };
  if (width_with("  ") <= columns) return joined(texts_of(parts), "  ");
  while (parts.size() > 1 && width_with(" ") > columns)
    parts.erase(std::ranges::max_element(parts, {}, &LinePart::rank));
  return joined(texts_of(parts), width_with("  ") <= columns ? "  " : " ").substr(0, columns);
}

}  // namespace terrace
