#include <terrace/runtime/checkpoint/commit_info.h>

#include <fmt/format.h>

#include <terrace/base/error.h>
#include <terrace/base/text/json_writer.h>
#include <terrace/runtime/checkpoint/internal/facts.h>
#include <terrace/runtime/config/json/json_document.h>

namespace terrace {
namespace {

constexpr std::string_view kFormatName = "terrace-epoch";
constexpr uint64_t kVersion = 2;  // that of a commit without a run is 1

}  // namespace

std::string commit_info_text(const CheckpointInfo& info) {
  JsonWriter json;
  json.begin_object(JsonLayout::lines).member("format", kFormatName);
  json.member("version", info.run_id == 0 ? 1 : kVersion);
  checkpoint::write_facts(json, info, true);
  return json.member("chunk_elements", info.chunk_elements).end().take() + "\n";
}

bool is_commit_info(std::string_view text) {
  return text.starts_with(fmt::format("{{\n  \"format\": \"{}\"", kFormatName));
}

CheckpointInfo parse_commit_info(std::string_view text, const std::filesystem::path& manifest) {
  const JsonNode root = checkpoint::parse_object(text, manifest);
  checkpoint::Members members(root, "", manifest);
  if (members.text("format") != kFormatName) members.refuse(fmt::format("its format is not {}", kFormatName));
  const uint64_t version = members.whole_number("version");
  if (version > kVersion) {
    throw Error(ErrorKind::config,
                {"cannot use the commit", manifest.string(),
                 fmt::format("it has version {} and this Terrace reads versions up to {}", version, kVersion),
                 "use the Terrace that trained it, or a later one"});
  }
  if (version == 0) members.refuse("there is no version 0");
  CheckpointInfo info = checkpoint::read_facts(members, true);
  info.chunk_elements = members.whole_number("chunk_elements");
  if (info.chunk_elements == 0 || info.chunk_elements % kTileElements != 0)
    members.refuse(fmt::format("\"chunk_elements\" is no multiple of {}", kTileElements));
  members.require_nothing_else();
  if (commit_info_text(info) != text) members.refuse("it is not written the way Terrace writes them");
  return info;
}

}  // namespace terrace
