#include <terrace/comm/agreement/rank_agreement.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include <terrace/base/error.h>
#include <terrace/comm/agreement/rank_places.h>
#include <terrace/comm/agreement/rank_votes.h>

namespace terrace {
namespace {

using Facts = std::map<std::string, std::string>;

// Names and values, each with a 0 behind it.
std::string text_of(const Facts& facts) {
  std::string text;
  for (const auto& [name, value] : facts) text += name + '\0' + value + '\0';
  return text;
}

Facts facts_in(std::string_view text) {
  Facts facts;
  const auto take = [&] {
    const size_t end = text.find('\0');
    std::string word(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    return word;
  };
  while (!text.empty()) {
    std::string name = take();
    facts[std::move(name)] = take();
  }
  return facts;
}

std::vector<Facts> facts_of_all(Communicator& ranks, const Facts& mine) {
  std::string text = text_of(mine);
  const std::vector<uint64_t> bytes = RankVotes(&ranks).of_all(uint64_t{text.size()});
  std::vector<std::string> texts;
  std::vector<CommPart> from;
  for (const uint64_t count : bytes) texts.emplace_back(count, '\0');
  for (std::string& one : texts) from.push_back({reinterpret_cast<std::byte*>(one.data()), one.size()});
  const std::vector<CommPart> to(ranks.size(), {reinterpret_cast<std::byte*>(text.data()), text.size()});
  Event arrived;
  arrived.begin();
  ranks.exchange(Lane::gather, to, from, nullptr, arrived, {.what = "facts of the run"});
  arrived.wait();
  texts[ranks.rank()] = text;
  std::vector<Facts> all;
  for (const std::string& one : texts) all.push_back(facts_in(one));
  return all;
}

// "terrace.seed: 42 on rank 0, 43 on ranks 1 and 3"; empty where all have the same.
std::string difference_in(const std::string& name, const std::vector<Facts>& all) {
  std::vector<std::pair<std::string, std::vector<uint32_t>>> values;  // in the order of their first rank
  for (uint32_t rank = 0; rank < all.size(); ++rank) {
    const auto found = all[rank].find(name);
    const std::string value = found == all[rank].end() ? "nothing" : found->second;
    auto known = std::ranges::find(values, value, &std::pair<std::string, std::vector<uint32_t>>::first);
    if (known == values.end()) known = values.insert(values.end(), {value, {}});
    known->second.push_back(rank);
  }
  if (values.size() == 1) return "";
  std::string line;
  for (const auto& [value, ranks] : values)
    line += fmt::format("{}{} on {}", line.empty() ? name + ": " : ", ", value, text_of_ranks(ranks));
  return line;
}

// What all ranks have otherwise comes before what some lack: a model of another kind lacks every parameter.
constexpr size_t kMostLines = 20;

}  // namespace

void require_agreement(Communicator& ranks, const Facts& facts) {
  const std::vector<Facts> all = facts_of_all(ranks, facts);
  std::set<std::string> names;
  for (const Facts& one : all) {
    for (const auto& [name, value] : one) names.insert(name);
  }
  std::vector<std::string> differences, missing;
  for (const std::string& name : names) {
    const std::string line = difference_in(name, all);
    const bool all_have_it = std::ranges::all_of(all, [&](const Facts& one) { return one.contains(name); });
    if (!line.empty()) (all_have_it ? differences : missing).push_back(line);
  }
  differences.insert(differences.end(), missing.begin(), missing.end());
  if (differences.empty()) return;
  if (differences.size() > kMostLines) {
    const size_t more = differences.size() - kMostLines;
    differences.resize(kMostLines);
    differences.push_back(fmt::format("and {} more", more));
  }
  throw Error(ErrorKind::config, {"ranks do not train the same", fmt::format("{} ranks", ranks.size()),
                                  fmt::format("{}", fmt::join(differences, "\n  ")),
                                  "start all of them with the same command and files"});
}

}  // namespace terrace
