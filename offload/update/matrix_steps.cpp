#include <terrace/offload/update/matrix_steps.h>

#include <algorithm>
#include <array>
#include <cstring>

#include <terrace/offload/watch/step_watch.h>

namespace terrace {
namespace {

constexpr std::string_view kExchanged = "steps of matrices";

uint64_t bytes_of_elements(uint64_t elements) {
  return elements * sizeof(Bf16);
}

}  // namespace

MatrixSteps::MatrixSteps(const RunContext& run, HostArena& arena)
    : run_(run),
      groups_(run.space, run.options.ranks),
      first_at_(run.space.tensor_count()),
      group_of_(run.space.tensor_count()),
      place_in_owned_(run.space.tensor_count()) {
  if (groups_.empty()) return;
  newton_schulz_.emplace(run.workers, run.instruction_set, run.options.matrix_products);
  const uint64_t own_bytes = bytes_of_elements(groups_.most_own_elements());
  std::array<std::byte*, 2> own{};
  for (std::byte*& memory : own) memory = arena.take(own_bytes, "steps of matrices").data();
  if (run.options.ranks > 1)
    owned_ = arena.take(bytes_of_elements(groups_.most_owned_elements()), "matrices of other ranks");
  work_ = arena.take(groups_.work_bytes(), "products of matrices");
  size_t most_exchanges = 0;
  for (size_t g = 0; g < groups().size(); ++g) {
    place(groups()[g], own[g % own.size()]);
    size_t exchanges = 0;
    for (const MatrixOfGroup& matrix : groups()[g].matrices) {
      group_of_[index_of(matrix.tensor)] = static_cast<uint32_t>(g);
      exchanges += chunks_of(matrix);
    }
    most_exchanges = std::max(most_exchanges, exchanges);
  }
  if (run.options.ranks == 1) return;
  for (size_t e = 0; e < most_exchanges; ++e) {
    exchanges_.push_back(std::make_unique<Exchange>());
    exchanges_.back()->to.resize(run.options.ranks);
    exchanges_.back()->from.resize(run.options.ranks);
  }
}

MatrixSteps::~MatrixSteps() {
  for (const std::unique_ptr<Exchange>& exchange : exchanges_) exchange->done.wait_done();
}

// The elements of a matrix lie one behind the other, so that one rank has it as a whole.
void MatrixSteps::place(const MatrixGroup& group, std::byte* own) {
  uint64_t place = 0, place_in_owned = 0;
  for (const MatrixOfGroup& matrix : group.matrices) {
    first_at_[index_of(matrix.tensor)] = static_cast<uint32_t>(at_.size());
    for (uint32_t c = 0; c < chunks_of(matrix); ++c) {
      at_.push_back(reinterpret_cast<Bf16*>(own + bytes_of_elements(place)));
      place += part_of(matrix, c, run_.options.rank).elements;
    }
    place_in_owned_[index_of(matrix.tensor)] = place_in_owned;
    if (matrix.owner == run_.options.rank) place_in_owned += matrix.elements();
  }
}

Bf16* MatrixSteps::at(TensorId tensor, ChunkId chunk) const {
  return at_[first_at_[index_of(tensor)] + index_of(chunk) - run_.space.place(tensor).first_chunk];
}

Bf16* MatrixSteps::whole(const MatrixOfGroup& matrix) const {
  if (run_.options.ranks == 1) return at_[first_at_[index_of(matrix.tensor)]];
  return reinterpret_cast<Bf16*>(owned_.data() + bytes_of_elements(place_in_owned_[index_of(matrix.tensor)]));
}

void MatrixSteps::make(const MatrixGroup& group,
                       FunctionRef<const OptimizerSettings*(TensorId)> settings_of) {
  exchange(group, Way::to_owners);
  for (const MatrixOfGroup& matrix : group.matrices) {
    const OptimizerSettings* const settings = settings_of(matrix.tensor);
    if (run_.options.dry || settings == nullptr || matrix.owner != run_.options.rank) continue;
    newton_schulz_->run({matrix.rows, matrix.columns}, *settings, whole(matrix), work_);
  }
  exchange(group, Way::from_owners);
}

void MatrixSteps::exchange(const MatrixGroup& group, Way way) {
  if (run_.options.ranks == 1) return;
  size_t started = 0;
  for (const MatrixOfGroup& matrix : group.matrices) {
    for (uint32_t c = 0; c < chunks_of(matrix); ++c) start(*exchanges_[started++], matrix, c, way);
  }
  if (!run_.options.dry) copy_own(group, way);
  for (size_t e = 0; e < started; ++e) {
    WaitSubject subject = word_of_ranks(kExchanged);
    subject.of_ranks = RankWait::exchange;
    wait_watched(exchanges_[e]->done, run_.watch, subject);
  }
}

void MatrixSteps::start(Exchange& exchange, const MatrixOfGroup& matrix, uint32_t chunk, Way way) {
  const uint32_t me = run_.options.rank;
  std::ranges::fill(exchange.to, CommPart{});
  std::ranges::fill(exchange.from, CommPart{});
  std::vector<CommPart>& at_owner = way == Way::to_owners ? exchange.from : exchange.to;
  std::vector<CommPart>& at_others = way == Way::to_owners ? exchange.to : exchange.from;
  const uint32_t tensor_chunk = run_.space.place(matrix.tensor).first_chunk + chunk;
  if (matrix.owner == me) {
    for (uint32_t rank = 0; rank < run_.options.ranks; ++rank) {
      const MatrixPart part = part_of(matrix, chunk, rank);
      if (rank == me) continue;
      at_owner[rank] = {reinterpret_cast<std::byte*>(whole(matrix) + part.first_in_tensor),
                        bytes_of_elements(part.elements)};
    }
  } else {
    at_others[matrix.owner] = {reinterpret_cast<std::byte*>(at(matrix.tensor, ChunkId{tensor_chunk})),
                               bytes_of_elements(part_of(matrix, chunk, me).elements)};
  }
  for (uint32_t rank = 0; rank < run_.options.ranks; ++rank)
    count(exchange.to[rank], exchange.from[rank], rank);
  exchange.done.begin();
  const CommNote note{kExchanged, tensor_chunk, exchanged_++,
                      exchanged_note(run_.watch.events(), tensor_chunk)};
  run_.options.hooks.communicator->exchange(Lane::exchange, exchange.to, exchange.from, nullptr,
                                            exchange.done, note);
}

void MatrixSteps::count(const CommPart& to, const CommPart& from, uint32_t rank) {
  moved_.in += from.bytes;
  moved_.out += to.bytes;
  const HostLayout hosts{run_.options.ranks, run_.options.hosts};
  if (hosts.host_of(rank) == hosts.host_of(run_.options.rank)) return;
  moved_.between_in += from.bytes;
  moved_.between_out += to.bytes;
}

void MatrixSteps::copy_own(const MatrixGroup& group, Way way) {
  for (const MatrixOfGroup& matrix : group.matrices) {
    if (matrix.owner != run_.options.rank) continue;
    for (uint32_t c = 0; c < chunks_of(matrix); ++c) {
      const MatrixPart part = part_of(matrix, c, run_.options.rank);
      Bf16* const own = at_[first_at_[index_of(matrix.tensor)] + c];
      Bf16* const there = whole(matrix) + part.first_in_tensor;
      const bool brings = way == Way::to_owners;
      std::memcpy(brings ? there : own, brings ? own : there, bytes_of_elements(part.elements));
    }
  }
}

}  // namespace terrace
