#include <terrace/aio/engines/fault_plan.h>

#include <unistd.h>

#include <algorithm>
#include <array>
#include <climits>
#include <filesystem>
#include <utility>

#include <terrace/base/assert.h>

namespace terrace::io {
namespace {

// SplitMix64: a bijection that mixes well.
uint64_t mix(uint64_t value) {
  value += 0x9e3779b97f4a7c15u;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9u;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebu;
  return value ^ (value >> 31);
}

// Asked anew for every transfer, since a number is used again by the next file that is opened.
std::string path_of_descriptor(int fd) {
  std::array<char, PATH_MAX> path;
  const ssize_t size = readlink(("/proc/self/fd/" + std::to_string(fd)).c_str(), path.data(), path.size());
  return size > 0 ? std::string(path.data(), static_cast<size_t>(size)) : std::string();
}

bool lies_at_or_below(const std::string& path, const std::string& folder) {
  return path.starts_with(folder) && (path.size() == folder.size() || path[folder.size()] == '/');
}

// What the kernel calls it.
std::string resolved(const std::string& path) {
  std::string text = std::filesystem::weakly_canonical(std::filesystem::absolute(path)).string();
  while (text.ends_with('/')) text.pop_back();
  return text;
}

}  // namespace

FaultTime real_time() {
  static const SteadyClock clock;
  return FaultTime{&clock, nullptr};
}

void FaultEffects::flip(std::byte* data, uint64_t bytes) const {
  if (flipped_byte && *flipped_byte < bytes) data[*flipped_byte] ^= std::byte{1};
}

FaultPlan::FaultPlan(std::vector<Fault> faults, FaultTime time)
    : faults_(std::move(faults)),
      time_(std::move(time)),
      start_ns_(time_.clock->now_ns()),
      states_(faults_.size()) {
  for (Fault& fault : faults_) {
    TERRACE_ASSERT(fault.every > 0, "every 0th transfer is none");
    TERRACE_ASSERT(fault.kind != FaultKind::rate_limit || fault.bytes_per_second > 0,
                   "a rate of 0 would never let anything pass");
    if (!fault.path.empty()) fault.path = resolved(fault.path);
    names_files_ = names_files_ || !fault.path.empty() || !fault.file.empty();
  }
}

uint64_t FaultPlan::transfers() const {
  const MutexLock lock(mutex_);
  return transfers_;
}

uint64_t FaultPlan::faults_done() const {
  const MutexLock lock(mutex_);
  return faults_done_;
}

bool FaultPlan::concerns(const Fault& fault, OpKind kind, const std::string& path) const {
  if (fault.operation && *fault.operation != kind) return false;
  if (!fault.path.empty() && !lies_at_or_below(path, fault.path)) return false;
  return fault.file.empty() || path.ends_with("/" + fault.file);
}

bool FaultPlan::happens_to(const Fault& fault, uint64_t number, uint64_t now_ns) const {
  if (fault.index != kEveryIndex && fault.index != number) return false;
  if (number < fault.from_index || (number - fault.from_index + 1) % fault.every != 0) return false;
  if (now_ns - start_ns_ < fault.from_ns) return false;
  constexpr double kUnit = 0x1p-53;
  return static_cast<double>(mix(fault.seed ^ mix(number)) >> 11) * kUnit < fault.probability;
}

void FaultPlan::apply(const Fault& fault, State& state, uint64_t number, uint64_t bytes, uint64_t now_ns,
                      FaultEffects& effects) const {
  switch (fault.kind) {
    case FaultKind::fail:
      effects.error = fault.error;
      effects.moved_bytes = std::min(effects.moved_bytes, fault.bytes);
      break;
    case FaultKind::short_transfer:
      effects.moved_bytes = std::min(effects.moved_bytes, fault.bytes);
      break;
    case FaultKind::torn_write:
      effects.claims_all = true;
      effects.moved_bytes = std::min(effects.moved_bytes, fault.bytes);
      break;
    case FaultKind::corrupt_read:
      effects.flipped_byte = fault.bytes == kAnyByte ? mix(fault.seed + number) % bytes : fault.bytes;
      break;
    case FaultKind::delay:
      effects.due_ns = std::max(effects.due_ns, now_ns + fault.delay_ns);
      break;
    case FaultKind::full: {
      const uint64_t room = fault.bytes - std::min(fault.bytes, state.written_bytes);
      state.written_bytes += std::min(bytes, room);
      if (bytes <= room) return;  // nothing has happened yet
      effects.disk_is_full = true;
      effects.error = ENOSPC;
      effects.moved_bytes = std::min(effects.moved_bytes, room);
      break;
    }
    case FaultKind::rate_limit:
      return;  // all together, in limit_rates()
  }
  effects.any = true;
}

void FaultPlan::limit_rates(const std::map<std::string, uint64_t>& rates, uint64_t bytes, uint64_t now_ns,
                            FaultEffects& effects) {
  for (const auto& [path, bytes_per_second] : rates) {
    uint64_t& passed_ns = passed_ns_[path];
    const double takes_ns = static_cast<double>(bytes) * 1e9 / static_cast<double>(bytes_per_second);
    passed_ns = std::max(passed_ns, now_ns) + static_cast<uint64_t>(takes_ns);
    effects.due_ns = std::max(effects.due_ns, passed_ns);
  }
}

FaultEffects FaultPlan::effects_on(OpKind kind, int fd, uint64_t bytes) {
  const uint64_t now_ns = time_.clock->now_ns();
  const std::string path = names_files_ ? path_of_descriptor(fd) : std::string();
  FaultEffects effects;
  effects.moved_bytes = bytes;
  effects.due_ns = now_ns;
  std::map<std::string, uint64_t> rates;
  const MutexLock lock(mutex_);
  ++transfers_;
  for (size_t i = 0; i < faults_.size(); ++i) {
    const Fault& fault = faults_[i];
    if (!concerns(fault, kind, path)) continue;
    const uint64_t number = states_[i].seen++;
    if ((fault.kind == FaultKind::torn_write || fault.kind == FaultKind::full) && kind != OpKind::write)
      continue;
    if (fault.kind == FaultKind::corrupt_read && (kind != OpKind::read || bytes == 0)) continue;
    if (!happens_to(fault, number, now_ns)) continue;
    if (fault.kind == FaultKind::rate_limit) rates[fault.path + '\n' + fault.file] = fault.bytes_per_second;
    apply(fault, states_[i], number, bytes, now_ns, effects);
  }
  limit_rates(rates, bytes, now_ns, effects);
  if (effects.any) ++faults_done_;
  return effects;
}

}  // namespace terrace::io
