#include "comm/thread_world.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <condition_variable>
#include <cstring>
#include <optional>
#include <utility>

#include <terrace/base/assert.h>
#include <terrace/base/mutex.h>
#include <terrace/comm/operations/lane_queue.h>
#include <terrace/comm/operations/operation_book.h>

#include "comm/pull/thread_pulls.h"

namespace terrace {
namespace {

// All of them are this process, whatever hosts they stand for.
std::vector<RankPlace> places_of(const HostLayout& layout) {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  const std::string host = name.data();
  std::vector<RankPlace> places;
  for (uint32_t r = 0; r < layout.ranks; ++r) {
    const uint32_t number = layout.host_of(r);
    places.push_back({r, number, layout.place_on_host(r),
                      layout.hosts > 1 ? fmt::format("{}-{}", host, number) : host,
                      static_cast<uint64_t>(getpid())});
  }
  return places;
}

}  // namespace

// Meeting: where the operations of one lane of the ranks of a group meet, one of each rank at a time.
class ThreadWorld::Meeting {
 public:
  explicit Meeting(const RankGroup& group) : group_(group), posted_(group.count) {}

  // Waits until every rank has come with its next operation. Returns why this one fails, as all ranks' then
  // do; null: parts may be copied until part().
  std::exception_ptr meet(const CommOperation& operation, std::exception_ptr failure);
  // What another rank has come with.
  const CommOperation& of(uint32_t rank) const { return posted_[group_.index(rank)].operation; }
  // Waits until every rank has copied what it came for.
  void part();
  void lose(uint32_t rank, const std::string& why);

 private:
  const RankGroup group_;
  Mutex mutex_;
  std::condition_variable_any changed_;
  // Written by each rank before it has met; read by all until they part.
  std::vector<PostedOperation> posted_;
  uint32_t come_ TERRACE_GUARDED_BY(mutex_) = 0;
  uint32_t gone_ TERRACE_GUARDED_BY(mutex_) = 0;
  uint64_t meetings_ TERRACE_GUARDED_BY(mutex_) = 0;
  uint64_t partings_ TERRACE_GUARDED_BY(mutex_) = 0;
  // Of the meeting that has been, until the next one; a rank that is told late still finds it.
  CommVerdict verdict_ TERRACE_GUARDED_BY(mutex_);
  std::optional<uint32_t> lost_rank_ TERRACE_GUARDED_BY(mutex_);
  std::exception_ptr lost_ TERRACE_GUARDED_BY(mutex_);
};

std::exception_ptr ThreadWorld::Meeting::meet(const CommOperation& operation, std::exception_ptr failure) {
  const MutexLock lock(mutex_);
  if (lost_rank_) return failed_there(operation, *lost_rank_, lost_);
  posted_[group_.index(operation.rank)] = {operation, std::move(failure)};
  const uint64_t meeting = meetings_;
  if (++come_ == posted_.size()) {
    come_ = 0;
    ++meetings_;
    verdict_ = CommVerdict(posted_);
    changed_.notify_all();
  } else {
    changed_.wait(mutex_, [&] { return meetings_ != meeting || lost_rank_; });
    if (meetings_ == meeting) return failed_there(operation, *lost_rank_, lost_);
  }
  return verdict_.failure_of(operation);
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
    lost_ = left_run(rank, why);
  }
  changed_.notify_all();
}

// --- A rank ---

class ThreadWorld::Rank final : public Communicator, public LaneRunner {
 public:
  Rank(ThreadWorld& world, uint32_t rank, const ThreadWorldOptions& options);

  void all_gather(Lane lane, std::span<std::byte> whole, uint64_t part_bytes, const Event* after, Event& done,
                  const CommNote& note) override;
  void exchange_within(const RankGroup& group, Lane lane, std::span<const CommPart> to,
                       std::span<CommPart> from, const Event* after, Event& done,
                       const CommNote& note) override;
  void ballot(Lane lane, std::span<const std::byte> mine, std::span<std::byte> all) override;
  void leave(std::string why) override { world_.lose(rank(), std::move(why)); }
  CommCounters counters() const override { return book_.counters(); }
  Pulls* pulls() override { return &world_.pulls_->rank(rank()); }

  void run(const CommOperation& operation) noexcept override;

 private:
  void enqueue(const CommOperation& operation);
  std::exception_ptr carry_out(const CommOperation& operation) noexcept;
  void copy_parts(const CommOperation& operation, const Meeting& meeting);

  ThreadWorld& world_;
  CommHook* const hook_;
  OperationBook book_;
  std::array<std::unique_ptr<LaneQueue>, index_of(Lane::control)> queues_;  // of the lanes without ballots
};

ThreadWorld::Rank::Rank(ThreadWorld& world, uint32_t rank, const ThreadWorldOptions& options)
    : Communicator(rank, places_of({options.ranks, options.hosts})),
      world_(world),
      hook_(options.hook),
      book_(rank, options.ranks) {
  for (std::unique_ptr<LaneQueue>& queue : queues_)
    queue = std::make_unique<LaneQueue>(*this, options.queue_depth);
}

void ThreadWorld::Rank::enqueue(const CommOperation& operation) {
  queues_[index_of(operation.lane)]->enqueue(operation);
}

void ThreadWorld::Rank::all_gather(Lane lane, std::span<std::byte> whole, uint64_t part_bytes,
                                   const Event* after, Event& done, const CommNote& note) {
  enqueue(book_.all_gather(lane, whole, part_bytes, after, done, note));
}

void ThreadWorld::Rank::exchange_within(const RankGroup& group, Lane lane, std::span<const CommPart> to,
                                        std::span<CommPart> from, const Event* after, Event& done,
                                        const CommNote& note) {
  enqueue(book_.exchange_within(group, lane, to, from, after, done, note));
}

void ThreadWorld::Rank::ballot(Lane lane, std::span<const std::byte> mine, std::span<std::byte> all) {
  const std::exception_ptr failure = carry_out(book_.ballot(lane, mine, all, nullptr));
  if (failure != nullptr) std::rethrow_exception(failure);
}

void ThreadWorld::Rank::run(const CommOperation& operation) noexcept {
  std::exception_ptr failure = carry_out(operation);
  operation.done->complete_one(std::move(failure));
}

std::exception_ptr ThreadWorld::Rank::carry_out(const CommOperation& operation) noexcept {
  if (operation.after != nullptr) operation.after->wait_done();
  const uint64_t begun_ns = operation.now_ns();
  Meeting& meeting = world_.meeting_of(operation.lane, operation.group);
  std::exception_ptr failure = meeting.meet(operation, operation.failure_before(hook_));
  if (failure != nullptr) return failure;
  copy_parts(operation, meeting);
  book_.count(operation, begun_ns);
  if (hook_ != nullptr) hook_->after(operation);
  meeting.part();
  return nullptr;
}

void ThreadWorld::Rank::copy_parts(const CommOperation& operation, const Meeting& meeting) {
  const RankGroup& group = operation.group;
  for (uint32_t i = 1; i < group.count; ++i) {
    const uint32_t other = group.rank((group.index(rank()) + i) % group.count);
    const CommPart sent = meeting.of(other).part_for(rank());
    if (operation.kind == CommKind::exchange) operation.from[other].absent = sent.absent;
    if (sent.absent || sent.bytes == 0) continue;
    std::memcpy(operation.part_of(other).memory, sent.memory, sent.bytes);
  }
}

// --- The world ---

ThreadWorld::ThreadWorld(ThreadWorldOptions options)
    : pulls_(std::make_unique<ThreadPulls>(options.ranks,
                                           [this](uint32_t rank, const std::exception_ptr& failure) {
                                             lose(rank, words_of_failure(failure));
                                           })) {
  TERRACE_ASSERT(options.ranks > 0 && options.queue_depth > 0, "a world has a rank, and a queue room");
  TERRACE_ASSERT(options.hosts > 0 && options.ranks % options.hosts == 0, "hosts have as many ranks each");
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

ThreadWorld::Meeting& ThreadWorld::meeting_of(Lane lane, const RankGroup& group) {
  const MutexLock lock(mutex_);
  std::unique_ptr<Meeting>& meeting = meetings_[{lane, group}];
  if (meeting == nullptr) {
    meeting = std::make_unique<Meeting>(group);
    if (lost_) meeting->lose(lost_->first, lost_->second);
  }
  return *meeting;
}

void ThreadWorld::lose(uint32_t rank, std::string why) {
  const MutexLock lock(mutex_);
  if (!lost_) lost_.emplace(rank, std::move(why));
  for (const auto& [place, meeting] : meetings_) meeting->lose(lost_->first, lost_->second);
  pulls_->lose(left_run(lost_->first, lost_->second));
}

}  // namespace terrace
