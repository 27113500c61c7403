#include <terrace/comm/liveness/heartbeat.h>

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <span>
#include <utility>

#include <terrace/base/assert.h>
#include <terrace/base/error.h>

namespace terrace {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Steady = std::chrono::steady_clock;

constexpr milliseconds kBetweenWords(1000), kLeastBetweenWords(50);
// A launcher that is the parent of a dead rank has its word by then.
constexpr milliseconds kForTheLauncher(1000);
// Whoever says nothing for so long is told nothing either, so that its connection never fills.
constexpr seconds kTalksAlone(60);
constexpr size_t kMostUnsent = 64 * sizeof(HeartbeatMessage);
constexpr const char* kItsConnectionHasEnded = "its connection has ended";

}  // namespace

Heartbeat::Heartbeat(uint32_t rank, std::vector<StreamSocket> links, LauncherLink& launcher,
                     HeartbeatHooks hooks)
    : rank_(rank),
      hooks_(std::move(hooks)),
      wake_("cannot watch the other ranks", "end what else takes memory"),
      launcher_(launcher) {
  TERRACE_ASSERT(rank < links.size(), "there is a link for every rank");
  known_.resize(links.size());
  leaving_.resize(links.size());
  for (StreamSocket& socket : links) {
    links_.emplace_back().socket = std::move(socket);
    known_[links_.size() - 1].heard = Steady::now();
  }
  if (launcher_.is_open()) launcher_.tell({.kind = LauncherWord::Kind::watching, .rank = rank});
  thread_ = std::thread([this] { run(); });
}

Heartbeat::~Heartbeat() {
  {
    const MutexLock lock(mutex_);
    stop_ = true;
  }
  wake();
  thread_.join();
}

void Heartbeat::set_where(std::function<RankStanding()> where) {
  {
    const MutexLock lock(where_mutex_);
    where_ = std::move(where);
  }
  wake();
}

void Heartbeat::leave(std::string why, LastWords words) {
  HeartbeatMessage farewell = message_of(HeartbeatWord::farewell, rank_, why);
  farewell.news = words.news;
  farewell.status = words.status;
  std::vector<std::pair<uint32_t, HeartbeatMessage>> farewells;
  {
    const MutexLock lock(mutex_);
    if (std::exchange(has_left_, true)) return;
    for (uint32_t r = 0; r < leaving_.size(); ++r) farewells.emplace_back(r, farewell);
  }
  post(std::move(farewells));
}

void Heartbeat::give_up(std::span<const uint32_t> silent, std::string why, milliseconds patience) {
  leave(std::move(why));
  if (launcher_.is_open()) {
    for (const uint32_t rank : silent) launcher_.tell({.kind = LauncherWord::Kind::stalled, .rank = rank});
  }
  const MutexLock lock(mutex_);
  changed_.wait_for(mutex_, patience, [this] { return posted_.empty(); });
}

void Heartbeat::post(std::vector<std::pair<uint32_t, HeartbeatMessage>> messages) {
  {
    const MutexLock lock(mutex_);
    posted_.insert(posted_.end(), messages.begin(), messages.end());
  }
  wake();
}

void Heartbeat::has_been_said() const {
  if (launcher_.is_open()) launcher_.tell({.kind = LauncherWord::Kind::said, .rank = rank_});
}

void Heartbeat::has_kept() const {
  if (launcher_.is_open()) launcher_.tell({.kind = LauncherWord::Kind::kept, .rank = rank_});
}

std::optional<RankLoss> Heartbeat::loss(milliseconds patience) const {
  const MutexLock lock(mutex_);
  changed_.wait_for(mutex_, patience, [this] { return loss_.has_value(); });
  return loss_;
}

std::vector<KnownStanding> Heartbeat::standings(milliseconds patience) {
  const MutexLock lock(mutex_);
  if (!is_first()) {
    const uint64_t before = answers_;
    asks_ = true;
    wake();
    if (!changed_.wait_for(mutex_, patience, [&] { return answers_ != before; })) return {};
  }
  std::vector<KnownStanding> all;
  const Moment now = Steady::now();
  for (const Known& one : known_)
    all.push_back({one.standing, std::chrono::duration_cast<milliseconds>(now - one.heard)});
  return all;
}

std::vector<uint32_t> Heartbeat::silent_for(milliseconds silence, milliseconds patience) {
  std::vector<uint32_t> silent;
  const std::vector<KnownStanding> all = standings(patience);
  for (uint32_t r = 0; r < all.size(); ++r) {
    if (r != rank_ && all[r].age >= silence) silent.push_back(r);
  }
  if (all.empty() && !loss(milliseconds(0))) silent.push_back(0);
  return silent;
}

std::vector<uint32_t> Heartbeat::who_is_silent(milliseconds silence, milliseconds patience) {
  std::vector<uint32_t> silent = silent_for(silence, patience);
  if (!silent.empty()) return silent;
  std::this_thread::sleep_for(silence);
  return silent_for(silence, patience);
}

// --- How ranks end that have failed ---

std::vector<std::optional<LastWords>> Heartbeat::last_words(milliseconds patience) {
  const MutexLock lock(mutex_);
  changed_.wait_for(mutex_, patience, [this] {
    return std::ranges::count_if(leaving_, [](const Leaving& l) { return l.words || l.is_gone; }) + 1 ==
           std::ssize(leaving_);
  });
  std::vector<std::optional<LastWords>> all;
  for (const Leaving& rank : leaving_) all.push_back(rank.words);
  return all;
}

void Heartbeat::let_end(uint32_t rank, const EndOfRank& end) {
  {
    const MutexLock lock(mutex_);
    leaving_[rank].may_speak = !end.speaks_as.empty();
  }
  HeartbeatMessage message = message_of(HeartbeatWord::speak, rank_, end.speaks_as);
  message.status = end.status;
  post({{rank, message}});
}

void Heartbeat::wait_for_speakers(milliseconds patience) {
  const MutexLock lock(mutex_);
  changed_.wait_for(mutex_, patience, [this] {
    return std::ranges::none_of(leaving_, [](const Leaving& l) { return l.may_speak && !l.is_gone; });
  });
}

std::optional<EndOfRank> Heartbeat::own_end(milliseconds patience) {
  const MutexLock lock(mutex_);
  changed_.wait_for(mutex_, patience, [this] { return own_end_ || leaving_[0].is_gone; });
  return own_end_;
}

void Heartbeat::has_spoken(milliseconds patience) {
  post({{0, message_of(HeartbeatWord::spoken, rank_)}});
  const MutexLock lock(mutex_);
  changed_.wait_for(mutex_, patience, [this] { return leaving_[0].is_gone; });
}

// --- The thread ---

void Heartbeat::run() {
  while (true) {
    poll_once();
    std::vector<std::pair<uint32_t, HeartbeatMessage>> posted;
    bool stops = false, asks = false, has_left = false;
    {
      const MutexLock lock(mutex_);
      posted = posted_;
      stops = stop_;
      asks = std::exchange(asks_, false);
      has_left = has_left_;
    }
    if (asks) tell(0, message_of(HeartbeatWord::ask, rank_));
    for (const auto& [rank, message] : posted) tell(rank, message);
    if (!posted.empty()) has_told(posted.size());
    if (!has_left && Steady::now() >= say_at_) say_where();
    if (!stops) continue;
    for (uint32_t r = 0; r < links_.size() && !has_left; ++r)
      tell(r, message_of(HeartbeatWord::farewell, rank_));
    return;
  }
}

void Heartbeat::has_told(size_t count) {
  {
    const MutexLock lock(mutex_);
    posted_.erase(posted_.begin(), posted_.begin() + static_cast<std::ptrdiff_t>(count));
  }
  changed_.notify_all();
}

int Heartbeat::ms_to_wait() const {
  Moment next = has_left() ? Steady::now() + kBetweenWords : say_at_;
  if (ended_) next = std::min(next, settle_at_);
  if (late_at_) next = std::min(next, *late_at_);
  const auto left = std::chrono::ceil<milliseconds>(next - Steady::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 1000));
}

void Heartbeat::poll_once() {
  std::vector<pollfd> watched{{wake_.fd(), POLLIN, 0}, {launcher_.fd_to_hear(), POLLIN, 0}};
  for (const Link& link : links_)
    watched.push_back({link.socket.fd(), static_cast<short>(POLLIN | (link.out.empty() ? 0 : POLLOUT)), 0});
  poll(watched.data(), watched.size(), ms_to_wait());
  if (watched[0].revents != 0 && wake_.take())
    say_at_ = std::min(say_at_, std::max(Steady::now(), said_at_ + kLeastBetweenWords));
  for (uint32_t r = 0; r < links_.size(); ++r) {
    if (watched[r + 2].revents == 0) continue;
    flush(links_[r]);
    read_from(r);
  }
  if (watched[1].revents != 0) hear_launcher();
  settle_end();
  if (!late_at_ || Steady::now() < *late_at_) return;
  late_at_.reset();
  const RankLoss first = *loss(milliseconds(0));
  const auto& hook = first.died ? hooks_.late : hooks_.late_after_failure;
  if (hook && !has_left()) hook(first);
}

void Heartbeat::say_where() {
  const Moment now = Steady::now();
  said_at_ = now;
  say_at_ = now + kBetweenWords;
  RankStanding mine;
  {
    const MutexLock lock(where_mutex_);
    if (where_) mine = where_();
  }
  std::vector<bool> listens(links_.size());
  {
    const MutexLock lock(mutex_);
    known_[rank_] = {mine, now};
    for (uint32_t r = 0; r < links_.size(); ++r) listens[r] = now - known_[r].heard < kTalksAlone;
  }
  const HeartbeatMessage message = message_of(rank_, mine, 0);
  for (uint32_t r = 0; r < links_.size(); ++r) {
    if (listens[r] && links_[r].out.empty()) tell(r, message);
  }
}

void Heartbeat::tell(uint32_t rank, const HeartbeatMessage& message) {
  Link& link = links_[rank];
  if (!link.socket.is_open() || link.out.size() > kMostUnsent) return;
  const auto bytes = std::as_bytes(std::span(&message, 1));
  link.out.insert(link.out.end(), bytes.begin(), bytes.end());
  flush(link);
}

void Heartbeat::flush(Link& link) {
  if (link.out.empty()) return;
  const ssize_t count = send(link.socket.fd(), link.out.data(), link.out.size(), MSG_NOSIGNAL);
  if (count > 0) link.out.erase(link.out.begin(), link.out.begin() + count);
  if (count < 0 && !is_transient(errno)) link.out.clear();  // its end is found where it is read
}

void Heartbeat::read_from(uint32_t rank) {
  Link& link = links_[rank];
  while (link.socket.is_open()) {
    const ssize_t count =
        recv(link.socket.fd(), link.in.data() + link.in_count, link.in.size() - link.in_count, 0);
    if (count < 0 && is_transient(errno)) return;
    if (count <= 0) return has_ended(rank);
    link.in_count += static_cast<size_t>(count);
    if (link.in_count < link.in.size()) continue;
    link.in_count = 0;
    const std::optional<HeartbeatMessage> message =
        read_message(link.in, static_cast<uint32_t>(links_.size()));
    if (!message || !may_say(rank, *message)) return has_ended(rank);
    take(rank, *message);
  }
}

void Heartbeat::take(uint32_t from, const HeartbeatMessage& message) {
  switch (message.word) {
    case HeartbeatWord::standing: {
      const MutexLock lock(mutex_);
      known_[message.rank] = {standing_in(message), Steady::now() - milliseconds(message.age_ms)};
      return;
    }
    case HeartbeatWord::loss: {
      RankLoss loss = death_of(message.rank, message.signal);
      loss.died = message.died != 0;
      loss.why = text_in(message);
      return lose(std::move(loss));
    }
    case HeartbeatWord::farewell: {
      links_[from].says_farewell = true;
      RankLoss loss = death_of(from, 0);
      loss.died = false;
      loss.why = text_in(message);
      {
        const MutexLock lock(mutex_);
        leaving_[from].words = LastWords{message.news, message.status};
      }
      changed_.notify_all();
      if (!loss.why.empty()) lose(std::move(loss));
      return;
    }
    case HeartbeatWord::speak: {
      const MutexLock lock(mutex_);
      own_end_ = EndOfRank{text_in(message), message.status};
      return changed_.notify_all();
    }
    case HeartbeatWord::spoken: {
      const MutexLock lock(mutex_);
      leaving_[from].may_speak = false;
      return changed_.notify_all();
    }
    case HeartbeatWord::ask:
      return answer(from);
    case HeartbeatWord::answered: {
      const MutexLock lock(mutex_);
      ++answers_;
      return changed_.notify_all();
    }
  }
}

void Heartbeat::answer(uint32_t rank) {
  std::vector<HeartbeatMessage> messages;
  {
    const MutexLock lock(mutex_);
    const Moment now = Steady::now();
    for (uint32_t r = 0; r < known_.size(); ++r) {
      const auto age = std::chrono::duration_cast<milliseconds>(now - known_[r].heard);
      messages.push_back(message_of(r, known_[r].standing, static_cast<uint64_t>(age.count())));
    }
  }
  for (const HeartbeatMessage& message : messages) tell(rank, message);
  tell(rank, message_of(HeartbeatWord::answered, rank_));
}

// --- Who has left ---

void Heartbeat::has_ended(uint32_t rank) {
  links_[rank].socket.close();
  {
    const MutexLock lock(mutex_);
    leaving_[rank].is_gone = true;
  }
  changed_.notify_all();
  if (links_[rank].says_farewell || ended_) return;
  ended_ = rank;
  settle_at_ = Steady::now() + (launcher_.is_open() ? kForTheLauncher : milliseconds(0));
}

void Heartbeat::settle_end() {
  if (!ended_ || Steady::now() < settle_at_) return;
  lose(death_of(*std::exchange(ended_, std::nullopt), 0));
}

void Heartbeat::hear_launcher() {
  while (const std::optional<LauncherWord> word = launcher_.hear()) {
    if (word->kind != LauncherWord::Kind::death || word->rank >= links_.size()) continue;
    read_from(word->rank);  // its last words about itself
    ended_.reset();
    lose(death_of(word->rank, word->signal));
  }
}

bool Heartbeat::has_left() const {
  const MutexLock lock(mutex_);
  return has_left_;
}

RankLoss Heartbeat::death_of(uint32_t rank, uint32_t signal) const {
  const MutexLock lock(mutex_);
  return {.rank = rank,
          .died = true,
          .signal = signal,
          .why = kItsConnectionHasEnded,
          .last = known_[rank].standing};
}

// The first one counts.
void Heartbeat::lose(RankLoss loss) {
  {
    const MutexLock lock(mutex_);
    if (loss_) return;
    loss_ = loss;
  }
  changed_.notify_all();
  if (is_first()) {
    for (uint32_t r = 1; r < links_.size(); ++r) tell_loss(r, loss);
  }
  late_at_ = Steady::now() + hooks_.patience;
  if (hooks_.lost && !has_left()) hooks_.lost(loss);
}

void Heartbeat::tell_loss(uint32_t rank, const RankLoss& loss) {
  tell(rank, message_of(loss.rank, loss.last, 0));
  HeartbeatMessage message = message_of(HeartbeatWord::loss, loss.rank, loss.why);
  message.signal = loss.signal;
  message.died = loss.died ? 1 : 0;
  tell(rank, message);
}

}  // namespace terrace
