#include <terrace/comm/ports/socket/socket_link.h>

#include <linux/sockios.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <terrace/base/assert.h>
#include <terrace/base/error.h>

namespace terrace {
namespace {

constexpr uint64_t kMostFarewellBytes = 1000;
// Whoever does not take so many grants takes nothing any more.
constexpr size_t kMostGrantBytes = 1 << 20;
// Memory of early messages that is kept for later ones.
constexpr size_t kMostSpare = 32;
// What moves at a time before other links have their turn.
constexpr uint64_t kTurnBytes = 1 << 20;
// A rank that is to blame speaks, or is seen to have died, within this time.
constexpr std::chrono::seconds kGrace(1);

// Both sides count alike, or the receiver would take an honest sender for a liar.
uint64_t room_of(uint64_t bytes) {
  return std::min(bytes, SocketLink::kAheadBytes) + SocketLink::kRoomOfOneBytes;
}

}  // namespace

SocketLink::Channel& SocketLink::channel(uint32_t tag) {
  const auto found = std::ranges::find(channels_, tag, &Channel::tag);
  if (found != channels_.end()) return *found;
  channels_.emplace_back().tag = tag;
  return channels_.back();
}

SocketLink::Channel* SocketLink::channel_of_other(uint32_t tag) {
  if (channels_.size() < kMostTags || std::ranges::find(channels_, tag, &Channel::tag) != channels_.end())
    return &channel(tag);
  lose("it uses more tags than a run has");
  return nullptr;
}

void SocketLink::send(SocketMessage& message) {
  channel(message.tag).sends.push_back(&message);
  advance();
}

void SocketLink::receive(SocketMessage& message) {
  Channel& from = channel(message.tag);
  put({FrameKind::grant, message.tag, message.bytes});
  from.receives.push_back(&message);
  hand_over(from);
  advance();
}

void SocketLink::drop(const SocketMessage& message) {
  if (sending_ == &message) sending_ = nullptr;
  if (receiving_ == &message) receiving_ = nullptr;
  Channel& of_tag = channel(message.tag);
  std::erase(of_tag.sends, &message);
  std::erase(of_tag.receives, &message);
}

void SocketLink::advance() {
  if (!socket_.is_open() || says_farewell_) return;
  while (write_some()) {
  }
  for (uint64_t turn = 0; turn < kTurnBytes && lost_.empty() && read_some(); turn += buffer_.size()) {
  }
}

std::string SocketLink::why_left() const {
  if (at_second_hand_ && Deadline::Clock::now() < lost_at_ + kGrace) return {};
  return lost_;
}

void SocketLink::lose(std::string why) {
  if (!lost_.empty()) return;
  lost_ = std::move(why);
  lost_at_ = Deadline::Clock::now();
}

// --- Writing ---

bool SocketLink::may_go(const Channel& to) const {
  if (to.sends.empty()) return false;
  const uint64_t bytes = to.sends.front()->bytes;
  return to.sent < to.granted || (bytes <= kAheadBytes && ahead_bytes_ + room_of(bytes) <= kRoomAheadBytes);
}

void SocketLink::put(const SocketFrame& frame) {
  if (grants_.size() >= kMostGrantBytes) return lose("it takes nothing that is sent to it");
  const auto bytes = std::as_bytes(std::span(&frame, 1));
  grants_.insert(grants_.end(), bytes.begin(), bytes.end());
}

// The other side has begun a receive of the tag.
void SocketLink::take_grant(const SocketFrame& grant) {
  Channel* const to = channel_of_other(grant.tag);
  if (to != nullptr && to->granted++ < to->sent) ahead_bytes_ -= std::min(ahead_bytes_, room_of(grant.bytes));
}

// Sets what is written next: all grants, and a message that may go.
void SocketLink::begin_next() {
  head_.clear();
  head_at_ = 0;
  body_at_ = body_bytes_ = 0;
  head_.swap(grants_);
  for (Channel& to : channels_) {
    if (!may_go(to)) continue;
    sending_ = to.sends.front();
    to.sends.erase(to.sends.begin());
    if (to.sent++ >= to.granted) ahead_bytes_ += room_of(sending_->bytes);
    const SocketFrame frame{FrameKind::data, to.tag, sending_->bytes};
    const auto bytes = std::as_bytes(std::span(&frame, 1));
    head_.insert(head_.end(), bytes.begin(), bytes.end());
    body_bytes_ = sending_->bytes;
    return;
  }
}

// Whether more may be written. An error is no news: what the other side has sent before it left is read to
// its end, and the end is found there.
bool SocketLink::write_some() {
  if (!has_output()) begin_next();
  if (!has_output()) return false;
  std::array<iovec, 2> pieces{{{head_.data() + head_at_, head_.size() - head_at_}, {nullptr, 0}}};
  if (sending_ != nullptr) pieces[1] = {sending_->memory + body_at_, body_bytes_ - body_at_};
  msghdr message{};
  message.msg_iov = pieces.data();
  message.msg_iovlen = pieces.size();
  const ssize_t count = sendmsg(socket_.fd(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (count <= 0) return false;
  const size_t of_head = std::min(static_cast<size_t>(count), head_.size() - head_at_);
  head_at_ += of_head;
  body_at_ += static_cast<size_t>(count) - of_head;
  if (has_output()) return true;
  if (sending_ != nullptr) std::exchange(sending_, nullptr)->over = true;
  return true;
}

// --- Reading ---

// Whether more may be there.
bool SocketLink::read_some() {
  // The rest of a message goes where it belongs, and what follows it into the buffer.
  std::array<iovec, 2> pieces{
      {{into_, into_ != nullptr ? left_bytes_ : 0}, {buffer_.data(), buffer_.size()}}};
  msghdr message{};
  message.msg_iov = pieces.data();
  message.msg_iovlen = pieces.size();
  const ssize_t count = recvmsg(socket_.fd(), &message, MSG_DONTWAIT);
  if (count < 0 && is_transient(errno)) return false;
  if (count < 0 && errno != ECONNRESET) lose("its connection was lost: " + system_reason(errno));
  if (count <= 0)
    lose(left_bytes_ > 0 || frame_at_ > 0 ? "its connection has ended in the middle of a message"
                                          : "its connection has ended");
  if (count <= 0) return false;
  const uint64_t placed = std::min<uint64_t>(static_cast<uint64_t>(count), pieces[0].iov_len);
  if (placed > 0) {
    into_ += placed;
    left_bytes_ -= placed;
    if (left_bytes_ == 0) end_frame();
  }
  take_bytes(std::span(buffer_).first(static_cast<size_t>(count) - placed));
  return true;
}

void SocketLink::take_bytes(std::span<const std::byte> bytes) {
  while (!bytes.empty() && lost_.empty()) {
    if (left_bytes_ > 0) {
      const size_t count = std::min<uint64_t>(bytes.size(), left_bytes_);
      std::memcpy(into_, bytes.data(), count);
      into_ += count;
      left_bytes_ -= count;
      bytes = bytes.subspan(count);
      if (left_bytes_ == 0) end_frame();
      continue;
    }
    const size_t count = std::min(bytes.size(), frame_bytes_.size() - frame_at_);
    std::memcpy(frame_bytes_.data() + frame_at_, bytes.data(), count);
    frame_at_ += count;
    bytes = bytes.subspan(count);
    if (frame_at_ < frame_bytes_.size()) return;
    frame_at_ = 0;
    SocketFrame frame;
    std::memcpy(&frame, frame_bytes_.data(), sizeof frame);
    begin_frame(frame);
  }
}

void SocketLink::begin_frame(const SocketFrame& frame) {
  frame_ = frame;
  if (frame.kind == FrameKind::grant) return take_grant(frame);
  if (frame.kind == FrameKind::data && frame.bytes > 0) return begin_data(frame);
  if (frame.kind != FrameKind::farewell || frame.bytes == 0 || frame.bytes > kMostFarewellBytes)
    return lose("its messages cannot be read; it may run another version of Terrace");
  farewell_.assign(frame.bytes, ' ');
  into_ = reinterpret_cast<std::byte*>(farewell_.data());
  left_bytes_ = frame.bytes;
}

void SocketLink::begin_data(const SocketFrame& frame) {
  Channel* const from = channel_of_other(frame.tag);
  if (from == nullptr) return;
  if (!from->early.empty() || from->receives.empty()) return begin_early(*from, frame);
  SocketMessage& receive = *from->receives.front();
  from->receives.erase(from->receives.begin());
  if (receive.bytes != frame.bytes) {
    receive.failure = "its message has " + std::to_string(frame.bytes) + " bytes, where " +
                      std::to_string(receive.bytes) + " are expected";
    receive.over = true;
    return lose(receive.failure);
  }
  receiving_ = &receive;
  into_ = receive.memory;
  left_bytes_ = frame.bytes;
}

// Every message that is early here was sent without a grant, and was counted by its sender, which has then
// gone beyond its own limit, or has none.
void SocketLink::begin_early(Channel& from, const SocketFrame& frame) {
  if (frame.bytes > kAheadBytes) return lose("it sends more than it was asked for");
  early_bytes_ += room_of(frame.bytes);
  if (early_bytes_ > kRoomAheadBytes)
    return lose("it sends more than it was asked for: messages that nobody waits for would take " +
                std::to_string(early_bytes_) + " bytes, and have room for " +
                std::to_string(kRoomAheadBytes));
  if (spare_.empty()) spare_.push_back(std::make_unique<Early>());
  from.early.push_back(std::move(spare_.back()));
  spare_.pop_back();
  arriving_ = from.early.back().get();
  arriving_->whole = false;
  arriving_->bytes.resize(frame.bytes);
  into_ = arriving_->bytes.data();
  left_bytes_ = frame.bytes;
}

void SocketLink::end_frame() {
  into_ = nullptr;
  if (frame_.kind == FrameKind::farewell) {
    at_second_hand_ = frame_.tag != other_;
    lose(std::move(farewell_));
  } else if (arriving_ != nullptr) {
    std::exchange(arriving_, nullptr)->whole = true;
    hand_over(channel(frame_.tag));
  } else if (receiving_ != nullptr) {
    std::exchange(receiving_, nullptr)->over = true;
  }
}

// What came early goes to the receives that wait for it, oldest first.
void SocketLink::hand_over(Channel& from) {
  while (!from.early.empty() && from.early.front()->whole && !from.receives.empty()) {
    std::unique_ptr<Early> early = std::move(from.early.front());
    from.early.erase(from.early.begin());
    SocketMessage& receive = *from.receives.front();
    from.receives.erase(from.receives.begin());
    if (receive.bytes == early->bytes.size()) {
      std::memcpy(receive.memory, early->bytes.data(), early->bytes.size());
    } else {
      receive.failure = "its message has " + std::to_string(early->bytes.size()) + " bytes, where " +
                        std::to_string(receive.bytes) + " are expected";
    }
    receive.over = true;
    early_bytes_ -= room_of(early->bytes.size());
    if (spare_.size() < kMostSpare) spare_.push_back(std::move(early));
  }
}

// --- The end ---

void SocketLink::say_farewell(uint32_t blamed, std::string_view why) {
  if (!socket_.is_open() || says_farewell_) return;
  says_farewell_ = true;
  if (sending_ != nullptr) {
    // In the middle of a message nothing can be said, and its memory is no longer ours.
    if (head_at_ + sizeof(SocketFrame) > head_.size()) return socket_.close();
    head_.resize(head_.size() - sizeof(SocketFrame));
    sending_ = nullptr;
    body_bytes_ = 0;
  }
  why = why.substr(0, kMostFarewellBytes);
  put({FrameKind::farewell, blamed, why.size()});
  const auto bytes = std::as_bytes(std::span(why));
  grants_.insert(grants_.end(), bytes.begin(), bytes.end());
  channels_.clear();  // nothing else is begun
  while (write_some()) {
  }
}

void SocketLink::finish(const Deadline& deadline) {
  if (!socket_.is_open()) return;
  pollfd watched{socket_.fd(), POLLOUT, 0};
  while (write_some() || (has_output() && poll(&watched, 1, deadline.left_ms()) > 0)) {
    if ((watched.revents & (POLLERR | POLLHUP)) != 0 || deadline.has_passed()) return;
  }
  int domain = AF_UNIX, left = 0;
  socklen_t length = sizeof domain;
  getsockopt(socket_.fd(), SOL_SOCKET, SO_DOMAIN, &domain, &length);
  if (domain == AF_UNIX) return;  // what was sent is with the other side
  // Bytes that the other side's system does not have yet would be lost where it sends some that nobody reads.
  // An error or the other side's end is seen without being asked for.
  watched.events = 0;
  while (ioctl(socket_.fd(), SIOCOUTQ, &left) == 0 && left > 0 && !deadline.has_passed() &&
         poll(&watched, 1, 1) == 0) {
  }
}

}  // namespace terrace
