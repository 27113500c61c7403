#include "browser.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>

#include <terrace/base/text/json_writer.h>
#include <terrace/runtime/observe/control/job_status.h>

namespace terrace::testing {
namespace {

constexpr int kLongestWaitMs = 900'000;

[[noreturn]] void fail(const std::string& what) {
  throw std::runtime_error(what);
}

const JsonNode& member(const JsonNode& object, std::string_view key) {
  static const JsonNode kNull;
  const JsonNode* found = object.is(JsonNode::Kind::object) ? object.find(key) : nullptr;
  return found == nullptr ? kNull : *found;
}

// The end of a pipe under another number, which the program that is started has.
void give(int fd, int number) {
  if (dup2(fd, number) < 0) _exit(127);
}

std::string decoded(const std::string& base64) {
  constexpr std::string_view kLetters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string bytes;
  uint32_t bits = 0;
  int count = 0;
  for (const char letter : base64) {
    const size_t value = kLetters.find(letter);
    if (value == std::string_view::npos) continue;
    bits = bits << 6 | static_cast<uint32_t>(value);
    count += 6;
    if (count < 8) continue;
    count -= 8;
    bytes += static_cast<char>(bits >> count & 0xff);
  }
  return bytes;
}

}  // namespace

Browser::Browser(const std::string& program, const std::string& folder) {
  std::array<int, 2> commands{};
  std::array<int, 2> answers{};
  if (pipe2(commands.data(), O_CLOEXEC) != 0 || pipe2(answers.data(), O_CLOEXEC) != 0) fail("no pipe");
  const std::string profile = "--user-data-dir=" + folder;
  std::filesystem::create_directories(folder);
  const std::string log = folder + "/browser.log";
  child_ = fork();
  if (child_ < 0) fail("no process");
  if (child_ == 0) {
    setpgid(0, 0);
    // Above 4 first: the numbers that it reads and writes are taken by anything at all.
    const int in = fcntl(commands[0], F_DUPFD, 10);
    const int out = fcntl(answers[1], F_DUPFD, 10);
    give(in, 3);
    give(out, 4);
    close(in);
    close(out);
    const int said = ::open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    give(said, STDOUT_FILENO);
    give(said, STDERR_FILENO);
    setenv("HOME", folder.c_str(), 1);
    // Root and containers have no sandbox for it; it opens pages that the tests have made.
    execlp(program.c_str(), program.c_str(), "--headless", "--remote-debugging-pipe", "--no-sandbox",
           "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking",
           "--disable-component-update", "--disable-sync", "--disable-extensions", "--disable-default-apps",
           "--no-first-run", "--no-default-browser-check", "--hide-scrollbars", "--force-color-profile=srgb",
           "--host-resolver-rules=MAP * ~NOTFOUND", profile.c_str(), "about:blank",
           static_cast<char*>(nullptr));
    _exit(127);
  }
  close(commands[0]);
  close(answers[1]);
  to_browser_ = commands[1];
  from_browser_ = answers[0];
  const JsonNode made = call("Target.createTarget", R"({"url": "about:blank"})");
  session_ = member(call("Target.attachToTarget", fmt::format(R"({{"targetId": {}, "flatten": true}})",
                                                              json_quoted(member(made, "targetId").text))),
                    "sessionId")
                 .text;
  for (const char* domain : {"Page", "Runtime", "Network", "Log"}) call(std::string(domain) + ".enable");
  resize(1280, 900);
  apply_media();
}

Browser::~Browser() {
  close(to_browser_);
  close(from_browser_);
  // Its helpers are in its process group.
  if (kill(-child_, SIGKILL) != 0) kill(child_, SIGKILL);
  while (waitpid(child_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

void Browser::prefer(const std::string& scheme) {
  scheme_ = scheme;
  apply_media();
}

void Browser::print_media(bool on) {
  print_ = on;
  apply_media();
}

void Browser::apply_media() {
  call("Emulation.setEmulatedMedia",
       fmt::format(R"({{"media": "{}", "features": [{{"name": "prefers-color-scheme", "value": {}}}]}})",
                   print_ ? "print" : "", json_quoted(scheme_)));
}

void Browser::resize(uint32_t width, uint32_t height) {
  call("Emulation.setDeviceMetricsOverride",
       fmt::format(R"({{"width": {}, "height": {}, "deviceScaleFactor": 1, "mobile": false}})", width,
                   height));
}

void Browser::open(const std::string& path) {
  std::string url = "file://";
  for (const char c : std::filesystem::absolute(path).string()) {
    const bool plain =
        std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '/' || c == '.' || c == '-' || c == '_';
    url += plain ? std::string(1, c) : fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
  opened_.push_back(url);
  loaded_ = false;
  const std::string error =
      member(call("Page.navigate", fmt::format(R"({{"url": {}}})", json_quoted(url))), "errorText").text;
  if (!error.empty()) fail(path + ": " + error);
  while (!loaded_) note(receive());
}

std::string Browser::evaluate(const std::string& expression) {
  const JsonNode answer = call(
      "Runtime.evaluate", fmt::format(R"({{"expression": {}, "returnByValue": true, "awaitPromise": true}})",
                                      json_quoted(expression)));
  if (const JsonNode& thrown = member(answer, "exceptionDetails"); !thrown.is(JsonNode::Kind::null))
    fail(expression + ": " + member(member(thrown, "exception"), "description").text);
  return json_text(member(member(answer, "result"), "value"));
}

void Browser::screenshot(const std::string& path) {
  const JsonNode size = member(call("Page.getLayoutMetrics"), "cssContentSize");
  const JsonNode answer = call(
      "Page.captureScreenshot",
      fmt::format(
          R"({{"format": "png", "captureBeyondViewport": true, "clip": {{"x": 0, "y": 0, "width": {}, "height": {}, "scale": 1}}}})",
          member(size, "width").text, member(size, "height").text));
  std::ofstream(path, std::ios::binary) << decoded(member(answer, "data").text);
}

JsonNode Browser::call(const std::string& method, const std::string& parameters) {
  const uint64_t id = ++calls_;
  std::string message = fmt::format(R"({{"id": {}, "method": "{}", "params": {}{}}})", id, method, parameters,
                                    session_.empty() ? "" : R"(, "sessionId": )" + json_quoted(session_));
  message += '\0';
  for (size_t sent = 0; sent < message.size();) {
    const ssize_t moved = ::write(to_browser_, message.data() + sent, message.size() - sent);
    if (moved < 0 && errno != EINTR) fail("the browser has ended");
    if (moved > 0) sent += static_cast<size_t>(moved);
  }
  for (;;) {
    const JsonNode answer = receive();
    if (member(answer, "id").text != std::to_string(id)) {
      note(answer);
      continue;
    }
    if (const JsonNode& error = member(answer, "error"); !error.is(JsonNode::Kind::null))
      fail(method + ": " + json_text(error));
    return member(answer, "result");
  }
}

JsonNode Browser::receive() {
  size_t end;
  while ((end = received_.find('\0')) == std::string::npos) {
    pollfd waiting{from_browser_, POLLIN, 0};
    const int ready = poll(&waiting, 1, kLongestWaitMs);
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) fail("the browser does not answer");
    std::array<char, 65536> buffer;
    const ssize_t moved = ::read(from_browser_, buffer.data(), buffer.size());
    if (moved < 0 && errno == EINTR) continue;
    if (moved <= 0) fail("the browser has ended");
    received_.append(buffer.data(), static_cast<size_t>(moved));
  }
  const std::string message = received_.substr(0, end);
  received_.erase(0, end + 1);
  return parse_json(message, "browser");
}

void Browser::note(const JsonNode& event) {
  const std::string method = member(event, "method").text;
  const JsonNode& parameters = member(event, "params");
  if (method == "Page.loadEventFired") loaded_ = true;
  if (method == "Runtime.consoleAPICalled" || method == "Runtime.exceptionThrown" ||
      method == "Log.entryAdded")
    complaints_.push_back(method + " " + json_text(parameters));
  if (method != "Network.requestWillBeSent") return;
  const std::string url = member(member(parameters, "request"), "url").text;
  if (std::find(opened_.begin(), opened_.end(), url) == opened_.end())
    complaints_.push_back("request " + url);
}

}  // namespace terrace::testing
