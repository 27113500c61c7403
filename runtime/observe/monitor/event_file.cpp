#include <terrace/runtime/observe/monitor/event_file.h>

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>

#include <terrace/base/error.h>
#include <terrace/runtime/observe/monitor/internal/append_file.h>
#include <terrace/runtime/observe/monitor/internal/crc32c.h>

namespace terrace {
namespace {

constexpr std::string_view kPrefix = "events.out.tfevents.";
constexpr std::string_view kVersion = "brain.Event:2";
constexpr uint64_t kSessionStart = 1;

// The wire types of protocol buffers.
enum class Wire : uint8_t { varint = 0, fixed64 = 1, bytes = 2, fixed32 = 5 };

template <typename T>
void put_fixed(std::string& out, T value) {
  for (size_t i = 0; i < sizeof(T); ++i) out += static_cast<char>(static_cast<uint8_t>(value >> (8 * i)));
}

void put_varint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(static_cast<uint8_t>(value) | 0x80);
  out += static_cast<char>(value);
}

void put_key(std::string& out, uint32_t field, Wire wire) {
  put_varint(out, field << 3 | static_cast<uint32_t>(wire));
}

void put_bytes(std::string& out, uint32_t field, std::string_view bytes) {
  put_key(out, field, Wire::bytes);
  put_varint(out, bytes.size());
  out += bytes;
}

void put_event_head(std::string& message, double wall_seconds, uint64_t step) {
  message.clear();
  put_key(message, 1, Wire::fixed64);
  put_fixed(message, std::bit_cast<uint64_t>(wall_seconds));
  put_key(message, 2, Wire::varint);
  put_varint(message, step);
}

void put_record(std::string& out, std::string_view data) {
  const size_t begin = out.size();
  put_fixed<uint64_t>(out, data.size());
  put_fixed(out, masked_crc32c(std::string_view(out).substr(begin)));
  out += data;
  put_fixed(out, masked_crc32c(data));
}

std::string host_name() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0 || name[0] == '\0') return "localhost";
  return name.data();
}

// The second in the name of an event file.
uint64_t second_of(const std::string& name) {
  uint64_t second = 0;
  std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), second);
  return second;
}

// The first second behind all event files of the folder, 0 when there is none.
uint64_t second_after_all(const std::filesystem::path& folder) {
  uint64_t after = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(kPrefix)) after = std::max(after, second_of(name) + 1);
  }
  return after;
}

std::filesystem::path new_path(const std::filesystem::path& folder, const MonitorStart& start) {
  if (!start.resumed) EventFile::require_none(folder);
  const uint64_t after = second_after_all(folder);
  const uint64_t second = std::max(after, static_cast<uint64_t>(start.wall_seconds));
  return folder / fmt::format("{}{:010}.{}.{}.0", kPrefix, second, host_name(), getpid());
}

}  // namespace

EventFile::EventFile(const std::filesystem::path& folder, const MonitorStart& start)
    : path_(new_path(folder, start)), file_(std::make_unique<AppendFile>(path_)) {
  put_event_head(message_, start.wall_seconds, 0);
  put_bytes(message_, 3, kVersion);
  put_record(records_, message_);
  if (start.resumed) {
    std::string session;
    put_key(session, 1, Wire::varint);
    put_varint(session, kSessionStart);
    put_event_head(message_, start.wall_seconds, start.samples + 1);
    put_bytes(message_, 7, session);
    put_record(records_, message_);
  }
  file_->append(records_);
}

EventFile::~EventFile() = default;

void EventFile::require_none(const std::filesystem::path& folder) {
  if (!std::filesystem::exists(folder) || second_after_all(folder) == 0) return;
  throw Error(ErrorKind::config,
              {"the events of two runs would be mixed", folder.string(), "it has event files already",
               "set another tensorboard.job_name, move the folder away, or resume the run that wrote it"});
}

void EventFile::write(const ScalarEvent& event) {
  records_.clear();
  for (const Scalar& scalar : event.scalars) {
    std::string value;
    put_bytes(value, 1, scalar.tag);
    put_key(value, 2, Wire::fixed32);
    put_fixed(value, std::bit_cast<uint32_t>(static_cast<float>(scalar.value)));
    std::string summary;
    put_bytes(summary, 1, value);
    put_event_head(message_, event.wall_seconds, event.samples);
    put_bytes(message_, 5, summary);
    put_record(records_, message_);
  }
  file_->append(records_);
}

}  // namespace terrace
