#include <terrace/offload/update/read_order.h>

#include <terrace/base/assert.h>

namespace terrace {
namespace {

bool comes_before(const ReadOrder::Item& a, const ReadOrder::Item& b) {
  return a.turn < b.turn || (a.turn == b.turn && a.block < b.block);
}

}  // namespace

ReadOrder::ReadOrder(const BlockStore* store, std::span<const ChunkId> chunks) : store_(store) {
  if (store == nullptr) return;
  size_t count = 0;
  for (const ChunkId chunk : chunks) count += store->block_count(chunk);
  chunks_.reserve(chunks.size());
  items_.resize(count);
  runs_.resize(store->balancer().path_count());
}

void ReadOrder::begin(bool chunk_by_chunk) {
  chunks_.clear();
  chunk_by_chunk_ = chunk_by_chunk;
  next_chunk_ = 0;
  in_items_ = 0;
  left_ = 0;
}

void ReadOrder::add(ChunkId chunk) {
  TERRACE_ASSERT(store_ != nullptr && chunks_.size() < chunks_.capacity(),
                 "blocks lie in a store, once each");
  chunks_.push_back(chunk);
  left_ += store_->block_count(chunk);
}

// Sorts blocks by their paths by counting: first the number on each path, then each block behind those before
// it.
void ReadOrder::fill() {
  const size_t first = next_chunk_;
  next_chunk_ = chunk_by_chunk_ ? first + 1 : chunks_.size();
  for (Run& run : runs_) run = {};
  const auto for_each_block = [&](auto body) {
    for (size_t c = first; c < next_chunk_; ++c) {
      for (uint32_t block = 0; block < store_->block_count(chunks_[c]); ++block)
        body(Item{chunks_[c], block, static_cast<uint32_t>(c)},
             runs_[store_->path_index_of(chunks_[c], block)]);
    }
  };
  for_each_block([](const Item&, Run& run) { ++run.end; });
  uint32_t begin = 0;
  for (Run& run : runs_) {
    const uint32_t count = run.end;
    run = {begin, begin};
    begin += count;
  }
  for_each_block([this](const Item& item, Run& run) { items_[run.end++] = item; });
  in_items_ = begin;
}

ReadOrder::Item ReadOrder::take() {
  TERRACE_ASSERT(left_ > 0, "every block was taken");
  while (in_items_ == 0) fill();
  const PathBalancer& balancer = store_->balancer();
  Run* best = nullptr;
  double best_ns = 0;
  for (uint32_t path = 0; path < runs_.size(); ++path) {
    Run& run = runs_[path];
    if (run.next == run.end) continue;
    const double backlog_ns = balancer.backlog_ns(path);
    const bool better = best == nullptr || backlog_ns < best_ns ||
                        (backlog_ns == best_ns && comes_before(items_[run.next], items_[best->next]));
    if (!better) continue;
    best = &run;
    best_ns = backlog_ns;
  }
  --in_items_;
  --left_;
  return items_[best->next++];
}

}  // namespace terrace
