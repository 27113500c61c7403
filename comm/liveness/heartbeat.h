// Heartbeat: the ranks of a run see that the others live, apart from the bytes that they exchange: a rank
// that waits for a dead one must not depend on an operation with it to learn of that.
//
// Every rank has a connection to rank 0. Each second, and when a step begins, it says where it is. A
// connection that ends without a farewell is a death. Rank 0 tells everybody; where rank 0 has died, every
// rank sees that itself. Where `terrace launch` has started the ranks, it says who has died of which signal,
// and is told whom this rank has lost.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <terrace/base/mutex.h>
#include <terrace/base/wake_event.h>
#include <terrace/comm/connections/stream_socket.h>
#include <terrace/comm/liveness/heartbeat_message.h>
#include <terrace/comm/liveness/launcher_link.h>

namespace terrace {

// The first rank that has left, and what is known of it.
struct RankLoss {
  uint32_t rank = 0;
  bool died = false;    // else it has left by itself, and said why
  uint32_t signal = 0;  // by which it was killed; 0 where nobody knows
  std::string why;      // a clause: "its connection has ended", or its last words
  RankStanding last;    // what it last said of itself
};

// What a rank last said of itself, and how long ago.
struct KnownStanding {
  RankStanding standing;
  std::chrono::milliseconds age{0};
};

struct HeartbeatHooks {
  // Called on the heartbeat's thread, each at most once: the first at a loss, and one of the others
  // `patience` later, after a death or after a rank that has left because of a failure.
  std::function<void(const RankLoss&)> lost = nullptr;
  std::function<void(const RankLoss&)> late = nullptr;  // whoever still works, ends now
  std::function<void(const RankLoss&)> late_after_failure = nullptr;
  std::chrono::milliseconds patience = std::chrono::seconds(1);
};

// Thread-safe but for its construction and end.
class Heartbeat {
 public:
  // `links` by rank, as meet_for_heartbeat() makes them. The launcher's link is closed where there is none.
  // `launcher` outlives this, and nobody else hears it.
  Heartbeat(uint32_t rank, std::vector<StreamSocket> links, LauncherLink& launcher, HeartbeatHooks hooks);
  // Says farewell. No hook is called any more.
  ~Heartbeat();
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;

  // Where this rank is, as others are told. `where` is called on the heartbeat's thread, once a second, until
  // another one is set; when that has returned, the earlier one is not called any more.
  void set_where(std::function<RankStanding()> where);
  // A step begins: the others are told soon.
  void wake() { wake_.wake(); }
  // This rank leaves because of this; it is no death. No hook is called any more.
  void leave(std::string why, LastWords words = {});
  // This rank leaves because these others say nothing any more: the launcher is told which, and that this one
  // ends. Waits until the others could be told as well.
  void give_up(std::span<const uint32_t> silent, std::string why, std::chrono::milliseconds patience);
  // The user has been told of a death, as the launcher needs to know.
  void has_been_said() const;
  // The run has kept a state of its own, and none of a run before it is left; so too.
  void has_kept() const;

  // The first loss; waits for it where there is none. Nothing where nobody was lost by then.
  std::optional<RankLoss> loss(std::chrono::milliseconds patience) const;
  // What all ranks last said, by rank. Rank 0 knows it; others ask it, and have nothing where it does not
  // answer in time.
  std::vector<KnownStanding> standings(std::chrono::milliseconds patience);

  // The other ranks that have said nothing for so long, though each should every second. Where none has, as
  // when the ranks have waited for less than that, it waits so long and looks again. A first rank that does
  // not answer by `patience` is silent, unless it has left.
  std::vector<uint32_t> who_is_silent(std::chrono::milliseconds silence, std::chrono::milliseconds patience);

  // --- Ranks that end together, because of one thing or of several, tell the user of each once ---
  // Of rank 0: with what the others have left, by rank; waits for those that have not.
  std::vector<std::optional<LastWords>> last_words(std::chrono::milliseconds patience);
  // Of rank 0, which has left: tells another that has left how it ends.
  void let_end(uint32_t rank, const EndOfRank& end);
  // Of rank 0: waits until those that may speak have spoken.
  void wait_for_speakers(std::chrono::milliseconds patience);
  // Of another rank that has left: how it ends. Nothing where rank 0 does not say.
  std::optional<EndOfRank> own_end(std::chrono::milliseconds patience);
  // The same has spoken, or need not. Waits for the end of rank 0: launchers may end all ranks with the first
  // that ends.
  void has_spoken(std::chrono::milliseconds patience);

 private:
  using Moment = std::chrono::steady_clock::time_point;
  std::vector<uint32_t> silent_for(std::chrono::milliseconds silence, std::chrono::milliseconds patience);
  struct Link {
    StreamSocket socket;
    std::vector<std::byte> out;
    std::array<std::byte, sizeof(HeartbeatMessage)> in{};
    size_t in_count = 0;
    bool says_farewell = false;  // the other side: what ends then is no death
  };
  struct Known {
    RankStanding standing;
    Moment heard;
  };
  // How another rank ends.
  struct Leaving {
    std::optional<LastWords> words;
    bool may_speak = false;  // and has not yet
    bool is_gone = false;    // its connection has ended
  };

  void run();
  void poll_once();
  void has_told(size_t count);
  int ms_to_wait() const;
  bool is_first() const { return rank_ == 0; }

  void say_where();
  void read_from(uint32_t rank);
  void take(uint32_t from, const HeartbeatMessage& message);
  void answer(uint32_t rank);
  void hear_launcher();
  void has_ended(uint32_t rank);
  void settle_end();
  void lose(RankLoss loss);
  void tell(uint32_t rank, const HeartbeatMessage& message);
  void tell_loss(uint32_t rank, const RankLoss& loss);
  void flush(Link& link);
  void post(std::vector<std::pair<uint32_t, HeartbeatMessage>> messages);
  bool has_left() const;
  RankLoss death_of(uint32_t rank, uint32_t signal) const;

  const uint32_t rank_;
  const HeartbeatHooks hooks_;
  const WakeEvent wake_;
  LauncherLink& launcher_;

  // The thread's own.
  std::vector<Link> links_;
  Moment said_at_{}, say_at_{};
  std::optional<uint32_t> ended_;  // whose connection has ended, while the launcher's word is awaited
  Moment settle_at_{};
  std::optional<Moment> late_at_;

  mutable Mutex mutex_;
  mutable std::condition_variable_any changed_;
  std::vector<Known> known_ TERRACE_GUARDED_BY(mutex_);  // by rank
  std::optional<RankLoss> loss_ TERRACE_GUARDED_BY(mutex_);
  uint64_t answers_ TERRACE_GUARDED_BY(mutex_) = 0;
  bool asks_ TERRACE_GUARDED_BY(mutex_) = false;
  std::vector<std::pair<uint32_t, HeartbeatMessage>> posted_ TERRACE_GUARDED_BY(mutex_);  // to whom
  bool has_left_ TERRACE_GUARDED_BY(mutex_) = false;
  std::vector<Leaving> leaving_ TERRACE_GUARDED_BY(mutex_);  // by rank
  std::optional<EndOfRank> own_end_ TERRACE_GUARDED_BY(mutex_);
  bool stop_ TERRACE_GUARDED_BY(mutex_) = false;
  Mutex where_mutex_;
  std::function<RankStanding()> where_ TERRACE_GUARDED_BY(where_mutex_);

  std::thread thread_;
};

}  // namespace terrace
