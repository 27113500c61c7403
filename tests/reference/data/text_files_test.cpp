#include <terrace/reference/data/text_files.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "reference/data/data_test_support.h"

namespace terrace::text_files_test {
namespace {

using data_tests::DataFolder;
using data_tests::numbered;
using ::testing::HasSubstr;

class TextFilesTest : public DataFolder {
 protected:
  static std::string problem(const std::filesystem::path& path, ErrorKind kind) {
    return data_tests::problem_of(kind, [&] { TextFiles files(path); });
  }
  static std::string all_of(const TextFiles& files) {
    std::string text(files.byte_count(), '?');
    files.read(0, {reinterpret_cast<uint8_t*>(text.data()), text.size()});
    return text;
  }
};

TEST_F(TextFilesTest, JoinsTheTextFilesOfAFolderInTheOrderOfTheirPaths) {
  write("b.txt", "second ");
  write("a/z.txt", "first ");
  write("c/d/e.txt", "third");
  write("empty.txt", "");
  const TextFiles files(folder_);
  EXPECT_EQ(all_of(files), "first second third");
  EXPECT_EQ(files.files().size(), 3u);
  EXPECT_EQ(files.description(), "3 files, 18 B");
}

TEST_F(TextFilesTest, LeavesOutBinaryAndHiddenFilesAndCountsThem) {
  write("text.txt", "h\xC3\xA9llo\tworld\r\n");
  write("latin1.txt", "caf\xE9");
  write("image.png", std::string("\x89PNG\r\n\x1A\n\0\0\0\rIHDR", 16));
  write("noise.bin", "\x01\x02\x03\x04 abc");
  std::string one_nul(1001, 'a');
  one_nul[500] = '\0';
  write("one_nul.txt", one_nul);
  write(".git/config", "hidden");
  write("sub/.cache", "hidden");
  const TextFiles files(folder_);
  EXPECT_EQ(files.files().size(), 2u);
  EXPECT_EQ(files.binary_count(), 3u);
  EXPECT_EQ(files.hidden_count(), 2u);
  EXPECT_EQ(files.description(), "2 files, 18 B (left out: 3 binary, 2 hidden)");
}

TEST_F(TextFilesTest, ReadsAnyPieceAcrossFiles) {
  std::string whole;
  for (int i = 0; i < 5; ++i) {
    const std::string content = numbered(static_cast<size_t>(7 + 3 * i));
    write("f" + std::to_string(i), content);
    whole += content;
  }
  const TextFiles files(folder_);
  ASSERT_EQ(files.byte_count(), whole.size());
  for (size_t begin = 0; begin <= whole.size(); ++begin) {
    for (size_t count = 0; begin + count <= whole.size(); ++count) {
      std::string piece(count, '?');
      files.read(begin, {reinterpret_cast<uint8_t*>(piece.data()), count});
      ASSERT_EQ(piece, whole.substr(begin, count)) << begin;
    }
  }
}

TEST_F(TextFilesTest, FollowsLinksToFilesAndCountsThoseThatLeadNowhere) {
  const auto target = write("real/one.txt", "x");
  std::filesystem::create_directories(folder_ / "links");
  std::filesystem::create_symlink(target, folder_ / "links/one.txt");
  EXPECT_EQ(TextFiles(folder_ / "links").byte_count(), 1u);
  std::filesystem::create_symlink(folder_ / "gone", folder_ / "links/two.txt");
  const TextFiles files(folder_ / "links");
  EXPECT_EQ(files.dangling_count(), 1u);
  EXPECT_EQ(files.description(), "1 file, 1 B (left out: 1 link that leads nowhere)");
  std::filesystem::remove(folder_ / "links/one.txt");
  EXPECT_EQ(problem(folder_ / "links", ErrorKind::config),
            "there is no text in it (left out: 0 binary, 0 hidden, 0 empty, 1 links that lead nowhere)");
  EXPECT_THAT(problem(folder_ / "links/two.txt", ErrorKind::io), HasSubstr("No such file or directory"));
}

TEST_F(TextFilesTest, TakesSeveralPathsInTheOrderGiven) {
  const auto b = write("b.txt", "second");
  write("a/one.txt", "first ");
  const TextFiles files({folder_ / "a", b});
  EXPECT_EQ(all_of(files), "first second");
  EXPECT_EQ(all_of(TextFiles({b, folder_ / "a"})), "secondfirst ");
  EXPECT_EQ(files.file_at(5).path, folder_ / "a/one.txt");
  EXPECT_EQ(files.file_at(6).path, b);
  EXPECT_EQ(problem(write("zeros", std::string(9, '\0')), ErrorKind::config), "it is a binary file");
}

TEST_F(TextFilesTest, TellsOtherDataByTheFingerprint) {
  write("a/x.txt", "some text");
  write("b/x.txt", "some text");
  const uint64_t first = TextFiles(folder_ / "a").fingerprint();
  EXPECT_EQ(TextFiles(folder_ / "b").fingerprint(), first);  // the same files in another place
  write("b/x.txt", "some test");
  EXPECT_NE(TextFiles(folder_ / "b").fingerprint(), first);
  write("a/y.txt", "more");
  EXPECT_NE(TextFiles(folder_ / "a").fingerprint(), first);
}

TEST_F(TextFilesTest, ReportsAFileThatShrinksDuringTheRun) {
  const auto path = write("a.txt", numbered(100));
  const TextFiles files(path);
  std::filesystem::resize_file(path, 50);
  std::vector<uint8_t> bytes(100);
  try {
    files.read(0, bytes);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::io);
    EXPECT_THAT(error.what(), HasSubstr("it had 100 bytes when the run began"));
  }
}

TEST_F(TextFilesTest, SaysWhatIsWrongWithDataThatCannotBeUsed) {
  EXPECT_THAT(problem(folder_ / "missing", ErrorKind::io), HasSubstr("No such file or directory"));
  EXPECT_EQ(problem(folder_, ErrorKind::config),
            "there is no text in it (left out: 0 binary, 0 hidden, 0 empty)");
  EXPECT_EQ(problem("/dev/null", ErrorKind::config), "it is neither a regular file nor a folder");
  EXPECT_EQ(problem(write("empty", ""), ErrorKind::config), "it is empty");
  EXPECT_EQ(problem(write("binary", std::string(64, '\0')), ErrorKind::config), "it is a binary file");
}

TEST_F(TextFilesTest, SaysThatAFileMayNotBeRead) {
  const auto path = write("secret/a.txt", numbered(100));
  std::filesystem::permissions(path, std::filesystem::perms::none);
  if (::access(path.c_str(), R_OK) == 0) GTEST_SKIP() << "this user may read everything";
  EXPECT_THAT(problem(folder_, ErrorKind::io), HasSubstr("Permission denied"));
}

TEST_F(TextFilesTest, KnowsJsonLinesByTheirNameOrTheirFirstLines) {
  const auto are_plain = [&](const std::string& name, const std::string& content) {
    return TextFiles(write(name, content)).are_plain();
  };
  EXPECT_FALSE(are_plain("a.jsonl", R"({"text": "one"})"));
  EXPECT_FALSE(are_plain("a.NDJSON", R"({"text": "one"})"));
  EXPECT_FALSE(are_plain("a.txt", "{\"text\": \"one\"}\n{\"text\": \"two\"}\n"));
  EXPECT_FALSE(are_plain("b.txt", "{\"text\": \"" + std::string(100'000, 'x') + "\"}\n{\"text\": \"\"}"));
  EXPECT_TRUE(are_plain("package.json", "{\n  \"text\": \"one\"\n}\n{\n}"));
  EXPECT_TRUE(are_plain("short.json", R"({"id": 1})"));
  EXPECT_TRUE(are_plain("c.txt", "{ braces }\n{ of text }\n"));
}

TEST_F(TextFilesTest, RefusesWhatWouldBeReadAsItsOwnSyntax) {
  const auto problem = [&](const std::string& name, const std::string& content) {
    write("folder/text.txt", "words");
    const auto path = write("folder/" + name, content);
    const std::string alone = data_tests::problem_of(ErrorKind::config, [&] { TextFiles{path}; });
    EXPECT_EQ(data_tests::problem_of(ErrorKind::config, [&] { TextFiles{folder_ / "folder"}; }), alone);
    std::filesystem::remove(path);
    return alone;
  };
  EXPECT_THAT(problem("a.jsonl", "{\"instruction\": \"one\", \"output\": 1}\n"),
              HasSubstr("it has \"instruction\", \"output\""));
  EXPECT_THAT(problem("a.txt", "{\"prompt\": 1}\n{\"prompt\": 2}\n"), HasSubstr("it has \"prompt\""));
  EXPECT_THAT(problem("a.jsonl", "words\n"), HasSubstr("an object is expected"));
  EXPECT_THAT(problem("a.json", "[{\"id\": 1}]"), HasSubstr("JSON array"));
  EXPECT_THAT(problem("a.text", std::string("PAR1\0\0binary", 12)), HasSubstr("Parquet"));
}

TEST_F(TextFilesTest, RefusesAJsonArrayOfObjectsUnderAnyName) {
  const std::string reason = "it is one JSON array, not JSON lines with an object on each";
  for (const char* name : {"a.json", "a.jsonl", "a.txt"}) {
    for (const char* array :
         {R"([{"text": "one"}, {"text": "two"}])", "[\n  {\n    \"text\": \"one\"\n  }\n]\n",
          "\xEF\xBB\xBF \n[ { \"text\" : \"o", R"([{"instruction": "one"}])"})
      EXPECT_EQ(problem(write(name, array), ErrorKind::config), reason) << name << ": " << array;
  }
  const std::string long_text(100'000, 'x');
  EXPECT_EQ(problem(write("long.json", R"([{"text": ")" + long_text + R"("}])"), ErrorKind::config), reason);
}

TEST_F(TextFilesTest, ReadsATextThatBeginsWithABracket) {
  for (const char* text : {"[1] a footnote", "[a link](https://example.com)", "[[\"a\", 1]]", "[", "[]",
                           "[{}]", "[{\"braces\" in a text}]", "[{braces: 1}]", "[ \n {% macro %}]"})
    EXPECT_TRUE(TextFiles(write("a.txt", text)).are_plain()) << text;
}

TEST_F(TextFilesTest, SaysHowAJsonArrayBecomesJsonLines) {
  const auto advice = [&](const std::string& name, const std::string& array) {
    return data_tests::advice_of([&] { TextFiles{write(name, array)}; });
  };
  const std::string json = (folder_ / "a.json").string();
  const std::string jsonl = (folder_ / "a.jsonl").string();
  EXPECT_THAT(advice("a.json", R"([{"text": "one"}])"), HasSubstr("jq -c '.[]' " + json + " > " + jsonl));
  EXPECT_THAT(advice("a.json", R"([{"instruction": "one", "id": 7, "output": "two"}, {"id": 8}])"),
              HasSubstr(R"(jq -c '.[] | {text: (.instruction + "\n" + .output)}' )" + json + " > " + jsonl));
  // Of an object that is longer than what was read, not all keys are known.
  EXPECT_THAT(advice("a.json", "[{\"a\": \"one\",\n\"b\": \"" + std::string(10'000, 'x') + "\"}]"),
              HasSubstr("jq -c '.[]' "));
  // A command must not write over what it reads.
  EXPECT_THAT(advice("a.jsonl", R"([{"text": "one"}])"),
              HasSubstr(jsonl + " > " + (folder_ / "a.text.jsonl").string()));
}

TEST_F(TextFilesTest, SaysHowObjectsGetAText) {
  const auto advice = [&](const std::string& line) {
    return data_tests::advice_of([&] { TextFiles{write("a.jsonl", line)}; });
  };
  EXPECT_THAT(advice(R"({"id": "x", "messages": [{"role": "user", "content": "Hi"}]})"),
              HasSubstr(R"(jq -c '{text: ([.messages[] | .role + ": " + .content] | join("\n"))}' )"));
  EXPECT_THAT(advice(R"({"conversations": [{"from": "human", "value": "Hi"}]})"),
              HasSubstr(R"(jq -c '{text: ([.conversations[] | .from + ": " + .value] | join("\n"))}' )"));
  EXPECT_THAT(advice(R"({"instruction": "a", "score": 1, "input": "", "output": "b"})"),
              HasSubstr(R"(jq -c '{text: (.instruction + "\n" + .input + "\n" + .output)}' )"));
  EXPECT_THAT(advice(R"({"messages": "one text", "id": 1})"), HasSubstr("jq -c '{text: .messages}' "));
  EXPECT_THAT(advice(R"({"the poet's answer": "a"})"),
              HasSubstr(R"(jq -c '{text: .["the poet\u0027s answer"]}' )"));
  EXPECT_THAT(advice(R"({"text": null, "id": "a"})"),
              HasSubstr(R"(leave such lines out: jq -c 'select(.text | type == "string")' )"));
  EXPECT_EQ(advice(R"({"id": 1})"), "give lines with one, or leave the file out");
}

TEST_F(TextFilesTest, SaysWhatATextIsThatIsNone) {
  const auto reason = [&](const std::string& value) {
    return problem(write("a.jsonl", "\n{\"text\": " + value + "}"), ErrorKind::config);
  };
  EXPECT_EQ(reason("null"), "line 2 (byte 1) is an object whose \"text\" is null, not a text");
  EXPECT_THAT(reason("-1.5"), HasSubstr("is a number, not a text"));
  EXPECT_THAT(reason("true"), HasSubstr("is a boolean, not a text"));
  EXPECT_THAT(reason("[\"a\"]"), HasSubstr("is a list, not a text"));
  EXPECT_THAT(reason("{\"a\": \"b\"}"), HasSubstr("is an object, not a text"));
}

TEST_F(TextFilesTest, SaysHowABinaryFileBecomesData) {
  const auto advice = [](const std::filesystem::path& path) {
    return data_tests::advice_of([&] { TextFiles{path}; });
  };
  const auto packed = write("packed/a.jsonl.gz", std::string("\x1F\x8B\x08\0\0\0\0\0\0\x03", 10));
  EXPECT_EQ(advice(packed), "unpack it first: gunzip -k " + packed.string());
  EXPECT_EQ(advice(folder_ / "packed"), advice(packed));
  const auto zstd = write("a.jsonl.zst", std::string("\x28\xB5\x2F\xFD\x04\0", 6));
  EXPECT_EQ(advice(zstd), "unpack it first: zstd -d " + zstd.string());
  const auto array = write("a.npy", std::string("\x93NUMPY\x01\0v\0", 10));
  EXPECT_THAT(advice(array),
              HasSubstr("numpy.load(\"" + array.string() + "\").astype(numpy.uint32).tofile(\"" +
                        (folder_ / "a.bin").string() + "\")"));
}

}  // namespace
}  // namespace terrace::text_files_test
