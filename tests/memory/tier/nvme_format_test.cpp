// docs/nvme_format.md shows these bytes: what is written is what is documented.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include <terrace/memory/tier/internal/tier_files.h>
#include <terrace/memory/tier/tier_manifest.h>

namespace terrace::nvme_format_test {
namespace {

// The bytes of a code block "```hex NAME": lines of an offset and up to 16 bytes.
std::vector<std::byte> documented(const std::string& name) {
  std::ifstream file(TERRACE_TEST_SOURCES "/../docs/nvme_format.md");
  std::vector<std::byte> bytes;
  bool inside = false;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("```")) {
      inside = line == fmt::format("```hex {}", name);
    } else if (inside) {
      for (size_t at = 6; at + 1 < line.size(); at += 3)
        bytes.push_back(static_cast<std::byte>(std::stoul(line.substr(at, 2), nullptr, 16)));
    }
  }
  return bytes;
}

// As it belongs there, for the message.
std::string as_text(std::span<const std::byte> bytes) {
  std::string text;
  for (size_t at = 0; at < bytes.size(); ++at) {
    if (at % 16 == 0) text += fmt::format("{}{:04x} ", at == 0 ? "" : "\n", at);
    text += fmt::format(" {:02x}", static_cast<unsigned>(bytes[at]));
  }
  return text;
}

SpaceId example_space() {
  SpaceId id;
  for (size_t b = 0; b < id.bytes.size(); ++b) id.bytes[b] = static_cast<std::byte>(b);
  return id;
}

TEST(NvmeFormat, OfTheLabelIsAsDocumented) {
  const auto bytes = tier::serialise(tier::Label{.space = example_space(), .path_index = 1, .path_count = 2});
  EXPECT_EQ(as_text(documented("label")), as_text(bytes));
}

TierManifest example_manifest() {
  TierManifest manifest{example_space(), 12, "step 100", {}};
  manifest.stores.push_back(
      {"records",
       8192,
       {20480, 0, 4096},
       {3, 4},
       {{0, 2, 0x1111111111111111}, {1, 0, 0x2222222222222222}, {1, 3, 0x3333333333333333}, {}}});
  return manifest;
}

TEST(NvmeFormat, OfAManifestIsAsDocumented) {
  TierManifest manifest = example_manifest();
  manifest.layout = {MasterForm::remainder, 1, MomentType::bf16};
  const std::vector<std::byte> bytes = serialise(manifest);
  EXPECT_EQ(as_text(documented("manifest")), as_text(bytes));
  EXPECT_EQ(parse_tier_manifest(documented("manifest"), "docs/nvme_format.md"), manifest);
}

// Tiers that exist have such manifests: the checksum is that of the first version's bytes.
TEST(NvmeFormat, OfAManifestOfTheFirstVersionIsRead) {
  TierManifest manifest = example_manifest();
  manifest.version = 1;
  const std::vector<std::byte> bytes = serialise(manifest);
  EXPECT_EQ(as_text(std::span(bytes).subspan(8, 4)), "0000  01 00 00 00");
  EXPECT_EQ(as_text(std::span(bytes).last(8)), "0000  0a ff 73 a3 56 77 70 fb");
  const TierManifest found = parse_tier_manifest(bytes, "m");
  EXPECT_EQ(found, manifest);
  EXPECT_EQ(found.layout, RecordLayout{});
}

}  // namespace
}  // namespace terrace::nvme_format_test
