// LauncherLink: what `terrace launch` and the ranks that it has started tell each other. The launcher is the
// parent of the ranks, so it knows first that one has died, and by which signal; the ranks know what that
// means for the run, and who says so.
//
// Both hold one end of a connection that keeps words apart; the rank finds its end by TERRACE_LAUNCHER_FD.
// Words have the machine's byte order.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include <terrace/comm/rank_identity.h>
#include <terrace/comm/stream_socket.h>

namespace terrace {

inline constexpr const char* kLauncherFd = "TERRACE_LAUNCHER_FD";

struct LauncherWord {
  static constexpr uint32_t kMagic = 0x314c4454;  // "TDL1"
  enum class Kind : uint32_t {
    death = 1,     // of the launcher: a rank has died
    watching = 2,  // of a rank: it learns of deaths from now on, and ends by itself
    said = 3,      // of a rank: the user has been told of the death
  };
  uint32_t magic = kMagic;
  Kind kind = Kind::death;
  uint32_t rank = 0;    // that has died
  uint32_t signal = 0;  // by which; 0: it has ended by itself
};
static_assert(sizeof(LauncherWord) == 16, "no padding whose bytes nobody has set");

// One end. One thread hears; any thread may tell.
class LauncherLink {
 public:
  // The rank's end; closed where `terrace launch` has not started this process.
  explicit LauncherLink(const Environment& variables);
  // The launcher's end, and the number of the rank's, which programs that are started inherit and the caller
  // closes. Throws Error(io).
  static std::pair<LauncherLink, int> make();

  bool is_open() const { return socket_.is_open(); }
  int fd_to_hear() const { return ended_ ? -1 : socket_.fd(); }  // -1 where no word will come any more
  // Nothing happens where the other side has ended.
  void tell(const LauncherWord& word) const;
  // A word that has come; nothing where none has.
  std::optional<LauncherWord> hear();

 private:
  explicit LauncherLink(StreamSocket socket) : socket_(std::move(socket)) {}
  StreamSocket socket_;
  bool ended_ = false;  // the other side
};

}  // namespace terrace
