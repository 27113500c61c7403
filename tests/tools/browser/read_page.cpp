// read_page PROGRAM FOLDER: does what stdin says, a line each, in the browser PROGRAM with its profile in
// FOLDER, and prints the values that were asked for as JSON, a line each. Fails when a page said anything to
// the console or made a request of its own. For the tests of the program, which are shell scripts.
//
//   open PATH | scheme light|dark | media screen|print | width N | eval EXPRESSION | screenshot FILE
#include <cstdio>
#include <exception>
#include <iostream>
#include <string>

#include "browser.h"

namespace {

void carry_out(terrace::testing::Browser& browser, const std::string& line) {
  const size_t space = line.find(' ');
  const std::string what = line.substr(0, space);
  const std::string rest = space == std::string::npos ? "" : line.substr(space + 1);
  if (what == "open") {
    browser.open(rest);
  } else if (what == "scheme") {
    browser.prefer(rest);
  } else if (what == "media") {
    browser.print_media(rest == "print");
  } else if (what == "width") {
    browser.resize(static_cast<uint32_t>(std::stoul(rest)), 900);
  } else if (what == "eval") {
    std::cout << browser.evaluate(rest) << std::endl;
  } else if (what == "screenshot") {
    browser.screenshot(rest);
  } else {
    throw std::runtime_error("not understood: " + line);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  try {
    terrace::testing::Browser browser(argv[1], argv[2]);
    for (std::string line; std::getline(std::cin, line);) carry_out(browser, line);
    for (const std::string& complaint : browser.complaints()) std::fprintf(stderr, "%s\n", complaint.c_str());
    return browser.complaints().empty() ? 0 : 1;
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "%s\n", failure.what());
    return 1;
  }
}
