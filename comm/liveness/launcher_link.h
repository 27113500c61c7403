// LauncherLink: what `terrace launch` and the ranks that it has started tell each other. The launcher knows
// first that a rank has died, and where it is the parent of the ranks also by which signal; the ranks know
// what that means for the run, and who says so.
//
// Each holds one end of a connection. A rank that the launcher has started itself inherits its end
// (TERRACE_LAUNCHER_FD). One that mpirun has started for the launcher, on any host, comes to it:
// TERRACE_LAUNCHER has the places where the launcher listens, "HOST:PORT,HOST:PORT", TERRACE_RUN the name of
// the run, and TERRACE_SECRET what the launcher and its ranks prove to each other (RankHandshake), so that
// nobody else is taken for one of its own. Words have the machine's byte order.
//
// A rank says when it ends. So a connection that ends without that word is the death of a process, and one
// that falls silent is a host that is cut off.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include <terrace/comm/connections/stream_socket.h>
#include <terrace/comm/identity/rank_identity.h>

namespace terrace {

inline constexpr const char* kLauncherFd = "TERRACE_LAUNCHER_FD";
inline constexpr const char* kLauncherPlaces = "TERRACE_LAUNCHER";
inline constexpr const char* kRunName = "TERRACE_RUN";
// The gradient group of a run that begins, as long as nothing else says it.
inline constexpr const char* kNewGradientGroup = "TERRACE_NEW_GRADIENT_GROUP";
// Nothing where the launcher does not say it. Throws Error(config) where that is no number.
std::optional<uint32_t> launched_gradient_group(const Environment& variables);

// The value of kLauncherPlaces for a launcher that listens at this port of its host.
std::string launcher_places(uint16_t port);

struct LauncherWord {
  static constexpr uint32_t kMagic = 0x314c4454;  // "TDL1"
  enum class Kind : uint32_t {
    death = 1,     // of the launcher: a rank has died
    watching = 2,  // of a rank: it learns of deaths from now on, and ends by itself
    said = 3,      // of a rank: the user has been told of the death
    lost = 4,      // of a rank: it has lost this other one, and ends because of that
    ended = 5,     // of a rank: it ends by itself
    asked = 6,     // of a rank that mpirun has started and now ends, because another one has failed
    kept = 7,      // of a rank: the run has kept a state of its own, and none of a run before it is left
    stalled = 8,   // of a rank: it gives up the run because this other one says nothing any more
  };
  uint32_t magic = kMagic;
  Kind kind = Kind::death;
  uint32_t rank = 0;    // that has died or stalled
  uint32_t signal = 0;  // by which; 0: it has ended by itself
};
static_assert(sizeof(LauncherWord) == 16, "no padding whose bytes nobody has set");

// One end. One thread hears; any thread may tell.
class LauncherLink {
 public:
  // The rank's end that it has inherited; closed where there is none.
  explicit LauncherLink(const Environment& variables);
  // The rank's end, inherited or from one of the launcher's places. Closed where `terrace launch` has not
  // started this process; where it has and cannot be reached, `reason` says why. Throws Error(config) for a
  // variable that names no places, and for a secret that cannot be used.
  static LauncherLink of_rank(const Environment& variables, uint32_t rank, uint32_t ranks, Reason& reason);
  // The launcher's end of a connection by which a rank has come.
  explicit LauncherLink(StreamSocket socket);
  // A rank's end says that the rank ends by itself.
  ~LauncherLink();
  LauncherLink(LauncherLink&&) noexcept = default;
  LauncherLink& operator=(LauncherLink&&) = delete;
  // The launcher's end, and the number of the rank's, which programs that are started inherit and the caller
  // closes. Throws Error(io).
  static std::pair<LauncherLink, int> make();

  bool is_open() const { return socket_.is_open(); }
  int fd_to_hear() const { return has_ended() ? -1 : socket_.fd(); }  // -1 where no word will come any more
  bool has_ended() const { return end_ != End::none; }                // the other side
  bool has_fallen_silent() const { return end_ == End::silence; }     // its host, which may still be there
  // Nothing happens where the other side has ended.
  void tell(const LauncherWord& word) const;
  // A word that has come; nothing where none has.
  std::optional<LauncherWord> hear();

 private:
  enum class End : uint8_t { none, process, silence };
  StreamSocket socket_;
  bool is_of_rank_ = false;
  End end_ = End::none;
  std::array<std::byte, sizeof(LauncherWord)> in_{};
  size_t in_count_ = 0;
};

}  // namespace terrace
