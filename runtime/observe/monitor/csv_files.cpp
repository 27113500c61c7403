#include <terrace/runtime/observe/monitor/csv_files.h>

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <sstream>
#include <vector>

#include <terrace/base/error.h>
#include <terrace/runtime/observe/monitor/internal/append_file.h>

namespace terrace {
namespace {

constexpr std::string_view kHeaderStart = "step,";
constexpr std::string_view kLineEnd = "\r\n";

std::string file_name(std::string_view tag) {
  std::string name(tag);
  for (char& c : name) {
    if (c == '/' || c == ' ') c = '_';
  }
  return name + ".csv";
}

std::string_view last_part(std::string_view tag) {
  return tag.substr(tag.rfind('/') + 1);
}

std::string contents(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// The files of scalars, by what they begin with.
std::vector<std::filesystem::path> own_files(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".csv" || !entry.is_regular_file()) continue;
    std::string start(kHeaderStart.size(), '\0');
    std::ifstream(entry.path(), std::ios::binary)
        .read(start.data(), static_cast<std::streamsize>(start.size()));
    if (start == kHeaderStart) files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  return files;
}

// How much of a file belongs to the first `samples` sequences: the lines before the first later one, and no
// half-written line.
size_t length_until(std::string_view text, uint64_t samples) {
  size_t length = 0;
  while (true) {
    const size_t end = text.find('\n', length);
    if (end == std::string_view::npos) return length;
    uint64_t step = 0;
    const auto [stopped, status] = std::from_chars(text.data() + length, text.data() + end, step);
    if (status == std::errc() && *stopped == ',' && step > samples) return length;
    length = end + 1;
  }
}

void cut(const std::filesystem::path& path, uint64_t samples) {
  const std::string text = contents(path);
  const size_t length = length_until(text, samples);
  if (length == text.size()) return;
  std::error_code error;
  std::filesystem::resize_file(path, length, error);
  if (error) {
    throw Error(ErrorKind::io, {"cannot cut off what a resumed run writes again", path.string(),
                                system_reason(error.value()), "set another csv_monitor.job_name"});
  }
}

}  // namespace

CsvFiles::CsvFiles(const std::filesystem::path& folder, const MonitorStart& start) : folder_(folder) {
  if (!start.resumed) require_none(folder);
  for (const std::filesystem::path& path : own_files(folder)) cut(path, start.samples);
}

void CsvFiles::require_none(const std::filesystem::path& folder) {
  if (!std::filesystem::exists(folder)) return;
  const std::vector<std::filesystem::path> files = own_files(folder);
  if (files.empty()) return;
  throw Error(ErrorKind::config,
              {"the scalars of two runs would be mixed", files.front().string(), "it has lines already",
               "set another csv_monitor.job_name, move the folder away, or resume the run that wrote it"});
}

CsvFiles::~CsvFiles() = default;

AppendFile& CsvFiles::file_of(std::string_view tag) {
  const auto found = files_.find(tag);
  if (found != files_.end()) return found->second;
  const std::filesystem::path path = folder_ / file_name(tag);
  std::error_code error;
  const bool has_lines = std::filesystem::file_size(path, error) > 0 && !error;
  AppendFile& file = files_.emplace(std::string(tag), AppendFile(path)).first->second;
  if (!has_lines) file.append(fmt::format("{}{}{}", kHeaderStart, last_part(tag), kLineEnd));
  return file;
}

void CsvFiles::write(const ScalarEvent& event) {
  for (const Scalar& scalar : event.scalars)
    file_of(scalar.tag).append(fmt::format("{},{}{}", event.samples, scalar.value, kLineEnd));
}

}  // namespace terrace
