#include <terrace/offload/step/open_leases.h>

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include <terrace/base/assert.h>
#include <terrace/base/error.h>
#include <terrace/offload/plan/use_trace.h>

namespace terrace {
namespace {

// What a tensor was used for, where it was used for both.
UseKind stronger(UseKind one, UseKind other) {
  if (one == UseKind::backward || other == UseKind::backward) return UseKind::backward;
  return one == UseKind::forward ? one : other;
}

}  // namespace

OpenLeases::OpenLeases(const FlatSpace& space) : space_(space), leases_(space.tensor_count()) {}

void OpenLeases::require_distinct(std::string_view operation, std::span<const TensorId> tensors,
                                  uint64_t number) {
  const auto refuse = [&](std::string reason, const char* advice) {
    throw Error(ErrorKind::misuse,
                {"cannot lease tensors to", std::string(operation), std::move(reason), advice});
  };
  for (const TensorId tensor : tensors) {
    if (index_of(tensor) >= space_.tensor_count())
      refuse(fmt::format("there is no tensor {}: {} were described", index_of(tensor), space_.tensor_count()),
             "count tensors from 0 in the order of their description");
    uint64_t& last_use = leases_[index_of(tensor)].last_use;
    if (last_use == number)
      refuse(fmt::format("it names {} twice", space_.tensor(tensor).name), "name each tensor once");
    last_use = number;
  }
}

OpenUse& OpenLeases::begin(std::string_view operation, std::span<const TensorId> tensors, UseKind kind) {
  require_distinct(operation, tensors, ++count_);
  if (spare_.empty()) spare_.push_back(std::make_unique<OpenUse>());
  OpenUse& use = *open_.emplace_back(std::move(spare_.back()));
  spare_.pop_back();
  use.number = count_;
  use.operation = operation;
  use.kind = kind;
  use.tensors.assign(tensors.begin(), tensors.end());
  use.chunks_found = {};
  use.event.reset();
  collect_chunks(space_, use.tensors, use.chunks);
  for (const TensorId tensor : use.tensors) {
    TensorLeases& leases = leases_[index_of(tensor)];
    leases.kind = leases.count == 0 ? kind : stronger(leases.kind, kind);
    leases.count += 1;
    leases.backward_count += kind == UseKind::backward ? 1 : 0;
  }
  collect_open_chunks();
  return use;
}

void OpenLeases::end(OpenUse& use) {
  const auto found = std::ranges::find(open_, &use, &std::unique_ptr<OpenUse>::get);
  TERRACE_ASSERT(found != open_.end(), "an open use is ended once");
  released_.clear();
  for (const TensorId tensor : use.tensors) {
    TensorLeases& leases = leases_[index_of(tensor)];
    leases.backward_count -= use.kind == UseKind::backward ? 1 : 0;
    if (--leases.count == 0) released_.push_back({tensor, leases.kind});
  }
  spare_.push_back(std::move(*found));
  open_.erase(found);
  collect_open_chunks();
}

OpenUse* OpenLeases::find(uint64_t number) {
  const auto found = std::ranges::find(open_, number, [](const auto& use) { return use->number; });
  return found == open_.end() ? nullptr : found->get();
}

void OpenLeases::collect_open_chunks() {
  chunks_.clear();
  if (open_.size() < 2) return;
  for (const std::unique_ptr<OpenUse>& use : open_)
    chunks_.insert(chunks_.end(), use->chunks.begin(), use->chunks.end());
  std::ranges::sort(chunks_);
  chunks_.erase(std::unique(chunks_.begin(), chunks_.end()), chunks_.end());
}

}  // namespace terrace
