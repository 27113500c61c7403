// Ranks as processes of a test, each forked from it, which may die as they like.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

#include "support/scratch_folder.h"

namespace terrace::testing {

class ForkedRanks {
 public:
  // What a rank does; its result is the exit status. Call it from a process that has one thread.
  using Body = std::function<int(uint32_t rank)>;
  ForkedRanks(uint32_t count, const Body& body) {
    for (uint32_t r = 0; r < count; ++r) {
      const pid_t process = fork();
      if (process == 0) _exit(body(r));
      processes_.push_back(process);
    }
    for (const pid_t process : processes_) {
      int status = 0;
      waitpid(process, &status, 0);
      ends_.push_back(WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status));
    }
  }
  // By rank: the exit status, or the signal with a minus.
  const std::vector<int>& ends() const { return ends_; }

 private:
  std::vector<pid_t> processes_;
  std::vector<int> ends_;
};

// What ranks write for the test to read, a file each.
class RankNotes {
 public:
  void write(uint32_t rank, const std::string& text) const {
    std::ofstream(path(rank), std::ios::app) << text << std::flush;
  }
  std::string of(uint32_t rank) const {
    std::ifstream file(path(rank));
    return {std::istreambuf_iterator<char>(file), {}};
  }
  std::string place() const { return (folder_.path() / "meet").string(); }

 private:
  std::filesystem::path path(uint32_t rank) const { return folder_.path() / std::to_string(rank); }
  ScratchFolder folder_;
};

}  // namespace terrace::testing
