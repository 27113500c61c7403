#include <terrace/comm/nccl/nccl_communicator.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <exception>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <terrace/base/clock.h>
#include <terrace/base/error.h>
#include <terrace/base/mutex.h>
#include <terrace/comm/agreement/rank_votes.h>
#include <terrace/comm/messages/message_header.h>
#include <terrace/comm/nccl/nccl_calls.h>
#include <terrace/comm/operations/lane_queue.h>
#include <terrace/comm/operations/operation_book.h>
#include <terrace/comm/operations/poll_pauses.h>

namespace terrace {
namespace {

// Where the parts of an operation lie, as each rank tells the others.
constexpr uint8_t kOnGpu = 1, kOnHost = 2;

// What a rank says before there is a communicator of NCCL.
struct NcclVote {
  nccl::UniqueId id{};             // of the first rank
  std::array<char, 383> reason{};  // why the rank cannot take part
  uint8_t can = 1;

  void refuse(std::string_view why) {
    can = 0;
    std::ranges::copy(why.substr(0, reason.size() - 1), reason.begin());
  }
};
static_assert(sizeof(NcclVote) == 512, "no padding whose bytes nobody has set");

// The first rank that cannot take part is why none does.
void require_all(const std::vector<NcclVote>& votes) {
  for (size_t r = 0; r < votes.size(); ++r) {
    if (votes[r].can != 0) continue;
    throw Error(ErrorKind::config,
                {"cannot move bytes between GPUs by NCCL", fmt::format("rank {}", r), votes[r].reason.data(),
                 "NCCL_DEBUG=WARN says more; or let ranks exchange through host memory"});
  }
}

}  // namespace

// GpuLane: the lanes whose parts may lie on GPUs. Their operations are carried out one after the other, and
// the inner communicator has them all on the first of these lanes.
class NcclCommunicator::GpuLane final : public LaneRunner {
 public:
  GpuLane(Communicator& inner, const NcclGpu& gpu, const LoadNccl& load, const NcclOptions& options);
  ~GpuLane() override;

  OperationBook& book() { return book_; }
  const OperationBook& book() const { return book_; }
  void enqueue(const CommOperation& operation);
  void lose(uint32_t rank, std::string why);
  void run(const CommOperation& operation) noexcept override;

 private:
  // Who may call NCCL with the communicator, and so abort it: only a thread that is not there itself.
  enum class Phase : uint8_t { none, calling, waiting };

  void begin(const LoadNccl& load);
  void make(const nccl::UniqueId& id, NcclVote& vote);
  std::exception_ptr carry_out(const CommOperation& operation);
  // Tells the others what this rank does, and finds out whether the operation fails. `places` is where parts
  // of any rank lie.
  std::exception_ptr meet(const CommOperation& operation, std::exception_ptr failure, uint8_t& places);
  uint8_t places_of(const CommOperation& operation) const;
  std::exception_ptr move_by_inner(const CommOperation& operation);
  std::exception_ptr move_by_nccl(const CommOperation& operation);
  std::exception_ptr end_at(const CommOperation& operation, const std::exception_ptr& failure);
  void put_on_stream(const CommOperation& operation);
  void wait_for_stream();
  void enter(Phase phase);
  void check(int result, std::string_view call) const;
  void abort() TERRACE_REQUIRES(mutex_);

  Communicator& inner_;
  const NcclGpu& gpu_;
  CommHook* const hook_;
  const std::function<std::exception_ptr(const std::string& why)> failed_;
  const Lane lane_;
  OperationBook book_;
  MessageHeaders headers_;
  const size_t item_bytes_;                     // of what a rank tells: a header, and where its parts lie
  std::vector<std::byte> told_;                 // by rank
  std::vector<CommPart> items_out_, items_in_;  // parts of told_: the own one for every rank, and theirs
  std::unique_ptr<const NcclCalls> calls_;
  SteadyClock clock_;
  std::atomic<uint32_t> waiting_{0};  // operations that are not over

  Mutex mutex_;
  std::atomic<nccl::Comm> comm_{nullptr};  // changed under the lock; null once it was aborted
  Phase phase_ TERRACE_GUARDED_BY(mutex_) = Phase::none;
  std::exception_ptr lost_ TERRACE_GUARDED_BY(mutex_);
  std::atomic<bool> is_lost_{false};

  LaneQueue queue_;  // last: it ends before anything that its thread uses
};

NcclCommunicator::GpuLane::GpuLane(Communicator& inner, const NcclGpu& gpu, const LoadNccl& load,
                                   const NcclOptions& options)
    : inner_(inner),
      gpu_(gpu),
      hook_(options.hook),
      failed_(options.failed),
      lane_(options.lanes.front()),
      book_(inner.rank(), inner.size()),
      headers_(inner.rank(), inner.size()),
      item_bytes_(headers_.of(0).size() + 1),
      told_(inner.size() * item_bytes_),
      queue_(*this, options.queue_depth) {
  std::byte* const mine = told_.data() + inner.rank() * item_bytes_;
  for (uint32_t r = 0; r < inner.size(); ++r) {
    items_out_.push_back({mine, item_bytes_});
    items_in_.push_back({told_.data() + r * item_bytes_, item_bytes_});
  }
  begin(load);
}

NcclCommunicator::GpuLane::~GpuLane() {
  if (waiting_ > 0) {
    lose(inner_.rank(), "it ends while operations wait");
    inner_.leave("it ends while operations wait");
    while (waiting_ > 0) std::this_thread::yield();
  }
  const MutexLock lock(mutex_);
  if (comm_ == nullptr) return;
  if (lost_ != nullptr) {
    abort();
  } else {
    gpu_.within([this] { calls_->destroy(comm_); });
  }
}

// All ranks vote twice, so that none waits in NCCL for one that does not come.
void NcclCommunicator::GpuLane::begin(const LoadNccl& load) {
  const RankVotes ranks(&inner_);
  NcclVote mine;
  try {
    calls_ = load();
    if (inner_.rank() == 0) {
      gpu_.within([&] { check(calls_->unique_id(&mine.id), "ncclGetUniqueId"); });
    }
  } catch (const std::exception& error) {
    mine.refuse(error.what());
  }
  const std::vector<NcclVote> able = ranks.of_all(mine);
  require_all(able);
  NcclVote made;
  make(able.front().id, made);
  const std::vector<NcclVote> all_made = ranks.of_all(made);
  try {
    require_all(all_made);
  } catch (...) {
    const MutexLock lock(mutex_);
    if (comm_ != nullptr) abort();
    throw;
  }
}

void NcclCommunicator::GpuLane::make(const nccl::UniqueId& id, NcclVote& vote) {
  try {
    gpu_.within([&] {
      nccl::Comm made = nullptr;
      check(calls_->init_rank(&made, static_cast<int>(inner_.size()), id, static_cast<int>(inner_.rank())),
            "ncclCommInitRank");
      comm_ = made;
    });
  } catch (const std::exception& error) {
    vote.refuse(error.what());
  }
}

void NcclCommunicator::GpuLane::enqueue(const CommOperation& operation) {
  ++waiting_;
  queue_.enqueue(operation);
}

void NcclCommunicator::GpuLane::run(const CommOperation& operation) noexcept {
  std::exception_ptr failure;
  try {
    failure = carry_out(operation);
  } catch (const PeerLoss& loss) {
    failure = left_run(loss.rank, loss.why);
  } catch (...) {
    failure = std::current_exception();
  }
  operation.done->complete_one(std::move(failure));
  --waiting_;
}

std::exception_ptr NcclCommunicator::GpuLane::carry_out(const CommOperation& operation) {
  if (operation.after != nullptr) operation.after->wait_done();
  const uint64_t begun_ns = operation.now_ns();
  uint8_t places = 0;
  std::exception_ptr failure = meet(operation, operation.failure_before(hook_), places);
  if (failure == nullptr) {
    failure = (places & kOnGpu) != 0 ? move_by_nccl(operation) : move_by_inner(operation);
  }
  if (failure != nullptr) return failure;
  book_.count(operation, begun_ns);
  if (hook_ != nullptr) hook_->after(operation);
  return nullptr;
}

std::exception_ptr NcclCommunicator::GpuLane::meet(const CommOperation& operation, std::exception_ptr failure,
                                                   uint8_t& places) {
  headers_.write(operation, std::move(failure));
  std::byte* const mine = told_.data() + inner_.rank() * item_bytes_;
  const std::span<const std::byte> header = headers_.of(inner_.rank());
  std::memcpy(mine, header.data(), header.size());
  mine[header.size()] = std::byte{places_of(operation)};
  Event told;
  told.begin();
  inner_.exchange_within(operation.group, lane_, items_out_, items_in_, nullptr, told, {.what = "headers"});
  told.wait_done();
  if (told.failed()) return end_at(operation, told.failure());
  for (uint32_t i = 0; i < operation.group.count; ++i) {
    const uint32_t rank = operation.group.rank(i);
    const std::byte* const item = told_.data() + rank * item_bytes_;
    if (rank != inner_.rank()) std::memcpy(headers_.of(rank).data(), item, header.size());
    places |= static_cast<uint8_t>(item[header.size()]);
  }
  if (std::exception_ptr different = headers_.verdict().failure_of(operation)) return different;
  if (places == (kOnGpu | kOnHost))
    return std::make_exception_ptr(
        Error(ErrorKind::misuse, {"cannot move bytes between a GPU and a host in", text_of(operation),
                                  "some of its parts lie on GPUs and some in host memory",
                                  "let all parts of an operation lie on GPUs, or none"}));
  for (uint32_t i = 0; i < operation.group.count && operation.kind == CommKind::exchange; ++i) {
    const uint32_t rank = operation.group.rank(i);
    if (rank != inner_.rank()) operation.from[rank].absent = headers_.absent_from(rank);
  }
  return nullptr;
}

uint8_t NcclCommunicator::GpuLane::places_of(const CommOperation& operation) const {
  uint8_t places = 0;
  const auto look = [&](const CommPart& part) {
    if (part.bytes > 0) places |= gpu_.has(part.memory, part.bytes) ? kOnGpu : kOnHost;
  };
  for (uint32_t i = 0; i < operation.group.count; ++i) {
    const uint32_t rank = operation.group.rank(i);
    if (rank == inner_.rank()) continue;
    look(operation.part_for(rank));
    look(operation.part_of(rank));
  }
  return places;
}

std::exception_ptr NcclCommunicator::GpuLane::move_by_inner(const CommOperation& operation) {
  Event moved;
  moved.begin();
  CommNote note = operation.note;
  note.recorded = {};  // by this lane
  if (operation.kind == CommKind::exchange) {
    inner_.exchange_within(operation.group, lane_, operation.to, operation.from, nullptr, moved, note);
  } else {
    inner_.all_gather(lane_, operation.whole, operation.part_bytes, nullptr, moved, note);
  }
  moved.wait_done();
  return moved.failed() ? end_at(operation, moved.failure()) : nullptr;
}

// Nothing moves any more after a failure that not all ranks have found before any byte moved: NCCL's own, or
// one of the inner communicator, whose ranks have left. Returns what has ended the lane first.
std::exception_ptr NcclCommunicator::GpuLane::end_at(const CommOperation& operation,
                                                     const std::exception_ptr& failure) {
  std::exception_ptr first;
  {
    const MutexLock lock(mutex_);
    phase_ = Phase::none;
    if (comm_ != nullptr) abort();
    if (lost_ == nullptr) lost_ = failure;
    is_lost_ = true;
    first = lost_;
  }
  inner_.leave(fmt::format("{}, in {}", words_of_failure(failure), text_of(operation)));
  return first;
}

// The error of a call, which is not yet one of an operation.
void NcclCommunicator::GpuLane::check(int result, std::string_view call) const {
  if (result == nccl::kSuccess) return;
  throw Error(ErrorKind::peer, {"cannot move bytes between GPUs", fmt::format("rank {}", inner_.rank()),
                                calls_->reason(result, call, comm_),
                                "NCCL_DEBUG=WARN says more; go on from the last commit or checkpoint"});
}

void NcclCommunicator::GpuLane::enter(Phase phase) {
  const MutexLock lock(mutex_);
  phase_ = phase;
  if (lost_ == nullptr) return;
  if (comm_ != nullptr) abort();
  std::rethrow_exception(lost_);
}

std::exception_ptr NcclCommunicator::GpuLane::move_by_nccl(const CommOperation& operation) {
  try {
    gpu_.within([&] {
      enter(Phase::calling);
      put_on_stream(operation);
      enter(Phase::waiting);
      wait_for_stream();
      enter(Phase::none);
    });
    return nullptr;
  } catch (...) {
    const bool is_own = !is_lost_;
    std::exception_ptr failure = end_at(operation, std::current_exception());
    if (!is_own || failed_ == nullptr) return failure;
    const std::exception_ptr behind = failed_(words_of_failure(failure));
    return behind != nullptr ? behind : failure;
  }
}

void NcclCommunicator::GpuLane::put_on_stream(const CommOperation& operation) {
  if (operation.kind != CommKind::exchange) {
    const CommPart mine = operation.part_for(inner_.rank());
    return check(calls_->all_gather(mine.memory, operation.whole.data(), mine.bytes, nccl::kBytes, comm_,
                                    gpu_.stream()),
                 "ncclAllGather");
  }
  check(calls_->group_start(), "ncclGroupStart");
  try {
    for (uint32_t i = 0; i < operation.group.count; ++i) {
      const uint32_t rank = operation.group.rank(i);
      if (rank == inner_.rank()) continue;
      const CommPart sent = operation.part_for(rank), received = operation.part_of(rank);
      const auto peer = static_cast<int>(rank);
      if (!sent.absent && sent.bytes > 0)
        check(calls_->send(sent.memory, sent.bytes, nccl::kBytes, peer, comm_, gpu_.stream()), "ncclSend");
      if (!received.absent && received.bytes > 0)
        check(calls_->receive(received.memory, received.bytes, nccl::kBytes, peer, comm_, gpu_.stream()),
              "ncclRecv");
    }
  } catch (...) {
    calls_->group_end();  // a thread that stayed in a group would begin nothing any more
    throw;
  }
  check(calls_->group_end(), "ncclGroupEnd");
}

void NcclCommunicator::GpuLane::wait_for_stream() {
  PollPauses pauses;
  pauses.moved(clock_.now_ns());
  while (!gpu_.is_over()) {
    int error = nccl::kSuccess;
    check(calls_->async_error(comm_, &error), "ncclCommGetAsyncError");
    if (error != nccl::kInProgress) check(error, "an operation of NCCL");
    if (is_lost_) return;  // enter() throws
    if (const uint64_t pause_ns = pauses.next_pause_ns(clock_.now_ns()); pause_ns > 0)
      std::this_thread::sleep_for(std::chrono::nanoseconds(pause_ns));
  }
  int error = nccl::kSuccess;
  check(calls_->async_error(comm_, &error), "ncclCommGetAsyncError");
  check(error, "an operation of NCCL");
}

void NcclCommunicator::GpuLane::abort() {
  gpu_.within([this] { calls_->abort(comm_.exchange(nullptr)); });
}

// A call may wait for the rank that is lost, and ends where the communicator is aborted beside it. Else the
// thread of the lane aborts it.
void NcclCommunicator::GpuLane::lose(uint32_t rank, std::string why) {
  const MutexLock lock(mutex_);
  if (lost_ != nullptr) return;
  lost_ = left_run(rank, std::move(why));
  is_lost_ = true;
  if (phase_ == Phase::calling && comm_ != nullptr) abort();
}

// --- NcclCommunicator ---

NcclCommunicator::NcclCommunicator(Communicator& inner, const NcclGpu& gpu, const LoadNccl& load,
                                   NcclOptions options)
    : Communicator(inner.rank(), {inner.places().begin(), inner.places().end()}),
      inner_(inner),
      lanes_(options.lanes),
      gpu_lane_(std::make_unique<GpuLane>(inner, gpu, load, options)) {}

NcclCommunicator::~NcclCommunicator() = default;

void NcclCommunicator::all_gather(Lane lane, std::span<std::byte> whole, uint64_t part_bytes,
                                  const Event* after, Event& done, const CommNote& note) {
  if (!is_on_gpu(lane)) return inner_.all_gather(lane, whole, part_bytes, after, done, note);
  gpu_lane_->enqueue(gpu_lane_->book().all_gather(lane, whole, part_bytes, after, done, note));
}

void NcclCommunicator::exchange_within(const RankGroup& group, Lane lane, std::span<const CommPart> to,
                                       std::span<CommPart> from, const Event* after, Event& done,
                                       const CommNote& note) {
  if (!is_on_gpu(lane)) return inner_.exchange_within(group, lane, to, from, after, done, note);
  gpu_lane_->enqueue(gpu_lane_->book().exchange_within(group, lane, to, from, after, done, note));
}

void NcclCommunicator::ballot(Lane lane, std::span<const std::byte> mine, std::span<std::byte> all) {
  inner_.ballot(lane, mine, all);
}

void NcclCommunicator::leave(std::string why) {
  gpu_lane_->lose(rank(), why);
  inner_.leave(std::move(why));
}

void NcclCommunicator::lose(uint32_t rank, std::string why) {
  gpu_lane_->lose(rank, std::move(why));
}

CommCounters NcclCommunicator::counters() const {
  CommCounters counters = inner_.counters();
  const CommCounters on_gpu = gpu_lane_->book().counters();
  for (const Lane lane : lanes_) counters[terrace::index_of(lane)] = on_gpu[terrace::index_of(lane)];
  return counters;
}

}  // namespace terrace
