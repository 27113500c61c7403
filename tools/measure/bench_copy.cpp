// `terrace bench copy`: how fast bytes cross the link to the device, by the streams that training copies with
// and by the driver's plain calls, from page-locked and from pageable memory. The measure is the ratio of the
// two in the same round.
#include "measure/bench_copy.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include <terrace/base/units.h>
#include <terrace/memory/host/pages.h>

#include "command_line.h"
#include "console.h"
#include "measure/measuring.h"

namespace terrace {
namespace {

constexpr const char* kCopyExamples =
    "Examples:\n"
    "  terrace bench copy --size 64KiB..64MiB\n"
    "  terrace bench copy --device simulated --size 1MiB --size 16MiB --rounds 15 --json\n";
constexpr uint64_t kLargestCopy = kGiB;
// Copies go one after the other through at least this much memory, so that small ones do not stay in a cache.
constexpr uint64_t kLeastBuffer = 64 * kMiB;

struct CopyFlags {
  std::string device = "cuda";
  std::vector<std::string> sizes;
  std::string bytes = "256MiB";
  uint64_t rounds = 7;
  bool json = false;
};

uint64_t parse_size(const std::string& text, const std::string& whole) {
  const uint64_t bytes = parse_bytes(text, "--size");
  if (bytes == 0 || bytes > kLargestCopy)
    refuse("--size " + whole, "a copy has between 1 byte and 1 GiB", "give for example 64KiB..64MiB");
  return bytes;
}

// Adds one size ("1MiB"), or a range by doubling ("64KiB..64MiB").
void add_sizes(const std::string& text, std::vector<uint64_t>& sizes) {
  const size_t dots = text.find("..");
  const uint64_t first = parse_size(text.substr(0, dots), text);
  const uint64_t last = dots == std::string::npos ? first : parse_size(text.substr(dots + 2), text);
  if (first > last) refuse("--size " + text, "it ends before it begins", "give the smaller size first");
  for (uint64_t bytes = first; bytes <= last; bytes *= 2) sizes.push_back(bytes);
}

class BenchCopy final : public Subcommand {
 public:
  explicit BenchCopy(Command& bench);
  int run() override;

 private:
  CopyBenchPlan plan();
  void plan_copies(CopyPlan& copies) const;
  std::unique_ptr<CudaGpu> open_gpu();

  CopyFlags flags_;
  Console console_;
};

BenchCopy::BenchCopy(Command& bench)
    : Subcommand(bench, "copy", "Measure copies between host and device beside those of the driver alone") {
  const FlagGroup what(command_, "The copies");
  what.text("--device", "cuda|simulated", flags_.device,
            "cuda (default): the first GPU; simulated: memory that plays one, for which plain is memcpy");
  what.texts("--size", "SIZE[..SIZE]", flags_.sizes,
             "Of one copy, or a range by doubling; may be given several times (default 64KiB, 1MiB, 16MiB, "
             "64MiB)");
  const FlagGroup how(command_, "How they are measured");
  how.text("--bytes", "SIZE", flags_.bytes,
           "Copied each way by one measurement, in 4 to 4096 copies (default 256MiB)");
  how.count("--rounds", 1, flags_.rounds, "Rounds, each of which measures everything once (default 7)");
  how.yes("--json", flags_.json, "Print the result as JSON");
  command_.footer(kCopyExamples);
}

void BenchCopy::plan_copies(CopyPlan& copies) const {
  for (const std::string& text : flags_.sizes) add_sizes(text, copies.sizes);
  if (flags_.sizes.empty()) copies.sizes = {64 * kKiB, kMiB, 16 * kMiB, 64 * kMiB};
  std::sort(copies.sizes.begin(), copies.sizes.end());
  copies.sizes.erase(std::unique(copies.sizes.begin(), copies.sizes.end()), copies.sizes.end());
  copies.moved_bytes = parse_bytes(flags_.bytes, "--bytes");
  if (copies.moved_bytes == 0) refuse("--bytes " + flags_.bytes, "it is 0", "give for example 256MiB");
  const uint64_t wanted = std::max(copies.sizes.back(), std::min(copies.moved_bytes, kLeastBuffer));
  copies.buffer_bytes = round_up(wanted, kHugePageBytes);
  copies.rounds = flags_.rounds;
}

std::unique_ptr<CudaGpu> BenchCopy::open_gpu() {
  try {
    return CudaGpu::open(0, console_);
  } catch (const Error& error) {
    refuse("--device cuda", error.without_advice(), "give --device simulated to measure without a GPU");
  }
}

CopyBenchPlan BenchCopy::plan() {
  CopyBenchPlan plan;
  if (flags_.device != "cuda" && flags_.device != "simulated")
    refuse("--device " + flags_.device, "there is no such device", "give cuda or simulated");
  plan_copies(plan.copies);
  if (flags_.device == "cuda") plan.gpu = open_gpu();
  require_memory_for(fmt::format("copies of {}", format_bytes(plan.copies.sizes.back())), plan.host_bytes(),
                     "give a smaller --size");
  return plan;
}

int BenchCopy::run() {
  const CopyBenchPlan chosen = plan();
  return print_measurement(console_, [&] {
    const CopyBenchResult result = measure_copies(chosen, console_);
    return flags_.json ? copy_report_json(chosen, result) : copy_report_text(chosen, result);
  });
}

}  // namespace

std::unique_ptr<Subcommand> add_bench_copy(Command& bench) {
  return std::make_unique<BenchCopy>(bench);
}

}  // namespace terrace
