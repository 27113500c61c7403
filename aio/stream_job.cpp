#include <terrace/aio/stream_job.h>

#include <sys/resource.h>

#include <terrace/base/assert.h>
#include <algorithm>
#include <bit>
#include <vector>

namespace terrace::io {
namespace {

// The blocks of a region in some order, again and again. A random order is that of a generator whose period
// is the next power of two, without what lies beyond the region: each block comes once, and no list is kept.
class BlockOrder {
 public:
  BlockOrder(uint64_t block_count, bool random, uint64_t seed)
      : block_count_(block_count),
        random_(random),
        mask_(std::bit_ceil(block_count) - 1),
        state_(random ? seed & mask_ : 0) {}

  uint64_t next() {
    if (!random_) {
      const uint64_t block = state_ % block_count_;
      state_ = block + 1;
      return block;
    }
    for (;;) {
      // Full period modulo a power of two: the factor is 1 modulo 4 and the summand odd.
      state_ = (state_ * 0x5851f42d4c957f2d + 0x14057b7ef767814f) & mask_;
      const uint64_t block = scattered(state_);
      if (block < block_count_) return block;
    }
  }

 private:
  // One to one below mask_ + 1; the low bits of the generator alone would alternate.
  uint64_t scattered(uint64_t value) const {
    const auto half = static_cast<uint32_t>(std::bit_width(mask_) / 2 + 1);
    value ^= value >> half;
    value = (value * 0x9e3779b97f4a7c15) & mask_;
    return value ^ (value >> half);
  }

  const uint64_t block_count_;
  const bool random_;
  const uint64_t mask_;
  uint64_t state_;
};

struct Usage {
  uint64_t user_ns;
  uint64_t system_ns;
  uint64_t context_switches;
  uint64_t major_faults;
  uint64_t minor_faults;
};

uint64_t ns_of(const timeval& time) {
  return static_cast<uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(time.tv_usec) * 1000;
}

Usage usage_now() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  return {ns_of(used.ru_utime), ns_of(used.ru_stime), static_cast<uint64_t>(used.ru_nvcsw + used.ru_nivcsw),
          static_cast<uint64_t>(used.ru_majflt), static_cast<uint64_t>(used.ru_minflt)};
}

class Stream {
 public:
  Stream(Engine& engine, RingBuffer& ring, int fd, const StreamOptions& options, const Clock& clock,
         StreamResult& result)
      : engine_(engine),
        ring_(ring),
        fd_(fd),
        options_(options),
        clock_(clock),
        result_(result),
        order_(options.region_bytes / options.block_bytes, options.random, options.seed),
        slots_(ring.slot_count()) {
    batch_.reserve(ring.slot_count());
    write_back_.reserve(ring.slot_count());
  }

  void run() {
    begun_ns_ = clock_.now_ns();
    for (;;) {
      gather();
      if (!batch_.empty()) hand_over();
      if (engine_.in_flight() == 0) break;
      engine_.wait(1);
    }
    result_.elapsed_ns = clock_.now_ns() - begun_ns_;
  }

 private:
  struct Slot {
    std::span<std::byte> memory;
    Request request;
    uint64_t begun_ns;
    uint64_t taken_ns;
  };

  bool over() const {
    if (result_.failure) return true;
    if (options_.io_bytes > 0 && asked_bytes_ >= options_.io_bytes) return true;
    return options_.runtime_ns > 0 && clock_.now_ns() - begun_ns_ >= options_.runtime_ns;
  }

  // Whatever can be started now: blocks to be written back, then new ones as long as there are free slots.
  void gather() {
    for (const uint32_t index : write_back_) {
      slots_[index].request.kind = OpKind::write;
      batch_.push_back(slots_[index].request);
    }
    write_back_.clear();
    while (!over()) {
      const std::span<std::byte> memory = ring_.acquire();
      if (memory.empty()) break;
      const auto index = static_cast<uint32_t>(static_cast<uint64_t>(memory.data() - ring_.memory().data()) /
                                               ring_.slot_bytes());
      Slot& slot = slots_[index];
      slot.memory = memory;
      slot.request = Request{next_kind(),
                             fd_,
                             order_.next() * options_.block_bytes,
                             memory.data(),
                             options_.block_bytes,
                             &Stream::on_complete,
                             this,
                             index};
      batch_.push_back(slot.request);
      asked_bytes_ += options_.block_bytes * (options_.kind == StreamKind::update ? 2 : 1);
    }
  }

  OpKind next_kind() {
    const uint64_t i = begun_count_++;
    switch (options_.kind) {
      case StreamKind::read:
      case StreamKind::update:
        return OpKind::read;
      case StreamKind::write:
        return OpKind::write;
      case StreamKind::mixed:
        break;
    }
    const uint64_t percent = options_.read_percent;
    return (i + 1) * percent / 100 > i * percent / 100 ? OpKind::read : OpKind::write;
  }

  void hand_over() {
    const uint64_t begun_ns = clock_.now_ns();
    engine_.submit(batch_);
    const uint64_t taken_ns = clock_.now_ns();
    for (const Request& request : batch_) {
      slots_[request.tag].begun_ns = begun_ns;
      slots_[request.tag].taken_ns = taken_ns;
    }
    batch_.clear();
  }

  static void on_complete(void* context, const Completion& completion) noexcept {
    static_cast<Stream*>(context)->complete(completion);
  }

  void complete(const Completion& completion) noexcept {
    Slot& slot = slots_[completion.tag];
    const uint64_t now_ns = clock_.now_ns();
    const bool is_read = slot.request.kind == OpKind::read;
    StreamDirection& direction = is_read ? result_.read : result_.write;
    direction.bytes += completion.bytes;
    if (completion.error == 0) {
      ++direction.operations;
      direction.submission.add(slot.taken_ns - slot.begun_ns);
      direction.completion.add(now_ns - slot.taken_ns);
      direction.total.add(now_ns - slot.begun_ns);
    } else if (!result_.failure) {
      result_.failure = StreamFailure{slot.request, completion};
    }
    if (options_.kind == StreamKind::update && is_read && completion.error == 0) {
      write_back_.push_back(static_cast<uint32_t>(completion.tag));
    } else {
      ring_.release(slot.memory);
    }
  }

  Engine& engine_;
  RingBuffer& ring_;
  const int fd_;
  const StreamOptions& options_;
  const Clock& clock_;
  StreamResult& result_;
  BlockOrder order_;
  std::vector<Slot> slots_;  // by their place in the ring
  std::vector<Request> batch_;
  std::vector<uint32_t> write_back_;
  uint64_t begun_ns_ = 0;
  uint64_t begun_count_ = 0;
  uint64_t asked_bytes_ = 0;
};

}  // namespace

StreamResult run_stream(Engine& engine, RingBuffer& ring, int fd, const StreamOptions& options,
                        const Clock& clock) {
  TERRACE_ASSERT(options.block_bytes > 0 && options.block_bytes <= ring.slot_bytes(),
                 "a block fits into a slot of the ring");
  TERRACE_ASSERT(
      options.region_bytes >= options.block_bytes && options.region_bytes % options.block_bytes == 0,
      "the region is a number of whole blocks");
  TERRACE_ASSERT(options.region_bytes / options.block_bytes >= ring.slot_count(),
                 "blocks in flight together would overlap");
  TERRACE_ASSERT(options.io_bytes > 0 || options.runtime_ns > 0, "a stream needs an end");
  const EngineOptions& limits = engine.options();
  TERRACE_ASSERT(ring.slot_count() <= uint64_t{limits.queue_depth} + limits.backlog_count,
                 "the engine holds a request for every slot");
  StreamResult result;
  Stream stream(engine, ring, fd, options, clock, result);
  const Usage before = usage_now();
  stream.run();
  const Usage after = usage_now();
  result.user_ns = after.user_ns - before.user_ns;
  result.system_ns = after.system_ns - before.system_ns;
  result.context_switches = after.context_switches - before.context_switches;
  result.major_faults = after.major_faults - before.major_faults;
  result.minor_faults = after.minor_faults - before.minor_faults;
  return result;
}

}  // namespace terrace::io
