// The part of OptimizerPipeline for chunks that are updated on the device.
#include <terrace/offload/update/optimizer_pipeline.h>

#include <algorithm>

namespace terrace {

// Sends as much as the lanes take. Blocks from nvme go first, because others wait for their memory.
void OptimizerPipeline::send_to_device() {
  while (sides_.lanes->has_room() && send_block()) {
  }
  while (sides_.lanes->has_room() && send_resident(false)) {
  }
}

bool OptimizerPipeline::send_block() {
  const auto is_next = [this](ChunkId chunk) { return is_open(chunk) && is_on_device(chunk); };
  RecordStream::Block* const block = stream_.take_ready(is_next);
  if (block == nullptr) return false;
  send_run(block->chunk, block->first_tile, block->tile_count, stream_.tiles_of(*block).data(), block);
  return true;
}

// Sends the next run of a chunk's resident records.
bool OptimizerPipeline::send_resident(bool may_wait) {
  if (!sending_) {
    const std::optional<ChunkId> next = resident_for_device(may_wait);
    if (!next) return false;
    sending_ = Resident{*next};
  }
  const ChunkId chunk = sending_->chunk;
  const uint64_t first = sending_->next_tile;
  const uint64_t tiles = shards_.own(chunk).tile_count;
  const uint64_t count = std::min(sides_.lanes->run_tiles(), tiles - first);
  send_run(chunk, first, count, records_.resident(chunk) + first * tile_bytes_, nullptr);
  sending_->next_tile += count;
  if (sending_->next_tile == tiles) sending_.reset();
  return true;
}

// `may_wait`: a chunk that a commit must write first may be returned.
std::optional<ChunkId> OptimizerPipeline::resident_for_device(bool may_wait) {
  for (size_t i = turn_; i < opened_; ++i) {
    const ChunkId chunk = order_[i];
    if (!is_on_device(chunk) || records_.is_streamed(chunk) || tiles_sent_[index_of(chunk)] > 0) continue;
    if (!is_open(chunk)) continue;
    if (may_wait || records_.may_change(chunk)) return chunk;
    return std::nullopt;  // the commit writes this chunk next
  }
  return std::nullopt;
}

void OptimizerPipeline::send_run(ChunkId chunk, uint64_t first_tile, uint64_t tile_count, std::byte* records,
                                 RecordStream::Block* block) {
  LaneRun run;
  run.chunk = chunk;
  run.first_tile = first_tile;
  run.tile_count = tile_count;
  run.records = records;
  run.gradients = tiles_.gradients_of(chunk, first_tile);
  run.block = block;
  if (tiles_sent_[index_of(chunk)] == 0) {
    before_change(chunk);
    if (is_made_in_slot(chunk)) run_.device->pin_param(chunk);
    if (is_made_in_slot(chunk)) run_.device->attach_param(chunk);
  }
  if (is_made_there(chunk)) {
    std::byte* const own = is_made_in_slot(chunk)
                               ? run_.device->param_address(chunk) + shards_.first_param_byte(chunk)
                               : home_.device_shares()->of(chunk);
    run.there = own + first_tile * tiles_.parameter_tile_bytes(chunk);
  } else {
    run.old = tiles_.old_parameters_of(chunk, first_tile);
    run.fresh = tiles_.output_of(chunk, first_tile);
  }
  tiles_sent_[index_of(chunk)] += tile_count;
  sides_.lanes->send(run);
}

void OptimizerPipeline::take_back() {
  while (const std::optional<LaneRun> run = sides_.lanes->take_back()) {
    if (run->block != nullptr) {
      while (!stream_.write(*run->block)) wait_for_io();
    }
    tiles_done(run->chunk, run->tile_count);
  }
}

// The lanes finish even after a failure, because they use the memory of the runs that were sent.
void OptimizerPipeline::end_sending() {
  sides_.lanes->finish();
  sending_.reset();
  for (const ChunkId chunk : order_) {
    const bool begun = is_made_in_slot(chunk) && tiles_sent_[index_of(chunk)] > 0;
    if (begun && !is_done(chunk)) run_.device->unpin_param(chunk);
  }
}

}  // namespace terrace
