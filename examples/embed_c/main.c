/* A toy trainer in C: a residual tanh network learns a fixed rotation. Its parameters and optimizer states live in
 * files, and the device memory that it computes in is half the size of its parameters. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <terrace.h>

enum { LAYERS = 8, WIDTH = 128, BATCH = 8, STEPS = 60, VALUES = BATCH * WIDTH };

static terrace_store* store;
static char names[LAYERS][16];
static float inputs[LAYERS][VALUES], activations[LAYERS][VALUES]; /* of the forward pass */

static void check(terrace_error* error) {
  if (error == NULL) return;
  fprintf(stderr, "embed_c: %s\n", terrace_error_text(error));
  exit(1);
}

/* In [-0.5, 0.5), the same for the same seed. */
static float noise(uint64_t seed) {
  seed = (seed ^ (seed >> 31)) * 0x9e3779b97f4a7c15u;
  return (float)(seed >> 40) / (float)(1 << 24) - 0.5f;
}

static int fill(void* context, uint32_t tensor, uint64_t first, uint64_t count, float* values) {
  (void)context;
  for (uint64_t i = 0; i < count; ++i) values[i] = 0.05f * noise(tensor * 7919u + first + i);
  return 0;
}

/* The weights of a layer, until the lease is released. */
static uint64_t lease(uint32_t layer, terrace_use_kind kind, const float** weights) {
  char key[32];
  uint64_t number;
  const void* address;
  snprintf(key, sizeof(key), "%s/%s", names[layer], kind == TERRACE_FORWARD ? "forward" : "backward");
  check(terrace_lease(store, key, kind, &layer, 1, &number));
  check(terrace_parameter(store, layer, &address));
  *weights = address;
  return number;
}

/* y = x + tanh(x W), in place. */
static void forward(uint32_t layer, float* x) {
  const float* w;
  const uint64_t number = lease(layer, TERRACE_FORWARD, &w);
  float* const a = activations[layer];
  memcpy(inputs[layer], x, sizeof(inputs[layer]));
  memset(a, 0, sizeof(activations[layer]));
  for (int b = 0; b < BATCH; ++b)
    for (int i = 0; i < WIDTH; ++i)
      for (int o = 0; o < WIDTH; ++o) a[b * WIDTH + o] += inputs[layer][b * WIDTH + i] * w[i * WIDTH + o];
  for (int k = 0; k < VALUES; ++k) x[k] += a[k] = tanhf(a[k]);
  check(terrace_release(store, number));
}

/* From the gradient of y to that of x, in place, and to that of W. */
static void backward(uint32_t layer, float* dy) {
  const float* w;
  const uint64_t number = lease(layer, TERRACE_BACKWARD, &w);
  terrace_gradient_view view = TERRACE_INIT(terrace_gradient_view);
  check(terrace_gradient(store, layer, &view));
  float* const dw = view.data; /* used once in a micro-batch: overwrite */
  memset(dw, 0, WIDTH * WIDTH * sizeof(float));
  static float dz[VALUES];
  for (int k = 0; k < VALUES; ++k) dz[k] = dy[k] * (1 - activations[layer][k] * activations[layer][k]);
  for (int b = 0; b < BATCH; ++b)
    for (int i = 0; i < WIDTH; ++i)
      for (int o = 0; o < WIDTH; ++o) {
        dw[i * WIDTH + o] += inputs[layer][b * WIDTH + i] * dz[b * WIDTH + o];
        dy[b * WIDTH + i] += w[i * WIDTH + o] * dz[b * WIDTH + o];
      }
  check(terrace_release(store, number));
}

/* Returns the loss, and its gradient in the place of x. */
static float compare(float* x, const float* target) {
  float loss = 0;
  for (int k = 0; k < VALUES; ++k) {
    const float error = x[k] - target[k];
    loss += error * error / VALUES;
    x[k] = 2 * error / VALUES;
  }
  return loss;
}

static float train(uint64_t step) {
  static float x[VALUES], target[VALUES];
  for (int k = 0; k < VALUES; ++k) x[k] = noise(step % 4 * 4096 + (uint64_t)k); /* four batches, again and again */
  for (int k = 0; k < VALUES; ++k) target[k] = x[k / WIDTH * WIDTH + (k + 1) % WIDTH];
  terrace_optimizer group = TERRACE_INIT(terrace_optimizer);
  group.lr = 2e-3;
  group.weight_decay = 0.01;
  terrace_update_settings settings = TERRACE_INIT(terrace_update_settings);
  settings.groups = &group;
  settings.group_count = 1;
  settings.step = step;
  settings.clip_norm = 1;
  check(terrace_begin_step(store));
  for (uint32_t l = 0; l < LAYERS; ++l) forward(l, x);
  const float loss = compare(x, target);
  for (uint32_t l = LAYERS; l-- > 0;) backward(l, x);
  check(terrace_end_micro_batch(store));
  check(terrace_update(store, &settings, NULL));
  return loss;
}

static void create(const char* folder) {
  const uint64_t shape[2] = {WIDTH, WIDTH};
  terrace_tensor tensors[LAYERS];
  terrace_use units[LAYERS]; /* all of them forward, and then backward in reverse */
  static uint32_t numbers[LAYERS];
  for (uint32_t l = 0; l < LAYERS; ++l) {
    snprintf(names[l], sizeof(names[l]), "layer%u", (unsigned)l);
    numbers[l] = l;
    tensors[l] = (terrace_tensor)TERRACE_INIT(terrace_tensor);
    tensors[l].name = names[l];
    tensors[l].shape = shape;
    tensors[l].rank = 2;
    units[l] = (terrace_use)TERRACE_INIT(terrace_use);
    units[l].kind = TERRACE_UNIT;
    units[l].key = names[l];
    units[l].tensors = &numbers[l];
    units[l].tensor_count = 1;
  }
  terrace_simulated_options simulated = TERRACE_INIT(terrace_simulated_options);
  simulated.budget_bytes = sizeof(float) * LAYERS * WIDTH * WIDTH / 2;
  terrace_options options = TERRACE_INIT(terrace_options);
  options.parameters = options.states = TERRACE_NVME;
  options.nvme_paths = &folder;
  options.nvme_path_count = 1;
  options.host_bytes = 8 << 20;
  terrace_device* device;
  check(terrace_device_simulated(&simulated, &device));
  check(terrace_create(device, tensors, LAYERS, &options, units, LAYERS, &store));
  terrace_device_free(device);
}

int main(int count, char** words) {
  create(count > 1 ? words[1] : ".");
  check(terrace_fill_with(store, fill, NULL));
  float first = 0, loss = 0;
  for (uint64_t step = 1; step <= STEPS; ++step) {
    loss = train(step);
    if (step == 1) first = loss;
    if (step % 10 == 0) printf("step %2u, loss %.4f\n", (unsigned)step, loss);
  }
  terrace_destroy(store);
  printf("loss %.4f -> %.4f\n", first, loss);
  return loss < 0.5f * first ? 0 : 1;
}
