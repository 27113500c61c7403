#include <terrace/runtime/config/schema/config_problems.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

#include <terrace/base/error.h>
#include <terrace/base/option.h>
#include <terrace/runtime/config/schema/config_entries.h>

namespace terrace {
namespace {

constexpr size_t kMostProblems = 20;  // that are said in words

// "ds.json:14:7: text", or the text alone if there is no file.
std::string placed(const std::string& origin, const std::string& text) {
  if (origin.empty() || text.empty()) return origin + text;
  return origin + ": " + text;
}

// "a", "a and b", "a, b and c"
std::string listed(const std::vector<std::string>& keys) {
  if (keys.size() < 2) return fmt::format("{}", fmt::join(keys, ""));
  return fmt::format("{} and {}", fmt::join(keys.begin(), keys.end() - 1, ", "), keys.back());
}

// The text with the further keys. A reason may be a sentence with its full stop, which goes then.
std::string text_of(const ConfigProblem& problem) {
  std::string text = problem.text;
  if (problem.same.empty()) return text;
  if (text.ends_with('.')) text.pop_back();
  return text + "; the same holds for " + listed(problem.same);
}

// A problem as a line.
std::string line_of(const ConfigProblem& problem) {
  return placed(problem.origin, text_of(problem) + (problem.advice.empty() ? "" : "; " + problem.advice));
}

}  // namespace

bool ConfigProblems::says_next() const {
  return said_.size() < kMostProblems;
}

void ConfigProblems::add(ConfigProblem problem) {
  if (says_next()) said_.push_back(std::move(problem));
  last_reason_.clear();
  ++count_;
}

void ConfigProblems::add(const ConfigEntry& entry, const std::string& text, const std::string& advice) {
  add({.origin = entry.written_at, .key = entry.written_key, .text = text, .advice = advice});
}

void ConfigProblems::add_refusal(const std::string& origin, const std::string& key, const std::string& value,
                                 std::string_view reason) {
  const std::string section = key.substr(0, key.rfind('.') + 1);
  if (!said_.empty() && reason == last_reason_ && section == last_section_) {
    said_.back().same.push_back(key.substr(section.size()));
    return;
  }
  const bool is_said = says_next();
  add({.origin = origin, .key = key, .text = fmt::format("{} cannot be {}: {}", key, value, reason)});
  if (is_said) last_reason_ = reason, last_section_ = section;
}

void ConfigProblems::throw_if_any() const {
  if (said_.empty()) return;
  const ConfigProblem& first = said_.front();
  const bool for_engine = user_ == ConfigUser::engine;
  std::string text = for_engine ? text_of(first) : line_of(first);
  for (size_t i = 1; i < said_.size(); ++i) text += '\n' + line_of(said_[i]);
  if (said_.size() < count_) text += fmt::format("\nand {} more", count_ - said_.size());
  const bool note = count_ == 1 && first.about != nullptr && !first.about->note.empty();
  // Words of the library: the program has a flag for it. A training in Python has the page alone.
  const Wording what_says =
      for_engine ? Wording("docs/config.md lists every key and what it may be")
                 : Option::explanation + " says what a key may be, and docs/config.md lists all";
  const Wording page = for_engine ? Wording("docs/config.md") : Wording(Option::explanation);
  const Wording advice =
      note ? fmt::format("{}: {} (", first.about->path(), first.about->note) + page + ")" : what_says;
  if (!for_engine) throw Error(ErrorKind::config, {text, "", "", advice, first.cause});
  const std::string subject = placed(first.origin, first.key);
  throw Error(ErrorKind::config, {"cannot use the configuration", subject.empty() ? "configuration" : subject,
                                  text, first.advice.empty() ? advice : Wording(first.advice)});
}

}  // namespace terrace
