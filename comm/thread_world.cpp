#include <terrace/comm/thread_world.h>

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <optional>
#include <utility>

#include <terrace/base/assert.h>
#include <terrace/base/error.h>
#include <terrace/base/mutex.h>
#include <terrace/comm/lane_queue.h>

namespace terrace {
namespace {

// All of them are this process.
std::vector<RankPlace> places_of(uint32_t ranks) {
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  std::vector<RankPlace> places;
  for (uint32_t r = 0; r < ranks; ++r)
    places.push_back({r, 0, r, host.data(), static_cast<uint64_t>(getpid())});
  return places;
}

}  // namespace

// Meeting: where the operations of one lane meet, one of each rank at a time.
class ThreadWorld::Meeting {
 public:
  explicit Meeting(uint32_t ranks) : posted_(ranks) {}

  // Waits until every rank has come with its next operation. Returns why this one fails, as all ranks' then
  // do; null: parts may be copied until part().
  std::exception_ptr meet(const CommOperation& operation, std::exception_ptr failure);
  // What another rank has come with.
  const CommOperation& of(uint32_t rank) const { return posted_[rank].operation; }
  // Waits until every rank has copied what it came for.
  void part();
  void lose(uint32_t rank, const std::string& why);

 private:
  struct Posted {
    CommOperation operation;
    std::exception_ptr failure;
  };
  void compare() TERRACE_REQUIRES(mutex_);
  std::exception_ptr verdict(const CommOperation& operation) const TERRACE_REQUIRES(mutex_);

  Mutex mutex_;
  std::condition_variable_any changed_;
  // Written by each rank before it has met; read by all until they part.
  std::vector<Posted> posted_;
  uint32_t come_ TERRACE_GUARDED_BY(mutex_) = 0;
  uint32_t gone_ TERRACE_GUARDED_BY(mutex_) = 0;
  uint64_t meetings_ TERRACE_GUARDED_BY(mutex_) = 0;
  uint64_t partings_ TERRACE_GUARDED_BY(mutex_) = 0;
  // Of the meeting that has been, until the next one; a rank that is told late still finds it.
  std::optional<uint32_t> failed_rank_ TERRACE_GUARDED_BY(mutex_);
  std::exception_ptr failure_ TERRACE_GUARDED_BY(mutex_);
  std::exception_ptr difference_ TERRACE_GUARDED_BY(mutex_);
  std::optional<uint32_t> lost_rank_ TERRACE_GUARDED_BY(mutex_);
  std::exception_ptr lost_ TERRACE_GUARDED_BY(mutex_);
};

std::exception_ptr ThreadWorld::Meeting::meet(const CommOperation& operation, std::exception_ptr failure) {
  const MutexLock lock(mutex_);
  if (lost_rank_) return failed_there(operation, *lost_rank_, lost_);
  posted_[operation.rank] = {operation, std::move(failure)};
  const uint64_t meeting = meetings_;
  if (++come_ == posted_.size()) {
    come_ = 0;
    ++meetings_;
    compare();
    changed_.notify_all();
  } else {
    changed_.wait(mutex_, [&] { return meetings_ != meeting || lost_rank_; });
    if (meetings_ == meeting) return failed_there(operation, *lost_rank_, lost_);
  }
  return verdict(operation);
}

// The last rank that comes finds out for all.
void ThreadWorld::Meeting::compare() {
  failed_rank_.reset();
  failure_ = difference_ = nullptr;
  for (const Posted& posted : posted_) {
    if (posted.failure == nullptr) continue;
    failed_rank_ = posted.operation.rank;
    failure_ = posted.failure;
    break;
  }
  for (size_t a = 0; a < posted_.size(); ++a) {
    for (size_t b = 0; b < posted_.size() && difference_ == nullptr; ++b) {
      if (a != b) difference_ = difference(posted_[a].operation, posted_[b].operation);
    }
  }
}

std::exception_ptr ThreadWorld::Meeting::verdict(const CommOperation& operation) const {
  if (difference_ != nullptr) return difference_;
  return failed_rank_ ? failed_there(operation, *failed_rank_, failure_) : nullptr;
}

void ThreadWorld::Meeting::part() {
  const MutexLock lock(mutex_);
  const uint64_t parting = partings_;
  if (++gone_ == posted_.size()) {
    gone_ = 0;
    ++partings_;
    changed_.notify_all();
  } else {
    changed_.wait(mutex_, [&] { return partings_ != parting; });
  }
}

void ThreadWorld::Meeting::lose(uint32_t rank, const std::string& why) {
  {
    const MutexLock lock(mutex_);
    if (lost_rank_) return;
    lost_rank_ = rank;
    lost_ = std::make_exception_ptr(
        Error(ErrorKind::peer, {"a rank has left the run", fmt::format("rank {}", rank), why,
                                "go on from the last commit or checkpoint"}));
  }
  changed_.notify_all();
}

// --- A rank ---

class ThreadWorld::Rank final : public Communicator, public LaneRunner {
 public:
  Rank(ThreadWorld& world, uint32_t rank, const ThreadWorldOptions& options);

  void all_gather(Lane lane, std::span<std::byte> whole, uint64_t part_bytes, const Event* after, Event& done,
                  const CommNote& note) override;
  void exchange(Lane lane, std::span<const CommPart> to, std::span<CommPart> from, const Event* after,
                Event& done, const CommNote& note) override;
  void ballot(Lane lane, std::span<const std::byte> mine, std::span<std::byte> all) override;
  CommCounters counters() const override;

  void run(const CommOperation& operation) noexcept override;

 private:
  struct Counts {
    std::atomic<uint64_t> asked{0}, operations{0}, in_bytes{0}, out_bytes{0};
  };
  CommOperation begin(CommKind kind, Lane lane, const Event* after, Event* done, const CommNote& note);
  void enqueue(const CommOperation& operation);
  std::exception_ptr carry_out(const CommOperation& operation) noexcept;
  void copy_parts(const CommOperation& operation, const Meeting& meeting);

  ThreadWorld& world_;
  CommHook* const hook_;
  std::array<Counts, kLaneCount> counts_;
  std::array<std::unique_ptr<LaneQueue>, 2> queues_;  // of the lanes gather and exchange
};

ThreadWorld::Rank::Rank(ThreadWorld& world, uint32_t rank, const ThreadWorldOptions& options)
    : Communicator(rank, places_of(options.ranks)), world_(world), hook_(options.hook) {
  for (std::unique_ptr<LaneQueue>& queue : queues_)
    queue = std::make_unique<LaneQueue>(*this, options.queue_depth);
}

CommOperation ThreadWorld::Rank::begin(CommKind kind, Lane lane, const Event* after, Event* done,
                                       const CommNote& note) {
  CommOperation operation;
  operation.kind = kind;
  operation.lane = lane;
  operation.rank = rank();
  operation.index = counts_[index_of(lane)].asked++;
  operation.note = note;
  operation.after = after;
  operation.done = done;
  return operation;
}

void ThreadWorld::Rank::enqueue(const CommOperation& operation) {
  TERRACE_ASSERT(operation.lane == Lane::gather || operation.lane == Lane::exchange,
                 "the lanes of ballots have no queue");
  TERRACE_ASSERT(!operation.done->done(), "an operation completes an event that was begun");
  queues_[index_of(operation.lane)]->enqueue(operation);
}

void ThreadWorld::Rank::all_gather(Lane lane, std::span<std::byte> whole, uint64_t part_bytes,
                                   const Event* after, Event& done, const CommNote& note) {
  TERRACE_ASSERT(whole.size() == size() * part_bytes, "there is a part for every rank");
  CommOperation operation = begin(CommKind::all_gather, lane, after, &done, note);
  operation.whole = whole;
  operation.part_bytes = part_bytes;
  enqueue(operation);
}

void ThreadWorld::Rank::exchange(Lane lane, std::span<const CommPart> to, std::span<CommPart> from,
                                 const Event* after, Event& done, const CommNote& note) {
  TERRACE_ASSERT(to.size() == size() && from.size() == size(), "there is a part for every rank");
  CommOperation operation = begin(CommKind::exchange, lane, after, &done, note);
  operation.to = to;
  operation.from = from;
  enqueue(operation);
}

void ThreadWorld::Rank::ballot(Lane lane, std::span<const std::byte> mine, std::span<std::byte> all) {
  TERRACE_ASSERT(lane == Lane::control || lane == Lane::commit, "a lane has either ballots or operations");
  TERRACE_ASSERT(all.size() == size() * mine.size(), "there is room for the words of every rank");
  CommOperation operation = begin(CommKind::ballot, lane, nullptr, nullptr, {.what = "a ballot"});
  operation.whole = all;
  operation.part_bytes = mine.size();
  if (!mine.empty()) std::memcpy(all.data() + rank() * mine.size(), mine.data(), mine.size());
  if (const std::exception_ptr failure = carry_out(operation)) std::rethrow_exception(failure);
}

void ThreadWorld::Rank::run(const CommOperation& operation) noexcept {
  std::exception_ptr failure = carry_out(operation);
  operation.done->complete_one(std::move(failure));
}

std::exception_ptr ThreadWorld::Rank::carry_out(const CommOperation& operation) noexcept {
  std::exception_ptr failure;
  if (operation.after != nullptr) {
    operation.after->wait_done();
    failure = operation.after->failure();
  }
  if (failure == nullptr && hook_ != nullptr) failure = hook_->before(operation);
  Meeting& meeting = *world_.meetings_[index_of(operation.lane)];
  failure = meeting.meet(operation, std::move(failure));
  if (failure != nullptr) return failure;
  copy_parts(operation, meeting);
  ++counts_[index_of(operation.lane)].operations;
  if (hook_ != nullptr) hook_->after(operation);
  meeting.part();
  return nullptr;
}

void ThreadWorld::Rank::copy_parts(const CommOperation& operation, const Meeting& meeting) {
  Counts& counts = counts_[index_of(operation.lane)];
  for (uint32_t i = 1; i < size(); ++i) {
    const uint32_t other = (rank() + i) % size();
    const CommPart sent = meeting.of(other).part_for(rank()), mine = operation.part_for(other);
    if (operation.kind == CommKind::exchange) operation.from[other].absent = sent.absent;
    if (!mine.absent) counts.out_bytes += mine.bytes;
    if (sent.absent || sent.bytes == 0) continue;
    std::memcpy(operation.part_of(other).memory, sent.memory, sent.bytes);
    counts.in_bytes += sent.bytes;
  }
}

CommCounters ThreadWorld::Rank::counters() const {
  CommCounters counters;
  for (size_t lane = 0; lane < kLaneCount; ++lane)
    counters[lane] = {counts_[lane].operations, counts_[lane].in_bytes, counts_[lane].out_bytes};
  return counters;
}

// --- The world ---

ThreadWorld::ThreadWorld(ThreadWorldOptions options) {
  TERRACE_ASSERT(options.ranks > 0 && options.queue_depth > 0, "a world has a rank, and a queue room");
  for (size_t lane = 0; lane < kLaneCount; ++lane)
    meetings_.push_back(std::make_unique<Meeting>(options.ranks));
  for (uint32_t r = 0; r < options.ranks; ++r) ranks_.push_back(std::make_unique<Rank>(*this, r, options));
}

ThreadWorld::~ThreadWorld() {
  lose(0, "the world ends");
  ranks_.clear();
}

uint32_t ThreadWorld::size() const {
  return static_cast<uint32_t>(ranks_.size());
}

Communicator& ThreadWorld::rank(uint32_t rank) {
  return *ranks_[rank];
}

void ThreadWorld::lose(uint32_t rank, std::string why) {
  for (const std::unique_ptr<Meeting>& meeting : meetings_) meeting->lose(rank, why);
}

}  // namespace terrace
