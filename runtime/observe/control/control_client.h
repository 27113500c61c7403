// ControlClient sends requests to a running job over its control socket. It waits for answers as long as the
// job lives; a long step is no reason to give up.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include <terrace/runtime/observe/control/control_folder.h>
#include <terrace/runtime/observe/control/control_protocol.h>

namespace terrace {

class ControlClient {
 public:
  // Throws Error(io) when nobody listens there. `patience_ms` limits the wait for one answer; none: no limit.
  explicit ControlClient(const std::filesystem::path& socket, std::optional<int> patience_ms = std::nullopt);

  // Throws the Error that the job answers with, and Error(cancelled) when a signal came meanwhile or the job
  // has ended (has_ended()).
  JsonNode ask(const ControlRequest& request);
  // Limits the wait for each later answer; none: no limit.
  void set_patience(std::optional<int> patience_ms) { patience_ms_ = patience_ms; }
  // True if the job has closed the connection.
  bool has_ended() const { return ended_; }

 private:
  void send_all(std::string_view text);
  std::string receive_line();
  void wait_for(short events);
  [[noreturn]] void end();

  std::string name_;
  std::optional<int> patience_ms_;
  OwnedFd fd_;
  LineBuffer input_{kLongestAnswerBytes};
  bool ended_ = false;
};

}  // namespace terrace
