/* The toy trainer over ranks: each computes its own micro-batches, and holds its share of the parameters and of the
 * optimizer states. A step has eight micro-batches, whoever computes them, so that the loss is the same, bit for bit,
 * on 1, 2, 4 and 8 ranks:
 *
 *   terrace launch -n 2 -- ./embed_c_ranks          also: torchrun, mpirun, srun; or ./embed_c_ranks alone
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <terrace_run.h>

enum { LAYERS = 4, WIDTH = 64, MICRO_BATCHES = 8, STEPS = 40 };

static terrace_ranks* ranks;
static terrace_store* store;
static terrace_ranks_facts self;
static char names[LAYERS][16];
static float inputs[LAYERS + 1][WIDTH];

/* A rank that cannot go on tells the others, so that none waits for it; one of them tells the user. */
static void check(terrace_error* error) {
  uint32_t status = 1;
  if (error == NULL) return;
  if (ranks == NULL || terrace_ranks_end(ranks, terrace_error_text(error), terrace_error_kind_of(error), 1, &status))
    fprintf(stderr, "embed_c_ranks: %s\n", terrace_error_text(error));
  exit((int)status);
}

static void say(void* context, uint32_t level, const char* line) {
  (void)context;
  if (level != TERRACE_LOG_INFO) fprintf(stderr, "embed_c_ranks: %s\n", line);
}

/* In [-0.5, 0.5), the same for the same seed. */
static float noise(uint64_t seed) {
  seed = (seed ^ (seed >> 31)) * 0x9e3779b97f4a7c15u;
  return (float)(seed >> 40) / (float)(1 << 24) - 0.5f;
}

/* Every rank is asked for the values of its share. */
static int fill(void* context, uint32_t tensor, uint64_t first, uint64_t count, float* values) {
  (void)context;
  for (uint64_t i = 0; i < count; ++i) values[i] = 0.2f * noise(tensor * 7919u + first + i);
  return 0;
}

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

/* Goes forward and backward with micro-batch number `number` of a step. Returns its part of the loss. */
static float micro_batch(uint64_t number) {
  const float* w;
  float loss = 0, dy[WIDTH];
  for (uint64_t i = 0; i < WIDTH; ++i) inputs[0][i] = noise(number * 4096 + i);
  for (uint32_t l = 0; l < LAYERS; ++l) {
    const uint64_t held = lease(l, TERRACE_FORWARD, &w);
    for (int o = 0; o < WIDTH; ++o) {
      inputs[l + 1][o] = inputs[l][o];
      for (int i = 0; i < WIDTH; ++i) inputs[l + 1][o] += inputs[l][i] * w[i * WIDTH + o];
    }
    check(terrace_release(store, held));
  }
  for (int o = 0; o < WIDTH; ++o) {
    const float error = inputs[LAYERS][o] - inputs[0][(o + 1) % WIDTH];
    loss += error * error / (WIDTH * MICRO_BATCHES);
    dy[o] = 2 * error / (WIDTH * MICRO_BATCHES);
  }
  for (uint32_t l = LAYERS; l-- > 0;) {
    terrace_gradient_view view = TERRACE_INIT(terrace_gradient_view);
    float dx[WIDTH];
    const uint64_t held = lease(l, TERRACE_BACKWARD, &w);
    check(terrace_gradient(store, l, &view));
    for (int i = 0; i < WIDTH; ++i) {
      dx[i] = dy[i];
      for (int o = 0; o < WIDTH; ++o) {
        ((float*)view.data)[i * WIDTH + o] = inputs[l][i] * dy[o];
        dx[i] += w[i * WIDTH + o] * dy[o];
      }
    }
    check(terrace_release(store, held));
    memcpy(dy, dx, sizeof(dy));
  }
  check(terrace_end_micro_batch(store));
  return loss;
}

/* Micro-batch k of this rank is number k N + r of the step. Returns the loss of all, summed in their order. */
static float train(uint64_t step) {
  float mine[MICRO_BATCHES], all[MICRO_BATCHES], loss = 0;
  const uint32_t steps = MICRO_BATCHES / self.count;
  terrace_optimizer group = TERRACE_INIT(terrace_optimizer);
  group.lr = 3e-3;
  terrace_update_settings settings = TERRACE_INIT(terrace_update_settings);
  settings.groups = &group;
  settings.group_count = 1;
  settings.step = step;
  settings.clip_norm = 1;
  check(terrace_ranks_step(ranks, step, NULL));
  check(terrace_begin_step(store));
  for (uint32_t k = 0; k < steps; ++k) mine[k] = micro_batch(k * self.count + self.rank);
  check(terrace_update(store, &settings, NULL));
  check(terrace_ranks_ballot(ranks, mine, steps * sizeof(float), all));
  for (uint32_t m = 0; m < MICRO_BATCHES; ++m) loss += all[m % self.count * steps + m / self.count];
  return loss;
}

static void create(void) {
  const uint64_t shape[2] = {WIDTH, WIDTH};
  terrace_tensor tensors[LAYERS];
  for (uint32_t l = 0; l < LAYERS; ++l) {
    snprintf(names[l], sizeof(names[l]), "layer%u", (unsigned)l);
    tensors[l] = (terrace_tensor)TERRACE_INIT(terrace_tensor);
    tensors[l].name = names[l];
    tensors[l].shape = shape;
    tensors[l].rank = 2;
  }
  terrace_simulated_options simulated = TERRACE_INIT(terrace_simulated_options);
  simulated.budget_bytes = 1 << 20;
  terrace_options options = TERRACE_INIT(terrace_options);
  options.parameters = options.states = TERRACE_CPU;
  options.host_bytes = 8 << 20;
  options.accumulation_steps = MICRO_BATCHES / self.count;
  options.ranks = ranks;
  terrace_device* device;
  check(terrace_device_simulated(&simulated, &device));
  check(terrace_create(device, tensors, LAYERS, &options, NULL, 0, &store));
  terrace_device_free(device);
}

int main(void) {
  terrace_ranks_options joined = TERRACE_INIT(terrace_ranks_options);
  joined.log = say;
  check(terrace_ranks_join(&joined, &ranks));
  self = (terrace_ranks_facts)TERRACE_INIT(terrace_ranks_facts);
  check(terrace_ranks_get(ranks, &self));
  create();
  check(terrace_fill_with(store, fill, NULL));
  float first = 0, loss = 0;
  for (uint64_t step = 1; step <= STEPS; ++step) {
    loss = train(step);
    if (step == 1) first = loss;
  }
  if (self.rank == 0) printf("%u ranks, loss %.9g -> %.9g\n", (unsigned)self.count, first, loss);
  terrace_destroy(store);
  terrace_ranks_free(ranks);
  return loss < 0.5f * first ? 0 : 1;
}
