// LauncherLink: what `terrace launch` and the ranks that it has started tell each other. The launcher knows
// first that a rank has died, and by which signal; the ranks know what that means for the run, and who says
// so.
//
// Each holds one end of a connection. A rank inherits its end (TERRACE_LAUNCHER_FD), which every program on
// the way to it passes on. Words have the machine's byte order.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include <terrace/comm/connections/stream_socket.h>
#include <terrace/comm/identity/rank_identity.h>

namespace terrace {

inline constexpr const char* kLauncherFd = "TERRACE_LAUNCHER_FD";
inline constexpr const char* kRunName = "TERRACE_RUN";

struct LauncherWord {
  static constexpr uint32_t kMagic = 0x314c4454;  // "TDL1"
  enum class Kind : uint32_t {
    death = 1,     // of the launcher: a rank has died
    watching = 2,  // of a rank: it learns of deaths from now on, and ends by itself
    said = 3,      // of a rank: the user has been told of the death
    kept = 4,      // of a rank: the run has kept a state of its own, and none of a run before it is left
    stalled = 5,   // of a rank: it gives up the run because this other one says nothing any more
  };
  uint32_t magic = kMagic;
  Kind kind = Kind::death;
  uint32_t rank = 0;    // that has died or stalled
  uint32_t signal = 0;  // by which
};
static_assert(sizeof(LauncherWord) == 16, "no padding whose bytes nobody has set");

// One end. One thread hears; any thread may tell.
class LauncherLink {
 public:
  // The rank's end that it has inherited; closed where `terrace launch` has not started this process.
  explicit LauncherLink(const Environment& variables);
  // The launcher's end.
  explicit LauncherLink(StreamSocket socket) : socket_(std::move(socket)) {}
  // The launcher's end, and the number of the rank's, which programs that are started inherit and the caller
  // closes. Throws Error(io).
  static std::pair<LauncherLink, int> make();

  bool is_open() const { return socket_.is_open(); }
  int fd_to_hear() const { return has_ended_ ? -1 : socket_.fd(); }  // -1 where no word will come any more
  bool has_ended() const { return has_ended_; }                      // the other side
  // Nothing happens where the other side has ended.
  void tell(const LauncherWord& word) const;
  // A word that has come; nothing where none has.
  std::optional<LauncherWord> hear();

 private:
  StreamSocket socket_;
  bool has_ended_ = false;
};

}  // namespace terrace
