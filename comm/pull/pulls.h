// Pulls: how a rank gets bytes that others have, when it needs them and whatever those are doing meanwhile.
// An owner answers on a thread of its communication, without the thread that computes. It knows ranks, items
// by their numbers, versions and bytes; it must never know a tensor or a file.
//
//   read()       the bytes of an item of another rank, once they are those of a version
//   hand_over()  bytes that this rank keeps until another one takes them, or a word without bytes; a rank
//                hears what another one hands over in that one's order
//   take()       the bytes that another rank keeps for this one
//
// All ranks begin and end together: begin() and end() are called as often on each of them. Between the two
// every call may be made by any thread. `after` is null or was begun before, and where it failed so does what
// is behind it. `done` and `taken` were begun by the caller, and memory stays as it is until they are done.
// Where a rank is lost, all that is not over fails with an error that names it, and so does all later. Notes
// are told of bytes that have come from another rank, before `done` is.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <span>

#include <terrace/base/copy_observer.h>
#include <terrace/base/event.h>

namespace terrace {

// What a rank says of bytes that it hands over; only the program knows what the words mean.
using PullWords = std::array<uint64_t, 4>;

struct HandedOver {
  uint32_t from = 0;
  uint64_t ticket = 0;
  uint64_t address = 0;  // in the memory of that rank
  uint64_t bytes = 0;    // 0: there is nothing to take
  PullWords words = {};
};

// PullHost: what the program answers. Its functions are called by one thread, and none of them blocks.
class PullHost {
 public:
  virtual ~PullHost() = default;
  // True if the item is there at this version: `bytes` are where it lies, and stay until close_item(). False:
  // not yet; it is asked for again. What it throws ends the pulls of all ranks.
  virtual bool open_item(uint32_t item, uint64_t version, std::span<const std::byte>& bytes) = 0;
  virtual void close_item(uint32_t item) = 0;
  // A rank, which may be this one, has handed something over.
  virtual void hear(const HandedOver& part) = 0;
  // That rank has called end(), and nothing more comes from it.
  virtual void ended(uint32_t rank) = 0;
  // Nothing comes any more.
  virtual void lost(const std::exception_ptr& failure) = 0;
};

class Pulls {
 public:
  virtual ~Pulls() = default;

  // `host` outlives end().
  virtual void begin(PullHost& host) = 0;
  // Waits until all ranks have called it, and answers them meanwhile, or until a rank is lost.
  virtual void end() = 0;

  // An empty `into` asks nobody: `done` follows `after`.
  virtual void read(uint32_t owner, uint32_t item, uint64_t version, std::span<std::byte> into,
                    const Event* after, Event& done, const CopyNote& note = {}) = 0;
  // What is handed over to one rank arrives there in the order of these calls, whatever each waits for.
  // `taken` is null where there are no bytes.
  virtual void hand_over(uint32_t to, const PullWords& words, std::span<const std::byte> bytes,
                         const Event* after, Event* taken) = 0;
  virtual void take(const HandedOver& part, std::span<std::byte> into, Event& done,
                    const CopyNote& note = {}) = 0;
  // An item may be there that was not.
  virtual void wake() = 0;

  // Bytes that have come from other ranks, and that they have got of this one.
  virtual uint64_t in_bytes() const = 0;
  virtual uint64_t out_bytes() const = 0;
};

}  // namespace terrace
