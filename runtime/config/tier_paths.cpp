#include <terrace/runtime/config/tier_paths.h>

#include <fmt/format.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <string>
#include <system_error>
#include <utility>

#include <terrace/aio/folder.h>
#include <terrace/base/error.h>

namespace terrace {

namespace fs = std::filesystem;

namespace {

// One folder may have two names.
void add_paths(std::vector<fs::path>& paths, const std::vector<fs::path>& more) {
  for (const fs::path& path : more) {
    std::error_code error;
    const auto same = [&](const fs::path& known) {
      return known == path || fs::equivalent(known, path, error);
    };
    if (std::none_of(paths.begin(), paths.end(), same)) paths.push_back(path);
  }
}

// A word in a path that stands for another one on every rank.
struct Placeholder {
  std::string_view word;
  bool is_number;
};
constexpr Placeholder kPlaceholders[] = {{"{rank}", true}, {"{local_rank}", true}, {"{host}", false}};

// The first of them in the text, and where it begins.
std::pair<const Placeholder*, size_t> placeholder_in(std::string_view text) {
  std::pair<const Placeholder*, size_t> first = {nullptr, std::string_view::npos};
  for (const Placeholder& placeholder : kPlaceholders) {
    const size_t at = text.find(placeholder.word);
    if (at < first.second) first = {&placeholder, at};
  }
  return first;
}

fs::path path_of(const RankSeat& seat, const fs::path& path) {
  const std::string values[] = {std::to_string(seat.rank), std::to_string(seat.local_rank), seat.host};
  std::string rest = path.string(), text;
  while (true) {
    const auto [placeholder, at] = placeholder_in(rest);
    if (placeholder == nullptr) return text + rest;
    text += rest.substr(0, at) + values[placeholder - kPlaceholders];
    rest.erase(0, at + placeholder->word.size());
  }
}

// Whether the name is one that the part of a path is on some rank.
bool is_like(std::string_view name, std::string_view part) {
  const auto [placeholder, at] = placeholder_in(part);
  if (placeholder == nullptr) return name == part;
  if (!name.starts_with(part.substr(0, at))) return false;
  const std::string_view behind = part.substr(at + placeholder->word.size());
  for (size_t end = at; end < name.size();) {
    if (placeholder->is_number && (name[end] < '0' || name[end] > '9')) return false;
    if (is_like(name.substr(++end), behind)) return true;
  }
  return false;
}

// The folders that are there of those that the path names on any rank.
std::vector<fs::path> folders_like(const fs::path& path) {
  std::vector<fs::path> found = {fs::path()};
  for (const fs::path& part : path) {
    std::vector<fs::path> next;
    for (const fs::path& folder : found) {
      if (placeholder_in(part.string()).first == nullptr) {
        next.push_back(folder / part);
        continue;
      }
      const fs::path above = folder.empty() ? fs::path(".") : folder;
      if (!io::is_folder(above)) continue;
      for (const std::string& name :
           io::names_in(above, [&](const std::string& name) { return is_like(name, part.string()); }))
        next.push_back(folder / name);
    }
    found = std::move(next);
  }
  std::erase_if(found, [](const fs::path& folder) { return !io::is_folder(folder); });
  std::ranges::sort(found);
  return found;
}

// Those of the list that belong to the rank's place on its host.
std::vector<fs::path> own_of(const std::vector<fs::path>& list, const RankSeat& seat, NvmeShare share) {
  const size_t ranks = seat.ranks_on_host;
  if (share == NvmeShare::all || (share == NvmeShare::automatic && list.size() % ranks != 0)) return list;
  if (list.size() < ranks)
    throw Error(
        ErrorKind::config,
        {"cannot give each rank an nvme path of its own", fmt::format("to the {} ranks of this host", ranks),
         fmt::format("terrace.nvme_share is own, and {} of them {} named", list.size(),
                     list.size() == 1 ? "is" : "are"),
         "name at least as many as there are ranks, or set terrace.nvme_share to all"});
  std::vector<fs::path> own;
  for (size_t p = seat.local_rank; p < list.size(); p += ranks) own.push_back(list[p]);
  return own;
}

}  // namespace

std::vector<fs::path> tier_paths(const PlacementConfig& placement) {
  std::vector<fs::path> paths;
  if (placement.states == Placement::nvme) add_paths(paths, placement.state_paths);
  if (placement.parameters == Placement::nvme) add_paths(paths, placement.parameter_paths);
  return paths;
}

void take_paths_of(const RankSeat& seat, NvmeShare share, PlacementConfig& placement) {
  std::vector<fs::path> all;
  for (std::vector<fs::path>* const list : {&placement.state_paths, &placement.parameter_paths}) {
    if (list->empty()) continue;
    for (const fs::path& path : *list) add_paths(all, folders_like(path));
    *list = own_of(*list, seat, share);
    for (fs::path& path : *list) path = path_of(seat, path);
  }
  placement.other_paths = std::move(all);
}

std::vector<fs::path> paths_of_all_ranks(const PlacementConfig& placement) {
  std::vector<fs::path> paths = tier_paths(placement);
  add_paths(paths, placement.other_paths);
  return paths;
}

std::vector<fs::path> own_tier_paths(const PlacementConfig& placement) {
  std::vector<fs::path> paths = tier_paths(placement);
  if (placement.tier_name.empty()) return paths;
  for (fs::path& path : paths) path /= placement.tier_name;
  return paths;
}

std::string tier_name_of(const TierOfRank& rank, std::string_view store) {
  if (rank.place() == TierPlace{}) return std::string(store);
  return fmt::format("{}{}terrace-{}rank-{}-of-{}", store, store.empty() ? "" : "-",
                     rank.is_second ? "second-" : "", rank.rank, rank.ranks);
}

std::optional<TierOfRank> parse_tier_name(std::string_view name, std::string_view store) {
  if (!store.empty()) {
    if (!name.starts_with(store) || !name.substr(store.size()).starts_with('-')) return std::nullopt;
    name.remove_prefix(store.size() + 1);
  }
  TierOfRank rank;
  rank.is_second = name.starts_with("terrace-second-");
  const std::string text(name);
  const char* const form = rank.is_second ? "terrace-second-rank-%9" SCNu32 "-of-%9" SCNu32 "%c"
                                          : "terrace-rank-%9" SCNu32 "-of-%9" SCNu32 "%c";
  char behind = 0;
  if (std::sscanf(text.c_str(), form, &rank.rank, &rank.ranks, &behind) != 2) return std::nullopt;
  // No other spelling of the numbers is one of ours.
  if (rank.rank >= rank.ranks || tier_name_of(rank) != name) return std::nullopt;
  return rank;
}

}  // namespace terrace
