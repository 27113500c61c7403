#include <terrace/comm/messages/communication_thread.h>

#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <functional>
#include <utility>

#include <terrace/base/assert.h>
#include <terrace/base/error.h>

namespace terrace {
namespace {

// What a port has not sent yet goes out at its next look.
constexpr int kLongestListenMs = 20;

// A library of messages may write to the connection of a rank that has died, as Open MPI does over TCP.
// SIGPIPE would end this process before it has named that rank.
void block_pipe_signal() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
}

}  // namespace

CommunicationThread::CommunicationThread(const MakeMessagePort& make_port, CommunicationThreadOptions options,
                                         OperationBook& book)
    : options_(options),
      book_(book),
      rings_(kLaneCount, OperationRing(options.queue_depth)),
      needed_while_listening_("cannot exchange with the other ranks", "end what else takes memory"),
      pulls_(options.rank, options.size, [this] { call(); }) {
  TERRACE_ASSERT(options.queue_depth > 0, "a queue has room");
  std::promise<void> made;
  std::future<void> is_made = made.get_future();
  thread_ = std::thread(&CommunicationThread::work, this, std::cref(make_port), std::move(made));
  try {
    is_made.get();
  } catch (...) {
    thread_.join();
    throw;
  }
}

CommunicationThread::~CommunicationThread() {
  {
    const MutexLock lock(mutex_);
    stop_ = true;
  }
  wake();
  thread_.join();
}

void CommunicationThread::enqueue(const CommOperation& operation) {
  {
    const MutexLock lock(mutex_);
    OperationRing& ring = rings_[index_of(operation.lane)];
    not_full_.wait(mutex_, [&] { return !ring.full(); });
    ring.push(operation);
  }
  wake();
}

void CommunicationThread::lose(PeerLoss loss) {
  {
    const MutexLock lock(mutex_);
    if (!told_loss_) told_loss_ = std::move(loss);
  }
  wake();
}

void CommunicationThread::call() {
  {
    const MutexLock lock(mutex_);
    is_called_ = true;
  }
  wake();
}

std::string CommunicationThread::host_sentence() const {
  const MutexLock lock(mutex_);
  return host_sentence_;
}

// --- The thread ---

void CommunicationThread::work(const MakeMessagePort& make_port, std::promise<void> made) {
  block_pipe_signal();
  try {
    make(make_port);
  } catch (...) {
    port_.reset();
    made.set_exception(std::current_exception());
    return;
  }
  made.set_value();  // from here on make_port may be gone
  for (bool moved = true; !may_end(moved);) moved |= advance();
  port_.reset();
}

void CommunicationThread::make(const MakeMessagePort& make_port) {
  port_ = make_port();
  if (port_->rank() != options_.rank || port_->size() != options_.size)
    throw Error(ErrorKind::config,
                {"the message library has other ranks than the run",
                 fmt::format("rank {} of {}", options_.rank, options_.size),
                 fmt::format("for the library it is rank {} of {}", port_->rank(), port_->size()),
                 "start all ranks with one launcher, and give the run as many ranks as it starts"});
  const uint64_t message_bytes = std::min(port_->max_message_bytes(), kMaxPieceBytes);
  TERRACE_ASSERT(message_bytes > 0, "a port moves bytes");
  peers_.emplace(options_.rank, options_.size, options_.peers, message_bytes);
  lanes_.reserve(kLaneCount);
  for (size_t lane = 0; lane < kLaneCount; ++lane)
    lanes_.emplace_back(static_cast<Lane>(lane), options_.rank, options_.size, message_bytes, *peers_,
                        options_.hook, book_);
  wire_.emplace(options_.size, message_bytes, *port_, *peers_);
}

// Sleeps as long as there is nothing to do, or nothing is likely to have happened, and takes what was asked
// for. `moved` says whether the last look moved anything, and then whether this one did. True when all is
// over.
bool CommunicationThread::may_end(bool& moved) {
  const uint64_t now_ns = clock_.now_ns();
  if (moved) pauses_.moved(now_ns);
  uint64_t pause_ns = moved ? 0 : pauses_.next_pause_ns(now_ns);
  if (pulls_.is_active()) pause_ns = std::min(pause_ns, PollPauses::kSteadyPauseNs);
  if (pause_ns > 0 && only_listens(moved)) {
    listen();
  } else {
    sleep(pause_ns);
  }
  std::optional<PeerLoss> loss;
  bool end = false;
  {
    const MutexLock lock(mutex_);
    if (lost_ == nullptr) loss = told_loss_;
    moved = take() || is_called_;
    is_called_ = false;
    end = stop_ && is_idle();
    if (stop_ && !end && !loss) loss = PeerLoss{options_.rank, "its communicator has ended"};
  }
  if (moved) not_full_.notify_all();
  if (loss && lost_ == nullptr) give_up(std::move(*loss));
  return end;
}

bool CommunicationThread::is_needed() const {
  return can_take() || stop_ || is_called_ || (told_loss_ && lost_ == nullptr);
}

void CommunicationThread::sleep(uint64_t pause_ns) {
  const MutexLock lock(mutex_);
  const auto is_needed_now = [this] { return is_needed(); };
  if (is_idle()) {
    needed_.wait(mutex_, is_needed_now);
  } else if (pause_ns > 0) {
    needed_.wait_for(mutex_, std::chrono::nanoseconds(pause_ns), is_needed_now);
  }
}

// Whether nothing but a message or whoever asks for something can move anything, and the port tells of
// messages. Where it has told of one and nothing has moved, this thread looks for itself for a while.
bool CommunicationThread::only_listens(bool moved) {
  if (std::exchange(has_heard_, false) && !moved) return false;
  if (lost_ != nullptr || !peers_->introduced() || !lanes_are_idle() || !wire_->idle()) return false;
  if (!pulls_.is_active() || !pulls_.only_listens()) return false;
  readable_.clear();
  port_->add_readable(readable_);
  return !readable_.empty();
}

void CommunicationThread::listen() {
  {
    const MutexLock lock(mutex_);
    if (is_needed()) return;
    is_listening_ = true;
  }
  watched_.assign(1, {needed_while_listening_.fd(), POLLIN, 0});
  for (const int descriptor : readable_) watched_.push_back({descriptor, POLLIN, 0});
  const int woken = poll(watched_.data(), watched_.size(), kLongestListenMs);
  is_listening_ = false;
  has_heard_ = woken > (watched_.front().revents != 0 ? 1 : 0);
  if (watched_.front().revents != 0) needed_while_listening_.take();
}

void CommunicationThread::wake() {
  needed_.notify_one();
  if (is_listening_) needed_while_listening_.wake();
}

bool CommunicationThread::lanes_are_idle() const {
  return std::ranges::all_of(lanes_, &MessageLane::idle);
}

// While there are pulls, other ranks may ask for something at any time.
bool CommunicationThread::is_idle() const {
  return lanes_are_idle() && !pulls_.is_active() && (lost_ != nullptr || wire_->idle());
}

bool CommunicationThread::can_take() const {
  for (size_t lane = 0; lane < kLaneCount; ++lane) {
    if (lanes_[lane].has_room() && !rings_[lane].empty()) return true;
  }
  return false;
}

bool CommunicationThread::take() {
  bool taken = false;
  for (size_t lane = 0; lane < kLaneCount; ++lane) {
    if (!lanes_[lane].has_room() || rings_[lane].empty()) continue;
    lanes_[lane].take(rings_[lane].pop());
    taken = true;
  }
  return taken;
}

bool CommunicationThread::advance() {
  bool moved = false;
  try {
    if (lost_ == nullptr && !peers_->introduced()) return introduce();
    for (MessageLane& lane : lanes_) {
      if (lost_ == nullptr) moved |= lane.advance(*port_);
    }
    if (lost_ == nullptr) moved |= pulls_.advance(*wire_);
    if (lost_ == nullptr) moved |= wire_->advance();
  } catch (PeerLoss& loss) {
    give_up(std::move(loss));
  } catch (const std::exception& failure) {
    give_up({options_.rank, failure.what()});  // of what others pull
  }
  if (lost_ == nullptr) return moved;
  moved |= pulls_.advance(*wire_);  // what waits fails
  for (MessageLane& lane : lanes_) moved |= lane.fail(lost_rank_, lost_);
  return moved;
}

// Ranks meet when the first of them wants something, so that one which never does waits for nobody.
bool CommunicationThread::introduce() {
  const bool moved = peers_->advance(*port_);
  if (!peers_->introduced()) return moved;
  const MutexLock lock(mutex_);
  host_sentence_ = peers_->sentence();
  return true;
}

// No message touches the memory of an operation that is told to have failed, and no other rank takes that for
// what it was, so the port and the peers go first.
void CommunicationThread::give_up(PeerLoss loss) {
  peers_->give_up();
  port_->abandon(loss.rank, loss.why);
  lost_rank_ = loss.rank;
  lost_ = left_run(loss.rank, std::move(loss.why));
  wire_->forget();
  pulls_.fail(lost_);
}

}  // namespace terrace
