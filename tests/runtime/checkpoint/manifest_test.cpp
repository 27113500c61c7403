#include <terrace/runtime/checkpoint/internal/manifest.h>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <random>

#include "runtime/checkpoint/checkpoint_rig.h"

namespace terrace::manifest_test {
namespace {

using checkpoint::Manifest;
using checkpoint::manifest_text;
using checkpoint::parse_manifest;
using checkpoint_tests::expect_error;

Manifest example() {
  Manifest manifest;
  manifest.info.run_id = 0xff;
  manifest.info.step = 20;
  manifest.info.model = "gpt2 \"tiny\" \xC3\xA9";
  manifest.info.architecture = R"({"model_config": {"model_type": "gpt2"}})";
  manifest.info.tensor_hash = 0x0123456789abcdef;
  manifest.info.type = DataType::fp32;
  manifest.info.seed = UINT64_MAX;
  manifest.info.position = {{"epoch", 0}, {"next", UINT64_MAX - 1}};
  manifest.states = {17 * RecordLayout{}.tile_bytes(), {0, 0xfedcba9876543210}};
  manifest.frozen = {16384, {7}};
  return manifest;
}

// Docs and readers of other programs hold on to these bytes.
TEST(CheckpointManifest, HasTheTextOfTheFormat) {
  EXPECT_EQ(manifest_text(example()), R"({
  "format": "terrace-checkpoint",
  "version": 4,
  "run": "00000000000000ff",
  "step": 20,
  "model": "gpt2 \"tiny\" é",
  "architecture": "{\"model_config\": {\"model_type\": \"gpt2\"}}",
  "parameter_type": "fp32",
  "tensor_hash": "0123456789abcdef",
  "seed": 18446744073709551615,
  "data_position": {"epoch": 0, "next": 18446744073709551614},
  "block_bytes": 786432,
  "moments": 2,
  "moment_type": "fp32",
  "states": {"bytes": 835584, "block_checksums": "0000000000000000fedcba9876543210"},
  "frozen": {"bytes": 16384, "block_checksums": "0000000000000007"},
  "manifest_checksum": "9b8cbd78c8030f17"
}
)");
}

// As it was saved before a run had a name.
TEST(CheckpointManifest, OfTheThirdVersionIsRead) {
  const std::string text = R"({
  "format": "terrace-checkpoint",
  "version": 3,
  "step": 20,
  "model": "gpt2 \"tiny\" é",
  "architecture": "{\"model_config\": {\"model_type\": \"gpt2\"}}",
  "parameter_type": "fp32",
  "tensor_hash": "0123456789abcdef",
  "seed": 18446744073709551615,
  "data_position": {"epoch": 0, "next": 18446744073709551614},
  "block_bytes": 786432,
  "moments": 2,
  "moment_type": "fp32",
  "states": {"bytes": 835584, "block_checksums": "0000000000000000fedcba9876543210"},
  "frozen": {"bytes": 16384, "block_checksums": "0000000000000007"},
  "manifest_checksum": "7b3f4634dcbf70f2"
}
)";
  const Manifest manifest = parse_manifest(text, "m");
  EXPECT_EQ(manifest.version, 3u);
  EXPECT_EQ(manifest.info.run_id, 0u);
  EXPECT_EQ(manifest_text(manifest), text);
}

// As it was saved when every optimizer was Adam.
TEST(CheckpointManifest, OfTheSecondVersionIsRead) {
  const std::string text = R"({
  "format": "terrace-checkpoint",
  "version": 2,
  "step": 20,
  "model": "gpt2 \"tiny\" é",
  "architecture": "{\"model_config\": {\"model_type\": \"gpt2\"}}",
  "parameter_type": "fp32",
  "tensor_hash": "0123456789abcdef",
  "seed": 18446744073709551615,
  "data_position": {"epoch": 0, "next": 18446744073709551614},
  "block_bytes": 786432,
  "states": {"bytes": 835584, "block_checksums": "0000000000000000fedcba9876543210"},
  "frozen": {"bytes": 16384, "block_checksums": "0000000000000007"},
  "manifest_checksum": "ddcf23f5c8c79ed5"
}
)";
  const Manifest manifest = parse_manifest(text, "m");
  EXPECT_EQ(manifest.version, 2u);
  EXPECT_EQ(manifest.layout, RecordLayout{});
  EXPECT_EQ(manifest.info.architecture, example().info.architecture);
  EXPECT_EQ(manifest_text(manifest), text);
}

// As it was saved before there was an architecture in it.
TEST(CheckpointManifest, OfTheFirstVersionIsRead) {
  const std::string text = R"({
  "format": "terrace-checkpoint",
  "version": 1,
  "step": 20,
  "model": "gpt2 \"tiny\" é",
  "parameter_type": "fp32",
  "tensor_hash": "0123456789abcdef",
  "seed": 18446744073709551615,
  "data_position": {"epoch": 0, "next": 18446744073709551614},
  "block_bytes": 786432,
  "states": {"bytes": 835584, "block_checksums": "0000000000000000fedcba9876543210"},
  "frozen": {"bytes": 16384, "block_checksums": "0000000000000007"},
  "manifest_checksum": "ffc0d8af2587c303"
}
)";
  const Manifest manifest = parse_manifest(text, "m");
  EXPECT_EQ(manifest.version, 1u);
  EXPECT_EQ(manifest.info.step, 20u);
  EXPECT_EQ(manifest.info.architecture, "");
  EXPECT_EQ(manifest_text(manifest), text);
}

TEST(CheckpointManifest, ComesBackAsItWas) {
  for (const bool with_frozen : {true, false}) {
    Manifest manifest = example();
    if (!with_frozen) manifest.frozen = {};
    if (!with_frozen) {
      manifest.layout = {MasterForm::whole, 1, DataType::bf16};
      manifest.states = {34 * manifest.layout.tile_bytes(), {1, 2}};
    }
    if (with_frozen) manifest.info.loss_scaler = {{"scale_bits", UINT64_MAX}, {"skipped_steps", 0}};
    const Manifest found = parse_manifest(manifest_text(manifest), "m");
    EXPECT_EQ(found.info.run_id, manifest.info.run_id);
    EXPECT_EQ(found.info.step, manifest.info.step);
    EXPECT_EQ(found.info.model, manifest.info.model);
    EXPECT_EQ(found.info.architecture, manifest.info.architecture);
    EXPECT_EQ(found.version, 4u);
    EXPECT_EQ(found.layout, manifest.layout);
    EXPECT_EQ(found.info.tensor_hash, manifest.info.tensor_hash);
    EXPECT_EQ(found.info.type, manifest.info.type);
    EXPECT_EQ(found.info.seed, manifest.info.seed);
    EXPECT_EQ(found.info.position, manifest.info.position);
    EXPECT_EQ(found.info.loss_scaler, manifest.info.loss_scaler);
    EXPECT_EQ(found.info.settings, manifest.info.settings);
    EXPECT_EQ(found.states.bytes, manifest.states.bytes);
    EXPECT_EQ(found.states.block_checksums, manifest.states.block_checksums);
    EXPECT_EQ(found.frozen.bytes, manifest.frozen.bytes);
    EXPECT_EQ(found.frozen.block_checksums, manifest.frozen.block_checksums);
  }
}

TEST(CheckpointManifest, TakesAnyBytesAsTheNameOfAModel) {
  Manifest manifest = example();
  manifest.info.model = std::string("a\0b\n\xff\xfe{", 7);
  EXPECT_EQ(parse_manifest(manifest_text(manifest), "m").info.model.substr(0, 4), std::string("a\0b\n", 4));
}

// The body of the example with one piece replaced, and the right checksum of it.
std::string edited(const std::string& from, const std::string& to) {
  std::string body = manifest_text(example());
  body.resize(body.rfind(",\n  \"manifest_checksum\""));
  const size_t at = body.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  body.replace(at, from.size(), to);
  return saved::sealed(body);
}

TEST(CheckpointManifest, OfAHostileWriterIsAnError) {
  struct Edit {
    std::string from, to, fragment;
  };
  const std::vector<Edit> edits = {
      {"\"step\": 20", "\"step\": -20", "\"step\" is not a whole number"},
      {"\"step\": 20", "\"step\": 20.5", "\"step\" is not a whole number"},
      {"\"step\": 20", "\"step\": 1e3", "\"step\" is not a whole number"},
      {"\"step\": 20", "\"step\": 18446744073709551616", "\"step\" is not a whole number"},
      {"\"step\": 20", "\"step\": 1e999", ""},
      {"\"step\": 20", "\"step\": \"20\"", "\"step\" is not a whole number"},
      {"\"step\": 20", "\"step\": {}", "\"step\" is not a whole number"},
      {"\"step\": 20", "\"step\": null", "\"step\" is not a whole number"},
      {"\"step\": 20", "\"stop\": 20", "\"step\" is missing"},
      {"\"step\": 20", "\"step\": 20, \"extra\": 1", "\"extra\" is not known"},
      {"\"step\": 20", "\"step\": 20, \"step\": 21", "not JSON"},
      {"\"step\": 20", "\"step\":  20", "not written the way"},
      {"\"epoch\": 0", "\"ep\xff\": 0", "not written the way"},
      {"\"step\": 20", "\"step\": NaN", "not JSON"},
      {"\"step\": 20", "\"step\": " + std::string(100000, '['), "not JSON"},
      {"\"step\": 20", "\"step\": \"" + std::string(1000000, 'x') + "\"", "\"step\" is not a whole number"},
      {"terrace-checkpoint", "another", "its format is not terrace-checkpoint"},
      {"\"version\": 4", "\"version\": 0", "there is no version 0"},
      {"\"version\": 4", "\"version\": 1", "\"architecture\" is not known"},
      {"\"version\": 4", "\"version\": 2", "is not known"},
      {"\"moments\": 2", "\"moments\": 3", "no optimizer has 3 moments"},
      {"\"moments\": 2", "\"moments\": 1", "are not whole tiles"},
      {"\"moment_type\": \"fp32\"", "\"moment_type\": \"fp16\"", "\"moment_type\" is neither"},
      {"\"architecture\"", "\"architect\"", "\"architecture\" is missing"},
      {"\"version\": 4", "\"version\": \"1\"", "\"version\" is not a whole number"},
      {"0123456789abcdef", "0123456789ABCDEF", "\"tensor_hash\" is not 16"},
      {"0123456789abcdef", "0x23456789abcdef", "\"tensor_hash\" is not 16"},
      {"0123456789abcdef", "", "\"tensor_hash\" is not 16"},
      {"\"fp32\"", "\"fp8\"", "\"parameter_type\""},
      {"\"fp32\"", "[]", "\"parameter_type\" is not a text"},
      {"\"block_bytes\": 786432", "\"block_bytes\": 0", "\"block_bytes\""},
      {"00000000000000ff", "0000000000000000", "\"run\" is 0"},
      {"00000000000000ff", "ff", "\"run\" is not 16"},
      {"\"epoch\": 0", "\"epoch\": \"0\"", "\"epoch\" of data_position"},
      {"\"epoch\": 0", "\"epoch\": [0]", "\"epoch\" of data_position"},
      {"\"bytes\": 835584", "\"bytes\": 18446744073709551615",
       "do not belong to the 18446744073709551615 bytes"},
      {"\"bytes\": 835584", "\"bytes\": 0", "do not belong to the 0 bytes"},
      {"\"bytes\": 835584", "\"bytes\": 835583", "not whole tiles"},
      {"0000000000000000fedcba9876543210", "000000000000000fedcba9876543210", "31 characters"},
      {"0000000000000000fedcba9876543210", "0000000000000000fedcba987654321g", "block 1 of states"},
      {"0000000000000000fedcba9876543210", "", "0 characters"},
      {"\"bytes\": 16384", "\"bytes\": 0", "frozen"},
      {"{", "[", "not JSON"},
      {"{", "", "not JSON"},
  };
  for (const Edit& edit : edits) {
    SCOPED_TRACE(edit.to.substr(0, 60));
    expect_error(ErrorKind::corrupt, {"path/of/it", edit.fragment},
                 [&] { parse_manifest(edited(edit.from, edit.to), "path/of/it"); });
  }
}

TEST(CheckpointManifest, HoldsTheSettingsOfItsRunWhenItIsGivenAny) {
  Manifest manifest = example();
  EXPECT_EQ(manifest_text(manifest).find("settings"), std::string::npos);
  manifest.info.settings = {{"optimizer.params.lr", "0.001"}, {"scheduler.type", "\"WarmupLR\""}};
  const Manifest found = parse_manifest(manifest_text(manifest), "m");
  EXPECT_EQ(found.info.settings, manifest.info.settings);
  const auto with = [](const std::string& settings) {
    return edited("\"block_bytes\"", "\"settings\": " + settings + ", \"block_bytes\"");
  };
  for (const char* settings : {"{}", "[]", "{\"lr\": 0.001}", "{\"lr\": {}}", "\"lr\""})
    expect_error(ErrorKind::corrupt, {"settings"}, [&] { parse_manifest(with(settings), "m"); });
}

TEST(CheckpointManifest, OfALaterVersionAsksForALaterTerrace) {
  expect_error(ErrorKind::config, {"version 5", "up to 4", "later"},
               [] { parse_manifest(edited("\"version\": 4", "\"version\": 5"), "m"); });
}

TEST(CheckpointManifest, WithAnyBytesIsReadOrRefused) {
  std::string good = manifest_text(example());
  good.resize(good.rfind(",\n  \"manifest_checksum\""));
  std::mt19937_64 random(22);
  int refused = 0;
  for (int i = 0; i < 4000; ++i) {
    std::string body = good;
    for (uint64_t changes = 1 + random() % 4; changes > 0; --changes) {
      const size_t at = random() % body.size();
      switch (random() % 4) {
        case 0:
          body[at] = static_cast<char>(random());
          break;
        case 1:
          body.erase(at, random() % 20);
          break;
        case 2:
          body.insert(at, body.substr(random() % body.size(), random() % 20));
          break;
        default:
          body[at] = "{}[]\":,0-9e."[random() % 12];
      }
      if (body.empty()) body = "{";
    }
    try {
      parse_manifest(saved::sealed(body), "m");
    } catch (const Error&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace terrace::manifest_test
