/* What a training loop has beside its store, in C11: its configuration with learning rates and the loss
 * scale, the question whether there is a commit to go on from, saved states, which are files in a folder of
 * their own, those who follow a run while it trains, and the ranks that train together. Only those who follow
 * a run need a store, and one training in several stores needs all of them.
 *
 *   terrace_config_read -> terrace_config_json, every update { terrace_config_scheduled } ->
 * terrace_config_free
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

/* Whether a store with these options finds a commit of an earlier run, of any number of ranks, whole or not:
 * then it goes on with terrace_options.resume, or is refused. What a job that died in its first commit has
 * left is none. Of terrace_options.ranks every one calls it, and all get the same. */
TERRACE_C_API terrace_error* terrace_has_commit(const terrace_options* options, uint32_t* has_commit);

/* --- One training in several stores, for bindings --- */

/* Numbers of a sum of squares: limb i, below 2^32, is worth 2^(32 i - 320). */
#define TERRACE_SQUARES_LIMBS 21
/* After the last micro-batch of a step and before its update, which it leaves as it is: the sum of the
 * squares of the store's gradients, without any rounding, so that those of stores which have parts of one
 * model add up, limb by limb, to the norm of a store that has it whole. `count` is TERRACE_SQUARES_LIMBS.
 * `not_finite` is 0, or the infinity or NaN that the sum is; then terrace_update would change nothing. */
TERRACE_C_API terrace_error* terrace_gradient_squares(terrace_store* store, uint64_t* limbs, uint32_t count,
                                                      double* not_finite);

/* --- Activations that the program makes --- */

/* Saves bytes of the program, which computes with them on the device, from forward to backward: with
 * terrace_options.saved_activations TERRACE_CPU in what the plan leaves of host_bytes, with TERRACE_NVME the
 * first ones on nvme_paths where that is full. Else it is TERRACE_CONFIG. `values` stays as it is until
 * terrace_finish_save. No room is TERRACE_CAPACITY, with least_host_bytes. Here and in the following calls a
 * failure leaves everything else as it was, and the store goes on. All may be called within steps and leases.
 */
TERRACE_C_API terrace_error* terrace_start_save(terrace_store* store, const void* values, uint64_t bytes,
                                                uint64_t* saved);
TERRACE_C_API terrace_error* terrace_finish_save(terrace_store* store, uint64_t saved);
/* The way back to memory that is left alone until terrace_finish_load; as often as wanted. `has_begun` is
 * NULL, or set to 0 where others would have to make room for this one: then nothing has begun. */
TERRACE_C_API terrace_error* terrace_start_load(terrace_store* store, uint64_t saved, void* values,
                                                uint32_t* has_begun);
/* TERRACE_IO, or TERRACE_CORRUPT for bytes that are not those that were written. */
TERRACE_C_API terrace_error* terrace_finish_load(terrace_store* store, uint64_t saved);
/* Forgets them, whatever of them is on its way. This and terrace_saved_use_of: of a failed store too. */
TERRACE_C_API terrace_error* terrace_drop_saved(terrace_store* store, const uint64_t* saved, uint32_t count);
typedef struct terrace_saved_use {
  uint32_t size;
  uint32_t reserved;
  uint64_t saved_count;
  uint64_t host_bytes;      /* that they take of host_bytes now */
  uint64_t host_peak_bytes; /* and took at most */
  uint64_t host_held_bytes; /* of the system's memory, which stays for later ones */
  uint64_t host_most_bytes; /* what the plan leaves to them */
  uint64_t nvme_bytes;      /* in files now */
  uint64_t nvme_peak_bytes; /* and at most */
  uint64_t file_bytes;      /* of the files */
  /* Of the step that is open, or else the last one, so that after one it is what each of its size takes: the
   * host memory of all that were there at once, wherever they were; what they took of it and of nvme at most;
   * and the bytes that moved, as terrace_step_counters has them. */
  uint64_t step_wanted_bytes;
  uint64_t step_host_bytes;
  uint64_t step_nvme_bytes;
  uint64_t step_d2h_bytes;
  uint64_t step_h2d_bytes;
  uint64_t step_read_bytes;
  uint64_t step_write_bytes;
} terrace_saved_use;
TERRACE_C_API terrace_error* terrace_saved_use_of(terrace_store* store, terrace_saved_use* use);

/* --- Optimizers, for bindings --- */

/* The table of optimizers, as JSON that lives for ever: a list in the order of terrace_optimizer_kind, of
 * objects with "word" ("adamw"), "moments" (as torch calls them), "counts_steps", the flags "has_betas",
 * "has_eps", "has_momentum" and "has_bias_correction", and "lr", "beta2" and "eps", which a configuration has
 * where it says nothing. */
TERRACE_C_API terrace_error* terrace_optimizers(const char** json);

/* --- Errors, for bindings --- */

/* Whose names an error calls options and functions by. */
typedef enum terrace_words {
  TERRACE_WORDS_C,            /* terrace_options.host_bytes */
  TERRACE_WORDS_PYTHON,       /* host_bytes */
  TERRACE_WORDS_CONFIGURATION /* terrace.host_memory; what has no key goes by its name in Python */
} terrace_words;
/* As terrace_error_get, which gives the words of C. */
TERRACE_C_API void terrace_error_get_as(const terrace_error* error, uint32_t words,
                                        terrace_error_parts* parts);

/* What a program may act on by itself, where the kind does not tell it from other failures. */
typedef enum terrace_error_cause {
  TERRACE_CAUSE_OTHER,
  TERRACE_CAUSE_NO_STORE,      /* the store is NULL */
  TERRACE_CAUSE_STORE_BUSY,    /* another call on it is under way */
  TERRACE_CAUSE_FOLDER_IN_USE, /* another store or job has the folder */
  TERRACE_CAUSE_NO_PATH,       /* something is to be on nvme, and no path is given */
  TERRACE_CAUSE_UNKNOWN_NAME   /* a name is none of those that the advice lists */
} terrace_error_cause;
TERRACE_C_API uint32_t terrace_error_cause_of(const terrace_error* error); /* TERRACE_CAUSE_OTHER of NULL */

/* --- The configuration of a run --- */

/* A DeepSpeed configuration, a JSON file or text. docs/config.md says what each key does; a loop of your own
 * takes what that page says of Python. */
typedef struct terrace_config_options {
  uint32_t size;
  uint32_t brings_optimizer; /* none is made up for a file of "auto" without that section */
  const char* path;          /* the file; where there is a text, its name in errors, or NULL */
  const char* text;          /* NULL: the file is read */
  uint64_t total_steps;      /* of the run, for schedules that end with it; 0: not known */
  uint32_t brings_schedule;  /* the section "scheduler" has no effect */
  uint32_t document_only;    /* nothing is checked, and terrace_config_json has the document as it is */
  uint32_t ranks;            /* that train together, which the batch is counted over; 0: one */
  uint32_t reserved;         /* 0 */
  struct terrace_ranks* met; /* this rank among them, whose nvme paths the result has; NULL: they have not
                              * met, or there is one */
} terrace_config_options;

typedef struct terrace_config terrace_config;
/* TERRACE_CONFIG, whose subject is the place and the key, "FILE:14:7: KEY"; the reason
 * goes on with a line for each further key that is wrong. */
TERRACE_C_API terrace_error* terrace_config_read(const terrace_config_options* options,
                                                 terrace_config** config);
/* The resolved configuration, a JSON object. "values" has the value of every key that has an effect, by its
 * path; "written" the key that gave it, where one did; "auto" the paths whose value is "auto"; "sections" the
 * sections that are there; "without_effect", "old_names" and "warnings" a line for each thing to say; "store"
 * what a store takes and several keys decide: "optimizer", "precision", "accumulation_type", "moment_type",
 * "most_chunk_elements" (0: no bound), "page_locked", "nvme_paths". */
TERRACE_C_API terrace_error* terrace_config_json(terrace_config* config, const char** json);

/* What the schedule sets for one parameter group in one update. */
typedef struct terrace_scheduled {
  uint32_t size;
  uint32_t sets_betas; /* else both are 0, and the group's own stay */
  double lr;
  double beta1;
  double beta2;
} terrace_scheduled;
/* `update` counts from 0, without those that fp16 has skipped; `base_lr` is the group's own rate, which stays
 * where there is no schedule. */
TERRACE_C_API terrace_error* terrace_config_scheduled(terrace_config* config, uint64_t update, uint32_t group,
                                                      double base_lr, terrace_scheduled* scheduled);
/* NULL is allowed. */
TERRACE_C_API void terrace_config_free(terrace_config* config);
/* Every key that there is: a JSON list of objects with "key", "value" (what it may be), "default", "effect"
 * and "note". The text lives as long as the library. */
TERRACE_C_API terrace_error* terrace_config_keys(const char** json);

/* --- The loss scale of fp16 --- */

/* The factor on the loss of a run whose configuration has "fp16"; of others it is 1, whatever happens. The
 * rules are DeepSpeed's: docs/config.md has the keys. */
typedef struct terrace_loss_scale terrace_loss_scale;
TERRACE_C_API terrace_error* terrace_loss_scale_create(terrace_config* config, terrace_loss_scale** scale);
/* After an update, which is skipped where gradients overflow. TERRACE_CANCELLED, and nothing changes, where
 * no smaller scale is allowed, or a static one has made ten updates in a row overflow. */
TERRACE_C_API terrace_error* terrace_loss_scale_note(terrace_loss_scale* scale, uint32_t has_overflowed);

/* What a checkpoint keeps. */
typedef struct terrace_loss_scale_state {
  uint32_t size;
  uint32_t hysteresis;
  double scale;
  uint64_t good_steps; /* since the last overflow */
  uint64_t skipped_steps;
  uint32_t skipped_in_a_row;
  uint32_t reserved;
} terrace_loss_scale_state;
TERRACE_C_API terrace_error* terrace_loss_scale_get(terrace_loss_scale* scale,
                                                    terrace_loss_scale_state* state);
/* A static scale stays that of the configuration, and hysteresis is at most that. TERRACE_CORRUPT: a state
 * that means nothing. */
TERRACE_C_API terrace_error* terrace_loss_scale_restore(terrace_loss_scale* scale,
                                                        const terrace_loss_scale_state* state);
/* NULL is allowed. */
TERRACE_C_API void terrace_loss_scale_free(terrace_loss_scale* scale);

/* --- Saved states --- */

/* Which state is meant, for writing and reading. */
typedef struct terrace_state_options {
  uint32_t size;
  uint32_t file_count;
  const char* folder; /* for writing it is made where it is missing, and locked until the end */
  const char*
      name; /* the state is folder/name; for reading NULL: the one that `latest` in the folder names */
  const char* const* files; /* the names of all files of such a state; of a checkpoint that is read none */
  terrace_log_fn log;       /* NULL: nothing is said */
  void* log_context;
  uint32_t is_checkpoint; /* of any program that trains: what its states may have is known */
  uint32_t reserved;      /* 0 */
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
/* What a checkpoint says of its run; docs/checkpoint_format.md. */
typedef struct terrace_checkpoint {
  uint32_t size;
  uint32_t precision;                         /* of the parameters, a terrace_type */
  uint64_t run;                               /* the same in all that go on from it; not 0 */
  uint64_t step;                              /* steps done, those that fp16 has skipped included */
  uint64_t samples;                           /* sequences in all of them; 0: not known */
  const char* model;                          /* for people; NULL: "a model" */
  uint32_t optimizer;                         /* a terrace_optimizer_kind */
  uint32_t reserved;                          /* 0 */
  const terrace_loss_scale_state* loss_scale; /* NULL: the loss is not scaled */
  const char* architecture; /* for `terrace export` and `terrace generate`; NULL: they refuse it */
} terrace_checkpoint;
/* Of a state with `is_checkpoint`, before any other file: writes "states.bin" and, of a store with frozen
 * tensors, "frozen.bin", which are in its list. The store is between two steps. terrace_state_complete is
 * given NULL then: the facts are those of docs/checkpoint_format.md. Of a store over ranks every rank calls
 * it, and the first one alone has a writer; where that has none, or fails, the others have TERRACE_PEER. */
TERRACE_C_API terrace_error* terrace_state_checkpoint(terrace_state_writer* writer, terrace_store* store,
                                                      const terrace_checkpoint* checkpoint);
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
/* Of a checkpoint: elements of a tensor, by its number in the list of the facts. `what` is as in
 * terrace_read_values, but of a trained tensor there is no parameter beside the master. */
TERRACE_C_API terrace_error* terrace_state_values(terrace_state_reader* reader, uint32_t tensor,
                                                  uint32_t what, uint64_t first, uint64_t count,
                                                  float* values);
/* Reads all files. */
TERRACE_C_API terrace_error* terrace_state_verify(terrace_state_reader* reader);
/* NULL is allowed. */
TERRACE_C_API void terrace_state_close(terrace_state_reader* reader);

/* --- Weights of other programs --- */

/* Whether a file of safetensors is sound, before a program reads tensors from it. `head` is the file from its
 * first byte to the end of its header, or less where it is shorter or its header longer than any may be;
 * `name` is its name in errors. TERRACE_CORRUPT, with the tensor and the defect, unless every tensor is
 * described once and completely and their bytes cover the rest of the file without holes or overlaps. */
TERRACE_C_API terrace_error* terrace_safetensors_check(const void* head, uint64_t head_bytes,
                                                       uint64_t file_bytes, const char* name);

/* --- A run that is seen --- */

/* Who follows a training while it goes on: the log of its steps (docs/steps_jsonl.md), scalars for
 * TensorBoard and as CSV, a socket for `terrace ctl` and `terrace top` (docs/control.md), and a warning of
 * every wait that takes too long.
 *
 *   terrace_run_begin -> after every step terrace_run_step_done, after what is kept terrace_run_kept
 *   -> terrace_run_end -> terrace_run_free
 *
 * All calls come from the thread that trains, between two steps. A store has one run at a time. */
typedef struct terrace_run terrace_run;

typedef enum terrace_kept { TERRACE_KEPT_COMMIT = 1, TERRACE_KEPT_CHECKPOINT = 2 } terrace_kept;
/* Somebody asks for a checkpoint (`terrace ctl save`): called within terrace_run_step_done, on the thread
 * that trains, and may use the store. Returns what has begun, as a sum of terrace_kept; 0: nothing could be.
 */
typedef uint32_t (*terrace_run_save_fn)(void* context);

/* The scalars of an update, or of an evaluation, as the files of monitors get them: `count` values, each
 * under its tag, after so many sequences. Called within terrace_run_step_done and terrace_run_evaluated, on
 * the thread that trains; tags and values are there until it returns. */
typedef void (*terrace_run_scalars_fn)(void* context, uint64_t samples, const char* const* tags,
                                       const double* values, uint32_t count);

typedef struct terrace_run_options {
  uint32_t size;
  uint32_t is_resumed;      /* the run goes on: monitors take up the files that are there */
  uint64_t steps;           /* of the whole run; 0: not known */
  uint64_t completed_steps; /* of these, before this process */
  uint64_t samples;         /* sequences in these */
  const char* model;        /* for people; NULL: "a model" */
  const char* config;       /* a JSON object of the values in force, for the log; NULL: {} */
  const char* log_path;     /* of the log of steps, which is appended to; NULL: none */
  const char* tensorboard;  /* the folder of event files; NULL: none */
  const char* csv;          /* the folder of CSV files; NULL: none */
  uint32_t has_loss_scale;  /* monitors show it */
  uint32_t has_times;       /* monitors show the times of forward, backward and update */
  uint32_t no_control;      /* no socket */
  uint32_t no_stall_warnings;
  uint32_t stall_warning_seconds; /* age of a wait that is warned of; 0: 60. Of a store over ranks
                                   * terrace_ranks_patience says it */
  uint32_t micro_batches;         /* of a step, for the words that say where it is; 0: 1 */
  const char* control_folder;     /* of the socket; NULL: where `terrace ctl` looks */
  terrace_run_save_fn save;       /* NULL: nobody can ask for a checkpoint */
  void* save_context;
  terrace_log_fn log; /* NULL: nothing is said */
  void* log_context;
  terrace_run_scalars_fn scalars; /* NULL: nobody hears them but the files */
  void* scalars_context;
} terrace_run_options;
/* Opens the files and the socket. A socket that cannot be opened is a warning. */
TERRACE_C_API terrace_error* terrace_run_begin(terrace_store* store, const terrace_run_options* options,
                                               terrace_run** run);

/* A step that is done, its update included. What moved and waited in it is the store's to know. */
typedef struct terrace_run_step {
  uint32_t size;
  uint32_t skipped; /* gradients overflowed: nothing was updated */
  uint64_t step;    /* counts from 1, over the whole run */
  uint64_t tokens;  /* 0: not known */
  uint64_t samples; /* sequences in all steps so far */
  double loss;      /* NaN: not known, as the next three */
  double learning_rate;
  double gradient_norm;
  double loss_scale; /* of this step's gradients; 1 without one */
  double next_loss_scale;
  uint64_t forward_ns; /* of the step, in forward passes; 0: not known */
  uint64_t update_ns;
} terrace_run_step;
/* Tells everybody, and does what was asked for since: a host budget is changed here. `stops`: 1 where
 * somebody has asked the run to end (`terrace ctl stop`). TERRACE_IO where a file takes no more; the store is
 * as it was then. */
TERRACE_C_API terrace_error* terrace_run_step_done(terrace_run* run, const terrace_run_step* step,
                                                   uint32_t* stops);
/* A held-out loss after so many steps. */
TERRACE_C_API terrace_error* terrace_run_evaluated(terrace_run* run, uint64_t step, double loss);
/* A commit that is durable, or a checkpoint that is whole: `folder` names it, and is NULL for a commit. */
TERRACE_C_API terrace_error* terrace_run_kept(terrace_run* run, uint64_t step, const char* folder);
/* The last line of the log. `stopped_by`: what ended the run before its last step, or NULL. `failure`: what
 * has failed, or NULL; then `survives` says which states are left. */
TERRACE_C_API terrace_error* terrace_run_end(terrace_run* run, uint64_t step, const char* stopped_by,
                                             const char* failure, const char* survives);
/* Closes what is open. NULL is allowed. A store that is destroyed before has closed it. */
TERRACE_C_API void terrace_run_free(terrace_run* run);

/* --- Ranks --- */

/* The processes that a launcher has started to train together: `terrace launch`, torchrun, mpirun, srun, or
 * one of your own (docs/ranks.md). They join, agree on values, learn who has died, and end together with one
 * exit status. terrace_options.ranks divides a store over them, one at a time; they outlive it. Beside it
 * ranks exchange what your program gives them. Every rank updates a store with the same settings, and writes
 * the same values to it: else terrace_update is a TERRACE_CONFIG on all that names the difference, and the
 * step is over without an update.
 *
 *   terrace_ranks_join -> { terrace_ranks_agree, terrace_ranks_ballot, terrace_ranks_step } ->
 *   terrace_ranks_end -> terrace_ranks_free
 *
 * A process that is alone is a rank of one: its calls answer at once. The calls that every rank makes, in the
 * same order, fail on all ranks. TERRACE_PEER names the rank that has died, has left or does something else;
 * after that only terrace_ranks_end is of use. One thread at a time makes the calls; terrace_ranks_check and
 * terrace_ranks_where may come from any thread. In the child of a fork all may only be freed, which does
 * nothing there. */
typedef struct terrace_ranks terrace_ranks;

/* How the ranks of a store exchange parameters and gradients; no bit depends on it. */
typedef enum terrace_rank_exchange {
  TERRACE_SYMMETRIC, /* together: all make the same calls of the store in the same order */
  /* Each gets what it needs when it needs it, so that ranks may lease other tensors in other orders, leave
   * some out, and evaluate for other times. All make the same of these calls, in the same order: those that
   * fill, read, write and commit, terrace_end_micro_batch, terrace_update, terrace_abandon_step of a step
   * with gradients, and terrace_destroy, which waits for the others. TERRACE_CONFIG where other options do
   * not allow it. */
  TERRACE_PULLED
} terrace_rank_exchange;

/* Of a process that a launcher has started among others: rank, number and the launcher; else 0, 1 and "". */
TERRACE_C_API terrace_error* terrace_launched(uint32_t* rank, uint32_t* ranks, const char** launcher);

typedef enum terrace_transport {
  TERRACE_TRANSPORT_AUTO, /* MPI where its launcher has started the ranks, else sockets */
  TERRACE_TRANSPORT_HOST, /* sockets, on one host */
  TERRACE_TRANSPORT_MPI,
  /* As TERRACE_TRANSPORT_AUTO, and parameters that a store gathers go from GPU to GPU by NCCL, and so do
   * gradients of TERRACE_LEASED and TERRACE_HANDED_OVER_ON_DEVICE. Stores are symmetric then and on GPUs,
   * each rank's on one of its own, of one host; else TERRACE_CONFIG. */
  TERRACE_TRANSPORT_NCCL
} terrace_transport;

/* Where another rank has died or failed, and a second later this one still computes, because no call has told
 * it: whether its process ends then, with status 1, once the user is told. */
typedef enum terrace_ends_process {
  TERRACE_ENDS_NEVER,
  TERRACE_ENDS_ALWAYS,
  TERRACE_ENDS_WITH_STORE /* while a store is divided over the ranks, and never else */
} terrace_ends_process;

typedef struct terrace_ranks_options {
  uint32_t size;
  uint32_t transport; /* terrace_transport */
  uint32_t rank;
  uint32_t count;           /* of all ranks; 0: the launcher's variables say it, and the rank */
  uint32_t timeout_seconds; /* for all ranks to come; 0: 60 */
  uint32_t ends_process;    /* terrace_ends_process */
  const char* place;  /* where sockets meet, "HOST:PORT" or an absolute path; NULL: the variables say it */
  terrace_log_fn log; /* NULL: nothing is said. Also why ranks end: every reason once, by one rank */
  void* log_context;
  /* The ranks of the run, where these are some of them: the variables say neither rank nor count then. */
  struct terrace_ranks* among;
} terrace_ranks_options;

/* Every rank calls it. TERRACE_CONFIG where the launcher's variables contradict each other or the options,
 * TERRACE_PEER where the others do not come: it names who is missing. */
TERRACE_C_API terrace_error* terrace_ranks_join(const terrace_ranks_options* options, terrace_ranks** ranks);

typedef struct terrace_ranks_facts {
  uint32_t size;
  uint32_t rank;
  uint32_t count;
  uint32_t local_rank; /* among the ranks of this host */
  uint32_t local_count;
  uint32_t reserved;
  const char* host;     /* the name of this host */
  const char* launcher; /* "torchrun"; "" of one that is alone */
} terrace_ranks_facts;
TERRACE_C_API terrace_error* terrace_ranks_get(terrace_ranks* ranks, terrace_ranks_facts* facts);

/* Every rank calls it. TERRACE_CONFIG on all ranks where a value is not the same on all: it has a line for
 * each such name, with the values and the ranks that have them. */
TERRACE_C_API terrace_error* terrace_ranks_agree(terrace_ranks* ranks, const char* const* names,
                                                 const char* const* values, uint32_t count);
/* Every rank calls it, with as many bytes, at most 1 MiB. `all` has those of all ranks in their order. */
TERRACE_C_API terrace_error* terrace_ranks_ballot(terrace_ranks* ranks, const void* mine, uint64_t bytes,
                                                  void* all);

/* Where this rank is, as the others are told once a second: the step that it is in, which counts from 1, and
 * what it does there; NULL: nothing is said of that. */
TERRACE_C_API terrace_error* terrace_ranks_step(terrace_ranks* ranks, uint64_t step, const char* doing);
/* The ranks have kept a state, or `text` is empty: what becomes of the run should a rank die now, for the
 * error that names it. `terrace launch --restarts` learns that the run goes on from there. */
TERRACE_C_API terrace_error* terrace_ranks_kept(terrace_ranks* ranks, const char* text);
/* TERRACE_PEER where a rank has died or failed, for loops that ask the others for nothing meanwhile. */
TERRACE_C_API terrace_error* terrace_ranks_check(terrace_ranks* ranks);
/* How long this rank may wait, for other ranks or for what its store does. */
typedef struct terrace_patience {
  uint32_t size;
  uint32_t stall_warning_seconds; /* then the log says for what, and who of the others is where; again at
                                   * twice that age. 0: it never does */
  uint32_t stall_abort_seconds;   /* then it gives the run up: what the ranks wait for fails on all of them
                                   * with TERRACE_PEER, which names who keeps the others waiting. 0: never */
  uint32_t reserved;              /* 0 */
} terrace_patience;
/* Until it is called a warning comes after 60 s, and no rank gives up. */
TERRACE_C_API terrace_error* terrace_ranks_patience(terrace_ranks* ranks, const terrace_patience* patience);
/* Who keeps this rank waiting, in words, for a wait that takes too long; "" where another rank says it. The
 * text lives until the next call. */
TERRACE_C_API terrace_error* terrace_ranks_where(terrace_ranks* ranks, const char** text);

/* This rank ends; every rank does, and calls it. `failure`: why, and `kind` what it is of
 * (terrace_error_kind); NULL: its work is done. The others are told, so that none waits for this one, and the
 * log is told every reason once, by one rank for all that have it. `exit_status`: the worst of all ranks'
 * `status` where they fail, since a launcher reports that of whichever ends first. */
TERRACE_C_API terrace_error* terrace_ranks_end(terrace_ranks* ranks, const char* failure, uint32_t kind,
                                               uint32_t status, uint32_t* exit_status);
/* NULL is allowed. */
TERRACE_C_API void terrace_ranks_free(terrace_ranks* ranks);

#ifdef __cplusplus
}
#endif

#endif
