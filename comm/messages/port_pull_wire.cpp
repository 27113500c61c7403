#include <terrace/comm/messages/port_pull_wire.h>

#include <algorithm>

#include <terrace/comm/operations/communicator.h>

namespace terrace {
namespace {

constexpr uint32_t kWordTag = 3 * kLaneCount + 1, kBytesTag = 3 * kLaneCount + 2;  // behind the introduction

template <typename Byte, typename Body>
void for_each_piece(std::span<Byte> bytes, uint64_t piece_bytes, Body body) {
  for (uint64_t at = 0; at < bytes.size(); at += piece_bytes)
    body(bytes.subspan(at, std::min<uint64_t>(piece_bytes, bytes.size() - at)));
}

}  // namespace

PortPullWire::PortPullWire(uint32_t size, uint64_t message_bytes, MessagePort& port, HostPeers& peers)
    : message_bytes_(message_bytes),
      port_(port),
      peers_(peers),
      heard_(size),
      listening_(size),
      listens_(size, false) {}

bool PortPullWire::test(const Pending& pending) {
  switch (port_.test(pending.request)) {
    case MessageState::pending:
      return false;
    case MessageState::done:
      return true;
    case MessageState::failed:
      break;
  }
  throw PeerLoss{pending.other, port_.reason()};
}

bool PortPullWire::are_over(std::vector<Pending>& pending) {
  std::erase_if(pending, [this](const Pending& one) { return test(one); });
  return pending.empty();
}

void PortPullWire::send(uint32_t to, const PullHeader& header) {
  if (free_words_.empty()) {
    free_words_.push_back(static_cast<uint32_t>(words_.size()));
    words_.emplace_back();
    sending_.emplace_back();
  }
  const uint32_t word = free_words_.back();
  free_words_.pop_back();
  words_[word] = header;
  ++sending_count_;
  for_each_piece(std::as_bytes(std::span(&words_[word], 1)), message_bytes_, [&](auto piece) {
    sending_[word].push_back({port_.start_send(to, kWordTag, piece), to});
  });
}

bool PortPullWire::receive(uint32_t from, PullHeader& header) {
  if (!listens_[from]) {
    for_each_piece(std::as_writable_bytes(std::span(&heard_[from], 1)), message_bytes_, [&](auto piece) {
      listening_[from].push_back({port_.start_receive(from, kWordTag, piece), from});
    });
    listens_[from] = true;
  }
  if (!are_over(listening_[from])) return false;
  listens_[from] = false;
  header = heard_[from];
  return true;
}

uint32_t PortPullWire::take_transfer() {
  if (free_transfers_.empty()) {
    transfers_.emplace_back();
    return static_cast<uint32_t>(transfers_.size() - 1);
  }
  const uint32_t transfer = free_transfers_.back();
  free_transfers_.pop_back();
  return transfer;
}

uint32_t PortPullWire::send_bytes(uint32_t to, std::span<const std::byte> bytes) {
  const uint32_t transfer = take_transfer();
  for_each_piece(bytes, message_bytes_, [&](auto piece) {
    transfers_[transfer].push_back({port_.start_send(to, kBytesTag, piece), to});
  });
  return transfer;
}

uint32_t PortPullWire::receive_bytes(uint32_t from, std::span<std::byte> into) {
  const uint32_t transfer = take_transfer();
  for_each_piece(into, message_bytes_, [&](auto piece) {
    transfers_[transfer].push_back({port_.start_receive(from, kBytesTag, piece), from});
  });
  return transfer;
}

bool PortPullWire::is_over(uint32_t transfer) {
  if (!are_over(transfers_[transfer])) return false;
  free_transfers_.push_back(transfer);
  return true;
}

bool PortPullWire::advance() {
  bool moved = false;
  for (uint32_t word = 0; word < sending_.size() && sending_count_ > 0; ++word) {
    if (sending_[word].empty() || !are_over(sending_[word])) continue;
    free_words_.push_back(word);
    --sending_count_;
    moved = true;
  }
  return moved;
}

void PortPullWire::forget() {
  for (auto* const list : {&sending_, &listening_, &transfers_}) {
    for (std::vector<Pending>& pending : *list) pending.clear();
  }
  sending_count_ = 0;
  std::fill(listens_.begin(), listens_.end(), false);
}

}  // namespace terrace
