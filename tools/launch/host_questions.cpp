#include "launch/host_questions.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <memory>
#include <optional>
#include <span>
#include <sstream>

#include <terrace/base/error.h>
#include <terrace/comm/agreement/rank_places.h>
#include <terrace/comm/connections/stream_socket.h>
#include <terrace/comm/liveness/launcher_link.h>

#include "command_line.h"
#include "launch/launched_process.h"

namespace terrace {
namespace {

constexpr std::string_view kAgentVariable = "OMPI_MCA_plm_rsh_agent";
constexpr std::string_view kAgents = "ssh : rsh";  // of Open MPI
constexpr std::string_view kIsFree = "terrace: this host is free";
constexpr size_t kMostAtOnce = 128;  // each takes a process and a file

bool is_program(const std::string& word) {
  if (word.find('/') != std::string::npos) return access(word.c_str(), X_OK) == 0;
  const char* const path = getenv("PATH");
  std::istringstream folders(path != nullptr ? path : "");
  for (std::string folder; std::getline(folders, folder, ':');) {
    if (access((folder + "/" + word).c_str(), X_OK) == 0) return true;
  }
  return false;
}

// For any shell, which takes it as one word. A process of another network namespace is another host's, where
// hosts are containers of one machine.
std::string question_about(const std::string& run) {
  return fmt::format(
      R"~(sh -c 'left() {{ for e in $(grep -ls {}={} /proc/[0-9]*/environ); do d=${{e%/environ}}; )~"
      R"~([ "$(readlink $d/ns/net)" = "$(readlink /proc/self/ns/net)" ] && echo ${{d#/proc/}}; done; }}; )~"
      R"~(p=$(left); n=0; while [ -n "$p" ]; do [ $n -lt 80 ] || exit 1; kill -KILL $p; sleep 0.1; )~"
      R"~(n=$((n + 1)); p=$(left); done; echo "{}"')~",
      kRunName, run, kIsFree);
}

// An address can be bound only where it is this host's own.
bool is_this_host(const std::string& name) {
  if (name == "localhost" || name == own_place().host_name) return true;
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(name.c_str(), nullptr, &wanted, &found) != 0) return false;
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> list(found, freeaddrinfo);
  for (const addrinfo* one = list.get(); one != nullptr; one = one->ai_next) {
    const StreamSocket probe(socket(one->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (probe.is_open() && bind(probe.fd(), one->ai_addr, one->ai_addrlen) == 0) return true;
  }
  return false;
}

// A host that is asked: the agent's process, and what has come of the answer.
class Question {
 public:
  Question(const std::string& host, const std::string& question) {
    std::vector<std::string> words = {"sh", "-c", question};
    if (!is_this_host(host)) {
      const char* const alternatives = getenv(std::string(kAgentVariable).c_str());
      words = agent_words(alternatives != nullptr ? alternatives : kAgents);
      if (words.empty()) return;  // mpirun cannot reach it either
      words.insert(words.end(), {host, question});
    }
    std::array<int, 2> fds{};
    if (pipe2(fds.data(), O_CLOEXEC | O_NONBLOCK) != 0) return;
    out_ = StreamSocket(fds[0]);
    const StreamSocket in(fds[1]);
    process_ = fork();
    if (process_ == 0) become(words, in.fd());
  }
  ~Question() {
    if (process_ <= 0) return;
    kill(process_, SIGKILL);
    waitpid(process_, nullptr, 0);
  }
  Question(const Question&) = delete;
  Question& operator=(const Question&) = delete;

  int fd() const { return is_over() ? -1 : out_.fd(); }
  bool is_over() const { return process_ <= 0 || !out_.is_open(); }
  bool is_free() const { return answer_.find(kIsFree) != std::string::npos; }
  void hear() {
    std::array<char, 1024> text{};
    const ssize_t count = read(out_.fd(), text.data(), text.size());
    if (count > 0) answer_.append(text.data(), static_cast<size_t>(count));
    if (count == 0 || (count < 0 && !is_transient(errno)) || is_free()) out_.close();
  }

 private:
  [[noreturn]] static void become(const std::vector<std::string>& words, int answer) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const int nothing = open("/dev/null", O_RDWR);
    dup2(nothing, STDIN_FILENO);
    dup2(nothing, STDERR_FILENO);
    dup2(answer, STDOUT_FILENO);
    execvp(words.front().c_str(), pointers_to(words).data());
    _exit(kFailed);
  }

  pid_t process_ = -1;
  StreamSocket out_;
  std::string answer_;
};

std::vector<bool> ask(std::span<const HostSlots> hosts, const std::string& question,
                      const Deadline& deadline) {
  std::vector<std::unique_ptr<Question>> asked;
  for (const HostSlots& host : hosts) asked.push_back(std::make_unique<Question>(host.host, question));
  const auto is_over = [](const auto& one) { return one->is_over(); };
  while (!std::ranges::all_of(asked, is_over) && !deadline.has_passed()) {
    std::vector<pollfd> watched;
    for (const auto& one : asked) watched.push_back({one->fd(), POLLIN, 0});
    poll(watched.data(), watched.size(), deadline.left_ms());
    for (size_t i = 0; i < asked.size(); ++i) {
      if (watched[i].revents != 0) asked[i]->hear();
    }
  }
  std::vector<bool> free;
  for (const auto& one : asked) free.push_back(one->is_free());
  return free;
}

}  // namespace

std::vector<std::string> agent_words(std::string_view alternatives) {
  std::istringstream all{std::string(alternatives)};
  for (std::string alternative; std::getline(all, alternative, ':');) {
    std::istringstream text(alternative);
    std::vector<std::string> words;
    for (std::string word; text >> word;) words.push_back(word);
    if (!words.empty() && is_program(words.front())) return words;
  }
  return {};
}

std::vector<bool> free_hosts(const std::vector<HostSlots>& hosts, const std::string& run,
                             std::chrono::milliseconds patience) {
  const std::string question = question_about(run);
  std::vector<bool> free;
  for (std::span<const HostSlots> rest = hosts; !rest.empty();) {
    const size_t count = std::min(rest.size(), kMostAtOnce);
    const std::vector<bool> some = ask(rest.first(count), question, Deadline(patience));
    free.insert(free.end(), some.begin(), some.end());
    rest = rest.subspan(count);
  }
  return free;
}

}  // namespace terrace
