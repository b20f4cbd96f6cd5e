/* A rank of a training job that lets EPLB place its experts:  trainer RANK WORLD ENDPOINT [STEPS]
 * Start one process per rank, and eplbd before them. Without torchrun or SLURM set EPLB_LAUNCH_ID,
 * equal on all ranks and different for each run. Each rank holds its slots' rows in host
 * memory; where your trainer has GPU memory, register that and give step_boundary your stream. */
#define _POSIX_C_SOURCE 200809L
#include <eplb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { LAYERS = 2, EXPERTS = 8, WIDTH = 256 };

static eplb_client* client;

/* Stops with the library's own sentence. */
static void must(int32_t code) {
  if (code == EPLB_OK) return;
  fprintf(stderr, "trainer: %s: %s\n", eplb_code_name(code), eplb_client_message(client));
  exit(1);
}

/* Counts of your router: experts 0 and 1 are hot. */
static void count_tokens(int64_t* counts) {
  int expert;
  for (expert = 0; expert < EXPERTS; ++expert) counts[expert] = expert < 2 ? 4000 : 500;
}

/* Your forward, backward and optimizer. Here, an expert's row is its number, wherever it is. */
static void train_one_step(void) {
  const struct timespec some_work = {0, 2 * 1000 * 1000};
  nanosleep(&some_work, NULL);
}

int main(int argc, char** argv) {
  eplb_client_options options;
  eplb_placement placement = {.struct_size = sizeof(placement)};
  eplb_boundary boundary = {.struct_size = sizeof(boundary)};
  eplb_tensor tensors[LAYERS];
  const char* names[LAYERS] = {"layers.0.experts.weight", "layers.1.experts.weight"};
  float* weights[LAYERS];
  int64_t counts[EXPERTS];
  int64_t step, num_steps = argc > 4 ? atoll(argv[4]) : 600;
  int32_t layer, slot, i;
  if (argc < 4) return fprintf(stderr, "usage: trainer RANK WORLD ENDPOINT [STEPS]\n"), 2;

  must(eplb_client_options_init(&options, sizeof(options)));
  options.job = "c-example";
  options.rank = atoi(argv[1]);
  options.world_size = options.num_gpus = atoi(argv[2]);
  options.endpoint = argv[3];
  options.num_layers = LAYERS;
  options.num_experts = options.num_slots = EXPERTS;
  must(eplb_client_create(&client));
  must(
      eplb_client_connect_through_daemon(client, &options)); /* or _connect, with your all-gather */

  /* The placement is known before weights exist: load each slot's expert into it. */
  must(eplb_client_placement(client, &placement));
  memset(tensors, 0, sizeof(tensors));
  for (layer = 0; layer < LAYERS; ++layer) {
    const int32_t* experts = placement.physical_to_logical_map + layer * placement.num_slots;
    weights[layer] = malloc((size_t)placement.num_local_slots * WIDTH * sizeof(float));
    if (weights[layer] == NULL) return 1;
    for (slot = 0; slot < placement.num_local_slots; ++slot) {
      for (i = 0; i < WIDTH; ++i) {
        weights[layer][slot * WIDTH + i] = (float)experts[placement.first_local_slot + slot];
      }
    }
    tensors[layer].struct_size = sizeof(eplb_tensor);
    tensors[layer].name = names[layer];
    tensors[layer].layer = layer;
    tensors[layer].role = EPLB_WEIGHT;
    tensors[layer].base = weights[layer];
    tensors[layer].num_rows = placement.num_local_slots;
    tensors[layer].row_bytes = tensors[layer].row_stride = WIDTH * sizeof(float);
  }
  must(eplb_client_register_experts(client, tensors, LAYERS));

  for (step = 0; step < num_steps; ++step) {
    train_one_step();
    count_tokens(counts);
    for (layer = 0; layer < LAYERS; ++layer) {
      must(eplb_client_record(client, layer, counts, EXPERTS));
    }
    must(eplb_client_step_boundary(client, step, NULL, &boundary));
    if (boundary.switched && options.rank == 0) {
      printf("after step %lld: version %lld, %s\n", (long long)step, (long long)boundary.version,
             boundary.reason);
    }
  }

  /* Weights moved with their experts. */
  must(eplb_client_placement(client, &placement));
  for (layer = 0; layer < LAYERS; ++layer) {
    const int32_t* experts = placement.physical_to_logical_map + layer * placement.num_slots;
    for (slot = 0; slot < placement.num_local_slots; ++slot) {
      for (i = 0; i < WIDTH; ++i) {
        if (weights[layer][slot * WIDTH + i] == (float)experts[placement.first_local_slot + slot]) {
          continue;
        }
        fprintf(stderr, "trainer: layer %d slot %d has another expert's weights\n", layer, slot);
        return 8;
      }
    }
  }
  must(eplb_client_close(client, "finished"));
  eplb_client_destroy(client); /* before the memory that it knows */
  for (layer = 0; layer < LAYERS; ++layer) free(weights[layer]);
  return 0;
}
