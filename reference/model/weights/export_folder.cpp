#include <terrace/reference/model/weights/export_folder.h>

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <set>

#include <terrace/aio/file.h>
#include <terrace/aio/folder.h>
#include <terrace/base/assert.h>
#include <terrace/base/error.h>
#include <terrace/base/option.h>
#include <terrace/base/text/json_writer.h>
#include <terrace/base/units.h>
#include <terrace/runtime/config/json/json_document.h>

namespace terrace {
namespace {

namespace fs = std::filesystem;

// {"format": "terrace-export", "version": 1, "step": 20, "files": [...]}: every other file of the folder. Not
// every export is of a step.
constexpr const char* kListName = "terrace_export.json";
constexpr std::string_view kFormat = "terrace-export";
constexpr uint64_t kMaxListBytes = 16 * kMiB;
constexpr uint64_t kMaxCopiedBytes = 256 * kMiB;  // the largest tokenizers have a tenth of it

[[noreturn]] void refuse(const fs::path& target, const std::string& reason, const Wording& advice) {
  throw Error(ErrorKind::config, {"cannot export into", target.string(), reason, advice});
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error))
    names.push_back(entry->path().filename().string());
  if (error)
    throw Error(ErrorKind::io, {"cannot read the folder", folder.string(), error.message(), "name another"});
  std::sort(names.begin(), names.end());
  return names;
}

struct ExportList {
  std::set<std::string> files;  // with this list; none when there is no export
  std::optional<uint64_t> step;
};

ExportList list_of_export(const fs::path& folder) {
  ExportList list;
  if (!fs::is_regular_file(folder / kListName)) return list;
  const JsonNode root =
      parse_json(io::read_whole_text(folder / kListName, kMaxListBytes), (folder / kListName).string());
  const JsonNode* format = root.find("format");
  if (format == nullptr || format->text != kFormat) return {};
  if (const JsonNode* files = root.find("files")) {
    for (const JsonNode& item : files->items) list.files.insert(item.text);
  }
  if (const JsonNode* step = root.find("step")) list.step = step->whole_number();
  list.files.insert(kListName);
  return list;
}

void require_replaceable(const fs::path& target, bool replace) {
  if (!fs::exists(fs::symlink_status(target))) return;
  if (!fs::is_directory(target)) refuse(target, "it is a file", "name a folder that does not exist yet");
  const std::vector<std::string> names = names_in(target);
  if (names.empty()) return;
  const std::set<std::string> exported = list_of_export(target).files;
  if (exported.empty())
    refuse(target, "it is not empty, and no export", "name a folder that does not exist yet");
  for (const std::string& name : names) {
    if (exported.contains(name)) continue;
    refuse(target, fmt::format("it holds {}, which no export wrote", json_quoted(name, 200)),
           "move that away, or name another folder");
  }
  if (!replace)
    refuse(target, "it holds an earlier export",
           "name another folder, or let it be replaced (" + Option::replace_export + ")");
}

// With the permissions of any folder that the user makes.
void make_public_folder(const fs::path& path) {
  if (mkdir(path.c_str(), 0777) == 0) return;
  throw Error(ErrorKind::io, {"cannot create the folder", path.string(), system_reason(errno),
                              "the folder above it must exist and be writable"});
}

void allow_as_the_folder_does(const fs::path& file) {
  const auto folder = static_cast<unsigned>(fs::status(file.parent_path()).permissions());
  chmod(file.c_str(), folder & 0666);  // only a wish: the owner can always read it
}

}  // namespace

ExportFolder::ExportFolder(const fs::path& target, bool replace, Log& log) : log_(log) {
  // Links are followed and a slash at the end goes: the name must be one that can be given by a rename.
  target_ = fs::weakly_canonical(fs::absolute(target));
  if (target_.filename().empty()) target_ = target_.parent_path();
  if (target_.filename().empty()) refuse(target, "it has no name", "name a folder that does not exist yet");
  require_replaceable(target_, replace);
  partial_ = target_.parent_path() / ("." + target_.filename().string() + ".partial");
  std::error_code error;
  fs::create_directories(target_.parent_path(), error);
  if (fs::exists(partial_)) {
    log_.info(fmt::format("removing {}: a job died while exporting", partial_.string()));
    fs::remove_all(partial_, error);
  }
  make_public_folder(partial_);
}

ExportFolder::~ExportFolder() {
  if (committed_) return;
  const io::RemovedAtEnd removed(partial_, log_);
}

void ExportFolder::write_text(const std::string& name, const std::string& text) const {
  io::write_file_atomically(partial_ / name, std::as_bytes(std::span(text)));
  allow_as_the_folder_does(partial_ / name);
}

void ExportFolder::copy_existing(const fs::path& source, const std::vector<std::string>& names) const {
  for (const std::string& name : names) {
    if (!fs::is_regular_file(source / name)) continue;
    io::write_file_atomically(partial_ / name, io::read_whole_file(source / name, kMaxCopiedBytes));
    allow_as_the_folder_does(partial_ / name);
  }
}

void ExportFolder::commit(std::optional<uint64_t> step) {
  TERRACE_ASSERT(!committed_, "an export is committed once");
  JsonWriter json;
  json.begin_object(JsonLayout::lines).members({{"format", kFormat}, {"version", 1}});
  if (step) json.member("step", *step);
  json.begin_list("files", JsonLayout::lines);
  for (const std::string& name : names_in(partial_)) json.value(name);
  write_text(kListName, json.end().end().take() + "\n");
  require_replaceable(target_, true);  // nobody put anything there meanwhile
  if (!fs::exists(target_)) {
    io::rename_path(partial_, target_);
    committed_ = true;
  } else if (io::exchange_paths(partial_, target_)) {
    committed_ = true;
    const io::RemovedAtEnd earlier(partial_, log_);
  } else {
    // A file system that cannot exchange names: for a moment there is no export of that name.
    const fs::path replaced = partial_.string() + ".replaced";
    io::rename_path(target_, replaced);
    const io::RemovedAtEnd earlier(replaced, log_);
    io::rename_path(partial_, target_);
    committed_ = true;
  }
  io::sync_folder(target_.parent_path());
}

std::optional<uint64_t> step_of_export(const fs::path& folder) {
  try {
    return list_of_export(folder).step;
  } catch (const Error&) {  // what cannot be read is none
  }
  return std::nullopt;
}

}  // namespace terrace
