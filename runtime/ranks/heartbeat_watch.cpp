#include <terrace/runtime/ranks/heartbeat_watch.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <string_view>
#include <tuple>
#include <utility>

#include <terrace/base/checksum.h>
#include <terrace/comm/agreement/rank_places.h>
#include <terrace/comm/liveness/heartbeat_rendezvous.h>

namespace terrace {
namespace {

using std::chrono::milliseconds;

// A connection that ends is seen by all at once; who says why takes a little longer.
constexpr milliseconds kForTheNews(1500);
constexpr milliseconds kForAnAnswer(1000);
// Who says nothing for so long, though it should each second, is stopped or cut off.
constexpr milliseconds kSilent(3500);
constexpr size_t kMostNamed = 8;
// Where ranks end together: for those that are at something else or wait for the news of a death, for the
// first of them, which may be, and for a few lines on the screen.
constexpr milliseconds kForOtherRanks(kForTheNews + milliseconds(1500));
constexpr milliseconds kForTheFirstRank(5000);
constexpr milliseconds kForSpeakers(1500);

// What the user is to learn of a failure, as a number; 0: another rank says it. All ranks stop alike, and the
// first one says so.
uint32_t news_of(const Error& failure, bool is_first) {
  if (failure.kind() == ErrorKind::peer || (failure.kind() == ErrorKind::cancelled && !is_first)) return 0;
  const std::string_view text = failure.what();
  return static_cast<uint32_t>(checksum_of(std::as_bytes(std::span(text)))) | 1u;
}

std::string count_text(const RankStanding& standing) {
  return fmt::format("gather {}, exchange {}", standing.operations[index_of(Lane::gather)],
                     standing.operations[index_of(Lane::exchange)]);
}

}  // namespace

HeartbeatWatch::HeartbeatWatch(MessageCommunicator& communicator, LauncherLink& launcher,
                               RankProgram& program)
    : communicator_(communicator), program_(program) {
  communicator.set_places(introduce_ranks(communicator, own_place()));
  const std::span<const RankPlace> places = communicator.places();
  HeartbeatLinks met = meet_for_heartbeat(communicator, {places.begin(), places.end()});
  if (met.links.empty()) {
    program.log().warning("the ranks cannot watch each other, so one that dies is not named: " +
                          met.why_none);
    return;
  }
  const HeartbeatHooks hooks{
      .lost = [this](const RankLoss& loss) { lost(loss); },
      .late = [this](const RankLoss& loss) { end_late(loss); },
      .late_after_failure =
          [this](const RankLoss& loss) { program_.another_has_failed(failure_text(loss)); }};
  heartbeat_ = std::make_unique<Heartbeat>(communicator.rank(), std::move(met.links), launcher, hooks);
}

RankWatch::Following HeartbeatWatch::follow(const FollowedLoop& loop) {
  step_ = loop.completed_steps + 1;
  keeps_commits_ = loop.keeps_commits;
  if (heartbeat_ == nullptr) return Following(nullptr);
  heartbeat_->set_where([this, &watch = loop.watch] {
    RankStanding where = standing();
    const std::optional<uint64_t> wait = watch.current();
    where.operation = watch.activity();
    where.waits_for_ranks = wait && watch.is_for_ranks(*wait);
    return where;
  });
  return Following([this] { heartbeat_->set_where(nullptr); });
}

RankStanding HeartbeatWatch::standing() const {
  RankStanding where;
  where.step = step_;
  where.step_ns = step_ns_;
  where.rank_wait_ns = rank_wait_ns_;
  const CommCounters counters = communicator_.counters();
  for (size_t lane = 0; lane < kLaneCount; ++lane) where.operations[lane] = counters[lane].operations;
  return where;
}

void HeartbeatWatch::set_what_is_kept(std::string text) {
  const MutexLock lock(mutex_);
  kept_ = std::move(text);
}

void HeartbeatWatch::step_done(const StepReport& report) {
  step_ = report.step + 1;
  step_ns_ = report.total_ns;
  rank_wait_ns_ = report.moved.time[TimeCause::ranks];
  if (heartbeat_ != nullptr) heartbeat_->wake();
}

// Commits of a run before go with the first commit of this one, which a checkpoint may come before.
void HeartbeatWatch::state_kept(const KeptState& kept) {
  if (kept.commit_step || (kept.checkpoint && !keeps_commits_)) own_state_kept();
}

void HeartbeatWatch::own_state_kept() {
  if (heartbeat_ != nullptr) heartbeat_->has_kept();
}

// --- A rank that is lost ---

// On the heartbeat's thread. What a rank has sent before it left by itself may still arrive, and how its
// messages end tells the communicator.
void HeartbeatWatch::lost(const RankLoss& loss) {
  if (loss.died) {
    program_.rank_has_died();
    communicator_.lose(loss.rank, loss.why);
  }
  const MutexLock lock(tell_mutex_);
  if (tell_loss_) tell_loss_(loss.rank, loss.why);
}

void HeartbeatWatch::tell_of_losses(TellLoss tell) {
  const MutexLock lock(tell_mutex_);
  tell_loss_ = std::move(tell);
  if (!tell_loss_ || heartbeat_ == nullptr) return;
  if (const std::optional<RankLoss> loss = heartbeat_->loss(milliseconds(0)))
    tell_loss_(loss->rank, loss->why);
}

// The step thread still computes, or waits for a disk: what it makes would be lost anyway.
void HeartbeatWatch::end_late(const RankLoss& loss) {
  say_death(death_text(loss));
  program_.end_at_once();
}

Error HeartbeatWatch::failure_text(const RankLoss& loss) const {
  const std::span<const RankPlace> places = communicator_.places();
  return Error(ErrorKind::peer,
               {text_of(places[loss.rank], places.size()) + " has failed", "", "", loss.why});
}

std::optional<Error> HeartbeatWatch::death_behind(const Error& failure) const {
  if (failure.kind() != ErrorKind::peer || heartbeat_ == nullptr) return std::nullopt;
  const std::optional<RankLoss> loss = heartbeat_->loss(kForTheNews);
  return loss && loss->died ? std::optional(death_text(*loss)) : std::nullopt;
}

std::optional<Error> HeartbeatWatch::lost_rank() const {
  if (heartbeat_ == nullptr) return std::nullopt;
  const std::optional<RankLoss> loss = heartbeat_->loss(milliseconds(0));
  if (!loss) return std::nullopt;
  return loss->died ? death_text(*loss) : failure_text(*loss);
}

// Ranks are in the same step, and this one may have heard of the other's before it began.
Error HeartbeatWatch::death_text(const RankLoss& loss) const {
  const std::span<const RankPlace> places = communicator_.places();
  const uint64_t step = std::max<uint64_t>(step_, loss.last.step);
  std::string cause = loss.why;
  if (loss.signal != 0)
    cause = fmt::format("killed by signal {} ({})", loss.signal, strsignal(static_cast<int>(loss.signal)));
  if (!loss.last.operation.empty())
    cause += fmt::format("; it was at {}, {}", loss.last.operation, count_text(loss.last));
  const MutexLock lock(mutex_);
  return Error(ErrorKind::peer,
               {text_of(places[loss.rank], places.size()) +
                    (step > 0 ? fmt::format(" died in step {}", step) : " died before the first step"),
                "", "", kept_.empty() ? cause : cause + "\n  " + kept_});
}

void HeartbeatWatch::say_death(const Error& death) {
  const std::optional<RankLoss> loss = heartbeat_->loss(milliseconds(0));
  const uint32_t speaker = loss && loss->rank == 0 ? 1 : 0;
  {
    const MutexLock lock(mutex_);
    if (said_ || communicator_.rank() != speaker) return;
    said_ = true;
  }
  program_.say_as("", death);
  heartbeat_->has_been_said();
}

std::optional<RankLoss> HeartbeatWatch::loss_or_leave(const std::string& why) {
  if (heartbeat_ == nullptr) return std::nullopt;
  std::optional<RankLoss> loss = heartbeat_->loss(kForTheNews);
  if (!loss) heartbeat_->leave(why);
  return loss;
}

void HeartbeatWatch::end_with_death(const Error& death) {
  say_death(death);
  heartbeat_->leave("");
}

void HeartbeatWatch::give_up(std::string why) {
  if (heartbeat_ == nullptr) return;
  const std::vector<uint32_t> silent = heartbeat_->who_is_silent(kSilent, kForAnAnswer);
  heartbeat_->give_up(silent, std::move(why), kForAnAnswer);
}

// --- Ranks that end together ---

int HeartbeatWatch::end_with(const Error& failure, int status) {
  return communicator_.rank() == 0 ? end_first(failure, status) : end_another(failure, status);
}

int HeartbeatWatch::end_first(const Error& failure, int status) {
  const uint32_t news = news_of(failure, true);
  std::vector<std::optional<LastWords>> all;
  if (heartbeat_ != nullptr) {
    // The others look for a death until they hear why this rank leaves, and only then say their own words.
    heartbeat_->leave(news != 0 ? failure.in(program_.log().door()) : "",
                      {news, static_cast<uint32_t>(status)});
    all = heartbeat_->last_words(kForOtherRanks);
  }
  const auto has_news = [](const std::optional<LastWords>& words) { return words && words->news != 0; };
  // What another rank has failed with it says better itself.
  if (news != 0 || std::ranges::none_of(all, has_news)) program_.say(failure);
  if (heartbeat_ == nullptr) return status;
  for (const std::optional<LastWords>& words : all) {
    if (words) status = std::max(status, static_cast<int>(words->status));
  }
  let_others_end(news, all, static_cast<uint32_t>(status));
  return status;
}

// Of those that have left with the same, the first one speaks.
void HeartbeatWatch::let_others_end(uint32_t own_news, std::span<const std::optional<LastWords>> all,
                                    uint32_t status) {
  std::map<uint32_t, std::vector<uint32_t>> ranks;  // by what they have left with
  for (uint32_t r = 1; r < all.size(); ++r) {
    if (all[r]) ranks[all[r]->news].push_back(r);
  }
  for (const auto& [news, those] : ranks) {
    const bool is_told = news == 0 || news == own_news;
    for (const uint32_t rank : those)
      heartbeat_->let_end(rank, {!is_told && rank == those.front() ? text_of_ranks(those) : "", status});
  }
  heartbeat_->wait_for_speakers(kForSpeakers);
}

int HeartbeatWatch::end_another(const Error& failure, int status) {
  const uint32_t news = news_of(failure, false);
  std::optional<EndOfRank> end;
  if (heartbeat_ != nullptr) {
    heartbeat_->leave(news != 0 ? failure.in(program_.log().door()) : "",
                      {news, static_cast<uint32_t>(status)});
    end = heartbeat_->own_end(kForTheFirstRank);
  }
  if (news != 0 && (!end || !end->speaks_as.empty())) program_.say_as(end ? end->speaks_as : "", failure);
  if (heartbeat_ != nullptr) heartbeat_->has_spoken(kForSpeakers);
  return end ? static_cast<int>(end->status) : status;
}

// --- A rank that is slow ---

std::string HeartbeatWatch::text_of_standing(uint32_t rank, const KnownStanding& known) const {
  const std::span<const RankPlace> places = communicator_.places();
  const bool silent = known.age > kSilent;
  std::string text = text_of(places[rank], places.size());
  if (silent)
    text += fmt::format(" has said nothing for {} s, and was", known.age.count() / 1000);
  else
    text += " is";
  text += fmt::format(" in step {}", known.standing.step);
  if (!known.standing.operation.empty())
    text += fmt::format(" at {}, {}", known.standing.operation, count_text(known.standing));
  return text;
}

// The user looks for the rank that the others wait for.
void HeartbeatWatch::describe(JobStatus& status) const {
  const std::span<const RankPlace> places = communicator_.places();
  status.rank_count = static_cast<uint32_t>(places.size());
  status.ranks.clear();
  if (heartbeat_ == nullptr) return;
  const std::vector<KnownStanding> all = heartbeat_->standings(kForAnAnswer);
  for (uint32_t r = 0; r < all.size(); ++r) {
    const RankStanding& standing = all[r].standing;
    status.ranks.push_back({r, places[r].host_name, places[r].process, standing.step,
                            static_cast<uint64_t>(all[r].age.count()), standing.step_ns,
                            standing.rank_wait_ns, standing.waits_for_ranks, standing.operation});
  }
  if (status.ranks.size() <= JobStatus::kMostShownRanks) return;
  std::ranges::stable_sort(status.ranks, {}, [](const RankStatus& rank) {
    const bool is_heard = rank.silent_ms <= static_cast<uint64_t>(kSilent.count());
    return std::tuple(is_heard, is_heard && rank.waits_for_ranks, rank.rank_wait_ns);
  });
  status.ranks.resize(JobStatus::kMostShownRanks);
  std::ranges::sort(status.ranks, {}, &RankStatus::rank);
}

std::optional<std::string> HeartbeatWatch::mutual_wait() {
  if (heartbeat_ == nullptr || communicator_.rank() != 0) return std::nullopt;
  const std::vector<KnownStanding> all = heartbeat_->standings(kForAnAnswer);
  if (!mutual_wait_.look(all, std::chrono::steady_clock::now())) return std::nullopt;
  std::string text = "all ranks wait for each other, and do different things";
  for (uint32_t r = 0; r < std::min(all.size(), kMostNamed); ++r) text += "; " + text_of_standing(r, all[r]);
  return text;
}

std::optional<std::string> HeartbeatWatch::who_is_where() {
  const uint32_t rank = communicator_.rank();
  const std::vector<KnownStanding> all =
      heartbeat_ != nullptr ? heartbeat_->standings(kForAnAnswer) : std::vector<KnownStanding>();
  const bool has_left = all.empty() && heartbeat_ != nullptr && heartbeat_->loss(milliseconds(0));
  if (all.empty())
    return rank <= 1 && !has_left ? std::optional<std::string>("rank 0 does not answer") : std::nullopt;
  for (uint32_t r = 0; r < rank; ++r) {
    if (waits(r, all)) return std::nullopt;  // that one says it
  }
  return text_of_those_behind(all);
}

std::string HeartbeatWatch::who_is_waited_for() {
  const std::vector<KnownStanding> all =
      heartbeat_ != nullptr ? heartbeat_->standings(kForAnAnswer) : std::vector<KnownStanding>();
  return all.empty() ? "rank 0 does not answer" : text_of_those_behind(all);
}

bool HeartbeatWatch::waits(uint32_t rank, std::span<const KnownStanding> all) const {
  return all[rank].standing.waits_for_ranks && all[rank].age <= kSilent;
}

// Those that do not wait, and all of them where each does.
std::string HeartbeatWatch::text_of_those_behind(std::span<const KnownStanding> all) const {
  const uint32_t rank = communicator_.rank();
  std::vector<uint32_t> named;
  for (uint32_t r = 0; r < all.size(); ++r) {
    if (r != rank && !waits(r, all)) named.push_back(r);
  }
  const bool all_wait = named.empty();
  for (uint32_t r = 0; all_wait && r < all.size(); ++r) named.push_back(r);
  std::string text = all_wait ? "all ranks wait for each other" : "";
  for (size_t i = 0; i < std::min(named.size(), kMostNamed); ++i)
    text += (text.empty() ? "" : "; ") + text_of_standing(named[i], all[named[i]]);
  if (named.size() > kMostNamed) text += fmt::format("; and {} other ranks", named.size() - kMostNamed);
  return text;
}

}  // namespace terrace
