// Browser: a real browser without a window, driven over the pipe of its debugging protocol. It keeps account
// of everything that a page says to the console and of every request that it makes.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include <terrace/runtime/config/json/json_document.h>

namespace terrace::testing {

class Browser {
 public:
  // `folder` holds its profile. Throws std::runtime_error, as all of it does, also when an answer takes
  // longer than a minute.
  Browser(const std::string& program, const std::string& folder);
  ~Browser();  // the browser and what it has started are gone then
  Browser(const Browser&) = delete;
  Browser& operator=(const Browser&) = delete;

  // "light" or "dark": what the system prefers; of pages that are opened and of the one that is.
  void prefer(const std::string& scheme);
  // As pages are printed, or not.
  void print_media(bool on);
  void resize(uint32_t width, uint32_t height);
  // Returns when it is loaded.
  void open(const std::string& path);
  // The value of a JavaScript expression as JSON.
  std::string evaluate(const std::string& expression);
  // All of the page, as a PNG.
  void screenshot(const std::string& path);

  // Since it began: lines of the console, errors, and requests other than for the pages that were opened.
  const std::vector<std::string>& complaints() const { return complaints_; }

 private:
  JsonNode call(const std::string& method, const std::string& parameters = "{}");
  JsonNode receive();
  void note(const JsonNode& event);
  void apply_media();

  pid_t child_ = -1;
  int to_browser_ = -1;
  int from_browser_ = -1;
  uint64_t calls_ = 0;
  std::string session_;
  std::string received_;  // not yet a whole message
  std::string scheme_ = "light";
  bool print_ = false;
  bool loaded_ = false;
  std::vector<std::string> opened_;
  std::vector<std::string> complaints_;
};

}  // namespace terrace::testing
