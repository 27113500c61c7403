#include <terrace/runtime/safetensors/safetensors.h>

#include <sys/stat.h>

#include <limits>

#include "reference/model/weights/weights_test_support.h"
#include "support/allocation_counter.h"

namespace terrace::safetensors_test {
namespace {

using namespace weights_tests;
using terrace::testing::allocated_bytes_of_this_thread;
using terrace::testing::allocations_of_this_thread;

// One tensor "a" of two fp32 numbers, described as given.
std::string with_tensor(const std::string& description, uint64_t data_bytes = 8) {
  return file_of(R"({"a":{)" + description + "}}", data_bytes);
}

void refuses(const std::string& file, const std::vector<std::string>& fragments) {
  std::vector<std::string> all = fragments;
  all.push_back("x.safetensors");
  expect_error(ErrorKind::corrupt, all, [&] { parse(file); });
}

TEST(SafetensorsHeader, ReadsNamesTypesShapesPlacesAndMetadata) {
  const std::string file = file_of(
      R"( {"b" : {"shape":[2, 3],"dtype":"BF16","data_offsets":[4,16]},)"
      "\n\t"
      R"("__metadata__":{"format":"pt","a\"b":"\u00e9"},"a":{"dtype":"F32","shape":[],"data_offsets":[0,4]},)"
      R"("none":{"dtype":"I64","shape":[0,7],"data_offsets":[16,16]}}   )",
      16);
  // A header begins with its brace.
  refuses(file, {"does not begin with a brace"});
  std::string trimmed = file_of(file.substr(9, file.size() - 9 - 16), 16);
  const SafetensorsHeader header = parse(trimmed);
  ASSERT_EQ(header.tensors.size(), 3u);
  const SafetensorsTensor& b = *header.find("b");
  EXPECT_EQ(b.type, "BF16");
  EXPECT_EQ(b.data_type(), DataType::bf16);
  EXPECT_EQ(b.shape, (std::vector<uint64_t>{2, 3}));
  EXPECT_EQ(b.end_byte, trimmed.size());
  EXPECT_EQ(b.begin_byte, trimmed.size() - 12);
  EXPECT_EQ(header.find("a")->element_count(), 1u);
  EXPECT_EQ(header.find("none")->element_count(), 0u);
  EXPECT_FALSE(header.find("none")->data_type());
  EXPECT_EQ(header.find("c"), nullptr);
  EXPECT_EQ(header.metadata, (std::map<std::string, std::string>{{"format", "pt"}, {"a\"b", "\u00e9"}}));
}

TEST(SafetensorsHeader, TakesAFileWithoutTensors) {
  EXPECT_TRUE(parse(file_of("{}", 0)).tensors.empty());
}

TEST(SafetensorsHeader, NamesTheTensorWhoseDescriptionIsWrong) {
  refuses(with_tensor(R"("dtype":"F32","shape":[2])"), {"\"a\"", "no data_offsets"});
  refuses(with_tensor(R"("dtype":"F32","data_offsets":[0,8])"), {"\"a\"", "no shape"});
  refuses(with_tensor(R"("shape":[2],"data_offsets":[0,8])"), {"\"a\"", "no dtype"});
  refuses(with_tensor(R"("dtype":"F32","shape":[3],"data_offsets":[0,8])"),
          {"\"a\"", "[3] of F32 takes 12 bytes, and it has 8"});
  refuses(with_tensor(R"("dtype":"F32","shape":[2],"data_offsets":[8,0])"), {"\"a\"", "before they begin"});
  refuses(with_tensor(R"("dtype":"F32","shape":[2],"data_offsets":[0,9])"), {"\"a\"", "end at 9", "holds 8"});
  refuses(with_tensor(R"("dtype":"F32","shape":[2],"data_offsets":[0])"), {"\"a\"", "not two numbers"});
  refuses(with_tensor(R"("dtype":"F32","shape":[2],"data_offsets":[0,8,8])"), {"\"a\"", "more than two"});
  refuses(with_tensor(R"("dtype":"F32","shape":[2],"data_offsets":[0,8],"x":[])"), {"\"a\"", "\"x\""});
  refuses(with_tensor(R"("dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8])"),
          {"\"a\"", "\"dtype\"", "twice"});
  refuses(with_tensor(R"("dtype":"","shape":[2],"data_offsets":[0,8])"), {"\"a\"", "dtype is no name"});
  refuses(with_tensor(R"("dtype":"F4","shape":[1],"data_offsets":[0,0])", 0), {"whole number of bytes"});
}

TEST(SafetensorsHeader, RefusesShapesWhoseProductOverflows) {
  refuses(with_tensor(R"("dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0])", 0),
          {"\"a\"", "64 bits"});
  refuses(with_tensor(R"("dtype":"XX","shape":[4294967296,4294967296],"data_offsets":[0,0])", 0),
          {"\"a\"", "64 bits"});
  refuses(with_tensor(R"("dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,0])", 0), {"\"a\""});
  refuses(with_tensor(R"("dtype":"F32","shape":[18446744073709551616],"data_offsets":[0,8])"),
          {"larger than 64 bits"});
  refuses(with_tensor(R"("dtype":"F32","shape":[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,2],"data_offsets":[0,8])"),
          {"\"a\"", "dimensions"});
}

TEST(SafetensorsHeader, RefusesOverlapsHolesAndBytesThatAreNobodys) {
  const auto two = [](const std::string& second, uint64_t bytes) {
    return file_of(R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],)"
                   R"("data_offsets":)" +
                       second + "}}",
                   bytes);
  };
  EXPECT_EQ(parse(two("[4,8]", 8)).tensors.size(), 2u);
  refuses(two("[3,7]", 7), {"\"b\"", "overlap"});
  refuses(two("[0,4]", 4), {"overlap"});
  refuses(two("[5,9]", 9), {"\"b\"", "1 bytes before it"});
  refuses(two("[4,8]", 9), {"last 1 bytes"});
  refuses(two("[4,8]", 7), {"\"b\"", "holds 7"});
}

TEST(SafetensorsHeader, RefusesNamesThatAreThereTwice) {
  refuses(file_of(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                  R"("\u0061":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})",
                  2),
          {"\"a\"", "there twice"});
  refuses(file_of(R"({"__metadata__":{},"__metadata__":{}})", 0), {"second __metadata__"});
  refuses(file_of(R"({"__metadata__":{"k":"1","k":"2"}})", 0), {"\"k\"", "twice"});
}

TEST(SafetensorsHeader, RefusesWhatIsNoHeader) {
  refuses("", {"0 bytes are too few"});
  refuses("1234567", {"7 bytes are too few"});
  refuses(file_of("", 0), {"brace"});
  refuses(file_of("[]", 0), {"brace"});
  refuses(file_of("{", 0), {"text is expected"});
  refuses(file_of("{}x", 0), {"nothing but spaces"});
  refuses(file_of(R"({"a")", 0), {"colon"});
  refuses(file_of(R"({"a":1})", 0), {"an object is expected"});
  refuses(file_of(R"({"a)", 0), {"no end"});
  refuses(file_of(R"({"a\)", 0), {"no end"});
  refuses(file_of(R"({"a":{}}{)", 0), {"\"a\""});
  refuses(file_of(R"({"a":{},})", 0), {"\"a\""});
  refuses(file_of(R"({,"a":{}})", 0), {"text is expected"});
  refuses(file_of(R"({"__metadata__":{"a":1}})", 0), {"text is expected"});
  refuses(file_of(R"({"__metadata__":{"a":"1" "b":"2"}})", 0), {"comma"});
  refuses(with_tensor(R"("dtype":"F32","shape":[2,],"data_offsets":[0,8])"), {"whole number"});
  refuses(with_tensor(R"("dtype":"F32","shape":[-2],"data_offsets":[0,8])"), {"whole number"});
  refuses(with_tensor(R"("dtype":"F32","shape":[2.0],"data_offsets":[0,8])"), {"comma"});
  refuses(with_tensor(R"("dtype":"F32","shape":[02],"data_offsets":[0,8])"), {"whole number"});
}

TEST(SafetensorsHeader, CountsTheBytesOfItsMistakesFromTheBeginningOfTheFile) {
  refuses(file_of("{}x", 0),
          {"cannot use the safetensors file", "its header is wrong at byte 10: ", "damaged"});
  refuses(file_of("{\"a\xff\":{}}", 0), {"its header is wrong at byte 11: "});
}

TEST(SafetensorsHeader, RefusesTextsThatAreNotUtf8) {
  refuses(file_of("{\"a\xff\":{}}", 0), {"UTF-8"});
  refuses(file_of("{\"\xc0\x80\":{}}", 0), {"UTF-8"});
  refuses(file_of("{\"a\x01\":{}}", 0), {"control character"});
  refuses(file_of(R"({"\x":{}})", 0), {"escape"});
  refuses(file_of(R"({"\ud800":{}})", 0), {"escape"});
}

TEST(SafetensorsHeader, RefusesLengthsThatTheFileDoesNotHave) {
  std::string file = file_of("{}", 0);
  file[0] = 3;
  refuses(file, {"claims 3 bytes, and 2 follow"});
  for (size_t byte = 0; byte < 8; ++byte) file[byte] = '\xff';
  refuses(file, {"claims 18446744073709551615 bytes"});
  file[7] = file[6] = file[5] = file[4] = 0;
  refuses(file, {"claims 4294967295 bytes", "the most a header has"});
}

TEST(SafetensorsHeader, SurvivesEveryCutAndEveryFlippedByte) {
  const std::string good =
      file_of(R"({"__metadata__":{"f":"pt"},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
              R"("b":{"dtype":"BF16","shape":[1,2],"data_offsets":[8,12]}})",
              12);
  ASSERT_EQ(parse(good).tensors.size(), 2u);
  for (size_t bytes = 0; bytes < good.size(); ++bytes)
    EXPECT_THROW(parse(good.substr(0, bytes)), Error) << bytes;
  for (size_t at = 0; at < good.size() - 12; ++at) {
    for (const char change : {'\x01', '\x02', '\x08', '\x10', '\x20', '\x80'}) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ change);
      try {
        parse(bad);  // a changed name or value of the metadata is as good as any
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::corrupt) << error.what();
      }
    }
  }
}

// Ten million empty lists, or as many brackets, are read past without becoming anything.
TEST(SafetensorsHeader, TakesLittleMemoryForAHostileHeader) {
  const auto taken = [](const std::string& file) {
    const uint64_t before = allocated_bytes_of_this_thread();
    EXPECT_THROW(parse(file), Error);
    return allocated_bytes_of_this_thread() - before;
  };
  std::string lists = R"({"a":{"shape":[)";
  for (int i = 0; i < 1000000; ++i) lists += "0,";
  EXPECT_LT(taken(file_of(lists + "0]}}", 0)), 100'000u);
  EXPECT_LT(taken(file_of("{\"a\":" + std::string(1000000, '['), 0)), 100'000u);
  std::string tensors = "{";
  for (int i = 0; i < 100000; ++i)
    tensors += "\"" + std::to_string(i) + R"(":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},)";
  EXPECT_LT(taken(file_of(tensors, 0)), 10 * tensors.size());
}

class Safetensors : public ::testing::Test {
 protected:
  ScratchFolder folder_;
  fs::path path_ = folder_ / "model.safetensors";
};

TEST_F(Safetensors, ReadsBackWhatItWroteInEveryType) {
  for (const DataType type : {DataType::fp32, DataType::bf16, DataType::fp16}) {
    write_safetensors(path_, {{"one", type, {3, 5000}}, {"empty", type, {0}}, {"two", type, {7}}});
    const SafetensorsFile file(path_);
    EXPECT_EQ(file.header().metadata.at("format"), "pt");
    for (const auto& [name, index] : {std::pair{"one", 0}, {"two", 2}}) {
      const SafetensorsTensor& tensor = *file.header().find(name);
      EXPECT_EQ(tensor.data_type(), type);
      EXPECT_EQ(tensor.begin_byte % 2, 0u);
      for (const uint64_t first : {0, 1, 5}) {
        std::vector<float> values(tensor.element_count() - first);
        file.read(tensor, first, values);
        for (uint64_t e = 0; e < values.size(); ++e)
          ASSERT_EQ(values[e], exact_value(static_cast<uint64_t>(index), first + e)) << name << " " << e;
      }
    }
  }
}

TEST_F(Safetensors, WritesTheBytesOfTheFormat) {
  write_safetensors(path_, {{"a\"b", DataType::bf16, {2, 1}}},
                    [](uint64_t, uint64_t e) { return e == 0 ? 1.0f : -2.0f; });
  const std::string header =
      R"({"__metadata__":{"format":"pt"},"a\"b":{"dtype":"BF16","shape":[2,1],"data_offsets":[0,4]}})";
  std::string expected = file_of(header + std::string(8 - header.size() % 8, ' '), 0);
  expected += std::string("\x80\x3f\x00\xc0", 4);
  EXPECT_EQ(text_of(path_), expected);
  EXPECT_EQ((expected.size() - 4) % 8, 0u);
}

TEST_F(Safetensors, RoundsAsTheMasterWeightsAreRounded) {
  const std::vector<float> values = {1.00390625f, 65520.0f, -1e-8f, std::numeric_limits<float>::infinity()};
  for (const DataType type : {DataType::bf16, DataType::fp16}) {
    write_safetensors(path_, {{"a", type, {4}}}, [&](uint64_t, uint64_t e) { return values[e]; });
    const SafetensorsFile file(path_);
    std::vector<float> read(4);
    file.read(*file.header().find("a"), 0, read);
    for (size_t e = 0; e < 4; ++e)
      EXPECT_EQ(read[e],
                type == DataType::bf16 ? to_float(to_bf16(values[e])) : to_float(to_fp16(values[e])));
  }
}

TEST_F(Safetensors, ReadsWithoutAllocating) {
  write_safetensors(path_, {{"a", DataType::bf16, {100000}}});
  const SafetensorsFile file(path_);
  const SafetensorsTensor& tensor = *file.header().find("a");
  std::vector<float> values(4096);
  const uint64_t before = allocations_of_this_thread();
  for (uint64_t first = 0; first + values.size() <= 100000; first += values.size())
    file.read(tensor, first, values);
  EXPECT_EQ(allocations_of_this_thread(), before);
}

TEST_F(Safetensors, WritesThroughABufferOfBoundedSize) {
  const std::vector<float> run(4096, 1.5f);
  const uint64_t before = allocated_bytes_of_this_thread();
  SafetensorsWriter writer(path_, {{"a", DataType::bf16, {4096, 4096}}}, {});
  for (int i = 0; i < 4096; ++i) writer.write(run);
  writer.finish();
  EXPECT_LT(allocated_bytes_of_this_thread() - before, 1'200'000u);
  EXPECT_EQ(fs::file_size(path_), writer.file_bytes());
}

TEST_F(Safetensors, NamesATypeThatTerraceHasNot) {
  write_text(path_, with_tensor(R"("dtype":"F64","shape":[1],"data_offsets":[0,8])"));
  const SafetensorsFile file(path_);
  std::vector<float> values(1);
  expect_error(ErrorKind::config, {"\"a\"", "F64", path_.string()},
               [&] { file.read(file.header().tensors[0], 0, values); });
}

TEST_F(Safetensors, NamesAFileThatIsMissingOrCutOff) {
  EXPECT_THROW(SafetensorsFile{path_}, Error);
  write_safetensors(path_, {{"a", DataType::fp32, {100}}});
  const std::string whole = text_of(path_);
  for (const size_t bytes : {size_t{0}, size_t{5}, size_t{20}, whole.size() - 1}) {
    write_text(path_, whole.substr(0, bytes));
    expect_error(ErrorKind::corrupt, {path_.string()}, [&] { SafetensorsFile{path_}; });
  }
  write_text(path_, whole);
  const SafetensorsFile file(path_);
  fs::resize_file(path_, whole.size() - 1);
  std::vector<float> values(100);
  expect_error(ErrorKind::io, {path_.string(), "shorter"},
               [&] { file.read(file.header().tensors[0], 0, values); });
}

TEST_F(Safetensors, LeavesTheEarlierFileUntilTheNewOneIsComplete) {
  write_text(path_, "the old one");
  {
    SafetensorsWriter writer(path_, {{"a", DataType::fp32, {4}}}, {});
    writer.write(std::vector<float>(2));
    EXPECT_EQ(text_of(path_), "the old one");
  }
  EXPECT_EQ(text_of(path_), "the old one");
  EXPECT_FALSE(fs::exists(path_.string() + ".new"));
  write_text(path_.string() + ".new", "what a dead job left");
  write_safetensors(path_, {{"a", DataType::fp32, {4}}});
  EXPECT_EQ(SafetensorsFile(path_).header().tensors.size(), 1u);
  EXPECT_FALSE(fs::exists(path_.string() + ".new"));
}

TEST_F(Safetensors, GivesAFileThePermissionsOfTheUser) {
  const mode_t before = umask(027);
  write_safetensors(path_, {{"a", DataType::fp32, {4}}});
  umask(before);
  EXPECT_EQ(static_cast<int>(fs::status(path_).permissions()), 0640);
}

TEST_F(Safetensors, SaysThatTheDiskIsTooSmallBeforeWriting) {
  const uint64_t terabytes = uint64_t{1} << 45;
  expect_error(ErrorKind::capacity, {path_.string(), "free"}, [&] {
    SafetensorsWriter(path_, {{"a", DataType::fp32, {terabytes}}}, {});
  });
  EXPECT_TRUE(fs::is_empty(folder_.path()));
}

}  // namespace
}  // namespace terrace::safetensors_test
