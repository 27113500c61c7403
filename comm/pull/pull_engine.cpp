#include <terrace/comm/pull/pull_engine.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include <terrace/base/assert.h>
#include <terrace/base/error.h>

namespace terrace {
namespace {

// Other ranks wait for one piece at most.
constexpr uint64_t kReadPieceBytes = uint64_t{4} << 20;

}  // namespace

PullEngine::PullEngine(uint32_t rank, uint32_t size, std::function<void()> wake)
    : rank_(rank), size_(size), wake_(std::move(wake)), gone_(size, false), unanswered_(size, 0) {}

// --- What threads ask for ---

void PullEngine::begin(PullHost& host) {
  {
    const MutexLock lock(mutex_);
    TERRACE_ASSERT(host_ == nullptr, "pulls end before they begin anew");
    if (failure_ != nullptr) std::rethrow_exception(failure_);
    host_ = &host;
    is_ending_ = false;
  }
  active_.store(true, std::memory_order_release);
  wake_();
}

void PullEngine::end() {
  {
    const MutexLock lock(mutex_);
    if (host_ == nullptr) return;
    is_ending_ = true;
  }
  wake_();
  const MutexLock lock(mutex_);
  ended_.wait(mutex_, [this] { return host_ == nullptr; });
}

void PullEngine::read(uint32_t owner, uint32_t item, uint64_t version, std::span<std::byte> into,
                      const Event* after, Event& done, const CopyNote& note) {
  {
    const MutexLock lock(mutex_);
    asked_reads_.push_back({owner, item, version, into, after, {&done, note}});
  }
  wake_();
}

void PullEngine::hand_over(uint32_t to, const PullWords& words, std::span<const std::byte> bytes,
                           const Event* after, Event* taken) {
  {
    const MutexLock lock(mutex_);
    asked_keeping_.push_back({to, words, bytes, after, taken});
  }
  wake_();
}

void PullEngine::take(const HandedOver& part, std::span<std::byte> into, Event& done, const CopyNote& note) {
  {
    const MutexLock lock(mutex_);
    asked_taking_.push_back({part, into, {&done, note}});
  }
  wake_();
}

// --- The thread ---

bool PullEngine::advance(PullWire& wire) {
  if (!is_active() && failed_ == nullptr) return false;
  bool moved = take_commands();
  if (failed_ != nullptr) return fail_waiting();
  moved |= begin_reads(wire);
  moved |= begin_keeping(wire);
  moved |= begin_taking(wire);
  moved |= hear_all(wire);
  moved |= answer_waiting(wire);
  moved |= finish_moving(wire);
  return end_if_over(wire) || moved;
}

bool PullEngine::take_commands() {
  const MutexLock lock(mutex_);
  answering_ = host_;
  ends_ = is_ending_;
  const bool any = !asked_reads_.empty() || !asked_keeping_.empty() || !asked_taking_.empty();
  waiting_reads_.insert(waiting_reads_.end(), asked_reads_.begin(), asked_reads_.end());
  waiting_keeping_.insert(waiting_keeping_.end(), asked_keeping_.begin(), asked_keeping_.end());
  waiting_taking_.insert(waiting_taking_.end(), asked_taking_.begin(), asked_taking_.end());
  asked_reads_.clear(), asked_keeping_.clear(), asked_taking_.clear();
  return any;
}

bool PullEngine::begin_reads(PullWire& wire) {
  bool moved = false;
  for (size_t i = 0; i < waiting_reads_.size();) {
    Read read = waiting_reads_[i];
    if (read.after != nullptr && !read.after->done()) {
      ++i;
      continue;
    }
    waiting_reads_[i] = waiting_reads_.back();
    waiting_reads_.pop_back();
    moved = true;
    const bool fails = read.after != nullptr && read.after->failed();
    if (fails || read.into.empty()) {
      read.arrival.done->complete_one(fails ? read.after->failure() : nullptr);
      continue;
    }
    read.arrival.begin();
    PullHeader header;
    header.kind = PullKind::ask;
    header.reply = reads_.add(read);
    header.words = {read.item, read.version, 0, 0};
    ++unanswered_[read.owner];
    wire.send(read.owner, header);
  }
  return moved;
}

// In order, so that no word overtakes the bytes before it.
bool PullEngine::begin_keeping(PullWire& wire) {
  const size_t first = next_keeping_;
  for (; next_keeping_ < waiting_keeping_.size(); ++next_keeping_) {
    const Keeping keeping = waiting_keeping_[next_keeping_];
    if (keeping.after != nullptr && !keeping.after->done()) break;
    if (keeping.after != nullptr && keeping.after->failed()) {
      if (keeping.taken != nullptr) keeping.taken->complete_one(keeping.after->failure());
      continue;
    }
    HandedOver part{rank_, 0, reinterpret_cast<uint64_t>(keeping.bytes.data()), keeping.bytes.size(),
                    keeping.words};
    if (part.bytes > 0) part.ticket = keeping_.add(keeping);
    if (keeping.to == rank_) {
      answering_->hear(part);
      continue;
    }
    PullHeader header;
    header.kind = PullKind::keep;
    header.reply = part.ticket;
    header.address = part.address;
    header.bytes = part.bytes;
    header.words = part.words;
    wire.send(keeping.to, header);
  }
  const bool moved = next_keeping_ > first;
  if (next_keeping_ == waiting_keeping_.size()) waiting_keeping_.clear(), next_keeping_ = 0;
  return moved;
}

// What throws on its way is still among what waits.
bool PullEngine::begin_taking(PullWire& wire) {
  const bool moved = !waiting_taking_.empty();
  while (!waiting_taking_.empty()) {
    Taking taking = waiting_taking_.back();
    const HandedOver& part = taking.part;
    taking.arrival.begin();
    TERRACE_ASSERT(taking.into.size() == part.bytes, "a part is taken whole");
    PullHeader header;
    header.ticket = part.ticket;
    if (part.from != rank_ && !wire.reads(part.from, part.bytes)) {
      waiting_taking_.pop_back();
      header.kind = PullKind::want;
      header.reply = taking_.add(taking);
      ++unanswered_[part.from];
      wire.send(part.from, header);
      continue;
    }
    Event* kept = nullptr;
    if (part.from == rank_) {
      const Keeping keeping = keeping_.remove(part.ticket);
      std::memcpy(taking.into.data(), keeping.bytes.data(), keeping.bytes.size());
      kept = keeping.taken;
      taking.arrival.note = {};  // it has not come from another rank
    } else {
      get(wire, part.from, part.address, taking.into);
      header.kind = PullKind::taken;
      wire.send(part.from, header);
    }
    waiting_taking_.pop_back();
    taking.arrival.over(part.bytes);
    if (kept != nullptr) kept->complete_one();
  }
  return moved;
}

bool PullEngine::hear_all(PullWire& wire) {
  bool moved = false;
  PullHeader header;
  for (uint32_t from = 0; from < size_; ++from) {
    while (from != rank_ && (!gone_[from] || unanswered_[from] > 0) && wire.receive(from, header)) {
      hear(wire, from, header);
      moved = true;
    }
  }
  return moved;
}

void PullEngine::hear(PullWire& wire, uint32_t from, const PullHeader& header) {
  TERRACE_ASSERT(header.magic == kPullMagic, "what arrives is a word of this version");
  switch (header.kind) {
    case PullKind::ask: {
      const Asked asked{from, static_cast<uint32_t>(header.words[0]), header.words[1], header.reply};
      if (!answer(wire, asked)) waiting_asked_.push_back(asked);
      return;
    }
    case PullKind::here: {
      const Read read = reads_.all[header.ticket];
      --unanswered_[from];
      TERRACE_ASSERT(header.bytes == read.into.size(), "an item is as long as its reader expects");
      if (header.follows == 0) get(wire, from, header.address, read.into);
      reads_.remove(header.ticket);
      if (header.follows != 0) {
        in_bytes_.fetch_add(read.into.size(), std::memory_order_relaxed);
        return moving_.push_back({wire.receive_bytes(from, read.into), read.into.size(), read.arrival, -1});
      }
      PullHeader answer;
      answer.kind = PullKind::read;
      answer.words[0] = read.item;
      wire.send(from, answer);
      return read.arrival.over(read.into.size());
    }
    case PullKind::read:
      return answering_->close_item(static_cast<uint32_t>(header.words[0]));
    case PullKind::keep:
      return answering_->hear({from, header.reply, header.address, header.bytes, header.words});
    case PullKind::want: {
      const Keeping kept = keeping_.remove(header.ticket);
      PullHeader answer;
      answer.kind = PullKind::bytes;
      answer.ticket = header.reply;
      wire.send(from, answer);
      out_bytes_.fetch_add(kept.bytes.size(), std::memory_order_relaxed);
      return moving_.push_back({wire.send_bytes(from, kept.bytes), kept.bytes.size(), {kept.taken}, -1});
    }
    case PullKind::bytes: {
      const Taking taking = taking_.remove(header.ticket);
      --unanswered_[from];
      in_bytes_.fetch_add(taking.into.size(), std::memory_order_relaxed);
      return moving_.push_back(
          {wire.receive_bytes(from, taking.into), taking.into.size(), taking.arrival, -1});
    }
    case PullKind::taken: {
      const Keeping kept = keeping_.remove(header.ticket);
      out_bytes_.fetch_add(kept.bytes.size(), std::memory_order_relaxed);
      return kept.taken->complete_one();
    }
    case PullKind::end: {
      gone_[from] = true;
      return answering_->ended(from);
    }
  }
}

void PullEngine::get(PullWire& wire, uint32_t from, uint64_t address, std::span<std::byte> into) {
  for (uint64_t at = 0; at < into.size(); at += kReadPieceBytes)
    wire.read(from, address + at, into.subspan(at, std::min<uint64_t>(kReadPieceBytes, into.size() - at)));
  in_bytes_.fetch_add(into.size(), std::memory_order_relaxed);
}

bool PullEngine::answer(PullWire& wire, const Asked& asked) {
  std::span<const std::byte> bytes;
  if (!answering_->open_item(asked.item, asked.version, bytes)) return false;
  PullHeader header;
  header.kind = PullKind::here;
  header.ticket = asked.reply;
  header.address = reinterpret_cast<uint64_t>(bytes.data());
  header.bytes = bytes.size();
  header.follows = wire.is_read_by(asked.from, bytes.size()) ? 0 : 1;
  wire.send(asked.from, header);
  out_bytes_.fetch_add(bytes.size(), std::memory_order_relaxed);
  if (header.follows != 0)
    moving_.push_back({wire.send_bytes(asked.from, bytes), bytes.size(), {}, asked.item});
  return true;
}

bool PullEngine::answer_waiting(PullWire& wire) {
  bool moved = false;
  for (size_t i = 0; i < waiting_asked_.size();) {
    const Asked asked = waiting_asked_[i];
    if (!answer(wire, asked)) {
      ++i;
      continue;
    }
    waiting_asked_[i] = waiting_asked_.back();
    waiting_asked_.pop_back();
    moved = true;
  }
  return moved;
}

bool PullEngine::finish_moving(PullWire& wire) {
  bool moved = false;
  for (size_t i = 0; i < moving_.size();) {
    const Moving one = moving_[i];
    if (!wire.is_over(one.transfer)) {
      ++i;
      continue;
    }
    moving_[i] = moving_.back();
    moving_.pop_back();
    if (one.arrival.done != nullptr) one.arrival.over(one.bytes);
    if (one.item >= 0) answering_->close_item(static_cast<uint32_t>(one.item));
    moved = true;
  }
  return moved;
}

// A rank says that it has ended when it has got what it asked for: then nobody needs to answer it any more.
bool PullEngine::end_if_over(PullWire& wire) {
  if (!ends_) return false;
  if (!has_said_end_) {
    const bool asks =
        !waiting_reads_.empty() || std::ranges::any_of(unanswered_, [](uint32_t n) { return n > 0; });
    if (asks || !moving_.empty() || next_keeping_ < waiting_keeping_.size()) return false;
    PullHeader header;
    for (uint32_t other = 0; other < size_; ++other) {
      if (other != rank_) wire.send(other, header);
    }
    has_said_end_ = true;
    gone_[rank_] = true;
  }
  if (!moving_.empty() || std::ranges::find(gone_, false) != gone_.end()) return false;
  has_said_end_ = ends_ = false;
  gone_.assign(size_, false);
  answering_ = nullptr;
  {
    const MutexLock lock(mutex_);
    host_ = nullptr;
    active_.store(false, std::memory_order_release);
  }
  ended_.notify_all();
  return true;
}

void PullEngine::fail(const std::exception_ptr& failure) {
  PullHost* host = nullptr;
  {
    const MutexLock lock(mutex_);
    if (failure_ == nullptr) failure_ = failure;
    failed_ = failure_;
    host = host_;
  }
  take_commands();
  for (const Read& read : reads_.all) {
    if (read.arrival.done != nullptr) read.arrival.done->complete_one(failed_);
  }
  for (const Keeping& kept : keeping_.all) {
    if (kept.taken != nullptr) kept.taken->complete_one(failed_);
  }
  for (const Taking& taking : taking_.all) {
    if (taking.arrival.done != nullptr) taking.arrival.done->complete_one(failed_);
  }
  for (const Moving& one : moving_) {
    if (one.arrival.done != nullptr) one.arrival.done->complete_one(failed_);
  }
  waiting_keeping_.erase(waiting_keeping_.begin(),
                         waiting_keeping_.begin() + static_cast<ptrdiff_t>(next_keeping_));
  next_keeping_ = 0;
  waiting_asked_.clear(), moving_.clear();
  unanswered_.assign(size_, 0);
  reads_ = {}, keeping_ = {}, taking_ = {};
  fail_waiting();
  if (host != nullptr) host->lost(failed_);
  {
    const MutexLock lock(mutex_);
    host_ = nullptr;
    active_.store(false, std::memory_order_release);
  }
  ended_.notify_all();
}

// Until its `after` is done, the memory of what waits is somebody else's.
bool PullEngine::fail_waiting() {
  const size_t before = waiting_reads_.size() + waiting_keeping_.size() + waiting_taking_.size();
  const auto is_over = [this](const Event* after, Event* done) {
    if (after != nullptr && !after->done()) return false;
    if (done != nullptr) done->complete_one(after != nullptr && after->failed() ? after->failure() : failed_);
    return true;
  };
  std::erase_if(waiting_reads_, [&](const Read& read) { return is_over(read.after, read.arrival.done); });
  std::erase_if(waiting_keeping_,
                [&](const Keeping& keeping) { return is_over(keeping.after, keeping.taken); });
  std::erase_if(waiting_taking_, [&](const Taking& taking) { return is_over(nullptr, taking.arrival.done); });
  const size_t left = waiting_reads_.size() + waiting_keeping_.size();
  is_failing_.store(left > 0, std::memory_order_release);
  return left < before;
}

}  // namespace terrace
