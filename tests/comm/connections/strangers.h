// Strangers: processes of another user of this host, which only root can play.
#pragma once

#include <grp.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include <terrace/comm/connections/stream_socket.h>
#include <terrace/comm/identity/rank_identity.h>

#include "support/scratch_folder.h"

namespace terrace::testing {

inline constexpr uid_t kNobody = 65534;

// From now on this process is one of another user. A sanitizer looks at it at its end all the same.
inline void become_nobody() {
  ASSERT_EQ(setgroups(0, nullptr), 0);
  ASSERT_EQ(setgid(kNobody), 0);
  ASSERT_EQ(setuid(kNobody), 0);
  prctl(PR_SET_DUMPABLE, 1);
}

// A place to meet that every user can reach, and finds by the folder.
class OpenPlace {
 public:
  OpenPlace(const ScratchFolder& folder, bool over_tcp)
      : folder_(folder.path()),
        place_(over_tcp ? RendezvousPlace{.host = "127.0.0.1"} : RendezvousPlace{.socket = folder / "meet"}) {
    chmod(folder_.c_str(), 0777);
  }
  const RendezvousPlace& place() const { return place_; }
  // When somebody listens there.
  void open_to_all(uint16_t port) const {
    if (!place_.socket.empty()) chmod(place_.socket.c_str(), 0777);
    std::ofstream(folder_ / "place") << (place_.socket.empty() ? "127.0.0.1:" + std::to_string(port)
                                                               : place_.socket.string());
  }

 private:
  const std::filesystem::path folder_;
  const RendezvousPlace place_;
};

inline RendezvousPlace place_in(const std::filesystem::path& folder) {
  std::string place;
  std::ifstream(folder / "place") >> place;
  return rendezvous_place_in("place", place);
}

}  // namespace terrace::testing
