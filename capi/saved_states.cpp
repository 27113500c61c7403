// terrace_run.h: saved states, the question for a commit, and files of safetensors.
#include <terrace/capi/saved_states.h>

#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <terrace/capi/errors.h>
#include <terrace/capi/found_commits.h>
#include <terrace/capi/limits.h>
#include <terrace/capi/ranks.h>
#include <terrace/capi/store_of_ranks.h>
#include <terrace/capi/structs.h>
#include <terrace/runtime/checkpoint/checkpoint_streams.h>
#include <terrace/runtime/safetensors/safetensors.h>

using namespace terrace;  // NOLINT: the functions of C are in no namespace

namespace {

constexpr const char* kSave = c::kSaveState;
constexpr const char* kLoad = c::kLoadState;

std::vector<std::string> files_of(const terrace_state_options& given, const char* action) {
  c::require_pointer(given.folder, action, "terrace_state_options.folder");
  c::require_list(given.files, given.file_count, action, "terrace_state_options.files");
  c::require_zero(given.reserved, action, "terrace_state_options.reserved");
  std::vector<std::string> files;
  for (uint32_t f = 0; f < given.file_count; ++f) {
    c::require_pointer(given.files[f], action, "terrace_state_options.files");
    files.emplace_back(given.files[f]);
    if (!saved::why_no_state_name(files.back()).empty() || files.back() == saved::kManifestName)
      c::refuse(ErrorKind::config, action, "terrace_state_options.files", "one of them is no name for a file",
                "give plain names");
  }
  return files;
}

template <typename Action>
terrace_error* in_writer(terrace_state_writer* writer, Action action) noexcept {
  return c::answer([&] { c::use_writer(writer, action); });
}

}  // namespace

terrace_error* terrace_has_commit(const terrace_options* options, uint32_t* has_commit) {
  return c::answer([&] {
    constexpr const char* kAction = "cannot look for a commit";
    c::require_pointer(has_commit, kAction, "has_commit");
    terrace_ranks* const ranks = c::ranks_of({nullptr, nullptr, 0, options, nullptr, 0}, kAction);
    try {
      *has_commit = c::has_commit(c::read_place(options, kAction)) ? 1 : 0;
    } catch (const Error& error) {
      if (ranks != nullptr) ranks->throw_death_behind(error);
      throw;
    }
  });
}

terrace_error* terrace_state_begin(const terrace_state_options* options, terrace_state_writer** writer) {
  return c::answer([&] {
    c::require_pointer(writer, kSave, "writer");
    const terrace_state_options given = c::taken(options, kSave, "options");
    std::vector<std::string> files = files_of(given, kSave);
    c::require_pointer(given.name, kSave, "terrace_state_options.name");
    saved::StateKind kind;
    if (given.is_checkpoint != 0) kind = checkpoint_kind();
    *writer = std::make_unique<terrace_state_writer>(given, std::move(files), std::move(kind)).release();
  });
}

terrace_error* terrace_state_file(terrace_state_writer* writer, const char* file) {
  return in_writer(writer, [&](terrace_state_writer& w) {
    c::require_pointer(file, kSave, "file");
    w.writer.begin_file(file);
  });
}

terrace_error* terrace_state_write(terrace_state_writer* writer, const void* bytes, uint64_t count) {
  return in_writer(writer, [&](terrace_state_writer& w) {
    c::require_list(bytes, count, kSave, "bytes");
    w.writer.write({static_cast<const std::byte*>(bytes), count});
  });
}

terrace_error* terrace_state_complete(terrace_state_writer* writer, const char* facts, uint32_t set_latest) {
  return in_writer(writer, [&](terrace_state_writer& w) {
    if (w.facts.empty()) c::require_pointer(facts, kSave, "facts");
    if (!w.facts.empty() && facts != nullptr)
      c::misuse(kSave, "facts", "terrace_state_checkpoint has given them", "give NULL");
    w.writer.complete(facts != nullptr ? facts : w.facts, set_latest != 0);
  });
}

void terrace_state_end(terrace_state_writer* writer) {
  delete writer;
}

terrace_error* terrace_state_open(const terrace_state_options* options, terrace_state_reader** reader) {
  return c::answer([&] {
    c::require_pointer(reader, kLoad, "reader");
    const terrace_state_options given = c::taken(options, kLoad, "options");
    std::vector<std::string> files = files_of(given, kLoad);
    if (given.is_checkpoint != 0) files = checkpoint_kind().files_alone;
    std::optional<std::string> name;
    if (given.name != nullptr) name = given.name;
    *reader = std::unique_ptr<terrace_state_reader>(
                  new terrace_state_reader{saved::StateReader(given.folder, name, std::move(files))})
                  .release();
  });
}

terrace_error* terrace_state_path(terrace_state_reader* reader, const char** path) {
  return c::answer([&] {
    c::require_pointer(reader, kLoad, "reader");
    c::require_pointer(path, kLoad, "path");
    *path = reader->path.c_str();
  });
}

terrace_error* terrace_state_facts(terrace_state_reader* reader, const char** facts) {
  return c::answer([&] {
    c::require_pointer(reader, kLoad, "reader");
    c::require_pointer(facts, kLoad, "facts");
    *facts = reader->reader.facts().c_str();
  });
}

terrace_error* terrace_state_size(terrace_state_reader* reader, const char* file, uint64_t* bytes) {
  return c::answer([&] {
    c::require_pointer(reader, kLoad, "reader");
    c::require_pointer(file, kLoad, "file");
    c::require_pointer(bytes, kLoad, "bytes");
    *bytes = reader->reader.bytes_of(file);
  });
}

terrace_error* terrace_state_read(terrace_state_reader* reader, const char* file, uint64_t offset,
                                  uint64_t count, void* bytes) {
  return c::answer([&] {
    c::require_pointer(reader, kLoad, "reader");
    c::require_pointer(file, kLoad, "file");
    c::require_list(bytes, count, kLoad, "bytes");
    reader->reader.read(file, offset, {static_cast<std::byte*>(bytes), count});
  });
}

terrace_error* terrace_state_verify(terrace_state_reader* reader) {
  return c::answer([&] {
    c::require_pointer(reader, kLoad, "reader");
    reader->reader.verify();
  });
}

void terrace_state_close(terrace_state_reader* reader) {
  delete reader;
}

terrace_error* terrace_safetensors_check(const void* head, uint64_t head_bytes, uint64_t file_bytes,
                                         const char* name) {
  return c::answer([&] {
    c::require_list(head, head_bytes, "cannot read the weights", "head");
    c::require_pointer(name, "cannot read the weights", "name");
    parse_safetensors_header({static_cast<const std::byte*>(head), head_bytes}, file_bytes, name);
  });
}
