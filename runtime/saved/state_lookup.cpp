// How a reader finds saved states in a folder, whose job may have died. Declared in save_folder.h.
#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <span>
#include <string_view>

#include <terrace/aio/file.h>
#include <terrace/aio/folder.h>
#include <terrace/base/checksum.h>
#include <terrace/base/error.h>
#include <terrace/runtime/saved/save_folder.h>
#include <terrace/runtime/saved/sealed_text.h>

namespace terrace::saved {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMaxLatestBytes = 4096;

// Of `latest` and its like; empty when there is none.
std::string small_text(const fs::path& path) {
  return io::is_there(path) ? io::read_whole_text(path, kMaxLatestBytes) : "";
}

bool is_of_save(const fs::path& state, const std::string& name, const StateKind& kind) {
  struct stat status;
  if (!io::is_there(state / name) || lstat((state / name).c_str(), &status) != 0 || !S_ISREG(status.st_mode))
    return false;
  return name == kManifestName || name == fmt::format("{}.new", kManifestName) ||
         std::ranges::find(kind.files, name) != kind.files.end();
}

// A manifest of saved states of any kind begins so; one that is damaged further on is of a checkpoint still.
bool begins_as_manifest(const fs::path& path) {
  if (!io::is_there(path)) return false;
  constexpr size_t kEnough = 64;
  std::array<char, kEnough> text{};
  const io::File file = io::File::open(path, {.access = io::FileAccess::read});
  const uint64_t bytes = std::min<uint64_t>(file.size_bytes(), text.size());
  io::read_exactly(file, 0, std::as_writable_bytes(std::span(text)).first(bytes), "check its drive");
  const std::string_view start(text.data(), text.size());
  return start.starts_with('{') && start.find("\"format\"") != std::string_view::npos &&
         start.find("\"terrace-") != std::string_view::npos;
}

}  // namespace

std::string state_of_aside(const StateKind& kind, std::string_view name, std::string_view suffix) {
  if (!name.starts_with('.') || !name.ends_with(suffix) || name.size() < 1 + suffix.size()) return "";
  const std::string_view state = name.substr(1, name.size() - 1 - suffix.size());
  return kind.why_no_name(state).empty() ? std::string(state) : "";
}

std::string next_text(std::string_view name, std::string_view manifest) {
  return fmt::format("{} {}\n", name, hex_text(checksum_of(std::as_bytes(std::span(manifest)))));
}

std::string completed_next(const fs::path& folder, const StateKind& kind) {
  try {
    const std::string next = small_text(folder / kNextName);
    const size_t space = next.rfind(' ');
    if (space == std::string::npos) return "";
    const std::string name = next.substr(0, space);
    if (!kind.why_no_name(name).empty() || !io::is_there(folder / name / kManifestName)) return "";
    return next_text(name, io::read_whole_text(folder / name / kManifestName, kMaxManifestBytes)) == next
               ? name
               : "";
  } catch (const Error& failure) {
    if (is_system_refusal(failure)) throw;
    return "";  // what is damaged names nothing
  }
}

std::optional<std::string> latest_name(const fs::path& folder) {
  if (!io::is_there(folder / kLatestName)) return std::nullopt;
  std::string name = small_text(folder / kLatestName);
  if (name.ends_with('\n')) name.pop_back();
  return name;
}

fs::path state_folder(const fs::path& state, const StateKind& kind) {
  if (io::is_there(state)) return state;
  const fs::path named = state.filename().empty() ? state.parent_path() : state;
  const std::string name = named.filename().string();
  const fs::path replaced = named.parent_path() / fmt::format(".{}{}", name, kReplacedSuffix);
  return kind.why_no_name(name).empty() && io::is_there(replaced) ? replaced : fs::path();
}

std::string foreign_name(const fs::path& state, const StateKind& kind) {
  struct stat status;
  if (!io::is_there(state) || lstat(state.c_str(), &status) != 0) return "";
  if (!S_ISDIR(status.st_mode)) return state.filename().string();
  const std::vector<std::string> foreign =
      io::names_in(state, [&](const std::string& name) { return !is_of_save(state, name, kind); });
  return foreign.empty() ? "" : foreign.front();
}

void require_replaceable(const fs::path& place, const StateKind& kind) {
  if (!io::is_there(place)) return;
  const auto refuse = [&](const std::string& reason) {
    throw Error(ErrorKind::config, {"cannot save a checkpoint", place.string(), reason,
                                    "save under another name, or move that away"});
  };
  struct stat status;
  if (lstat(place.c_str(), &status) != 0 || !S_ISDIR(status.st_mode))
    refuse("it is there, and is not a folder");
  if (const std::string foreign = foreign_name(place, kind); !foreign.empty())
    refuse(fmt::format("it is there, and holds {}, which is not of a checkpoint", foreign));
  const bool has_all =
      !kind.files_alone.empty() && std::ranges::all_of(kind.files_alone, [&](const std::string& file) {
        return io::is_there(place / file);
      });
  if (!has_all && !begins_as_manifest(place / kManifestName)) refuse("it is there, and is no checkpoint");
}

}  // namespace terrace::saved
