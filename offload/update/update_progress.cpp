#include <terrace/offload/update/update_progress.h>

#include <utility>

namespace terrace {

UpdateProgress::UpdateProgress(uint32_t chunk_count)
    : updated_(std::make_unique<Event[]>(chunk_count)), times_(chunk_count) {
  order_.reserve(chunk_count);
  last_times_.reserve(chunk_count);
}

void UpdateProgress::begin(ChunkId chunk) {
  times_[index_of(chunk)] = {.chunk = chunk};
  order_.push_back(chunk);
  updated_[index_of(chunk)].begin();
}

void UpdateProgress::note_needed(ChunkId chunk) {
  ChunkTimes& times = times_[index_of(chunk)];
  if (times.needed_ns == 0) times.needed_ns = clock_.now_ns();
}

void UpdateProgress::end_update() {
  last_times_.clear();
  for (const ChunkId chunk : order_) last_times_.push_back(times_[index_of(chunk)]);
}

void UpdateProgress::complete(ChunkId chunk, std::exception_ptr failure) {
  if (failure == nullptr) times_[index_of(chunk)].updated_ns = clock_.now_ns();
  if (on_completion_) on_completion_(chunk, failure);
  updated_[index_of(chunk)].complete_one(std::move(failure));
}

}  // namespace terrace
