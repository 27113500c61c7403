// The protocol of the control socket: lines of JSON, one request and one answer at a time
// (docs/control.md). Everything here is text in and values out; it knows no socket and no trainer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>

#include <terrace/base/error.h>
#include <terrace/base/text/json_writer.h>
#include <terrace/runtime/config/json/json_document.h>

namespace terrace {

inline constexpr uint64_t kControlVersion = 1;
inline constexpr size_t kLongestRequestBytes = 4096;  // its newline included
inline constexpr size_t kLongestAnswerBytes = 65536;

enum class ControlCommand : uint8_t { status, set, save, stop };
std::string_view name_of(ControlCommand command);

struct ControlRequest {
  ControlCommand command = ControlCommand::status;
  uint64_t host_memory_bytes = 0;  // of set
};

// "status" -> status. Throws Error(config), with a suggestion where one is near.
ControlCommand control_command_from_name(const std::string& name);
// What set can change: "host-memory" alone. Throws Error(config) for anything else.
void require_settable(const std::string& key);

// One line without its newline. Throws Error(config) for what is no request of this version.
ControlRequest parse_control_request(std::string_view line);
// One line with its newline.
std::string control_request(const ControlRequest& request);

// {"terrace": 1, "ok": true, <members>} and a newline.
std::string control_answer(std::initializer_list<JsonWriter::Member> members);
std::string control_refusal(const Error& error);
// The answer as it came. Throws the Error that it tells of, or Error(io) when it is none.
JsonNode parse_control_answer(std::string_view line);

// Lines out of pieces of any size.
class LineBuffer {
 public:
  explicit LineBuffer(size_t longest_bytes) : longest_bytes_(longest_bytes) {}

  void add(std::string_view bytes) { text_.append(bytes); }
  // The next line without its newline; none when it is not complete.
  std::optional<std::string> next();
  // What is there begins with more than a line may have. Nothing after that can be understood.
  bool too_long() const;

 private:
  size_t longest_bytes_;
  std::string text_;
};

}  // namespace terrace
