#include <terrace/reference/model/weights/weight_folder.h>

#include "reference/model/weights/weights_test_support.h"

namespace terrace::weight_folder_test {
namespace {

using namespace weights_tests;

class Folder : public ::testing::Test {
 protected:
  void write_index(const std::string& weight_map) const {
    write_text(path_ / "model.safetensors.index.json",
               R"({"metadata":{"total_size":1},"weight_map":)" + weight_map + "}");
  }
  void write_shards() const {
    write_safetensors(path_ / "one.safetensors", {{"a", DataType::fp32, {2}}, {"c", DataType::fp32, {3}}});
    write_safetensors(path_ / "two.safetensors", {{"b", DataType::bf16, {4}}});
  }
  void refuses(ErrorKind kind, const std::vector<std::string>& fragments) const {
    expect_error(kind, fragments, [&] { WeightFolder{path_}; });
  }

  ScratchFolder folder_;
  fs::path path_ = folder_ / "model";
};
using WeightFolderTest = Folder;

TEST_F(WeightFolderTest, FindsTheTensorsOfASingleFileInAFolderOrByItsName) {
  write_safetensors(path_ / "model.safetensors", {{"a", DataType::fp32, {2}}, {"b", DataType::bf16, {4}}});
  for (const fs::path& path : {path_, path_ / "model.safetensors"}) {
    const WeightFolder folder(path);
    ASSERT_EQ(folder.tensors().size(), 2u);
    std::vector<float> values(4);
    folder.find("b").file->read(*folder.find("b").tensor, 0, values);
    EXPECT_EQ(values[3], exact_value(1, 3));
    EXPECT_FALSE(folder.find("c"));
  }
}

TEST_F(WeightFolderTest, FindsTheTensorsOfShards) {
  write_shards();
  write_index(R"({"a":"one.safetensors","b":"two.safetensors","c":"one.safetensors"})");
  const WeightFolder folder(path_);
  EXPECT_EQ(folder.files().size(), 2u);
  ASSERT_EQ(folder.tensors().size(), 3u);
  EXPECT_EQ(folder.find("b").file->path().filename(), "two.safetensors");
  EXPECT_EQ(folder.find("c").tensor->shape, std::vector<uint64_t>{3});
}

TEST_F(WeightFolderTest, FollowsTheLinksOfADownloadCache) {
  write_safetensors(path_ / "blob", {{"a", DataType::fp32, {2}}});
  fs::create_symlink("blob", path_ / "model.safetensors");
  EXPECT_TRUE(WeightFolder(path_).find("a"));
}

TEST_F(WeightFolderTest, NamesWhatTheIndexAndTheShardsDisagreeAbout) {
  write_shards();
  write_index(R"({"a":"two.safetensors","b":"two.safetensors","c":"one.safetensors"})");
  refuses(ErrorKind::corrupt, {"\"a\"", "said to be in two.safetensors and is in one.safetensors"});
  write_index(R"({"a":"one.safetensors","b":"two.safetensors"})");
  refuses(ErrorKind::corrupt, {"one.safetensors holds \"c\"", "says nothing"});
  write_index(R"({"a":"one.safetensors","b":"two.safetensors","c":"one.safetensors","d":"two.safetensors"})");
  refuses(ErrorKind::corrupt, {"\"d\"", "in no shard"});
  write_safetensors(path_ / "two.safetensors", {{"b", DataType::bf16, {4}}, {"a", DataType::fp32, {2}}});
  write_index(R"({"a":"one.safetensors","b":"two.safetensors","c":"one.safetensors"})");
  refuses(ErrorKind::corrupt, {"both one.safetensors and two.safetensors hold \"a\""});
}

TEST_F(WeightFolderTest, NamesAMissingShard) {
  write_shards();
  write_index(R"({"a":"one.safetensors","b":"three.safetensors","c":"one.safetensors"})");
  refuses(ErrorKind::io, {"three.safetensors", "not there"});
}

TEST_F(WeightFolderTest, RefusesAnIndexThatLeavesItsFolderOrIsNone) {
  write_shards();
  for (const char* name : {"../x", "/etc/passwd", "", ".", "..", "a/b", "a\\u0000b"}) {
    write_index(R"({"a":")" + std::string(name) + "\"}");
    refuses(ErrorKind::corrupt, {"not the name of a file beside it"});
  }
  write_index("[]");
  refuses(ErrorKind::corrupt, {"no weight_map"});
  write_index(R"({"a":1})");
  refuses(ErrorKind::corrupt, {"not a text"});
  write_text(path_ / "model.safetensors.index.json", "[");
  EXPECT_THROW(WeightFolder{path_}, Error);
}

TEST_F(WeightFolderTest, SaysHowPickledWeightsBecomeSafetensors) {
  for (const char* name : {"pytorch_model.bin", "pytorch_model.bin.index.json"}) {
    write_text(path_ / name, "x");
    refuses(ErrorKind::config, {name, "save_pretrained"});
    fs::remove(path_ / name);
  }
  refuses(ErrorKind::config, {"neither model.safetensors nor"});
  fs::remove(path_);
  refuses(ErrorKind::io, {"no such folder"});
}

}  // namespace
}  // namespace terrace::weight_folder_test
