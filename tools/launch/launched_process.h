// What every process has that `terrace launch` starts: the signals that the launcher hands on instead of
// ending by them, and a process group of its own.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include <terrace/comm/connections/stream_socket.h>

namespace terrace {

// While it lives, SIGINT, SIGTERM, SIGHUP and SIGUSR1 wait to be taken, and SIGCHLD wakes whoever polls.
class LauncherSignals {
 public:
  // Throws Error(io).
  LauncherSignals();
  ~LauncherSignals();
  LauncherSignals(const LauncherSignals&) = delete;
  LauncherSignals& operator=(const LauncherSignals&) = delete;

  int fd() const { return events_.fd(); }
  // The next signal to hand on; nothing where none has come.
  std::optional<int> take() const;
  // For the child: signals do again what they did before.
  void restore() const { sigprocmask(SIG_SETMASK, &earlier_mask_, nullptr); }

 private:
  sigset_t earlier_mask_{};
  StreamSocket events_;
};

// In the child of `launcher`: a group of its own, so that a terminal's Ctrl-C comes from the launcher alone
// and counts once; nothing to read; and SIGTERM where the launcher ends, whoever ends it.
void settle_in_child(pid_t launcher);

// A name that hardly another run has.
std::string new_run_name();
// What the ranks of a run prove to each other and to the launcher: that of the environment (kSecretVariable),
// or else one that is drawn. Throws Error(config) where the one of the environment cannot be used.
std::string secret_for_ranks();

// Whether exec finds a program by this word: a path, or a name in a folder of PATH.
bool is_program(const std::string& word);

// For exec, as long as `words` live.
std::vector<char*> pointers_to(const std::vector<std::string>& words);

}  // namespace terrace
