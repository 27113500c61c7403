#include <terrace/reference/model/weights/export_weights.h>

#include <terrace/aio/file.h>
#include <terrace/reference/model/weights/load_weights.h>

#include "reference/model/weights/weights_rig.h"
#include "reference/model/weights/weights_test_support.h"
#include "support/allocation_counter.h"

namespace terrace::export_weights_test {
namespace {

using namespace weights_tests;

std::vector<TensorSpec> model_tensors(DataType type) {
  return {{"table.0", {60, 100}, type, true, 0, 1},
          {"table.1", {41, 100}, type, true, 0, 1},
          {"frozen", {33, 250}, type, false, 0, 1},
          {"adapter", {10}, type, true, 0, 1},
          {"weight", {70, 131}, type, true, 0, 1}};
}
std::vector<WeightSpec> model_weights() {
  return {{"frozen.weight", {33, 250}, {TensorId{2}}},
          {"table.weight", {101, 100}, {TensorId{0}, TensorId{1}}},
          {"weight", {70, 131}, {TensorId{4}}}};
}
// Not a number of bf16 or fp16: rounding shows.
float first_value(uint32_t tensor, uint64_t element) {
  return exact_value(tensor, element) * 1.0009765625f + 0.001f;
}
float rounded(float value, DataType type) {
  return type == DataType::fp32   ? value
         : type == DataType::bf16 ? to_float(to_bf16(value))
                                  : to_float(to_fp16(value));
}

class ExportWeights : public ::testing::Test {
 protected:
  void make_rig(Placement placement, DataType type) {
    rig_ = std::make_unique<WeightsRig>(model_tensors(type), placement);
    rig_->offloader->state().initialise([](TensorId tensor, uint64_t first, std::span<float> values) {
      for (uint64_t e = 0; e < values.size(); ++e) values[e] = first_value(index_of(tensor), first + e);
    });
  }
  ExportReport do_export(const ExportOptions& options) {
    const std::vector<WeightSpec> weights = model_weights();
    return export_weights(
        path_, weights, rig_->tensors, options,
        [&](FunctionRef<bool(TensorId)> wanted, ValueSink sink) {
          rig_->offloader->state().export_values(wanted, sink);
        },
        rig_->log);
  }
  std::vector<float> read(const WeightFolder& folder, const std::string& name) {
    const WeightFolder::Place place = folder.find(name);
    if (!place) throw std::runtime_error("no " + name);
    std::vector<float> values(place.tensor->element_count());
    place.file->read(*place.tensor, 0, values);
    return values;
  }
  std::vector<std::string> names(const fs::path& folder) const {
    std::vector<std::string> list;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder))
      list.push_back(entry.path().filename().string());
    std::sort(list.begin(), list.end());
    return list;
  }

  ScratchFolder folder_;
  fs::path path_ = folder_ / "out" / "model";
  std::unique_ptr<WeightsRig> rig_;
};

TEST_F(ExportWeights, WritesEveryWeightWhereverItLives) {
  for (const Placement placement : {Placement::none, Placement::cpu, Placement::nvme}) {
    for (const DataType type : {DataType::fp32, DataType::bf16}) {
      make_rig(placement, type);
      for (const DataType file_type : {DataType::fp32, DataType::bf16, DataType::fp16}) {
        const ExportReport report = do_export({.type = file_type, .replace = true});
        EXPECT_EQ(report.file_count, 1u);
        EXPECT_EQ(report.bytes, fs::file_size(path_ / "model.safetensors"));
        const WeightFolder folder(path_);
        ASSERT_EQ(folder.tensors().size(), 3u);
        EXPECT_EQ(folder.find("table.weight").tensor->data_type(), file_type);
        const std::vector<float> table = read(folder, "table.weight");
        for (uint64_t e = 0; e < table.size(); ++e) {
          const float value = e < 6000 ? first_value(0, e) : first_value(1, e - 6000);
          ASSERT_EQ(table[e], rounded(value, file_type)) << e;
        }
        // Frozen tensors have no master: what is exported is the parameter.
        const std::vector<float> frozen = read(folder, "frozen.weight");
        for (uint64_t e = 0; e < frozen.size(); ++e)
          ASSERT_EQ(frozen[e], rounded(rounded(first_value(2, e), type), file_type)) << e;
        EXPECT_EQ(read(folder, "weight")[9169], rounded(first_value(4, 9169), file_type));
      }
    }
  }
}

TEST_F(ExportWeights, CutsFilesAtTheSizeThatIsAskedFor) {
  make_rig(Placement::cpu, DataType::bf16);
  // bf16: table 20200 bytes, weight 18340, frozen 16500.
  for (const auto& [limit, files] :
       {std::pair<uint64_t, uint64_t>{55040, 1}, {55039, 2}, {20200, 3}, {1, 3}}) {
    const ExportReport report = do_export({.max_shard_bytes = limit, .replace = true});
    EXPECT_EQ(report.file_count, files);
    const WeightFolder folder(path_);
    EXPECT_EQ(folder.files().size(), files);
    EXPECT_EQ(read(folder, "weight")[7], rounded(first_value(4, 7), DataType::bf16));
    EXPECT_EQ(read(folder, "frozen.weight")[8249], rounded(first_value(2, 8249), DataType::bf16));
    EXPECT_EQ(fs::exists(path_ / "model.safetensors.index.json"), files > 1);
    if (files == 1) continue;
    EXPECT_TRUE(fs::exists(path_ / ("model-00001-of-0000" + std::to_string(files) + ".safetensors")));
    EXPECT_NE(text_of(path_ / "model.safetensors.index.json").find("\"total_size\": 55040"),
              std::string::npos);
  }
}

TEST_F(ExportWeights, ComesBackAsTheSameState) {
  make_rig(Placement::cpu, DataType::fp32);
  do_export({.type = DataType::fp32});
  WeightsRig other(model_tensors(DataType::fp32), Placement::nvme, 4 * kTileElements);
  const WeightFolder folder(path_);
  const WeightSource source(folder, model_weights(), other.tensors);
  other.offloader->state().initialise([&](TensorId tensor, uint64_t first, std::span<float> values) {
    if (source.has(tensor)) source.read(tensor, first, values);
  });
  for (const uint32_t t : {0u, 1u, 2u, 4u}) EXPECT_EQ(other.values(TensorId{t}), rig_->values(TensorId{t}));
}

TEST_F(ExportWeights, PassesEveryElementThroughTheTransformOnce) {
  make_rig(Placement::cpu, DataType::fp32);
  std::vector<uint64_t> seen(3, 0);
  const auto add_place = [&](size_t weight, uint64_t first, std::span<float> values) {
    EXPECT_EQ(first, seen[weight]);
    seen[weight] += values.size();
    for (uint64_t e = 0; e < values.size(); ++e) values[e] += static_cast<float>(first + e);
  };
  do_export({.type = DataType::fp32, .transform = add_place});
  EXPECT_EQ(seen, (std::vector<uint64_t>{8250, 10100, 9170}));
  const WeightFolder folder(path_);
  const std::vector<float> table = read(folder, "table.weight");
  for (uint64_t e = 0; e < table.size(); ++e) {
    const float value = e < 6000 ? first_value(0, e) : first_value(1, e - 6000);
    ASSERT_EQ(table[e], value + static_cast<float>(e));
  }
}

TEST_F(ExportWeights, AddsTheSmallFilesOfAModel) {
  make_rig(Placement::cpu, DataType::bf16);
  const fs::path source = folder_ / "source";
  write_text(source / "tokenizer.json", "{}");
  write_text(source / "merges.txt", "a b");
  write_text(source / "model.safetensors", "not copied");
  do_export({.source = source, .stem = "adapter_model", .texts = {{"config.json", "{\"a\":1}"}}});
  EXPECT_EQ(names(path_), (std::vector<std::string>{"adapter_model.safetensors", "config.json", "merges.txt",
                                                    "terrace_export.json", "tokenizer.json"}));
  EXPECT_EQ(text_of(path_ / "merges.txt"), "a b");
  EXPECT_EQ(text_of(path_ / "config.json"), "{\"a\":1}");
}

TEST_F(ExportWeights, ReplacesAnEarlierExportWhenAskedTo) {
  make_rig(Placement::cpu, DataType::bf16);
  do_export({.max_shard_bytes = 1});
  expect_error(ErrorKind::config, {path_.string(), "earlier export", "ExportOptions::replace"},
               [&] { do_export({}); });
  EXPECT_EQ(WeightFolder(path_).files().size(), 3u);
  do_export({.replace = true});
  EXPECT_EQ(names(path_), (std::vector<std::string>{"model.safetensors", "terrace_export.json"}));
  EXPECT_EQ(names(path_.parent_path()), std::vector<std::string>{"model"});
}

TEST_F(ExportWeights, NeverReplacesWhatNoExportWrote) {
  make_rig(Placement::cpu, DataType::bf16);
  write_text(path_ / "thesis.tex", "years of work");
  expect_error(ErrorKind::config, {path_.string(), "not empty"}, [&] { do_export({.replace = true}); });
  fs::remove(path_ / "thesis.tex");
  do_export({});  // into an empty folder
  write_text(path_ / "thesis.tex", "years of work");
  expect_error(ErrorKind::config, {path_.string(), "thesis.tex"}, [&] { do_export({.replace = true}); });
  EXPECT_EQ(text_of(path_ / "thesis.tex"), "years of work");
  path_ = path_ / "thesis.tex";
  expect_error(ErrorKind::config, {"it is a file"}, [&] { do_export({.replace = true}); });
  path_ = "/";
  EXPECT_THROW(do_export({.replace = true}), Error);
}

TEST_F(ExportWeights, LeavesTheFolderAsItWasWhenTheSourceFails) {
  make_rig(Placement::cpu, DataType::bf16);
  do_export({});
  const std::string before = text_of(path_ / "model.safetensors");
  const std::vector<WeightSpec> weights = model_weights();
  const auto fails = [&](FunctionRef<bool(TensorId)>, ValueSink sink) {
    sink(TensorId{0}, 0, std::vector<float>(100));
    throw Error(ErrorKind::io, {"cannot read", "x", "it burnt", "buy another"});
  };
  expect_error(ErrorKind::io, {"burnt"},
               [&] { export_weights(path_, weights, rig_->tensors, {.replace = true}, fails, rig_->log); });
  EXPECT_EQ(text_of(path_ / "model.safetensors"), before);
  EXPECT_EQ(names(path_.parent_path()), std::vector<std::string>{"model"});
}

TEST_F(ExportWeights, RefusesANumberThatTheTypeDoesNotHold) {
  make_rig(Placement::cpu, DataType::fp32);
  const auto enlarge = [](size_t weight, uint64_t first, std::span<float> values) {
    if (weight == 1 && first == 0) values[3] = 70000.0f;
  };
  expect_error(ErrorKind::config, {"element 3 of table.weight", "70000", "fp16", "export as bf16 or fp32"},
               [&] { do_export({.type = DataType::fp16, .transform = enlarge}); });
  EXPECT_TRUE(fs::is_empty(path_.parent_path()));
  EXPECT_NO_THROW(do_export({.type = DataType::bf16, .transform = enlarge}));
}

// Nearly all of the disk: the export begins to read, and is stopped there before it writes.
TEST_F(ExportWeights, AsksForNoMoreSpaceThanItTakes) {
  make_rig(Placement::cpu, DataType::bf16);
  const uint64_t rows = (io::free_bytes_at(folder_.path()) - (uint64_t{32} << 20)) / 2048;
  const std::vector<TensorSpec> large = {{"w", {rows, 1024}, DataType::bf16, true, 0, 1}};
  const std::vector<WeightSpec> weights = {{"w", large[0].shape, {TensorId{0}}}};
  const auto stops = [](FunctionRef<bool(TensorId)>, ValueSink) {
    throw Error(ErrorKind::io, {"cannot read", "x", "it was begun", "go on"});
  };
  expect_error(ErrorKind::io, {"begun"},
               [&] { export_weights(path_, weights, large, {}, stops, rig_->log); });
}

TEST_F(ExportWeights, RemovesWhatADeadJobLeft) {
  make_rig(Placement::cpu, DataType::bf16);
  write_text(path_.parent_path() / ".model.partial" / "model.safetensors.new", "half");
  do_export({});
  EXPECT_EQ(names(path_.parent_path()), std::vector<std::string>{"model"});
  EXPECT_EQ(WeightFolder(path_).tensors().size(), 3u);
}

TEST_F(ExportWeights, SaysThatTheDiskIsTooSmallBeforeWriting) {
  make_rig(Placement::cpu, DataType::bf16);
  const std::vector<TensorSpec> huge = {{"w", {uint64_t{1} << 30, 1 << 14}, DataType::bf16, true, 0, 1}};
  const std::vector<WeightSpec> weights = {{"w", huge[0].shape, {TensorId{0}}}};
  const auto never = [](FunctionRef<bool(TensorId)>, ValueSink) { ADD_FAILURE() << "values were asked for"; };
  expect_error(ErrorKind::capacity, {path_.string(), "free"},
               [&] { export_weights(path_, weights, huge, {}, never, rig_->log); });
  EXPECT_TRUE(fs::is_empty(path_.parent_path()));
}

TEST_F(ExportWeights, TakesTheSameMemoryForTensorsOfAnySize) {
  const auto taken = [&](uint64_t rows) {
    WeightsRig rig({{"w", {rows, 1000}, DataType::bf16, true, 0, 1}}, Placement::nvme, 16 * kTileElements);
    rig.offloader->state().initialise([](TensorId, uint64_t, std::span<float>) {});
    const std::vector<WeightSpec> weights = {{"w", {rows, 1000}, {TensorId{0}}}};
    const uint64_t before = terrace::testing::allocated_bytes_of_this_thread();
    export_weights(
        path_, weights, rig.tensors, {.replace = true},
        [&](FunctionRef<bool(TensorId)> wanted, ValueSink sink) {
          rig.offloader->state().export_values(wanted, sink);
        },
        rig.log);
    return terrace::testing::allocated_bytes_of_this_thread() - before;
  };
  taken(10);
  const uint64_t small = taken(1000);
  EXPECT_LT(small, 1'300'000u);
  EXPECT_LT(taken(10000), small + 20'000);
}

}  // namespace
}  // namespace terrace::export_weights_test
