#include <terrace/comm/messages/message_communicator.h>

#include <utility>

#include <terrace/comm/messages/communication_thread.h>
#include <terrace/comm/operations/operation_book.h>

namespace terrace {

MessageCommunicator::MessageCommunicator(uint32_t rank, std::vector<RankPlace> places,
                                         const MakeMessagePort& make_port, MessageCommunicatorOptions options)
    : Communicator(rank, std::move(places)),
      book_(std::make_unique<OperationBook>(rank, size())),
      thread_(std::make_unique<CommunicationThread>(
          make_port,
          CommunicationThreadOptions{.rank = rank,
                                     .size = size(),
                                     .queue_depth = options.queue_depth,
                                     .hook = options.hook,
                                     .peers = {options.least_read_bytes, std::move(options.read_process)}},
          *book_)) {}

MessageCommunicator::~MessageCommunicator() = default;

void MessageCommunicator::all_gather(Lane lane, std::span<std::byte> whole, uint64_t part_bytes,
                                     const Event* after, Event& done, const CommNote& note) {
  thread_->enqueue(book_->all_gather(lane, whole, part_bytes, after, done, note));
}

void MessageCommunicator::exchange_within(const RankGroup& group, Lane lane, std::span<const CommPart> to,
                                          std::span<CommPart> from, const Event* after, Event& done,
                                          const CommNote& note) {
  thread_->enqueue(book_->exchange_within(group, lane, to, from, after, done, note));
}

void MessageCommunicator::ballot(Lane lane, std::span<const std::byte> mine, std::span<std::byte> all) {
  Event done;
  done.begin();
  thread_->enqueue(book_->ballot(lane, mine, all, &done));
  done.wait();
}

CommCounters MessageCommunicator::counters() const {
  return book_->counters();
}

Pulls* MessageCommunicator::pulls() {
  return &thread_->pulls();
}

void MessageCommunicator::lose(uint32_t rank, std::string why) {
  thread_->lose({rank, std::move(why)});
}

std::string MessageCommunicator::host_sentence() const {
  return thread_->host_sentence();
}

}  // namespace terrace
