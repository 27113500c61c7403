// MessagePort: the least that a message library gives, so that MessageCommunicator can run over any of them.
// It moves bytes between ranks, and must never know what they are for.
//
// Messages of one rank to another with the same tag arrive in the order in which they were sent, and meet the
// receives in the order in which those were started. A message is as long as its receive expects. Ranks that
// run the same program on the same kind of machine are assumed: no byte is converted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace terrace {

// A message that was started and is not over. Ports use the numbers of messages that are over again.
enum class MessageRequest : uint32_t {};

enum class MessageState : uint8_t {
  pending,
  done,    // sent: the memory may change, and the message arrives even if the sender then ends; or received
  failed,  // it will never arrive
};

// Every function, the destructor too, is called on the thread that made the port. None blocks but the
// destructor, and none throws.
class MessagePort {
 public:
  // Ends the rank's part in the library. Where messages are pending, abandon() was called before.
  virtual ~MessagePort() = default;

  virtual uint32_t rank() const = 0;
  virtual uint32_t size() const = 0;
  // The longest message, in bytes: more than 0, and the same for all ranks.
  virtual uint64_t max_message_bytes() const = 0;

  // Both only begin. `bytes` belongs to the caller, has 1 to max_message_bytes() bytes, and stays as it is
  // until test() says that the message is over. `to` and `from` are other ranks; `tag` is at most 32766. What
  // cannot be started is a message that fails.
  virtual MessageRequest start_send(uint32_t to, uint32_t tag, std::span<const std::byte> bytes) = 0;
  virtual MessageRequest start_receive(uint32_t from, uint32_t tag, std::span<std::byte> bytes) = 0;

  // Lets messages make progress and says how this one stands. Once it is done or failed it is over, and its
  // number means nothing any more.
  virtual MessageState test(MessageRequest request) = 0;
  // Appends descriptors that are readable once a message of another rank may have come. Without any, whoever
  // waits has to look. One may stay readable though nothing moves.
  virtual void add_readable(std::vector<int>& descriptors) const { (void)descriptors; }
  // Why the message failed that test() was last asked about: a whole clause for the reader of an error.
  virtual std::string reason() const = 0;

  // Every message that is pending is over, and its memory is touched no more. What other ranks sent is lost.
  // Nothing is started afterwards. The rank to blame, which may be this one, and `why` are for the other
  // ranks, where the library can tell them.
  virtual void abandon(uint32_t blamed, const std::string& why) = 0;
};

// What a port that gives up tells the other ranks.
inline std::string why_given_up(const MessagePort& port, uint32_t blamed, const std::string& why) {
  if (blamed == port.rank()) return why;
  return "it has given up because of rank " + std::to_string(blamed) + ": " + why;
}

// Joins the message library and makes its port, on the thread that will use it. Throws Error where that
// fails.
using MakeMessagePort = std::function<std::unique_ptr<MessagePort>()>;

}  // namespace terrace
