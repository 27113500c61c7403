#include <terrace/comm/messages/host_peers.h>

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <random>
#include <system_error>
#include <utility>

#include <terrace/comm/operations/communicator.h>

namespace terrace {
namespace {

constexpr uint32_t kIntroductionTag = 3 * kLaneCount;  // behind those of the lanes
// Other lanes wait for one piece at most. The kernel walks through a read in steps of so many bytes; between
// pieces all lanes are looked at, which costs a twentieth of a read of 1 MiB.
constexpr uint64_t kReadPieceBytes = uint64_t{4} << 20;

// A number that no other process has, and that is not 0.
uint64_t new_word() {
  std::random_device device;
  return (uint64_t{device()} << 32 | device()) | 1;
}

std::string text_of_errno(int64_t error) {
  return std::generic_category().message(static_cast<int>(error));
}

}  // namespace

HostPeers::HostPeers(uint32_t rank, uint32_t size, HostPeersOptions options, uint64_t message_bytes)
    : rank_(rank),
      options_(std::move(options)),
      word_(new_word()),
      stage_(options_.read_process == nullptr || size == 1 ? Stage::over : Stage::begin),
      hellos_(size),
      readable_(size),
      readers_(size),
      out_(FlowDirection::send, rank, size, kIntroductionTag, message_bytes),
      in_(FlowDirection::receive, rank, size, kIntroductionTag, message_bytes) {}

bool HostPeers::advance(MessagePort& port) {
  if (stage_ == Stage::begin) send_hello();
  if (stage_ == Stage::over) return false;
  bool moved = in_.advance(port);
  moved |= out_.advance(port);
  if (!in_.over() || !out_.over()) return moved;
  if (stage_ == Stage::hellos) {
    try_others();
  } else {
    conclude();
  }
  return true;
}

void HostPeers::send_hello() {
  let_processes_read();
  hellos_[rank_] = {.host = host_hash(),
                    .process_namespace = process_namespace(),
                    .process = static_cast<uint64_t>(getpid()),
                    .word_address = reinterpret_cast<uint64_t>(&word_),
                    .word = word_.load()};
  for (uint32_t other = 0; other < hellos_.size(); ++other) {
    out_.set_part(other, std::as_writable_bytes(std::span(&hellos_[rank_], 1)));
    in_.set_part(other, std::as_writable_bytes(std::span(&hellos_[other], 1)));
  }
  in_.begin(), out_.begin();
  stage_ = Stage::hellos;
}

void HostPeers::try_others() {
  for (uint32_t other = 0; other < hellos_.size(); ++other) {
    if (other == rank_) continue;
    const PeerHello& hello = hellos_[other];
    if (hello.magic != kHelloMagic)
      throw PeerLoss{other, "its messages cannot be read; it may run another version of Terrace"};
    if (hello.host != 0 && hello.host == hellos_[rank_].host) {
      ++neighbour_count_;
      std::string reason = why_unreadable(other);
      if (reason.empty()) {
        readable_[other] = std::byte{1};
      } else if (reason_.empty()) {
        reason_ = fmt::format("rank {} cannot read that of rank {}: {}", rank_, other, reason);
      }
    }
    out_.set_part(other, std::span(&readable_[other], 1));
    in_.set_part(other, std::span(&readers_[other], 1));
  }
  in_.begin(), out_.begin();
  stage_ = Stage::findings;
}

// Empty where this rank can read the memory of the other one, which is on this host.
std::string HostPeers::why_unreadable(uint32_t other) {
  const PeerHello& hello = hellos_[other];
  if (hello.process_namespace == 0 || hello.process_namespace != hellos_[rank_].process_namespace)
    return "it is in another PID namespace, as containers are; give the containers of a host one (--pid)";
  uint64_t word = 0;
  const MemoryPiece piece{hello.word_address, std::as_writable_bytes(std::span(&word, 1))};
  const int64_t bytes = options_.read_process(static_cast<uint32_t>(hello.process), std::span(&piece, 1));
  if (bytes == -EPERM)
    return fmt::format(
        "process_vm_readv says: {}; a container may need the capability SYS_PTRACE, and "
        "kernel.yama.ptrace_scope must be 0 or 1",
        text_of_errno(EPERM));
  if (bytes < 0) return "process_vm_readv says: " + text_of_errno(-bytes);
  return bytes == sizeof word && word == hello.word ? "" : "process_vm_readv finds something else there";
}

void HostPeers::conclude() {
  stage_ = Stage::over;
  if (neighbour_count_ == 0) return;
  for (uint32_t other = 0; other < hellos_.size() && reason_.empty(); ++other) {
    if (other != rank_ && hellos_[other].host == hellos_[rank_].host && readers_[other] == std::byte{0})
      reason_ = fmt::format("rank {} cannot read that of rank {}, and says why", other, rank_);
  }
  sentence_ =
      reason_.empty()
          ? "ranks of this host read each other's memory (process_vm_readv)"
          : "ranks of this host exchange messages where they cannot read each other's memory, which takes "
            "more copies: " +
                reason_;
}

void HostPeers::read(uint32_t other, uint64_t address, std::span<std::byte> into) {
  const PeerHello& hello = hellos_[other];
  uint64_t word = 0;
  const MemoryPiece pieces[] = {{address, into},
                                {hello.word_address, std::as_writable_bytes(std::span(&word, 1))}};
  const int64_t bytes = options_.read_process(static_cast<uint32_t>(hello.process), pieces);
  if (bytes < 0) throw PeerLoss{other, fmt::format("its memory cannot be read: {}", text_of_errno(-bytes))};
  const uint64_t wanted = into.size() + sizeof word;
  if (static_cast<uint64_t>(bytes) != wanted)
    throw PeerLoss{other, fmt::format("its memory cannot be read: {} bytes of {} are there", bytes, wanted)};
  if (word != hello.word) throw PeerLoss{other, "it has given up, or its process is gone"};
}

bool PeerReads::advance(HostPeers& peers) {
  for (; !over(); ++step_, offset_bytes_ = 0) {
    const auto other = static_cast<uint32_t>((rank_ + parts_.size() - step_) % parts_.size());
    const MemoryPiece& part = parts_[other];
    const std::span<std::byte> rest = part.into.subspan(offset_bytes_);
    if (rest.empty()) continue;
    const std::span<std::byte> piece = rest.first(std::min<uint64_t>(rest.size(), kReadPieceBytes));
    peers.read(other, part.address + offset_bytes_, piece);
    offset_bytes_ += piece.size();
    return true;
  }
  return false;
}

}  // namespace terrace
