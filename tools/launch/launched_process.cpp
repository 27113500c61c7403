#include "launch/launched_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <random>
#include <sstream>

#include <terrace/base/error.h>
#include <terrace/comm/connections/run_secret.h>
#include <terrace/comm/identity/rank_identity.h>

#include "command_line.h"

namespace terrace {
namespace {

constexpr std::array kHandedOn = {SIGINT, SIGTERM, SIGHUP, SIGUSR1};

}  // namespace

LauncherSignals::LauncherSignals() {
  sigset_t mask;
  sigemptyset(&mask);
  sigaddset(&mask, SIGCHLD);
  for (const int signal : kHandedOn) sigaddset(&mask, signal);
  events_ = StreamSocket(signalfd(-1, &mask, SFD_NONBLOCK | SFD_CLOEXEC));
  if (!events_.is_open())
    throw Error(ErrorKind::io,
                {"cannot start the ranks", "signalfd", system_reason(errno), "end what else takes memory"});
  sigprocmask(SIG_BLOCK, &mask, &earlier_mask_);
}

LauncherSignals::~LauncherSignals() {
  restore();
}

std::optional<int> LauncherSignals::take() const {
  signalfd_siginfo info{};
  while (read(events_.fd(), &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
    const int signal = static_cast<int>(info.ssi_signo);
    if (signal != SIGCHLD) return signal;
  }
  return std::nullopt;
}

void settle_in_child(pid_t launcher) {
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != launcher) _exit(kFailed);
  setpgid(0, 0);
  signal(SIGTTOU, SIG_IGN);
  const int nothing = open("/dev/null", O_RDONLY);
  if (nothing >= 0) dup2(nothing, STDIN_FILENO), close(nothing);
}

std::string new_run_name() {
  std::random_device device;
  std::string name;
  for (int i = 0; i < 4; ++i) name += fmt::format("{:08x}", device());
  return name;
}

std::string secret_for_ranks() {
  const std::string given = secret_text_in(environment_from(environ));
  return given.empty() ? new_secret_text() : given;
}

bool is_program(const std::string& word) {
  if (word.find('/') != std::string::npos) return access(word.c_str(), X_OK) == 0;
  const char* const path = getenv("PATH");
  std::istringstream folders(path != nullptr ? path : "");
  for (std::string folder; std::getline(folders, folder, ':');) {
    if (access((folder + "/" + word).c_str(), X_OK) == 0) return true;
  }
  return false;
}

std::vector<char*> pointers_to(const std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (const std::string& word : words)
    pointers.push_back(const_cast<char*>(word.c_str()));  // exec only reads
  pointers.push_back(nullptr);
  return pointers;
}

}  // namespace terrace
