#include <terrace/runtime/observe/trace/merge_traces.h>

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <string_view>

#include <terrace/aio/aside_file.h>
#include <terrace/base/error.h>

namespace terrace {
namespace {

constexpr size_t kPieceBytes = 1 << 20;
// What follows the events of a part, about one run, is far shorter.
constexpr size_t kTailBytes = 64 << 10;
constexpr std::string_view kBegin = "\"traceEvents\": [";
// Events are lines, and none begins like this.
constexpr std::string_view kEnd = "\n], \"otherData\": ";

[[noreturn]] void refuse(const std::filesystem::path& part) {
  throw Error(ErrorKind::io, {"cannot read the trace of a rank", part.string(), "it is not there as a whole",
                              "open the traces of the ranks one by one"});
}

// The events of a part, and what it says of its run.
class Part {
 public:
  explicit Part(const std::filesystem::path& path) : path_(path), file_(path, std::ios::binary) {
    std::string head(256, '\0');
    file_.read(head.data(), static_cast<std::streamsize>(head.size()));
    const size_t begin = head.find(kBegin);
    file_.clear();
    file_.seekg(0, std::ios::end);
    if (!file_ || begin == std::string::npos) refuse(path);
    const auto bytes = static_cast<uint64_t>(file_.tellg());
    begin_ = begin + kBegin.size();
    const uint64_t tail = bytes - std::min<uint64_t>(bytes, kTailBytes);
    const std::string last = read(tail, bytes - tail);
    const size_t end = last.rfind(kEnd);
    if (end == std::string::npos || tail + end < begin_) refuse(path);
    end_ = tail + end;
    about_ = last.substr(end + kEnd.size());
    about_.resize(about_.rfind('}'));  // that of the document
  }

  const std::string& about() const { return about_; }
  template <typename Take>
  void read_events(Take take) {
    for (uint64_t at = begin_; at < end_; at += kPieceBytes)
      take(read(at, std::min<uint64_t>(kPieceBytes, end_ - at)));
  }

 private:
  std::string read(uint64_t at, uint64_t bytes) {
    std::string text(bytes, '\0');
    file_.seekg(static_cast<std::streamoff>(at));
    file_.read(text.data(), static_cast<std::streamsize>(bytes));
    if (!file_) refuse(path_);
    return text;
  }

  const std::filesystem::path path_;
  std::ifstream file_;
  uint64_t begin_ = 0;
  uint64_t end_ = 0;
  std::string about_;
};

}  // namespace

void merge_traces(std::span<const std::filesystem::path> parts, const std::filesystem::path& whole) {
  io::AsideFile file(whole, io::AsideOptions{.suffix = fmt::format(".{}.partial", getpid()),
                                             .for_the_user = true,
                                             .what = "the trace of all ranks",
                                             .advice = "open the traces of the ranks one by one",
                                             .events = nullptr});
  uint64_t written_bytes = 0;
  const auto write = [&](std::string_view text) {
    file.write(written_bytes, std::as_bytes(std::span(text)));
    written_bytes += text.size();
  };
  std::string about;
  write("{\"displayTimeUnit\": \"ms\", " + std::string(kBegin));
  for (const std::filesystem::path& path : parts) {
    Part part(path);
    if (!about.empty()) write(",");
    part.read_events(write);
    about += (about.empty() ? "" : ", ") + part.about();
  }
  write(std::string(kEnd) + "{\"ranks\": [" + about + "]}}\n");
  file.publish();
}

}  // namespace terrace
