// The manifests of a checkpoint and of a saved state, and the text that a commit has of its run. Its last
// member is a checksum of everything before, which no mutation keeps; so every input is also tried as the
// text that a right checksum is put behind.
#include <terrace/runtime/checkpoint/commit_info.h>
#include <terrace/runtime/checkpoint/internal/manifest.h>
#include <terrace/runtime/saved/saved_state.h>

#include "fuzz_input.h"

namespace {

void parse(std::string_view text) {
  using namespace terrace;
  checkpoint::Manifest manifest;
  const auto parsed = [&] { manifest = checkpoint::parse_manifest(text, "manifest.json"); };
  if (!fuzz::accepts({ErrorKind::corrupt, ErrorKind::config}, parsed)) return;
  fuzz::require(checkpoint::manifest_text(manifest) == text, "only what Terrace writes is a manifest");
}

void parse_state(std::string_view text) {
  using namespace terrace;
  saved::StateManifest manifest;
  const auto parsed = [&] { manifest = saved::parse_state_manifest(text, "manifest.json"); };
  if (!fuzz::accepts({ErrorKind::corrupt, ErrorKind::config}, parsed)) return;
  fuzz::require(saved::manifest_text(manifest) == text, "only what Terrace writes is a manifest");
}

void parse_commit(std::string_view text) {
  using namespace terrace;
  CheckpointInfo info;
  const auto parsed = [&] { info = parse_commit_info(text, "epoch.manifest"); };
  if (!fuzz::accepts({ErrorKind::corrupt, ErrorKind::config}, parsed)) return;
  fuzz::require(commit_info_text(info) == text, "only what Terrace writes is of a commit");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text = terrace::fuzz::as_text(data, size);
  parse(text);
  parse_commit(text);
  parse(terrace::saved::sealed(std::string(text)));
  parse_state(text);
  parse_state(terrace::saved::sealed(std::string(text)));
  return 0;
}
