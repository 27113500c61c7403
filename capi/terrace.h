/* Terrace's memory manager in C11: parameters, gradients and optimizer states of a training on a device, in
 * host memory and on NVMe, under budgets that you give. docs/c_api.md goes from nothing to a trained network.
 *
 *   terrace_create -> terrace_fill_* -> every step { terrace_begin_step, every micro-batch { leases,
 *   terrace_end_micro_batch }, terrace_update } -> terrace_destroy
 *
 * Errors. A function that can fail returns NULL, or an error that the caller frees; it gives nothing back
 * then. TERRACE_CONFIG and TERRACE_MISUSE have changed nothing: go on as you should have. After any other,
 * but where a function says otherwise, a store answers every call but terrace_destroy and the counters with
 * it.
 *
 * Structs. Each begins with its size, which TERRACE_INIT sets; all else is 0, which is the default. Members
 * are only ever added at the end, so a program and a library of different age fit together: an older library
 * refuses a member that it does not know only where it is set. Structs that are results are set up alike.
 *
 * Memory. What is given is read or copied before the call returns. Strings that are handed out live as long
 * as the thing that they were asked of. An address of a tensor lives as long as the store.
 *
 * Threads. One call at a time per store, from any thread; a second one at the same moment is an error of kind
 * TERRACE_MISUSE. Callbacks come from any thread and must not call the store. After fork() the child may only
 * exit: every call is an error there, and terrace_destroy does nothing. Stores depend on no other store. */
#ifndef TERRACE_H
#define TERRACE_H
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#else
#include <string.h>
#endif
#if defined(__GNUC__)
#define TERRACE_C_API __attribute__((visibility("default")))
#else
#define TERRACE_C_API
#endif

/* The number of the binary interface, which is that of the library's name: libterrace.so.0. */
#define TERRACE_ABI 0
/* The initial value of a struct: terrace_options options = TERRACE_INIT(terrace_options); */
#ifdef __cplusplus
#define TERRACE_INIT(type)             \
  [] {                                 \
    type terrace_value = type();       \
    terrace_value.size = sizeof(type); \
    return terrace_value;              \
  }()
#else
#define TERRACE_INIT(type) \
  { .size = (uint32_t)sizeof(type) }
#endif

TERRACE_C_API const char* terrace_version(void); /* "0.1.0" */
TERRACE_C_API uint32_t terrace_abi(void);        /* TERRACE_ABI of the library that runs */

/* --- Errors --- */
typedef struct terrace_error terrace_error;
typedef enum terrace_error_kind {
  TERRACE_CONFIG = 1,    /* a value that cannot be used */
  TERRACE_CAPACITY,      /* a budget, drive or limit that is too small */
  TERRACE_IO,            /* an operation on a file or drive failed */
  TERRACE_DEVICE_FAILED, /* the accelerator failed */
  TERRACE_CORRUPT,       /* bytes on a drive differ from those written */
  TERRACE_CANCELLED,     /* a callback asked to stop, or no whole state is left */
  TERRACE_MISUSE,        /* a call out of order, or on something that does not exist */
  TERRACE_INTERNAL,      /* a failure that the library has no name for */
  TERRACE_PEER           /* another rank has died, has left, or does something else */
} terrace_error_kind;

/* The parts of an error's text; "" where it has none. */
typedef struct terrace_error_parts {
  uint32_t size;
  uint32_t kind; /* terrace_error_kind */
  const char* what_failed;
  const char* subject;
  const char* reason;
  const char* advice;
  /* Of a budget that is too small: the least that would do; 0: not known, or no matter. Where two tiers are
   * too small, both have to be raised, and least_bytes is that of the first. */
  uint64_t least_bytes;
  uint64_t least_device_bytes;
  uint64_t least_host_bytes;
  uint64_t least_nvme_bytes;
} terrace_error_parts;

/* These take any error, NULL too. Strings live as long as the error. */
TERRACE_C_API uint32_t terrace_error_kind_of(const terrace_error* error); /* 0 of NULL */
TERRACE_C_API const char* terrace_error_text(const terrace_error* error); /* all parts; "" of NULL */
/* Does nothing where `parts` is NULL or its size was not set. */
TERRACE_C_API void terrace_error_get(const terrace_error* error, terrace_error_parts* parts);
TERRACE_C_API void terrace_error_free(terrace_error* error);

/* --- Devices --- */
/* A device by description: every store that is created with it has memory of its own of this budget. */
typedef struct terrace_device terrace_device;

/* Memory of this machine that plays a device's: kernels run on the processor. */
typedef struct terrace_simulated_options {
  uint32_t size;
  uint32_t strict; /* a touch of a tensor outside of its leases ends the process, and names the tensor */
  uint64_t budget_bytes;
  uint64_t h2d_bytes_per_second; /* of the simulated link; 0: as fast as memory */
  uint64_t d2h_bytes_per_second;
} terrace_simulated_options;
TERRACE_C_API terrace_error* terrace_device_simulated(const terrace_simulated_options* options,
                                                      terrace_device** device);

/* A GPU. TERRACE_CONFIG where the library is built without CUDA, TERRACE_DEVICE_FAILED where there is none.
 * Optimizer states have to be on TERRACE_CPU or TERRACE_NVME. */
typedef struct terrace_cuda_options {
  uint32_t size;
  uint32_t ordinal;
  uint64_t budget_bytes; /* beside the context of the process */
  uint32_t strict;
  uint32_t reserved;
} terrace_cuda_options;
TERRACE_C_API terrace_error* terrace_device_cuda(const terrace_cuda_options* options,
                                                 terrace_device** device);

/* Stores that were created with it go on. NULL is allowed. */
TERRACE_C_API void terrace_device_free(terrace_device* device);

/* --- The store --- */
typedef struct terrace_store terrace_store;
/* Words are four bytes of anything, of frozen tensors alone: no function converts them, nor one of floats. */
typedef enum terrace_type { TERRACE_FP32, TERRACE_BF16, TERRACE_FP16, TERRACE_WORD } terrace_type;
typedef enum terrace_moment_type {
  TERRACE_MOMENT_FP32,
  TERRACE_MOMENT_BF16,
  TERRACE_MOMENT_INT8
} terrace_moment_type;

/* A tensor is named by its place in the list that the store is created with, from 0. */
typedef struct terrace_tensor {
  uint32_t size;
  uint32_t rank;
  const char* name;       /* unique */
  const uint64_t* shape;  /* row-major, `rank` extents, none 0 */
  uint32_t type;          /* terrace_type */
  uint32_t frozen;        /* has neither gradient nor optimizer state */
  uint32_t group;         /* of terrace_update_settings.groups */
  uint32_t backward_uses; /* leases of a micro-batch in which its gradient arises; 0: one */
  /* Not NULL: the parameters lie here, in host memory of the program, contiguous and in the tensor's type,
   * and stay here. Nobody leases them; an update writes the new ones here, and so does a fill. Needs
   * TERRACE_HANDED_OVER, and states on TERRACE_CPU or TERRACE_NVME. */
  void* address;
  /* By what int8 moments are rounded; 0: the place in the list. A part of a tensor that several stores have:
   * (number of the tensor + 1) << 40, plus the part's first element in it, a multiple of 64. */
  uint64_t rounding_place;
  uint32_t by_matrix;         /* a matrix of two extents that TERRACE_MUON trains */
  uint32_t counted_elsewhere; /* a copy: the norm has it from another part of terrace_options.model_ranks */
} terrace_tensor;

typedef enum terrace_use_kind {
  TERRACE_FORWARD,   /* part of a training pass */
  TERRACE_BACKWARD,  /* also wants the gradients */
  TERRACE_INFERENCE, /* in an evaluation; no backward follows */
  TERRACE_UNIT       /* announcements only: tensors that go forward, and backward in reverse order */
} terrace_use_kind;

/* One use of the first step, in its order. A list may announce units instead: all of its uses are of
 * TERRACE_UNIT, and stand for "<key>/forward" and "<key>/backward" in every micro-batch. */
typedef struct terrace_use {
  uint32_t size;
  uint32_t kind;   /* terrace_use_kind */
  const char* key; /* that of the lease */
  const uint32_t* tensors;
  uint32_t tensor_count;
  uint32_t micro_batch;
  uint32_t encloses; /* how many of the uses behind it begin before it ends */
  uint32_t reserved;
} terrace_use;

typedef enum terrace_placement {
  TERRACE_DEVICE, /* device memory */
  TERRACE_CPU,    /* host memory */
  TERRACE_NVME    /* files, with host memory as their cache */
} terrace_placement;

typedef enum terrace_optimizer_kind {
  TERRACE_ADAMW,
  TERRACE_ADAM, /* weight_decay is added to the gradient */
  TERRACE_ADAGRAD,
  TERRACE_LION,
  TERRACE_SGD,
  TERRACE_MUON /* of tensors that are by_matrix; beside TERRACE_ADAMW or alone */
} terrace_optimizer_kind;

/* When an update runs; no bit depends on it. */
typedef enum terrace_update_when {
  TERRACE_AFTER_BACKWARD,
  TERRACE_NEXT_FORWARD,   /* beside the next forward pass */
  TERRACE_DURING_BACKWARD /* see terrace_announce_update */
} terrace_update_when;

typedef enum terrace_gradient_origin {
  TERRACE_LEASED,      /* written on the device, in leases that go backward */
  TERRACE_HANDED_OVER, /* given by terrace_hand_over, which takes a copy */
  /* Given by terrace_hand_over, and read where they lie until terrace_update has returned. All that is
   * trained has an address, a step has one micro-batch, and updates are not TERRACE_NEXT_FORWARD. */
  TERRACE_BORROWED,
  TERRACE_HANDED_OVER_ON_DEVICE /* given by terrace_hand_over on the GPU, for TERRACE_TRANSPORT_NCCL */
} terrace_gradient_origin;

/* How the fp32 masters are kept, which updates compute with. */
typedef enum terrace_masters {
  TERRACE_MASTERS_WHOLE,
  TERRACE_MASTERS_COMPACT, /* what lies below bf16 parameters; no bit depends on it */
  /* The parameters are the masters: all that is trained is fp32 and has an address, and a moment is kept.
   * What the program writes to a parameter counts then. No commits are kept: they would lack masters. */
  TERRACE_MASTERS_PARAMETER
} terrace_masters;

/* What an update does with tensors that had no gradient in the step. */
typedef enum terrace_unused_gradients {
  TERRACE_UNUSED_ZERO, /* their gradient is zero: weight decay and moments move on */
  TERRACE_UNUSED_SKIP  /* it leaves them out, and every tensor counts its own steps */
} terrace_unused_gradients;

typedef enum terrace_io_engine {
  TERRACE_IO_BEST, /* the first of the following that works here */
  TERRACE_IO_URING,
  TERRACE_IO_LIBAIO,
  TERRACE_IO_THREADS
} terrace_io_engine;

typedef enum terrace_log_level { TERRACE_LOG_INFO, TERRACE_LOG_WARNING, TERRACE_LOG_ERROR } terrace_log_level;
/* Takes a line without its newline. It is called from any thread, also from several at once. */
typedef void (*terrace_log_fn)(void* context, uint32_t level, const char* line);

typedef struct terrace_options {
  uint32_t size;
  uint32_t parameters; /* terrace_placement */
  uint32_t states;     /* terrace_placement: master weights and moments */
  uint32_t nvme_path_count;
  const char* const* nvme_paths; /* existing folders, for what is on TERRACE_NVME */
  const char* tier_name;       /* a sub-folder of each path, so that several stores share them; NULL: none */
  uint64_t host_bytes;         /* all host memory but the caller's */
  uint64_t work_bytes;         /* device memory for activations: terrace_work_memory */
  uint64_t chunk_elements;     /* the unit that moves, a multiple of 4096; 0: chosen for the budgets */
  uint32_t accumulation_steps; /* micro-batches of an update, of each rank; 0: one */
  uint32_t layer_major;        /* all micro-batches of a step are open together */
  uint32_t gradients;          /* terrace_gradient_origin */
  uint32_t unused_gradients;   /* terrace_unused_gradients */
  uint32_t update_when;        /* terrace_update_when; terrace_set_update_when changes it */
  uint32_t threads;            /* for computing, the calling one among them; 0: one per core */
  uint32_t optimizer;          /* terrace_optimizer_kind: how many moments are kept */
  uint32_t sgd_momentum;       /* of TERRACE_SGD a moment is kept */
  uint32_t moment_type;        /* terrace_moment_type (docs/optimizer_step.md) */
  uint32_t masters;            /* terrace_masters */
  uint32_t accumulation_type;  /* of the sums over micro-batches: TERRACE_FP32, or the parameters' type */
  uint32_t durable;            /* keeps commits */
  uint32_t retained_commits;   /* how many retained ones stay beside the last */
  uint32_t resume;             /* goes on from the last commit in nvme_paths, of any number of ranks */
  uint32_t discard_commits;    /* a commit of an earlier run may be removed */
  uint32_t io_engine;          /* terrace_io_engine */
  uint32_t no_host_lock;       /* host memory is not page-locked */
  uint32_t no_checksums;       /* what is read is not verified */
  terrace_log_fn log;          /* NULL: nothing is said */
  void* log_context;
  struct terrace_ranks* ranks; /* each holds its share (terrace_run.h); NULL: this process has the store */
  uint32_t divide_parameters;  /* on TERRACE_DEVICE, too: else every rank has them whole there */
  uint32_t rank_exchange;      /* terrace_rank_exchange (terrace_run.h) */
  uint32_t saved_activations;  /* terrace_placement: by terrace_start_save (terrace_run.h) */
  uint32_t hold_gradients;     /* they rest in memory until the update, where TERRACE_GRADIENT reaches them */
  struct terrace_ranks* model_ranks; /* of all parts, where `ranks` train a part of a model (terrace_run.h) */
} terrace_options;

typedef struct terrace_plan_result {
  uint32_t size;
  uint32_t fits;           /* 0: of the following only the first five are set */
  uint64_t chunk_elements; /* that was given or chosen; 0: no size fits */
  uint64_t parameter_count;
  uint64_t trainable_count;
  /* The least budgets that do with chunks of this size. Of what does not fit: the least of each budget that
   * has to be raised, and 0 of one that need not. */
  uint64_t device_least_bytes;
  uint64_t host_least_bytes;
  uint64_t device_bytes; /* what it takes */
  uint64_t host_bytes;
  uint64_t device_useful_bytes; /* more would stay unused */
  uint64_t file_bytes;          /* on all nvme paths together */
  uint32_t chunk_count;
  uint32_t keeps_commits;
} terrace_plan_result;

/* Plans a store; nothing is allocated, and no file is touched but those of a commit to resume. Where the
 * budgets are too small it returns the error that terrace_create would, of kind TERRACE_CAPACITY, and sets
 * the result too. `uses` may be NULL with a count of 0, here and in terrace_create: then the first step is
 * recorded, and the plan counts on room for any tensor by itself. */
TERRACE_C_API terrace_error* terrace_plan(const terrace_device* device, const terrace_tensor* tensors,
                                          uint32_t tensor_count, const terrace_options* options,
                                          const terrace_use* uses, uint32_t use_count,
                                          terrace_plan_result* result);
/* Allocates all budgets. `device` may be NULL, as in terrace_plan, where all tensors have an address. */
TERRACE_C_API terrace_error* terrace_create(const terrace_device* device, const terrace_tensor* tensors,
                                            uint32_t tensor_count, const terrace_options* options,
                                            const terrace_use* uses, uint32_t use_count,
                                            terrace_store** store);
/* Ends whatever is open. Without a commit no file stays. NULL is allowed. */
TERRACE_C_API void terrace_destroy(terrace_store* store);
TERRACE_C_API terrace_error* terrace_plan_of(terrace_store* store, terrace_plan_result* result);

/* --- Values --- */
/* A store that does not resume is filled before its first step. Values are converted to the tensor's type;
 * moments become 0. A fill that fails leaves the store without values: fill it again. */
typedef struct terrace_array {
  uint32_t size;
  uint32_t tensor;
  const void* data; /* all elements; needs no alignment */
  uint32_t type;    /* terrace_type */
  uint32_t reserved;
} terrace_array;
TERRACE_C_API terrace_error* terrace_fill_arrays(terrace_store* store, const terrace_array* arrays,
                                                 uint32_t count); /* every tensor once */
/* The elements lie in the file from byte `offset` on, as in a safetensors file. */
typedef struct terrace_file_part {
  uint32_t size;
  uint32_t tensor;
  const char* path;
  uint64_t offset;
  uint32_t type; /* terrace_type */
  uint32_t reserved;
} terrace_file_part;
TERRACE_C_API terrace_error* terrace_fill_files(terrace_store* store, const terrace_file_part* parts,
                                                uint32_t count); /* every tensor once */
/* Sets `count` values of a tensor from element `first` on. It is called on all threads at once, in no order.
 * What is not 0 ends the fill with an error of kind TERRACE_CANCELLED. */
typedef int (*terrace_fill_fn)(void* context, uint32_t tensor, uint64_t first, uint64_t count, float* values);
TERRACE_C_API terrace_error* terrace_fill_with(terrace_store* store, terrace_fill_fn fill, void* context);

typedef enum terrace_what {
  TERRACE_PARAMETER,
  TERRACE_MASTER, /* the fp32 value that the parameter is rounded from */
  TERRACE_FIRST_MOMENT,
  TERRACE_SECOND_MOMENT,
  TERRACE_GRADIENT /* of a step, between its last micro-batch and its update */
} terrace_what;
/* Between steps: `count` elements from `first` on. A master and its parameter are written together. A write
 * that the drives have no room for is TERRACE_CAPACITY, and the store goes on. */
TERRACE_C_API terrace_error* terrace_read_values(terrace_store* store, uint32_t tensor, uint32_t what,
                                                 uint64_t first, uint64_t count, float* values);
TERRACE_C_API terrace_error* terrace_write_values(terrace_store* store, uint32_t tensor, uint32_t what,
                                                  uint64_t first, uint64_t count, const float* values);
/* With TERRACE_UNUSED_SKIP: the updates that each tensor has had. `count` is that of all tensors. */
TERRACE_C_API terrace_error* terrace_tensor_steps(terrace_store* store, uint64_t* steps, uint32_t count);
TERRACE_C_API terrace_error* terrace_set_tensor_steps(terrace_store* store, const uint64_t* steps,
                                                      uint32_t count);
/* True where the state in memory is that of the end of a step, and nothing is open. */
TERRACE_C_API terrace_error* terrace_has_whole_state(terrace_store* store, uint32_t* is_whole);

/* --- Addresses, which never change --- */
/* At any time; what lies there may be touched in leases of the tensor only. */
TERRACE_C_API terrace_error* terrace_parameter_address(terrace_store* store, uint32_t tensor, void** address);
TERRACE_C_API terrace_error* terrace_gradient_address(terrace_store* store, uint32_t tensor, void** address);
/* terrace_options.work_bytes, aligned to 2 MiB; NULL and 0 without. */
TERRACE_C_API terrace_error* terrace_work_memory(terrace_store* store, void** address, uint64_t* bytes);
/* The CUstream that kernels belong on; NULL on the simulated device. */
TERRACE_C_API terrace_error* terrace_compute_stream(terrace_store* store, void** stream);
/* Kernels belong on this CUstream of the program from now on, behind those on the one before. It is of the
 * GPU's primary context, NULL for its default stream, and has to live until another one is used or the store
 * is destroyed. TERRACE_CONFIG on the simulated device. */
TERRACE_C_API terrace_error* terrace_use_stream(terrace_store* store, void* stream);
/* The tensor as DLPack 0.8 has it, compact, at its address. Its deleter may be called after the store was
 * destroyed, and frees no tensor. `gradient` is 0 for the parameter. */
struct DLManagedTensor;
TERRACE_C_API terrace_error* terrace_dlpack(terrace_store* store, uint32_t tensor, uint32_t gradient,
                                            struct DLManagedTensor** managed);

/* --- A step --- */
TERRACE_C_API terrace_error* terrace_begin_step(terrace_store* store);
/* With layer_major only: the micro-batch that the following leases belong to. */
TERRACE_C_API terrace_error* terrace_select_micro_batch(terrace_store* store, uint32_t micro_batch);
TERRACE_C_API terrace_error* terrace_end_micro_batch(terrace_store* store);

/* Makes tensors readable, and with TERRACE_BACKWARD their gradients writable, until the lease is released.
 * `key` is the same in every step and different for every lease within one. Leases nest, and end in any
 * order. One without room is TERRACE_CAPACITY with least_device_bytes, and changes nothing. */
TERRACE_C_API terrace_error* terrace_lease(terrace_store* store, const char* key, uint32_t kind,
                                           const uint32_t* tensors, uint32_t count, uint64_t* lease);
TERRACE_C_API terrace_error* terrace_release(terrace_store* store, uint64_t lease);
/* Of a tensor that a lease has. */
TERRACE_C_API terrace_error* terrace_parameter(terrace_store* store, uint32_t tensor, const void** parameter);
typedef struct terrace_gradient_view {
  uint32_t size;
  uint32_t accumulate; /* an earlier lease of this micro-batch has written: add to it; 0: overwrite */
  void* data;          /* in the type of the tensor */
} terrace_gradient_view;
TERRACE_C_API terrace_error* terrace_gradient(terrace_store* store, uint32_t tensor,
                                              terrace_gradient_view* view);
/* Not with TERRACE_LEASED: the complete gradient of a tensor in this micro-batch, in the type of the tensor.
 * Leases may be open. `flags` are 0. TERRACE_HANDED_OVER_ON_DEVICE: it is read in the order of the compute
 * stream. What that was asked for before has made it, and what is asked for later may write over it. */
TERRACE_C_API terrace_error* terrace_hand_over(terrace_store* store, uint32_t tensor, const void* gradient,
                                               uint32_t type, uint32_t flags);
/* Ends a step before its update: its gradients are dropped. */
TERRACE_C_API terrace_error* terrace_abandon_step(terrace_store* store);
/* Between steps: the parameters of a tensor with an address lie at another one now, with their values. */
TERRACE_C_API terrace_error* terrace_move_tensor(terrace_store* store, uint32_t tensor, void* address);

/* Leases of TERRACE_INFERENCE lie between these. */
TERRACE_C_API terrace_error* terrace_begin_evaluation(terrace_store* store);
TERRACE_C_API terrace_error* terrace_end_evaluation(terrace_store* store);

/* --- Updates --- */
/* Settings of a parameter group. What an optimizer has no use for has no effect. */
typedef struct terrace_optimizer {
  uint32_t size;
  uint32_t kind; /* terrace_optimizer_kind; its moments are those of terrace_options */
  double lr;
  double beta1; /* 0: 0.9 */
  double beta2; /* 0: 0.999, of TERRACE_LION 0.99 */
  double eps;   /* 0: 1e-8, of TERRACE_ADAGRAD 1e-10, of TERRACE_MUON 1e-7 */
  double weight_decay;
  double momentum; /* TERRACE_SGD, with dampening and nesterov; TERRACE_MUON, with nesterov */
  double dampening;
  uint32_t nesterov;
  uint32_t no_bias_correction;
  uint32_t exact;       /* beta1, beta2, eps and all of TERRACE_MUON are meant as they are, 0 too */
  uint32_t iterations;  /* TERRACE_MUON: of Newton and Schulz; 0: 5 */
  double coefficient_a; /* of these; all three 0: 3.4445, -4.775 and 2.0315 */
  double coefficient_b;
  double coefficient_c;
  uint32_t matches_adamw; /* steps are as large as AdamW's: torch's "match_rms_adamw", else "original" */
  uint32_t reserved;
} terrace_optimizer;

typedef struct terrace_update_settings {
  uint32_t size;
  uint32_t group_count;
  const terrace_optimizer* groups; /* by terrace_tensor.group */
  uint64_t step;     /* counts from 1; with TERRACE_UNUSED_SKIP it has no meaning and may be 0 */
  double clip_norm;  /* the largest norm of the whole gradient; 0: no clipping */
  double loss_scale; /* gradients are those of the loss times this; 0: 1 */
} terrace_update_settings;

typedef struct terrace_update_result {
  uint32_t size;
  uint32_t applied;        /* 0: a gradient is infinite or NaN, and nothing was changed */
  double gradient_norm;    /* before clipping */
  uint32_t partly_applied; /* with TERRACE_DURING_BACKWARD: it came too late, and the state is lost */
  uint32_t reserved;
} terrace_update_result;

/* After the last micro-batch. `result` may be NULL. */
TERRACE_C_API terrace_error* terrace_update(terrace_store* store, const terrace_update_settings* settings,
                                            terrace_update_result* result);
/* With TERRACE_DURING_BACKWARD: what terrace_update will be given, before the last micro-batch goes backward.
 * Else it has no effect. */
TERRACE_C_API terrace_error* terrace_announce_update(terrace_store* store,
                                                     const terrace_update_settings* settings);
/* Waits for an update that runs beside the next step. Whatever needs the state does so by itself. An update
 * that the step in progress has begun in its backward pass goes on, and ends in terrace_update. */
TERRACE_C_API terrace_error* terrace_finish_update(terrace_store* store);
TERRACE_C_API terrace_error* terrace_update_pending(terrace_store* store, uint32_t* is_pending);
/* Between steps. TERRACE_CONFIG where it is not possible. */
TERRACE_C_API terrace_error* terrace_set_update_when(terrace_store* store, uint32_t when);
TERRACE_C_API terrace_error* terrace_get_update_when(terrace_store* store, uint32_t* when);

/* --- Commits: durable states on NVMe --- */
/* Between steps: begins a commit, with text of the caller's, of at most 1 MiB. It becomes durable while
 * training goes on. A commit that fails leaves the store and the commit before as they were: it is told of
 * once, by the next of these two calls or terrace_begin_step, and may be begun again. Where an update that it
 * waited for has failed, steps and commits fail with TERRACE_CANCELLED from then on. */
TERRACE_C_API terrace_error* terrace_begin_commit(terrace_store* store, const char* text, uint32_t retain);
/* Waits until the last commit is durable. `number` may be NULL; 0: there is no commit. */
TERRACE_C_API terrace_error* terrace_finish_commit(terrace_store* store, uint64_t* number);
TERRACE_C_API terrace_error* terrace_commit_in_progress(terrace_store* store, uint32_t* in_progress);
TERRACE_C_API terrace_error* terrace_last_commit(terrace_store* store, uint64_t* number); /* 0: none */
/* The text of the commit that the store goes on from; "" without. */
TERRACE_C_API terrace_error* terrace_taken_up_text(terrace_store* store, const char** text);
/* Why the store keeps no commits, in words; "" where it does. */
TERRACE_C_API terrace_error* terrace_why_no_commits(terrace_store* store, const char** reason);
/* Whether the files of a store with a commit stay when it is destroyed; they do unless this says 0. */
TERRACE_C_API terrace_error* terrace_keep_tier(terrace_store* store, uint32_t keep);

/* --- Host memory, which may change between steps --- */
TERRACE_C_API terrace_error* terrace_host_budget(terrace_store* store, uint64_t* bytes,
                                                 uint64_t* least_bytes);
/* TERRACE_CAPACITY below the least; the store then goes on with the budget that it has. */
TERRACE_C_API terrace_error* terrace_set_host_budget(terrace_store* store, uint64_t bytes);

/* --- Figures --- */
typedef enum terrace_unit { TERRACE_BYTES, TERRACE_COUNT, TERRACE_NANOSECONDS } terrace_unit;
typedef struct terrace_counter {
  uint32_t size;
  uint32_t unit;    /* terrace_unit */
  const char* key;  /* "param_read"; the same in every later library */
  const char* name; /* for people; "" where it has none */
} terrace_counter;
/* The counters, by number from 0 to terrace_counter_count(): bytes that moved, times of waiting, and at the
 * end the time of the calling threads by cause, where every nanosecond counts once. Strings live for ever. */
TERRACE_C_API uint32_t terrace_counter_count(void);
TERRACE_C_API terrace_error* terrace_counter_get(uint32_t number, terrace_counter* counter);
/* The first `count`, of the store's life and since its last terrace_begin_step. Of a failed store too. */
TERRACE_C_API terrace_error* terrace_counters(terrace_store* store, uint64_t* values, uint32_t count);
TERRACE_C_API terrace_error* terrace_step_counters(terrace_store* store, uint64_t* values, uint32_t count);

#ifdef __cplusplus
}
#endif
#endif
