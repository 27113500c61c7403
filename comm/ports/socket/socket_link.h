// SocketLink: the messages of one rank to another one and back, over one connection.
//
// Messages of several tags share the connection, and none may stand in the way of the others. So a long
// message is sent when the other side has said that its receive was started (a grant); a short one is sent
// ahead of that, as long as the other side has room for what nobody has asked for.
//
// What travels is a SocketFrame after the other, in the machine's byte order, each followed by its bytes:
//   data      a message of that tag
//   grant     no bytes follow; a receive of that tag and length was started, the next one of its tag
//   farewell  the last frame: a text that says why; the tag is the rank that is to blame
//
// Each side holds the other one to this. Whoever sends more ahead than there is room for, uses more tags than
// a run has, or takes nothing any more is lost, with a reason; so nothing that it does takes memory without
// end.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <terrace/comm/connections/stream_socket.h>

namespace terrace {

enum class FrameKind : uint32_t { data = 0x31525354, grant, farewell };

struct SocketFrame {
  FrameKind kind = FrameKind::data;
  uint32_t tag = 0;
  uint64_t bytes = 0;
};
static_assert(sizeof(SocketFrame) == 16, "no padding whose bytes nobody has set");

// A message that the port has started. The link writes `over` and `failure`.
struct SocketMessage {
  uint32_t other = 0;
  uint32_t tag = 0;
  std::byte* memory = nullptr;  // a message that is sent is only read
  uint64_t bytes = 0;
  bool over = false;
  std::string failure;  // of one that is over; empty where it is done
};

// Used by the thread of the port. Allocates nothing once it is warm and while nothing fails.
class SocketLink {
 public:
  static constexpr uint64_t kAheadBytes = 64 << 10;  // longer messages wait for their grant
  // What messages that nobody has asked for take at most with their receiver. Each takes its bytes, and this
  // for itself.
  static constexpr uint64_t kRoomAheadBytes = 256 << 10;
  static constexpr uint64_t kRoomOfOneBytes = 64;
  // More than the lanes of a run have.
  static constexpr size_t kMostTags = 256;

  SocketLink(StreamSocket socket, uint32_t other) : socket_(std::move(socket)), other_(other) {}
  SocketLink(SocketLink&&) = default;

  // The message stays where it is until it is over or dropped.
  void send(SocketMessage& message);
  void receive(SocketMessage& message);
  // The message is over: the other side has left. See why_left().
  void drop(const SocketMessage& message);

  // Moves what can move, and does not block.
  void advance();
  // Why no message that is not over ever will be; empty while the other side is there. What it says of a
  // third rank is that rank's to say, and counts only when that has had the time to.
  std::string why_left() const;

  bool is_open() const { return socket_.is_open(); }
  int fd() const { return socket_.fd(); }

  // Nothing is taken in or begun any more. The other side is told, at once if it can be: `blamed` is the rank
  // because of which this one ends.
  void say_farewell(uint32_t blamed, std::string_view why);
  // Blocks until the farewell and what was sent before it are in the hands of the other side's system, or the
  // deadline passes.
  void finish(const Deadline& deadline);

 private:
  using Messages = std::vector<SocketMessage*>;
  // A message that has come before its receive.
  struct Early {
    std::vector<std::byte> bytes;
    bool whole = false;
  };
  // Both directions of a tag.
  struct Channel {
    uint32_t tag = 0;
    uint64_t sent = 0, granted = 0;  // messages to the other side
    Messages sends, receives;        // oldest first; those that have not begun to move
    std::vector<std::unique_ptr<Early>> early;
  };
  Channel& channel(uint32_t tag);
  // The channel of a frame of the other side; null where that uses too many tags, and is lost.
  Channel* channel_of_other(uint32_t tag);

  // Writing.
  bool may_go(const Channel& channel) const;
  void begin_next();
  void put(const SocketFrame& frame);
  void take_grant(const SocketFrame& grant);
  bool write_some();
  bool has_output() const { return head_at_ < head_.size() || body_at_ < body_bytes_; }

  // Reading.
  bool read_some();
  void take_bytes(std::span<const std::byte> bytes);
  void begin_frame(const SocketFrame& frame);
  void begin_data(const SocketFrame& frame);
  void begin_early(Channel& from, const SocketFrame& frame);
  void end_frame();
  void hand_over(Channel& channel);
  void lose(std::string why);

  StreamSocket socket_;
  uint32_t other_;
  std::vector<Channel> channels_;
  std::vector<std::unique_ptr<Early>> spare_;

  // What is written: frames, then the bytes of the message whose frame is the last of them.
  std::vector<std::byte> head_, grants_;
  size_t head_at_ = 0;
  SocketMessage* sending_ = nullptr;
  uint64_t body_at_ = 0, body_bytes_ = 0;
  uint64_t ahead_bytes_ = 0;  // of the room with the other side, taken by what was sent and is not granted
  bool says_farewell_ = false;

  // What is read: a frame, then its bytes into one of three places.
  std::array<std::byte, sizeof(SocketFrame)> frame_bytes_{};
  size_t frame_at_ = 0;
  SocketFrame frame_;
  SocketMessage* receiving_ = nullptr;
  Early* arriving_ = nullptr;
  std::string farewell_;
  std::byte* into_ = nullptr;
  uint64_t left_bytes_ = 0;
  std::vector<std::byte> buffer_ = std::vector<std::byte>(16 << 10);

  uint64_t early_bytes_ = 0;  // of the room here, taken by what has come before its receive

  std::string lost_;
  bool at_second_hand_ = false;  // the other side has left because of a third rank
  Deadline::Clock::time_point lost_at_{};
};

}  // namespace terrace
