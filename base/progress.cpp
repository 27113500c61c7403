#include <terrace/base/progress.h>

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include <terrace/base/duration_text.h>
#include <terrace/base/units.h>

namespace terrace {
namespace {

constexpr uint64_t kFirstNs = 1'000'000'000;
constexpr uint64_t kBetweenNs = 200'000'000;

std::string text_of(const std::string& what, uint64_t done, uint64_t total, const std::string& unit,
                    uint64_t elapsed_ns) {
  const double share = static_cast<double>(done) / static_cast<double>(std::max<uint64_t>(total, 1));
  std::string text = unit.empty() ? fmt::format("{}: {} of {}", what, format_bytes(done), format_bytes(total))
                                  : fmt::format("{}: {} of {} {}", what, done, total, unit);
  text += fmt::format(", {:.0f} %", 100 * share);
  if (share > 0)
    text += ", ETA " + format_seconds(static_cast<double>(elapsed_ns) * 1e-9 * (1 - share) / share);
  return text;
}

}  // namespace

ProgressReport::ProgressReport(Log& log, std::string what, uint64_t total, std::string_view unit,
                               const Clock* clock)
    : log_(log),
      what_(std::move(what)),
      total_(total),
      unit_(unit),
      clock_(clock == nullptr ? steady_ : *clock),
      begun_ns_(clock_.now_ns()),
      next_ns_(begun_ns_ + kFirstNs) {}

ProgressReport::~ProgressReport() {
  if (is_shown_) log_.end_passing();
}

void ProgressReport::add(uint64_t amount) {
  const uint64_t done = done_.fetch_add(amount) + amount;
  const uint64_t now = clock_.now_ns();
  uint64_t next = next_ns_.load();
  if (now < next || !next_ns_.compare_exchange_strong(next, now + kBetweenNs)) return;
  is_shown_ = true;
  log_.in_passing(text_of(what_, std::min(done, total_), total_, unit_, now - begun_ns_));
}

}  // namespace terrace
