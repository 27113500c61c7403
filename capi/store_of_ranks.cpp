#include <terrace/capi/store_of_ranks.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <exception>
#include <map>
#include <optional>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <terrace/base/checksum.h>
#include <terrace/base/function_ref.h>
#include <terrace/capi/errors.h>
#include <terrace/capi/found_commits.h>
#include <terrace/capi/limits.h>
#include <terrace/capi/ranks.h>
#include <terrace/capi/structs.h>
#include <terrace/comm/agreement/rank_agreement.h>
#include <terrace/comm/agreement/rank_places.h>
#include <terrace/comm/agreement/rank_votes.h>
#include <terrace/memory/space/flat_space.h>
#include <terrace/offload/plan/memory_plan.h>
#include <terrace/runtime/config/nccl_choice.h>
#include <terrace/runtime/ranks/host_share.h>
#include <terrace/runtime/ranks/nccl_exchange.h>

namespace terrace::c {
namespace {

using Facts = std::map<std::string, std::string>;

// What a rank failed with, as the others are told; empty: with nothing.
using FailureWords = std::array<char, 512>;

FailureWords words_of(const Error& failure) {
  const std::string text = failure.without_advice();
  FailureWords words{};
  std::copy_n(text.begin(), std::min(text.size(), words.size() - 1), words.begin());
  return words;
}

[[noreturn]] void refuse_for_another(std::span<const FailureWords> all, const Subject& action) {
  std::vector<uint32_t> failed;
  for (uint32_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].front() != 0) failed.push_back(rank);
  }
  refuse(ErrorKind::peer, action, text_of_ranks(failed), all[failed.front()].data(),
         "do there what its own error says");
}

// Does something on every rank. Either all of them have done it, or it fails on all: on the one that cannot
// with its own failure, and on the others with Error(peer) that names that one.
void on_all(terrace_ranks& ranks, const Subject& action, FunctionRef<void()> act) {
  std::exception_ptr failure;
  FailureWords mine{};
  try {
    act();
  } catch (const Error& error) {
    failure = std::current_exception();
    mine = words_of(error);
  }
  const WatchedWait wait(*ranks.watch, word_of_ranks("how the others make their shares"));
  const std::vector<FailureWords> all = RankVotes(ranks.ranks.communicator()).of_all(mine);
  if (failure != nullptr) std::rethrow_exception(failure);
  if (std::ranges::any_of(all, [](const FailureWords& one) { return one.front() != 0; }))
    refuse_for_another(all, action);
}

std::string text_of_tensor(const TensorSpec& spec, size_t number) {
  return fmt::format("number {}, {} {}, {}{}{}, group {}, {} backward uses", number, name_of(spec.type),
                     spec.shape, spec.trainable ? "trained" : "frozen", spec.by_matrix ? " by matrix" : "",
                     spec.counted_elsewhere ? " counted elsewhere" : "", spec.group, spec.backward_uses);
}

// Of uses that are announced.
std::string text_of_trace(std::span<const TensorUse> trace) {
  if (trace.empty()) return "none";
  std::string text;
  for (const TensorUse& use : trace) {
    text +=
        fmt::format("{}\n{} {} {}", use.operation, static_cast<int>(use.kind), use.micro_batch, use.encloses);
    for (const TensorId tensor : use.tensors) text += fmt::format(" {}", index_of(tensor));
  }
  return fmt::format("{} uses, {:016x}", trace.size(), checksum_of(std::as_bytes(std::span(text))));
}

Facts facts_of(const Request& request) {
  const OffloadOptions& options = request.options;
  Facts facts{{"parameters", std::string(name_of(options.parameters))},
              {"states", std::string(name_of(options.states))},
              {"update_when", std::string(name_of(request.update_mode))},
              {"rank_exchange", options.rank_exchange == RankExchange::pulled ? "pulled" : "symmetric"},
              {"optimizer", text_of(options.record_layout)},
              {"accumulation_type", std::string(name_of(options.accumulation_type))},
              {"uses", text_of_trace(request.trace)},
              {"tensors", std::to_string(request.tensors.size())}};
  const auto number = [&](const char* name, uint64_t value) { facts[name] = std::to_string(value); };
  number("accumulation_steps", rounds_of(options).count());
  number("gradients", static_cast<uint64_t>(options.gradients));
  number("unused_gradients", static_cast<uint64_t>(options.unused_gradients));
  number("layer_major", options.layer_major ? 1 : 0);
  number("divide_parameters", options.divides_parameters ? 1 : 0);
  number("work_bytes", options.work_bytes);
  number("chunk_elements", request.chunk_elements);
  number("durable", options.durable ? 1 : 0);
  number("retained_commits", options.retained_commits);
  number("resume", options.tier_start == TierStart::resume ? 1 : 0);
  number("discard_commits", options.discard_commits ? 1 : 0);
  number("no_checksums", options.verify_checksums ? 0 : 1);
  number("a GPU", options.exchanges_by_copies ? 1 : 0);
  number("NCCL", gather_on_devices(options) ? 1 : 0);
  for (size_t t = 0; t < request.tensors.size(); ++t)
    facts["tensor " + request.tensors[t].name] = text_of_tensor(request.tensors[t], t);
  return facts;
}

// Budgets are the least of all, chunks those of the first, and the processors of a host are divided by its
// ranks.
void settle_together(const RankVotes& votes, Request& request) {
  OffloadOptions& options = request.options;
  options.device_budget_bytes = votes.least(options.device_budget_bytes);
  options.host_budget_bytes = votes.least(options.host_budget_bytes);
  TerraceConfig processors;
  processors.thread_count = request.threads;
  processors.bind_threads = false;
  take_processors_of_rank(*options.hooks.communicator, processors);
  request.threads = processors.thread_count;
}

// What fails here may fail within an exchange, so that nothing can be asked of the others any more.
std::unique_ptr<terrace_store> made_together(terrace_ranks& ranks, const RankVotes& votes,
                                             const Request& request) {
  try {
    auto store = std::make_unique<terrace_store>(request);
    votes.any(false);  // all have one
    return store;
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::peer) ranks.leave(error.in(Door::c));
    throw;
  }
}

// The ranks, where they are several.
terrace_ranks* met(terrace_ranks* ranks, const Subject& action) {
  if (ranks == nullptr) return nullptr;
  if (ranks->forks != forks())
    misuse(action, "ranks", "this process was forked after they joined", "use them where they joined");
  return ranks->ranks.communicator() != nullptr ? ranks : nullptr;
}

}  // namespace

terrace_ranks* ranks_of(const RequestArguments& arguments, const Subject& action) {
  return met(taken(arguments.options, action, "options").ranks, action);
}

void read_ranks(const terrace_options& given, Request& request, const Subject& action) {
  OffloadOptions& options = request.options;
  options.divides_parameters = given.divide_parameters != 0;
  require_enum(given.rank_exchange, 2, action, Option::rank_exchange);
  options.rank_exchange = static_cast<RankExchange>(given.rank_exchange);
  request.model_ranks = met(given.model_ranks, action);
  if (request.model_ranks != nullptr) options.hooks.model_ranks = request.model_ranks->ranks.communicator();
  request.ranks = met(given.ranks, action);
  if (request.ranks == nullptr) return;
  if (request.ranks == request.model_ranks)
    misuse(action, "model_ranks", "they are the ranks that the store is divided over",
           "leave them NULL where the store has the whole model");
  Communicator& communicator = *request.ranks->ranks.communicator();
  options.hooks.communicator = &communicator;
  options.rank = communicator.rank();
  options.ranks = communicator.size();
  if (const std::optional<HostLayout> layout = layout_of(communicator.places()))
    options.hosts = layout->hosts;
}

void choose_ways_of_ranks(bool is_cuda, Request& request) {
  OffloadOptions& options = request.options;
  if (options.ranks == 1) return;
  options.exchanges_by_copies = is_cuda;
  options.gathers_by_copies = is_cuda && !request.ranks->gathers_by_nccl;
  if (request.ranks->gathers_by_nccl) require_nccl_possible({is_cuda, options.hosts, options.rank_exchange});
}

std::unique_ptr<terrace_store> create_together(terrace_ranks& ranks, const RequestArguments& arguments,
                                               const Subject& action) {
  try {
    const RankVotes votes(ranks.ranks.communicator());
    std::optional<Request> request;
    on_all(ranks, action, [&] {
      ranks.require_no_store(action);
      request.emplace(read_request(arguments, action));
    });
    require_agreement(*ranks.ranks.communicator(), facts_of(*request));
    settle_together(votes, *request);
    settle_start(*request);
    on_all(ranks, action, [&] { settle_chunk_elements(*request); });
    request->chunk_elements = votes.of_first(request->chunk_elements);
    on_all(ranks, action, [&] {
      const FlatSpace space(request->tensors, request->chunk_elements);
      plan_memory(space, request->trace, request->options);
    });
    if (ranks.gathers_by_nccl) {
      const NcclMoves moves =
          exchange_on_devices(request->options) ? NcclMoves::parameters_and_gradients : NcclMoves::parameters;
      request->nccl =
          std::make_shared<NcclExchange>(ranks.ranks, request->device->ordinal, moves, ranks.program.log());
      request->options.hooks.communicator = &request->nccl->communicator();
    }
    return made_together(ranks, votes, *request);
  } catch (const Error& error) {
    ranks.throw_death_behind(error);
    throw;
  }
}

}  // namespace terrace::c
