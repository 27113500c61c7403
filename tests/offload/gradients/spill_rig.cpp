#include "offload/gradients/spill_rig.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <climits>

#include <terrace/aio/engines/engine_decorator.h>

#include "support/sanitized.h"

namespace terrace {

std::string text_of(const CommitCase& c) {
  return fmt::format("parameters {}, states {}, {} micro-batches in {}, {} masters, {}",
                     name_of(c.parameters), name_of(c.states), c.accumulation, name_of(c.accumulation_type),
                     c.layout.master == MasterForm::whole ? "whole" : "compact", name_of(c.mode));
}

std::vector<CommitCase> spilling_cases() {
  std::vector<CommitCase> cases;
  for (const Placement parameters : {Placement::none, Placement::cpu, Placement::nvme}) {
    for (const Placement states : {Placement::cpu, Placement::nvme}) {
      if (parameters != Placement::nvme && states != Placement::nvme) continue;
      for (const RecordLayout& layout : {RecordLayout{}, kCompact}) {
        for (const uint32_t accumulation : {1u, 3u}) {
          for (const DataType type : {DataType::fp32, DataType::bf16}) {
            if (accumulation == 1 && type != DataType::fp32) continue;  // nothing accumulates
            const bool in_homes =
                accumulation == 1 && parameters == Placement::cpu && layout == RecordLayout{};
            if (in_homes) continue;
            CommitCase c{.parameters = parameters, .accumulation = accumulation, .durable = false};
            c.layout = layout;
            c.states = states;
            c.accumulation_type = type;
            c.host_budget = spill_all;
            cases.push_back(c);
          }
        }
      }
    }
  }
  return testing::thinned(cases);
}

class GradientRequests::Spy final : public io::EngineDecorator {
 public:
  Spy(std::unique_ptr<io::Engine> base, GradientRequests& owner)
      : io::EngineDecorator(std::move(base)), owner_(owner) {}
  void submit(std::span<const io::Request> requests) override {
    for (const io::Request& request : requests) owner_.note(request);
    base().submit(requests);
  }

 private:
  GradientRequests& owner_;
};

WrapEngine GradientRequests::decorator() {
  return [this](std::unique_ptr<io::Engine> engine) -> std::unique_ptr<io::Engine> {
    return std::make_unique<Spy>(std::move(engine), *this);
  };
}

std::string GradientRequests::file_of(const io::Request& request) {
  std::array<char, PATH_MAX> path;
  const ssize_t size =
      readlink(("/proc/self/fd/" + std::to_string(request.fd)).c_str(), path.data(), path.size());
  return size > 0 ? std::string(path.data(), static_cast<size_t>(size)) : std::string();
}

void GradientRequests::note(const io::Request& request) {
  const std::string file = file_of(request);
  if (!file.ends_with("/grads.tier")) return;
  const MutexLock lock(mutex_);
  const bool reads = request.kind == io::OpKind::read;
  ++(reads ? totals_.reads : totals_.writes);
  (reads ? totals_.read_bytes : totals_.written_bytes) += request.bytes;
  totals_.bytes_by_file[file] += request.bytes;
  if (on_request_) on_request_(request);
}

}  // namespace terrace
