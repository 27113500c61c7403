// check_json [KEY]: every line of stdin must be one JSON object, or all of stdin together with "-" as KEY.
// With a KEY it prints that key's value for every line that has it. For the tests of the program, which are
// shell scripts.
#include <cstdio>
#include <exception>
#include <iostream>
#include <iterator>
#include <string>

#include <terrace/runtime/config/json/json_document.h>

int main(int argc, char** argv) {
  const std::string key = argc > 1 ? argv[1] : "";
  try {
    if (key == "-") {
      const std::string all{std::istreambuf_iterator<char>(std::cin), {}};
      terrace::parse_json(all, "stdin");
      return 0;
    }
    for (std::string line; std::getline(std::cin, line);) {
      const terrace::JsonNode node = terrace::parse_json(line, "stdin");
      if (!node.is(terrace::JsonNode::Kind::object)) throw std::runtime_error("not an object: " + line);
      for (const terrace::JsonMember& member : node.members) {
        if (member.key == key) std::cout << terrace::json_text(member.value) << '\n';
      }
    }
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "%s\n", failure.what());
    return 1;
  }
  return 0;
}
