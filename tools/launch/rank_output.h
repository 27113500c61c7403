// RankOutput: what ranks write, where each has a file of its own beside the screen.
#pragma once

#include <poll.h>

#include <cstdint>
#include <filesystem>
#include <vector>

#include <terrace/comm/connections/stream_socket.h>

namespace terrace {

class RankOutput {
 public:
  // An empty folder: nothing stands between the ranks and the screen. Else the folder is made, with an empty
  // file rank-R.log for each rank, or the one that is there if it `appends`. Throws Error(io).
  RankOutput(const std::filesystem::path& folder, uint32_t ranks, bool appends);

  // In the process that becomes the rank: its stdout and stderr come here.
  void redirect(uint32_t rank) const;
  // When all ranks were started.
  void close_inputs();

  // What to wait for, and what came of it: copies what ranks have written.
  void add_to(std::vector<pollfd>& watched) const;
  void copy();
  // Copies the rest, when all ranks have ended.
  void finish();

 private:
  struct Pipe {
    StreamSocket in, out;  // the rank writes, and this process reads
    int screen = 0;
    size_t file = 0;
  };
  bool copy_some(Pipe& pipe);

  std::vector<StreamSocket> files_;  // by rank
  std::vector<Pipe> pipes_;          // two for each rank, stdout first
};

}  // namespace terrace
