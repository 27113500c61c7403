#include <terrace/runtime/saved/sealed_text.h>

#include <fmt/format.h>

#include <charconv>
#include <span>
#include <system_error>

#include <terrace/base/checksum.h>
#include <terrace/base/error.h>
#include <terrace/base/text/json_writer.h>

namespace terrace::saved {
namespace {

constexpr std::string_view kTailBegin = ",\n  \"manifest_checksum\": \"";
constexpr std::string_view kTailEnd = "\"\n}\n";
constexpr size_t kTailBytes = kTailBegin.size() + kChecksumDigits + kTailEnd.size();

std::string tail_of(std::string_view body) {
  return fmt::format("{}{}{}", kTailBegin, hex_text(checksum_of(std::as_bytes(std::span(body)))), kTailEnd);
}

}  // namespace

std::string hex_text(uint64_t value) {
  return fmt::format("{:016x}", value);
}

bool read_hex(std::string_view text, uint64_t& value) {
  if (text.size() != kChecksumDigits || text.find_first_not_of("0123456789abcdef") != std::string_view::npos)
    return false;
  return std::from_chars(text.data(), text.data() + text.size(), value, 16).ec == std::errc();
}

std::string sealed(const std::string& body) {
  return body + tail_of(body);
}

void require_seal(std::string_view text, const std::filesystem::path& path) {
  const std::string advice = "it was edited, or its disk is damaged: resume from another checkpoint";
  if (text.size() < kTailBytes) {
    throw Error(ErrorKind::corrupt,
                {"cannot use the manifest", path.string(),
                 fmt::format("its {} bytes are too few: it was cut off", text.size()), advice});
  }
  const std::string_view body = text.substr(0, text.size() - kTailBytes);
  const std::string_view tail = text.substr(body.size());
  const std::string expected = tail_of(body);
  if (tail == expected) return;
  std::string reason = "its last line is not that of a manifest: it was cut off";
  if (tail.starts_with(kTailBegin) && tail.ends_with(kTailEnd)) {
    reason =
        fmt::format("its checksum is {}, and it says {}", expected.substr(kTailBegin.size(), kChecksumDigits),
                    json_quoted(tail.substr(kTailBegin.size(), kChecksumDigits)));
  }
  throw Error(ErrorKind::corrupt, {"cannot use the manifest", path.string(), reason, advice});
}

}  // namespace terrace::saved
