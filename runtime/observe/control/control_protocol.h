// The protocol of the control socket: lines of JSON, one request and one answer at a time (docs/control.md).
// The code here converts text and values and knows no socket and no trainer.
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
  uint64_t host_memory_bytes = 0;  // for set
};

// Returns the command of a name such as "status". Throws Error(config), with a suggestion if one is near.
ControlCommand control_command_from_name(const std::string& name);
// Throws Error(config) unless `key` is "host-memory", the only key that set can change.
void require_settable(const std::string& key);

// Parses one line without its newline. Throws Error(config) for a line that is no request of this version.
ControlRequest parse_control_request(std::string_view line);
// Returns one line with its newline.
std::string control_request(const ControlRequest& request);

// Returns {"terrace": 1, "ok": true, <members>} and a newline.
std::string control_answer(std::initializer_list<JsonWriter::Member> members);
std::string control_refusal(const Error& error);
// Returns the answer as it came. Throws the Error that it reports, or Error(io) if it is no answer.
JsonNode parse_control_answer(std::string_view line);

// Makes lines of pieces of any size.
class LineBuffer {
 public:
  explicit LineBuffer(size_t longest_bytes) : longest_bytes_(longest_bytes) {}

  void add(std::string_view bytes) { text_.append(bytes); }
  // Returns the next line without its newline; none if it is not complete.
  std::optional<std::string> next();
  // True if the input begins with more than one line may have. Nothing after that can be understood.
  bool too_long() const;

 private:
  size_t longest_bytes_;
  std::string text_;
};

}  // namespace terrace
