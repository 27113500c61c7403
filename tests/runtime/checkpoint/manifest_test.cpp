#include <terrace/runtime/checkpoint/internal/manifest.h>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <random>

#include <terrace/runtime/checkpoint/internal/tensor_list.h>

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
  manifest.version = 4;
  return manifest;
}

// As it is written today, with a file of the program that saved.
Manifest example_of_today() {
  Manifest manifest = example();
  manifest.version = checkpoint::kFormatVersion;
  manifest.tensors = {{.name = "a \"b\"", .shape = {16, 4096}, .type = DataType::bf16},
                      {.name = "c", .shape = {2, 3}, .type = DataType::fp32, .trainable = false},
                      {.name = "d", .shape = {1}, .type = DataType::bf16, .home = TensorHome::caller}};
  manifest.info.tensor_hash = checkpoint::hash_of(manifest.tensors);
  manifest.info.tensor_steps = {20, 0, 19};
  manifest.info.position = {{"consumed_samples", UINT64_MAX - 1}};
  manifest.others = {{"progress.pt", {3, {9}}}};
  return manifest;
}

// Docs and readers of other programs hold on to these bytes.
TEST(CheckpointManifest, HasTheTextOfTheFormat) {
  EXPECT_EQ(manifest_text(example_of_today()), R"({
  "format": "terrace-saved-state",
  "version": 1,
  "facts": "{\"format\": \"terrace-checkpoint\", \"version\": 5, \"run\": \"00000000000000ff\", \"step\": 20, \"model\": \"gpt2 \\\"tiny\\\" é\", \"architecture\": \"{\\\"model_config\\\": {\\\"model_type\\\": \\\"gpt2\\\"}}\", \"parameter_type\": \"fp32\", \"tensor_hash\": \"280e9602cdfc7688\", \"seed\": 18446744073709551615, \"data_position\": {\"consumed_samples\": 18446744073709551614}, \"moments\": 2, \"moment_type\": \"fp32\", \"tensor_steps\": [20, 0, 19], \"tensors\": [{\"name\": \"a \\\"b\\\"\", \"type\": \"bf16\", \"shape\": [16, 4096], \"trained\": true}, {\"name\": \"c\", \"type\": \"fp32\", \"shape\": [2, 3], \"trained\": false}, {\"name\": \"d\", \"type\": \"bf16\", \"shape\": [1], \"trained\": true, \"apart\": true}]}",
  "block_bytes": 786432,
  "files": [
    {"name": "states.bin", "bytes": 835584, "block_checksums": "0000000000000000fedcba9876543210"},
    {"name": "frozen.bin", "bytes": 16384, "block_checksums": "0000000000000007"},
    {"name": "progress.pt", "bytes": 3, "block_checksums": "0000000000000009"}
  ],
  "manifest_checksum": "6ab239aa731ef8f2"
}
)");
}

// As it was before it was that of a saved state.
TEST(CheckpointManifest, OfTheFourthVersionIsRead) {
  EXPECT_EQ(manifest_text(parse_manifest(manifest_text(example()), "m")), R"({
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
    Manifest manifest = example_of_today();
    if (!with_frozen) {
      manifest.frozen = {};
      manifest.tensors.erase(manifest.tensors.begin() + 1);
      manifest.info.tensor_steps.clear();
      manifest.info.tensor_hash = checkpoint::hash_of(manifest.tensors);
      manifest.layout = {MasterForm::whole, 1, MomentType::bf16};
      manifest.states = {17 * manifest.layout.tile_bytes(), {1}};
    }
    if (with_frozen) manifest.info.loss_scaler = {{"scale_bits", UINT64_MAX}, {"skipped_steps", 0}};
    const Manifest found = parse_manifest(manifest_text(manifest), "m");
    EXPECT_EQ(found.info.run_id, manifest.info.run_id);
    EXPECT_EQ(found.info.step, manifest.info.step);
    EXPECT_EQ(found.info.model, manifest.info.model);
    EXPECT_EQ(found.info.architecture, manifest.info.architecture);
    EXPECT_EQ(found.version, 5u);
    EXPECT_EQ(found.info.tensor_steps, manifest.info.tensor_steps);
    ASSERT_EQ(found.tensors.size(), manifest.tensors.size());
    for (size_t t = 0; t < found.tensors.size(); ++t) {
      EXPECT_EQ(found.tensors[t].name, manifest.tensors[t].name);
      EXPECT_EQ(found.tensors[t].shape, manifest.tensors[t].shape);
      EXPECT_EQ(found.tensors[t].home, manifest.tensors[t].home);
    }
    ASSERT_EQ(found.others.size(), 1u);
    EXPECT_EQ(found.others.front().name, "progress.pt");
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
  Manifest manifest = example_of_today();
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

// The facts of the example of today with one piece replaced, in a manifest that is right otherwise.
std::string edited_facts(const std::string& from, const std::string& to) {
  const Manifest manifest = example_of_today();
  std::string facts = checkpoint::facts_text(manifest);
  const size_t at = facts.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  facts.replace(at, from.size(), to);
  return saved::manifest_text({facts, manifest.files()});
}

TEST(CheckpointManifest, WithFactsOfAHostileWriterIsAnError) {
  struct Edit {
    std::string from, to, fragment;
  };
  const std::vector<Edit> edits = {
      {"\"step\": 20", "\"step\": -20", "\"step\" is not a whole number"},
      {"\"step\": 20", "\"stop\": 20", "\"step\" is missing"},
      {"\"step\": 20", "\"step\": 20, \"extra\": 1", "\"extra\" is not known"},
      {"\"step\": 20", "\"step\":  20", "not written the way"},
      {"\"version\": 5", "\"version\": 4", "version 4 is no saved state"},
      {"terrace-checkpoint", "another", "its format is not terrace-checkpoint"},
      {"[20, 0, 19]", "[20, 0]", "one number for each tensor"},
      {"[20, 0, 19]", "[]", "\"tensor_steps\" is empty"},
      {"[20, 0, 19]", "[20, 0, -1]", "not a list of whole numbers"},
      {"\"c\"", "\"d\"", "a tensor is there twice"},
      {"\"c\"", "\"e\"", "\"tensor_hash\" is not that of its tensors"},
      {"[16, 4096]", "[16, 4095]", "\"tensor_hash\" is not that of its tensors"},
      {"[16, 4096]", "16", "\"shape\" of a tensor is not a list"},
      {"\"trained\": true", "\"trained\": 1", "neither true nor false"},
      {"\"apart\": true", "\"apart\": false", "\"apart\" of a tensor is false"},
      {"\"apart\": true", "\"more\": true", "\"more\" of a tensor is not known"},
      {"\"apart\": true", "\"matrix\": false", "\"matrix\" of a tensor is false"},
      {"\"apart\": true", "\"matrix\": true", "\"tensor_hash\" is not that of its tensors"},
      {"\"moments\": 2", "\"moments\": 1", "its tensors make"},
      {"\"moment_type\": \"fp32\"", "\"moment_type\": \"bf16\"", "its tensors make"},
  };
  for (const Edit& edit : edits) {
    SCOPED_TRACE(edit.to);
    expect_error(ErrorKind::corrupt, {"path/of/it", edit.fragment},
                 [&] { parse_manifest(edited_facts(edit.from, edit.to), "path/of/it"); });
  }
  Manifest shorter = example_of_today();
  shorter.states = {16 * RecordLayout{}.tile_bytes(), {0}};
  expect_error(ErrorKind::corrupt, {"bytes of states"}, [&] { parse_manifest(manifest_text(shorter), "m"); });
  for (const std::vector<uint64_t>& shape :
       {std::vector<uint64_t>{16, 0}, {uint64_t{1} << 62, 16}, std::vector<uint64_t>{}}) {
    Manifest odd = example_of_today();
    odd.tensors.front().shape = shape;
    odd.info.tensor_hash = checkpoint::hash_of(odd.tensors);
    expect_error(ErrorKind::corrupt, {"its tensors make no training"},
                 [&] { parse_manifest(manifest_text(odd), "m"); });
  }
  std::vector<saved::StateManifest::File> files = example_of_today().files();
  std::swap(files[0], files[2]);
  expect_error(ErrorKind::corrupt, {"not written the way"}, [&] {
    parse_manifest(saved::manifest_text({checkpoint::facts_text(example_of_today()), files}), "m");
  });
  files.pop_back();
  expect_error(ErrorKind::corrupt, {"names no states.bin"}, [&] {
    parse_manifest(saved::manifest_text({checkpoint::facts_text(example_of_today()), files}), "m");
  });
}

TEST(CheckpointManifest, OfAnEarlierEngineForPyTorchIsNamed) {
  expect_error(ErrorKind::config, {"engine.save_checkpoint of an earlier Terrace"}, [] {
    parse_manifest(saved::manifest_text({R"({"format": "terrace-torch-checkpoint"})", {}}), "m");
  });
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
  expect_error(ErrorKind::config, {"version 5", "up to 5", "later"},
               [] { parse_manifest(edited("\"version\": 4", "\"version\": 5"), "m"); });
  expect_error(ErrorKind::config, {"version 6", "up to 5", "later"},
               [] { parse_manifest(edited_facts("\"version\": 5", "\"version\": 6"), "m"); });
}

TEST(CheckpointManifest, WithAnyBytesIsReadOrRefused) {
  std::string goods[] = {manifest_text(example()), manifest_text(example_of_today())};
  for (std::string& good : goods) good.resize(good.rfind(",\n  \"manifest_checksum\""));
  std::mt19937_64 random(22);
  int refused = 0;
  for (int i = 0; i < 8000; ++i) {
    const std::string& good = goods[i % 2];
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
  EXPECT_GT(refused, 2000);
}

}  // namespace
}  // namespace terrace::manifest_test
