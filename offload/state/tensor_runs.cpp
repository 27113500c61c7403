#include <terrace/offload/state/tensor_runs.h>

#include <cstring>
#include <vector>

namespace terrace {

void share_elements(const RunContext& run, TensorId tensor, uint64_t first, std::span<std::byte> elements,
                    uint64_t element_bytes) {
  Communicator* const ranks = run.options.hooks.communicator;
  if (ranks == nullptr) return;
  const uint64_t count = elements.size() / element_bytes;
  std::vector<std::byte> packed(elements.size());  // the parts of all ranks, one behind the other
  std::vector<CommPart> from(ranks->size());
  uint64_t at = 0;
  for (uint32_t rank = 0; rank < ranks->size(); ++rank) {
    from[rank].memory = packed.data() + at;
    for_each_run(run.shards, rank, tensor, first, count, [&](const TensorRun& part) {
      const uint64_t bytes = part.count * element_bytes;
      if (rank == ranks->rank())
        std::memcpy(packed.data() + at, elements.data() + part.at * element_bytes, bytes);
      from[rank].bytes += bytes;
      at += bytes;
    });
  }
  const std::vector<CommPart> to(ranks->size(), from[ranks->rank()]);
  Event arrived;
  arrived.begin();
  ranks->exchange(Lane::gather, to, from, nullptr, arrived, {"values", index_of(tensor), first});
  wait_watched(arrived, run.watch, word_of_ranks("values"));
  at = 0;
  for (uint32_t rank = 0; rank < ranks->size(); ++rank) {
    for_each_run(run.shards, rank, tensor, first, count, [&](const TensorRun& part) {
      const uint64_t bytes = part.count * element_bytes;
      std::memcpy(elements.data() + part.at * element_bytes, packed.data() + at, bytes);
      at += bytes;
    });
  }
}

}  // namespace terrace
