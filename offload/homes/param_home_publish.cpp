// The way home: fresh parameters leave the memory where an update made them.
#include <algorithm>
#include <utility>

#include <terrace/base/assert.h>
#include <terrace/offload/homes/param_home.h>

namespace terrace {

const io::Request* ParamHome::pending_request(Writing& writing) {
  for (Writing::Block& block : writing.blocks) {
    if (std::atomic_ref(block.pending).load(std::memory_order_relaxed)) return &block.write.request;
  }
  return nullptr;
}

WaitSubject ParamHome::publication_subject() {
  for (const auto& [chunk, gone, writing] : publishing_) {
    if (gone->done() || writing == nullptr) continue;
    const io::Request* request = pending_request(*writing);
    if (request != nullptr)
      return {"fresh parameters", "host -> nvme", TimeCause::write, chunk, request, file_of(chunk, request)};
  }
  const bool to_device = placement_ == Placement::none;
  return {"fresh parameters",
          to_device ? "host -> device" : "host -> nvme",
          to_device ? TimeCause::device_copy : TimeCause::write,
          std::nullopt,
          nullptr,
          {}};
}

const Event* ParamHome::publish(ChunkId chunk, const std::byte* buffer, io::Engine* engine,
                                DeviceCache* device) {
  if (home_[index_of(chunk)] != nullptr) {
    TERRACE_ASSERT(buffer == home_[index_of(chunk)], "new parameters are made where they live");
    return nullptr;
  }
  if (placement_ != Placement::none) return publish_to_file(chunk, buffer, engine);
  const Event* const gone = publish_to_device(chunk, buffer, device);
  publishing_.push_back({chunk, gone, nullptr});
  return gone;
}

const Event* ParamHome::publish_to_device(ChunkId chunk, const std::byte* buffer, DeviceCache* device) {
  TERRACE_ASSERT(device != nullptr, "parameters that live on the device need it");
  device->detach_param(chunk);
  CacheSlot& slot = device->param_slot(chunk);
  slot.in.begin();
  device_.copy_to_device(
      slot.id, 0, buffer, space_.param_bytes(chunk), nullptr, slot.in,
      to_device_note(watch_.events(), TransferRole::param, TransferReason::update, index_of(chunk)));
  h2d_bytes_ += space_.param_bytes(chunk);
  published_[index_of(chunk)] = true;
  return &slot.in;
}

const Event* ParamHome::publish_to_file(ChunkId chunk, const std::byte* buffer, io::Engine* engine) {
  TERRACE_ASSERT(engine != nullptr, "writing to a tier file needs an engine");
  BlockStore& store = store_of(chunk);
  Writing& writing = take_writing();
  writing.chunk = chunk, writing.engine = engine;
  writing.tag = transfer_tag(watch_.events(), TransferRole::param, TransferReason::update, chunk);
  writing.blocks.resize(store.block_count(chunk));
  writing.written.begin(static_cast<uint32_t>(writing.blocks.size()));
  publishing_.push_back({chunk, &writing.written, &writing});
  for (uint32_t b = 0; b < writing.blocks.size(); ++b) {
    const uint64_t length = store.block_bytes(chunk, b);
    writing.blocks[b] = {.of = &writing, .block = b, .write = {}};
    try {
      begin_write(writing.blocks[b], {buffer, length});
    } catch (...) {
      // What is under way goes on, and the event tells of it.
      for (; b < writing.blocks.size(); ++b) writing.written.complete_one(std::current_exception());
      break;
    }
    submit_write(writing.blocks[b]);
    buffer += length;
  }
  nvme_write_bytes_ += space_.param_bytes(chunk);
  return &writing.written;
}

ParamHome::Writing& ParamHome::add_writing() {
  Writing& writing = *writings_.emplace_back(std::make_unique<Writing>());
  writing.home = this;
  writing.blocks.reserve(most_blocks_);
  free_writings_.reserve(writings_.size());
  return writing;
}

ParamHome::Writing& ParamHome::take_writing() {
  if (free_writings_.empty()) return add_writing();
  Writing& writing = *free_writings_.back();
  free_writings_.pop_back();
  return writing;
}

void ParamHome::forget_published(const Event& gone) {
  const auto found = std::ranges::find(publishing_, &gone, &Publication::gone);
  TERRACE_ASSERT(found != publishing_.end() && gone.done(), "what is forgotten was published, and is done");
  if (publishing_failure_ == nullptr) publishing_failure_ = gone.failure();
  if (found->writing != nullptr) free_writings_.push_back(found->writing);
  publishing_.erase(found);
}

void ParamHome::forget_published() {
  while (!publishing_.empty()) forget_published(*publishing_.front().gone);
  publishing_failure_ = nullptr;
}

void ParamHome::wait_published(const Event& gone, io::Engine* engine) {
  while (engine != nullptr && !gone.done() && engine->in_flight() > 0)
    wait_watched(*engine, watch_, publication_subject());
  wait_done_watched(gone, watch_, publication_subject());
}

void ParamHome::finish_publishing(io::Engine* engine) {
  for (const Publication& publication : publishing_) wait_published(*publication.gone, engine);
  while (!publishing_.empty()) forget_published(*publishing_.front().gone);
  if (publishing_failure_ != nullptr) std::rethrow_exception(std::exchange(publishing_failure_, nullptr));
}

void ParamHome::submit_write(Writing::Block& block) {
  block.write.request.on_complete = &ParamHome::on_written;
  block.write.request.context = &block;
  block.write.request.tag = block.of->tag;
  std::atomic_ref(block.pending).store(true, std::memory_order_relaxed);
  block.of->engine->submit({&block.write.request, 1});
}

void ParamHome::on_written(void* context, const io::Completion& completion) noexcept {
  Writing::Block& block = *static_cast<Writing::Block*>(context);
  Writing& writing = *block.of;
  BlockStore& store = writing.home->store_of(writing.chunk);
  std::atomic_ref(block.pending).store(false, std::memory_order_relaxed);
  const BlockStore::WriteEnd end = store.end_write(block.write, completion);
  if (end == BlockStore::WriteEnd::again) return submit_write(block);
  std::exception_ptr failure;
  if (end == BlockStore::WriteEnd::failed)
    failure = std::make_exception_ptr(store.io_error(block.write.request, completion));
  writing.written.complete_one(std::move(failure));
}

void ParamHome::begin_write(Writing::Block& block, std::span<const std::byte> source) {
  const ChunkId chunk = block.of->chunk;
  BlockStore& store = store_of(chunk);
  if (committer_ == nullptr || &store == frozen_) {
    const bool begun = store.begin_write(chunk, block.block, source, block.write);
    TERRACE_ASSERT(begun, "no slot is free for a block of parameters");
    return;
  }
  while (!committer_->begin_write(EpochPart::parameters, *block.of->engine, chunk, block.block, source,
                                  block.write, [] {}))
    wait_watched(*block.of->engine, watch_, publication_subject());
}

}  // namespace terrace
