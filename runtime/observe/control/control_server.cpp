#include <terrace/runtime/observe/control/control_server.h>

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include <terrace/aio/thread_identity.h>
#include <terrace/base/error.h>

namespace terrace {
namespace {

constexpr size_t kReadBytes = 1024;

Error too_many_connections() {
  return Error(ErrorKind::capacity,
               {"cannot take the connection", "", "this job has as many as it takes", "close another one"});
}

Error too_many_requests() {
  return Error(ErrorKind::capacity,
               {"cannot carry out the request", "", "too many wait for the step to end", "ask again later"});
}

Error too_long_a_line() {
  return Error(ErrorKind::config, {"cannot read the request", "",
                                   "a line has at most " + std::to_string(kLongestRequestBytes) + " bytes",
                                   "see docs/control.md"});
}

Error run_is_over() {
  return Error(ErrorKind::cancelled, {"cannot carry out the request", "", "the run is ending",
                                      "look at what it saved with `terrace checkpoint ls`"});
}

bool is_transient(int error) {
  return error == EAGAIN || error == EWOULDBLOCK || error == EINTR;
}

}  // namespace

ControlServer::ControlServer(const std::filesystem::path& folder, AtOnce at_once)
    : folder_(folder),
      pid_(static_cast<uint64_t>(getpid())),
      at_once_(std::move(at_once)),
      wake_("cannot make an event", "train without control"),
      listener_(folder_.listen(pid_)) {
  static_cast<void>(folder_.jobs());  // those of dead jobs go
  connections_.reserve(kMostControlConnections);
  thread_ = std::thread([this] { run(); });
}

ControlServer::~ControlServer() {
  stop_ = true;
  wake_.wake();
  thread_.join();
  folder_.remove(pid_);
}

void ControlServer::serve(FunctionRef<std::string(const ControlRequest&)> carry_out) {
  while (has_requests()) {
    Queued next;
    {
      const MutexLock lock(mutex_);
      if (queued_.empty()) return;
      next = queued_.front();
      queued_.pop_front();
    }
    --queued_count_;
    const auto answer = [&](std::string line) {
      const MutexLock lock(mutex_);
      answers_.push_back({next.connection, std::move(line)});
    };
    try {
      answer(carry_out(next.request));
    } catch (const Error& error) {
      answer(control_refusal(error));
      wake_.wake();
      throw;
    }
    wake_.wake();
  }
}

void ControlServer::run() {
  io::become_background_thread("terrace-ctl");
  while (!stop_) poll_once();
  take_answers();
  refuse_queued();
  for (Connection& connection : connections_) write_to(connection);
}

void ControlServer::poll_once() {
  std::array<pollfd, kMostControlConnections + 2> watched{};
  watched[0] = {wake_.fd(), POLLIN, 0};
  watched[1] = {listener_.get(), POLLIN, 0};
  const size_t count = connections_.size();
  for (size_t c = 0; c < count; ++c) {
    const Connection& connection = connections_[c];
    // While one waits for the step thread nothing is read, and a client that leaves is seen all the same.
    const bool reads = !connection.waits && connection.output.empty() && !connection.ends;
    const int events = (reads ? POLLIN : 0) | (connection.output.empty() ? 0 : POLLOUT);
    watched[c + 2] = {connection.fd.get(), static_cast<short>(events), 0};
  }
  if (poll(watched.data(), count + 2, -1) < 0) return;
  if (watched[0].revents != 0) take_answers();
  for (size_t c = 0; c < count; ++c) {
    Connection& connection = connections_[c];
    const short seen = watched[c + 2].revents;
    if ((seen & POLLIN) != 0) read_from(connection);
    if ((seen & (POLLERR | POLLNVAL)) != 0 || (seen & (POLLHUP | POLLIN)) == POLLHUP) connection.fd.reset();
    if (!connection.output.empty()) write_to(connection);
  }
  std::erase_if(connections_, [](const Connection& connection) { return connection.fd.get() < 0; });
  if (watched[1].revents != 0) accept_one();
}

void ControlServer::take_answers() {
  wake_.take();
  std::vector<Answer> answers;
  {
    const MutexLock lock(mutex_);
    answers.swap(answers_);
  }
  for (Answer& answer : answers) {
    const auto connection = std::find_if(connections_.begin(), connections_.end(),
                                         [&](const Connection& c) { return c.id == answer.connection; });
    if (connection == connections_.end()) continue;  // it has left
    connection->output = std::move(answer.line);
    connection->waits = false;
  }
}

// One at a time: whoever left before it came has been seen to leave by then, and made room.
void ControlServer::accept_one() {
  OwnedFd fd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (fd.get() < 0 || !is_of_this_user(fd.get())) return;
  if (connections_.size() >= kMostControlConnections) {
    const std::string line = control_refusal(too_many_connections());
    if (send(fd.get(), line.data(), line.size(), MSG_NOSIGNAL) < 0) {
      // It has left.
    }
    return;
  }
  Connection connection;
  connection.id = next_id_++;
  connection.fd = std::move(fd);
  connections_.push_back(std::move(connection));
}

void ControlServer::read_from(Connection& connection) {
  std::array<char, kReadBytes> bytes;
  const ssize_t count = recv(connection.fd.get(), bytes.data(), bytes.size(), 0);
  if (count > 0) {
    connection.input.add({bytes.data(), static_cast<size_t>(count)});
    advance(connection);
  } else if (count == 0 || !is_transient(errno)) {
    connection.fd.reset();
  }
}

// Answers the lines that are complete until one has to wait.
void ControlServer::advance(Connection& connection) {
  while (!connection.waits && connection.output.empty() && !connection.ends) {
    const std::optional<std::string> line = connection.input.next();
    if (line) {
      answer_line(connection, *line);
      continue;
    }
    if (!connection.input.too_long()) return;
    connection.output = control_refusal(too_long_a_line());
    connection.ends = true;
  }
}

void ControlServer::answer_line(Connection& connection, const std::string& line) {
  try {
    const ControlRequest request = parse_control_request(line);
    if (std::optional<std::string> answer = at_once_(request)) {
      connection.output = *std::move(answer);
      return;
    }
    const MutexLock lock(mutex_);
    if (queued_.size() >= kMostQueuedRequests) throw too_many_requests();
    connection.waits = true;
    queued_.push_back({connection.id, request});
    ++queued_count_;
  } catch (const Error& error) {
    connection.output = control_refusal(error);
  }
}

void ControlServer::write_to(Connection& connection) {
  while (!connection.output.empty() && connection.fd.get() >= 0) {
    const ssize_t count =
        send(connection.fd.get(), connection.output.data(), connection.output.size(), MSG_NOSIGNAL);
    if (count < 0 && is_transient(errno)) return;
    if (count < 0) return connection.fd.reset();
    connection.output.erase(0, static_cast<size_t>(count));
    if (connection.output.empty()) advance(connection);
  }
  if (connection.output.empty() && connection.ends) connection.fd.reset();
}

void ControlServer::refuse_queued() {
  const std::string line = control_refusal(run_is_over());
  for (Connection& connection : connections_) {
    if (connection.waits) connection.output = line;
    connection.waits = false;
    connection.ends = true;
  }
}

}  // namespace terrace
