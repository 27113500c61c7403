#include "c11_training.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <terrace.h>

enum { TENSORS = 3, ELEMENTS = 6000, STEPS = 5 };

static int failed(terrace_error* error) {
  if (error == NULL) return 0;
  fprintf(stderr, "%s\n", terrace_error_text(error));
  terrace_error_free(error);
  return 1;
}
#define CHECK(call) \
  do {              \
    if (failed(call)) goto end; \
  } while (0)

static int fill(void* context, uint32_t tensor, uint64_t first, uint64_t count, float* values) {
  (void)context;
  for (uint64_t i = 0; i < count; ++i) values[i] = (float)(tensor + 1) + (float)((first + i) % 3);
  return 0;
}

/* Every weight moves towards 0: its gradient is the weight itself. */
static terrace_error* backward(terrace_store* store, uint32_t tensor, const char* key) {
  uint64_t lease;
  terrace_error* error = terrace_lease(store, key, TERRACE_BACKWARD, &tensor, 1, &lease);
  const void* weights = NULL;
  terrace_gradient_view view = TERRACE_INIT(terrace_gradient_view);
  if (error == NULL) error = terrace_parameter(store, tensor, &weights);
  if (error == NULL) error = terrace_gradient(store, tensor, &view);
  if (error == NULL) memcpy(view.data, weights, ELEMENTS * sizeof(float));
  return error != NULL ? error : terrace_release(store, lease);
}

static terrace_error* train(terrace_store* store, uint64_t step) {
  static const char* const forward_keys[TENSORS] = {"0/forward", "1/forward", "2/forward"};
  static const char* const backward_keys[TENSORS] = {"0/backward", "1/backward", "2/backward"};
  terrace_optimizer group = TERRACE_INIT(terrace_optimizer);
  group.lr = 0.05;
  terrace_update_settings settings = TERRACE_INIT(terrace_update_settings);
  settings.groups = &group;
  settings.group_count = 1;
  settings.step = step;
  terrace_update_result result = TERRACE_INIT(terrace_update_result);
  terrace_error* error = terrace_begin_step(store);
  for (uint32_t t = 0; t < TENSORS && error == NULL; ++t) {
    uint64_t lease;
    error = terrace_lease(store, forward_keys[t], TERRACE_FORWARD, &t, 1, &lease);
    if (error == NULL) error = terrace_release(store, lease);
  }
  for (uint32_t t = TENSORS; t-- > 0 && error == NULL;) error = backward(store, t, backward_keys[t]);
  if (error == NULL) error = terrace_end_micro_batch(store);
  return error != NULL ? error : terrace_update(store, &settings, &result);
}

int c11_train(const char* folder) {
  static const char* const names[TENSORS] = {"first", "second", "third"};
  const uint64_t shape[2] = {ELEMENTS / 2, 2};
  int line = __LINE__;
  terrace_device* device = NULL;
  terrace_store* store = NULL;
  terrace_tensor tensors[TENSORS];
  for (int t = 0; t < TENSORS; ++t) {
    const terrace_tensor tensor = TERRACE_INIT(terrace_tensor);
    tensors[t] = tensor;
    tensors[t].name = names[t];
    tensors[t].shape = shape;
    tensors[t].rank = 2;
  }
  terrace_simulated_options simulated = TERRACE_INIT(terrace_simulated_options);
  simulated.budget_bytes = 128 * 1024;
  simulated.strict = 1;
  terrace_options options = TERRACE_INIT(terrace_options);
  options.parameters = options.states = TERRACE_NVME;
  options.nvme_paths = &folder;
  options.nvme_path_count = 1;
  options.host_bytes = 16u << 20;
  options.threads = 2;
  CHECK(terrace_device_simulated(&simulated, &device));
  CHECK(terrace_create(device, tensors, TENSORS, &options, NULL, 0, &store));
  CHECK(terrace_fill_with(store, fill, NULL));
  for (uint64_t step = 1; step <= STEPS; ++step) CHECK(train(store, step));
  float before = 3, after = 0;
  CHECK(terrace_read_values(store, 2, TERRACE_MASTER, 0, 1, &after));
  line = after < before ? 0 : __LINE__;
end:
  terrace_destroy(store);
  terrace_device_free(device);
  return line;
}
