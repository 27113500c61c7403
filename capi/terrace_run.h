/* What a training loop keeps beside its store, in C11: the question whether there is a commit to go on from,
 * and saved states, which are files in a folder of their own. Nothing here needs a store.
 *
 * A saved state is found whole or not at all, wherever the job that saves it dies or the power goes, and no
 * damaged byte of it is given out. docs/saved_state_format.md describes the bytes.
 *
 *   terrace_state_begin -> every file { terrace_state_file, terrace_state_write ... } ->
 * terrace_state_complete
 *   -> terrace_state_end
 *   terrace_state_open -> terrace_state_verify -> terrace_state_read ... -> terrace_state_close
 *
 * Errors, structs and memory are as terrace.h says. A failed call leaves a writer that can only be ended, and
 * a reader as it was. TERRACE_CONFIG: a name that cannot be used, or a place that holds what is no such
 * state; TERRACE_CORRUPT: damage, by file, block, offset and both checksums. One thread at a time uses a
 * writer or a reader. In the child of a fork both may only be ended, which changes no file there. */
#ifndef TERRACE_RUN_H
#define TERRACE_RUN_H

#include <terrace.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Whether a store with these paths finds a commit of an earlier run, whole or not: then it goes on with
 * terrace_options.resume, or is refused. What a job that died in its first commit has left is none.
 * `tier_name` may be NULL. */
TERRACE_C_API terrace_error* terrace_has_commit(const char* const* nvme_paths, uint32_t nvme_path_count,
                                                const char* tier_name, uint32_t* has_commit);

/* --- Saved states --- */

/* Which state is meant, for writing and reading. */
typedef struct terrace_state_options {
  uint32_t size;
  uint32_t file_count;
  const char* folder; /* for writing it is made where it is missing, and locked until the end */
  const char*
      name; /* the state is folder/name; for reading NULL: the one that `latest` in the folder names */
  const char* const* files; /* the names of all files of such a state */
  terrace_log_fn log;       /* NULL: nothing is said */
  void* log_context;
} terrace_state_options;

typedef struct terrace_state_writer terrace_state_writer;
/* A state of that name is replaced at the end. Brings the folder in order after jobs that died. TERRACE_IO
 * where another job saves there. */
TERRACE_C_API terrace_error* terrace_state_begin(const terrace_state_options* options,
                                                 terrace_state_writer** writer);
/* Ends the file before, and begins one of the list. */
TERRACE_C_API terrace_error* terrace_state_file(terrace_state_writer* writer, const char* file);
TERRACE_C_API terrace_error* terrace_state_write(terrace_state_writer* writer, const void* bytes,
                                                 uint64_t count);
/* Gives the state its name, and with `set_latest` says it in `latest`. `facts` is a text of the caller's, not
 * empty and of at most 64 MiB. All is durable when this returns. */
TERRACE_C_API terrace_error* terrace_state_complete(terrace_state_writer* writer, const char* facts,
                                                    uint32_t set_latest);
/* What is not complete is removed. NULL is allowed. */
TERRACE_C_API void terrace_state_end(terrace_state_writer* writer);

typedef struct terrace_state_reader terrace_state_reader;
/* Checks the manifest, and that the files are there with their sizes, and no others. */
TERRACE_C_API terrace_error* terrace_state_open(const terrace_state_options* options,
                                                terrace_state_reader** reader);
/* Where it lies. */
TERRACE_C_API terrace_error* terrace_state_path(terrace_state_reader* reader, const char** path);
/* "" of a state that an earlier Terrace saved without a manifest: its bytes are given as they are. */
TERRACE_C_API terrace_error* terrace_state_facts(terrace_state_reader* reader, const char** facts);
TERRACE_C_API terrace_error* terrace_state_size(terrace_state_reader* reader, const char* file,
                                                uint64_t* bytes);
/* Every byte is compared with its checksum before it is given out. */
TERRACE_C_API terrace_error* terrace_state_read(terrace_state_reader* reader, const char* file,
                                                uint64_t offset, uint64_t count, void* bytes);
/* Reads all files. */
TERRACE_C_API terrace_error* terrace_state_verify(terrace_state_reader* reader);
/* NULL is allowed. */
TERRACE_C_API void terrace_state_close(terrace_state_reader* reader);

#ifdef __cplusplus
}
#endif

#endif
