#include <terrace/offload/gradients/gradients_below_device.h>

#include <fmt/format.h>

#include <utility>

#include <terrace/base/assert.h>

namespace terrace {
namespace {

// The address of a chunk's first element, if a part of its gradient were where the whole one is. It is only
// ever used with the part's place added to it.
const std::byte* before(const std::byte* part, uint64_t bytes) {
  return reinterpret_cast<const std::byte*>(reinterpret_cast<uintptr_t>(part) - bytes);
}

}  // namespace

GradientsBelowDevice::GradientsBelowDevice(const FlatSpace& space, Device& device, DeviceCache& cache,
                                           std::unique_ptr<GradientArithmetic> arithmetic, Places places)
    : GradientStore(std::move(arithmetic), std::move(places.landing)),
      space_(space),
      device_(device),
      cache_(cache),
      slots_(std::move(places.slots)),
      spilled_(places.spilled) {}

std::byte* GradientsBelowDevice::gradient(ChunkId chunk) {
  if (!is_held(chunk)) return spilled_->opened(chunk);
  TERRACE_ASSERT(space_.section_of(chunk).trainable,
                 fmt::format("chunk {} is frozen and has no gradient", index_of(chunk)));
  return slots_[index_of(chunk)];
}

bool GradientsBelowDevice::start_open(ChunkId chunk, io::Engine& engine) {
  return is_held(chunk) ? sums().is_complete(chunk) : spilled_->start_open(chunk, engine);
}

bool GradientsBelowDevice::is_open(ChunkId chunk) const {
  return is_held(chunk) ? sums().is_complete(chunk) : spilled_->is_open(chunk);
}

void GradientsBelowDevice::release(ChunkId chunk) {
  sums().forget(chunk);
  if (!is_held(chunk)) spilled_->release(chunk);
}

std::optional<WaitSubject> GradientsBelowDevice::opening_subject() const {
  return spilled_ != nullptr ? spilled_->opening_subject() : std::nullopt;
}

bool GradientsBelowDevice::is_complete(ChunkId chunk) const {
  return is_held(chunk) ? sums().is_complete(chunk) : spilled_->is_written(chunk);
}

void GradientsBelowDevice::make_place(const GradientLanding& landing) {
  if (is_held(landing.chunk)) return;
  if (spilled_->is_filling(landing.chunk)) return;  // the chunk has kept its slot since it last landed
  if (const std::optional<ChunkId> before = spilled_->filling_next()) {
    finish_landing(*before);
    if (spilled_->is_filling(*before)) spilled_->write(*before);
  }
  spilled_->begin(landing.chunk, !landing.begins);
}

std::byte* GradientsBelowDevice::place(ChunkId chunk) {
  if (is_held(chunk)) return slots_[index_of(chunk)];
  spilled_->wait_old(chunk);
  return spilled_->landing(chunk);
}

void GradientsBelowDevice::put_away(ChunkId chunk) {
  if (!is_held(chunk)) spilled_->write(chunk);
}

void GradientsBelowDevice::put_all_away(bool ends_step) {
  if (spilled_ == nullptr) return;
  while (const std::optional<ChunkId> filling = spilled_->filling()) spilled_->write(*filling);
  if (ends_step) spilled_->finish_writes();
}

CacheSlot& GradientsBelowDevice::copy_out(ChunkId chunk, std::span<const GradientRun> runs, std::byte* to) {
  const uint64_t element_bytes = bytes_of(space_.section_of(chunk).type);
  CacheSlot& slot = cache_.release_gradient(chunk);
  slot.out.begin(to_host_copy("gradients", chunk), static_cast<uint32_t>(runs.size()));
  for (const GradientRun& run : runs) {
    const uint64_t offset = run.first_element * element_bytes, bytes = run.element_count * element_bytes;
    d2h_bytes_ += bytes;
    device_.copy_to_host(
        to + offset, slot.id, offset, bytes, nullptr, slot.out,
        from_device_note(cache_.watch().events(), TransferRole::grad, TransferReason::step, index_of(chunk)));
  }
  return slot;
}

// The padding lands first, because the landing of the part may complete the chunk.
void GradientsBelowDevice::land_from(const GradientLanding& landing, const HandedPart& part,
                                     const EvictionContext&) {
  const GradientRun& run = landing.runs.front();
  sums().forget(landing.chunk);
  make_place(landing);
  std::byte* const to = place(landing.chunk);
  GradientRun padding = run, handed = run;
  handed.element_count = part.element_count;
  padding.first_element = handed.end();
  padding.element_count -= part.element_count;
  padding.open_group = 0;  // no gradient of it has ever been in a group
  GradientLanding piece = landing;
  if (padding.element_count > 0) {
    piece.runs = {&padding, 1};
    piece.ends = false;
    arithmetic_->add(piece, to, nullptr, takes_sums(landing));
  }
  piece.runs = {&handed, 1};
  piece.ends = landing.ends;
  const uint64_t element_bytes = bytes_of(space_.section_of(landing.chunk).type);
  arithmetic_->add(piece, to, before(part.gradient, run.first_element * element_bytes), takes_sums(landing));
  if (leaves_after(landing)) put_away(landing.chunk);
}

std::byte* GradientsBelowDevice::slot_below(ChunkId chunk) const {
  return is_held(chunk) ? slots_[index_of(chunk)] : spilled_->spare_slot();
}

}  // namespace terrace
