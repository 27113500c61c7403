// The manifest of a commit in the nvme tier, and the label of a tier folder. Both end with a checksum of
// everything before, which no mutation keeps; so every input is also tried with a right one behind it.
#include <algorithm>
#include <span>
#include <vector>

#include <terrace/base/checksum.h>
#include <terrace/memory/tier/internal/tier_files.h>
#include <terrace/memory/tier/tier_manifest.h>

#include "fuzz_input.h"

namespace {

using namespace terrace;

void parse(std::span<const std::byte> bytes) {
  TierManifest manifest;
  const auto manifest_parsed = [&] { manifest = parse_tier_manifest(bytes, "epoch"); };
  if (fuzz::accepts({ErrorKind::corrupt, ErrorKind::config}, manifest_parsed))
    fuzz::require(std::ranges::equal(serialise(manifest), bytes), "only what Terrace writes is a manifest");
  tier::Label label;
  const auto label_parsed = [&] { label = tier::parse_label(bytes, "space"); };
  if (fuzz::accepts({ErrorKind::corrupt, ErrorKind::config}, label_parsed))
    fuzz::require(std::ranges::equal(tier::serialise(label), bytes), "only what Terrace writes is a label");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span<const std::byte> input = std::as_bytes(std::span(data, size));
  parse(input);
  std::vector<std::byte> sealed(input.begin(), input.end());
  const uint64_t checksum = checksum_of(input);
  for (size_t b = 0; b < 8; ++b) sealed.push_back(static_cast<std::byte>(checksum >> (8 * b)));
  parse(sealed);
  return 0;
}
