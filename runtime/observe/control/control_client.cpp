#include <terrace/runtime/observe/control/control_client.h>

#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>

#include <terrace/base/error.h>
#include <terrace/base/option.h>

namespace terrace {

ControlClient::ControlClient(const std::filesystem::path& socket, std::optional<int> patience_ms)
    : name_(socket.string()), patience_ms_(patience_ms), fd_(connect_to_job(socket)) {}

JsonNode ControlClient::ask(const ControlRequest& request) {
  send_all(control_request(request));
  return parse_control_answer(receive_line());
}

void ControlClient::end() {
  ended_ = true;
  throw Error(ErrorKind::cancelled, {"the job gave no answer", name_, "it has ended",
                                     "look at what it saved with `terrace checkpoint ls`"});
}

void ControlClient::wait_for(short events) {
  pollfd watched{fd_.get(), events, 0};
  const int ready = poll(&watched, 1, patience_ms_.value_or(-1));
  if (ready < 0 && errno == EINTR) {
    throw Error(ErrorKind::cancelled,
                {"the job's answer was not waited for", name_, "a signal came", "ask again"});
  }
  if (ready < 0) {
    throw Error(ErrorKind::io,
                {"cannot wait for the job's answer", name_, system_reason(errno), "ask again"});
  }
  if (ready == 0) {
    throw Error(ErrorKind::io,
                {"the job gave no answer", name_, "it took too long",
                 "the job may be stopped (SIGSTOP), or in a long step; ask again, and wait longer (" +
                     Option::control_patience + ")"});
  }
}

void ControlClient::send_all(std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = send(fd_.get(), text.data(), text.size(), MSG_NOSIGNAL);
    if (count > 0) {
      text.remove_prefix(static_cast<size_t>(count));
    } else if (errno == EAGAIN) {
      wait_for(POLLOUT);
    } else if (errno == EPIPE) {
      return;  // it may have said why before it left
    } else if (errno != EINTR) {
      end();
    }
  }
}

std::string ControlClient::receive_line() {
  while (true) {
    if (std::optional<std::string> line = input_.next()) return *std::move(line);
    if (input_.too_long()) {
      throw Error(ErrorKind::io, {"cannot understand the job's answer", name_, "it is too long",
                                  "use the program of the job's version"});
    }
    std::array<char, 4096> bytes;
    const ssize_t count = recv(fd_.get(), bytes.data(), bytes.size(), 0);
    if (count > 0) {
      input_.add({bytes.data(), static_cast<size_t>(count)});
    } else if (count == 0 || (errno != EAGAIN && errno != EINTR)) {
      end();
    } else {
      wait_for(POLLIN);
    }
  }
}

}  // namespace terrace
