#include <terrace/comm/ports/mpi/mpi_port.h>

#include <mpi.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace terrace {
namespace {

std::string mpi_reason(int code, const char* call) {
  char text[MPI_MAX_ERROR_STRING + 1] = {};
  int length = 0;
  MPI_Error_string(code, text, &length);
  return std::string(call) + " says: " + text;
}

constexpr int kFarewellTag = 32767;
// What a rank has sent arrives within this time after its farewell, which may be faster.
constexpr double kGraceSeconds = 1;
// Looking for farewells costs as much as looking for messages, and is not urgent.
constexpr uint32_t kLooksPerFarewell = 16;

// What a port says to every other one when it ends: MPI itself would let them wait for it.
struct Farewell {
  char given_up = 0;  // 1: it has abandoned messages, and never calls MPI again
  std::array<char, 255> why{};
};

class MpiPort final : public MessagePort {
 public:
  // `ends_mpi`: this port has begun it.
  explicit MpiPort(bool ends_mpi) : ends_mpi_(ends_mpi) {}
  ~MpiPort() override;
  // Empty, or why there is no port.
  std::string join();

  uint32_t rank() const override { return static_cast<uint32_t>(rank_); }
  uint32_t size() const override { return static_cast<uint32_t>(size_); }
  // Counts of MPI are ints.
  uint64_t max_message_bytes() const override { return uint64_t{1} << 30; }
  MessageRequest start_send(uint32_t to, uint32_t tag, std::span<const std::byte> bytes) override;
  MessageRequest start_receive(uint32_t from, uint32_t tag, std::span<std::byte> bytes) override;
  MessageState test(MessageRequest request) override;
  std::string reason() const override { return reason_; }
  void abandon(uint32_t blamed, const std::string& why) override;

 private:
  struct Message {
    MPI_Request request = MPI_REQUEST_NULL;
    int other = 0;
    int received_bytes = 0;  // those that are expected; 0 where the message is sent
    int start_code = MPI_SUCCESS;
  };
  // Of another rank.
  struct Peer {
    Farewell farewell;
    MPI_Request arrives = MPI_REQUEST_NULL;  // the farewell; null once it has arrived
    MPI_Request sent = MPI_REQUEST_NULL;     // that of this rank
    double left_seconds = 0;                 // when the farewell was found
    uint32_t looks = 0;                      // at messages of this peer that are pending
  };
  uint32_t free_message();
  bool has_left(Peer& peer);
  std::string why_never(const Message& message);
  void cancel(Message& message);
  void say_farewell(bool given_up, const std::string& why);
  bool all_have_left();
  MessageState over(uint32_t index, std::string reason);

  const bool ends_mpi_;
  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0;
  int size_ = 0;
  std::vector<Message> messages_;
  std::vector<uint32_t> free_;
  std::vector<Peer> peers_;  // by rank; the own one is not used
  Farewell farewell_;        // of this rank
  bool abandoned_ = false;
  std::string reason_;
};

std::string MpiPort::join() {
  if (const int code = MPI_Comm_dup(MPI_COMM_WORLD, &comm_); code != MPI_SUCCESS)
    return mpi_reason(code, "MPI_Comm_dup");
  // The other ranks are told of what fails here, which a process that is ended at once could not do.
  MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
  MPI_Comm_rank(comm_, &rank_);
  MPI_Comm_size(comm_, &size_);
  peers_.resize(static_cast<size_t>(size_));
  for (int r = 0; r < size_; ++r) {
    Peer& peer = peers_[static_cast<size_t>(r)];
    if (r != rank_)
      MPI_Irecv(&peer.farewell, sizeof peer.farewell, MPI_BYTE, r, kFarewellTag, comm_, &peer.arrives);
  }
  return {};
}

// MPI ends when all ranks end it, and until then each of them may learn that this one has left. After
// messages were abandoned, here or there, MPI is not called again: it would wait for ranks that may be gone,
// and touch memory that is no longer this port's. The launcher ends what is left of the run.
MpiPort::~MpiPort() {
  if (abandoned_) return;
  say_farewell(false, "its port has ended");
  while (!all_have_left()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  if (std::ranges::any_of(peers_, [](const Peer& peer) { return peer.farewell.given_up != 0; })) return;
  if (comm_ != MPI_COMM_NULL) MPI_Comm_free(&comm_);
  if (ends_mpi_) MPI_Finalize();
}

void MpiPort::say_farewell(bool given_up, const std::string& why) {
  farewell_.given_up = given_up ? 1 : 0;
  std::memcpy(farewell_.why.data(), why.data(), std::min(why.size(), farewell_.why.size() - 1));
  for (int r = 0; r < static_cast<int>(peers_.size()); ++r) {
    if (r != rank_)
      MPI_Isend(&farewell_, sizeof farewell_, MPI_BYTE, r, kFarewellTag, comm_,
                &peers_[static_cast<size_t>(r)].sent);
  }
}

// Whether nobody waits for anybody: all have said farewell, or one has given up.
bool MpiPort::all_have_left() {
  bool all = true;
  for (Peer& peer : peers_) {
    int is_sent = 0;
    if (MPI_Test(&peer.sent, &is_sent, MPI_STATUS_IGNORE) != MPI_SUCCESS) is_sent = 1;
    const bool left = has_left(peer);
    if (left && peer.farewell.given_up != 0) return true;
    all = all && left && is_sent != 0;
  }
  return all;
}

bool MpiPort::has_left(Peer& peer) {
  if (peer.arrives == MPI_REQUEST_NULL) return true;
  int is_over = 0;
  const int code = MPI_Test(&peer.arrives, &is_over, MPI_STATUS_IGNORE);
  if (code != MPI_SUCCESS) {
    peer.arrives = MPI_REQUEST_NULL;
    peer.farewell = {.given_up = 1, .why = {"it cannot be reached"}};
  } else if (is_over == 0) {
    return false;
  }
  peer.left_seconds = MPI_Wtime();
  return true;
}

// Why the message will never be over; empty where it may.
std::string MpiPort::why_never(const Message& message) {
  Peer& peer = peers_[static_cast<size_t>(message.other)];
  if (++peer.looks % kLooksPerFarewell != 0 || !has_left(peer)) return {};
  if (MPI_Wtime() - peer.left_seconds < kGraceSeconds) return {};
  std::string why(peer.farewell.why.data(), strnlen(peer.farewell.why.data(), peer.farewell.why.size()));
  return why;
}

uint32_t MpiPort::free_message() {
  if (free_.empty()) {
    free_.push_back(static_cast<uint32_t>(messages_.size()));
    messages_.emplace_back();
    free_.reserve(messages_.capacity());
  }
  const uint32_t index = free_.back();
  free_.pop_back();
  return index;
}

MessageRequest MpiPort::start_send(uint32_t to, uint32_t tag, std::span<const std::byte> bytes) {
  const uint32_t index = free_message();
  Message& message = messages_[index];
  message.other = static_cast<int>(to);
  message.received_bytes = 0;
  message.start_code = MPI_Isend(bytes.data(), static_cast<int>(bytes.size()), MPI_BYTE, message.other,
                                 static_cast<int>(tag), comm_, &message.request);
  return MessageRequest{index};
}

MessageRequest MpiPort::start_receive(uint32_t from, uint32_t tag, std::span<std::byte> bytes) {
  const uint32_t index = free_message();
  Message& message = messages_[index];
  message.other = static_cast<int>(from);
  message.received_bytes = static_cast<int>(bytes.size());
  message.start_code = MPI_Irecv(bytes.data(), message.received_bytes, MPI_BYTE, message.other,
                                 static_cast<int>(tag), comm_, &message.request);
  return MessageRequest{index};
}

MessageState MpiPort::test(MessageRequest request) {
  const auto index = static_cast<uint32_t>(request);
  Message& message = messages_[index];
  if (message.start_code != MPI_SUCCESS)
    return over(index,
                mpi_reason(message.start_code, message.received_bytes > 0 ? "MPI_Irecv" : "MPI_Isend"));
  int is_over = 0;
  MPI_Status status;
  const int code = MPI_Test(&message.request, &is_over, &status);
  if (code != MPI_SUCCESS) return over(index, mpi_reason(code, "MPI_Test"));
  if (is_over == 0) {
    std::string why = why_never(message);
    if (why.empty()) return MessageState::pending;
    cancel(message);
    return over(index, std::move(why));
  }
  if (message.received_bytes > 0) {
    int bytes = 0;
    MPI_Get_count(&status, MPI_BYTE, &bytes);
    if (bytes != message.received_bytes)
      return over(index, "its message has " + std::to_string(bytes) + " bytes, where " +
                             std::to_string(message.received_bytes) + " are expected");
  }
  return over(index, {});
}

MessageState MpiPort::over(uint32_t index, std::string reason) {
  messages_[index].request = MPI_REQUEST_NULL;
  free_.push_back(index);
  reason_ = std::move(reason);
  return reason_.empty() ? MessageState::done : MessageState::failed;
}

// A receive is cancelled, in case the library has threads of its own. A send only reads, and MPI makes no
// progress with it while nobody calls it.
void MpiPort::cancel(Message& message) {
  if (message.request == MPI_REQUEST_NULL || message.received_bytes == 0) return;
  MPI_Cancel(&message.request);
  MPI_Request_free(&message.request);
}

void MpiPort::abandon(uint32_t blamed, const std::string& why) {
  for (Message& message : messages_) cancel(message);
  say_farewell(true, why_given_up(*this, blamed, why));
  abandoned_ = true;
}

// Begins MPI where nobody has. Empty, or why it does not begin.
std::string begin_mpi(bool& begins) {
  int is_begun = 0, is_ended = 0;
  MPI_Initialized(&is_begun);
  MPI_Finalized(&is_ended);
  if (is_ended != 0) return "MPI has ended in this process, and begins only once";
  begins = is_begun == 0;
  int level = MPI_THREAD_SINGLE;
  if (begins) {
    // Ranks that wait shall leave the processor to those that compute.
    setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0);
    // Where Open MPI lets the receiver ask for the rest of a message, the asking waits behind what the other
    // one is being sent, and a connection over TCP carries one direction at a time.
    setenv("OMPI_MCA_btl_tcp_flags", "send,inplace", 0);
    // Parts of up to 1 MiB come at once, and not when they have been announced and asked for.
    setenv("OMPI_MCA_btl_tcp_eager_limit", "1048576", 0);
    const int code = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &level);
    if (code != MPI_SUCCESS) return "MPI_Init_thread fails with code " + std::to_string(code);
    if (level >= MPI_THREAD_FUNNELED) return {};
    MPI_Finalize();
    return "the library serves no program with threads (MPI_THREAD_FUNNELED)";
  }
  int is_main = 0;
  MPI_Query_thread(&level);
  MPI_Is_thread_main(&is_main);
  if (is_main != 0 || level >= MPI_THREAD_SERIALIZED) return {};
  return "the program has begun MPI on another thread, and not with MPI_THREAD_SERIALIZED or more";
}

MessagePort* make_mpi_port(std::string& reason) {
  bool begins = false;
  reason = begin_mpi(begins);
  if (!reason.empty()) return nullptr;
  auto port = std::make_unique<MpiPort>(begins);
  reason = port->join();
  return reason.empty() ? port.release() : nullptr;
}

}  // namespace
}  // namespace terrace

extern "C" __attribute__((visibility("default"))) terrace::MessagePort* terrace_make_mpi_port(
    uint32_t version, char* reason, size_t reason_bytes) {
  std::string why = "it is the plug-in of another version of Terrace";
  terrace::MessagePort* port = nullptr;
  if (version == terrace::kMpiPortVersion) port = terrace::make_mpi_port(why);
  if (reason_bytes == 0) return port;
  const size_t bytes = std::min(why.size(), reason_bytes - 1);
  std::memcpy(reason, why.data(), bytes);
  reason[bytes] = 0;
  return port;
}
