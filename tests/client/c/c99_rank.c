/* A rank in C99 over libeplb.so. `how` is what it does beside training:
 *   c99_rank plain ENDPOINT      trains 24 steps, closes and destroys; ENDPOINT "" is no daemon
 *   c99_rank leave ENDPOINT      returns from main with the client open
 *   c99_rank atexit ENDPOINT     destroys it in a handler that was registered before all else
 *   c99_rank twin ENDPOINT       comes as rank 0 of 2 through the daemon
 *   c99_rank fork ENDPOINT       a forked child uses the client, then the parent goes on
 * Exit: 0 all well, 1 not. */
#define _POSIX_C_SOURCE 200809L
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "client/c/eplb.h"
#include "client/c/eplb_plan.h"

enum { LAYERS = 2, EXPERTS = 4, STEPS = 24 };

static eplb_client* client;
static float weights[LAYERS][EXPERTS][8];

static int failed(const char* what) {
  fprintf(stderr, "%s: %s\n", what, eplb_client_message(client));
  return 1;
}

/* The world is this process. */
static int32_t all_gather_alone(void* user, const void* bytes, size_t num_bytes,
                                eplb_answers* answers) {
  (void)user;
  return eplb_answers_add(answers, bytes, num_bytes);
}

static int start(const char* endpoint) {
  eplb_client_options options;
  eplb_tensor tensors[LAYERS];
  int layer;
  if (eplb_client_options_init(&options, sizeof(options)) != EPLB_OK) return failed("init");
  options.job = "c99";
  options.endpoint = endpoint;
  options.num_layers = LAYERS;
  options.num_experts = options.num_slots = EXPERTS;
  options.vote_every = 2;
  options.report_every = 4;
  if (eplb_client_create(&client) != EPLB_OK) return failed("create");
  if (eplb_client_connect(client, &options, all_gather_alone, NULL) != EPLB_OK) {
    return failed("connect");
  }
  memset(tensors, 0, sizeof(tensors));
  for (layer = 0; layer < LAYERS; ++layer) {
    tensors[layer].struct_size = sizeof(eplb_tensor);
    tensors[layer].name = layer == 0 ? "layers.0.w" : "layers.1.w";
    tensors[layer].layer = layer;
    tensors[layer].role = EPLB_WEIGHT;
    tensors[layer].base = weights[layer];
    tensors[layer].num_rows = EXPERTS;
    tensors[layer].row_bytes = tensors[layer].row_stride = sizeof(weights[layer][0]);
  }
  if (eplb_client_register_experts(client, tensors, LAYERS) != EPLB_OK) return failed("register");
  return 0;
}

static int train(int64_t first_step, int64_t end_step) {
  const int64_t counts[EXPERTS] = {5, 1, 1, 1};
  eplb_boundary boundary;
  static int32_t votes = 1; /* the first step of a run does */
  int64_t step;
  int32_t layer;
  memset(&boundary, 0, sizeof(boundary));
  boundary.struct_size = sizeof(boundary);
  for (step = first_step; step < end_step; ++step) {
    for (layer = 0; layer < LAYERS; ++layer) {
      if (eplb_client_record(client, layer, counts, EXPERTS) != EPLB_OK) return failed("record");
    }
    if (eplb_client_step_boundary(client, step, NULL, &boundary) != EPLB_OK) {
      return failed("step_boundary");
    }
    if (boundary.voted != votes) return failed("a vote is announced by the boundary before it");
    votes = boundary.votes_next;
  }
  return 0;
}

static int wait_connected(void) {
  const struct timespec pause = {0, 10 * 1000 * 1000};
  eplb_stats stats;
  int i;
  memset(&stats, 0, sizeof(stats));
  stats.struct_size = sizeof(stats);
  for (i = 0; i < 2000; ++i) {
    if (eplb_client_stats(client, &stats) != EPLB_OK) return failed("stats");
    if (stats.connected) return 0;
    nanosleep(&pause, NULL);
  }
  return failed("not connected within 20 s");
}

static void destroy_late(void) { eplb_client_destroy(client); }

static int stop(void) {
  const int64_t counts[EXPERTS] = {0};
  if (eplb_client_close(client, "finished") != EPLB_OK) return failed("close");
  if (eplb_client_record(client, 0, counts, EXPERTS) != EPLB_FAILED_PRECONDITION ||
      strcmp(eplb_client_message(client), "record was called after close") != 0) {
    return failed("after close");
  }
  eplb_client_destroy(client);
  return 0;
}

static int plan_offline(void) {
  const float weight[6] = {3, 1, 2, 9, 1, 1};
  int64_t slots[4], count[3];
  eplb_rebalance_options options;
  eplb_plan* plan;
  memset(&options, 0, sizeof(options));
  options.struct_size = sizeof(options);
  options.num_layers = 1;
  options.num_experts = 3;
  options.num_replicas = 4;
  options.num_groups = options.num_nodes = 1;
  options.num_gpus = 2;
  if (eplb_rebalance_experts(&options, weight, &plan) != EPLB_OK) return failed("rebalance");
  if (eplb_plan_copy_maps(plan, slots, NULL, count) != EPLB_OK) return failed("copy");
  eplb_plan_destroy(plan);
  return count[0] == 2 && count[1] == 1 && count[2] == 1 ? 0 : failed("counts");
}

/* Another process is rank 0, too. */
static int come_as_twin(const char* endpoint) {
  eplb_client_options options;
  int32_t code;
  if (eplb_client_options_init(&options, sizeof(options)) != EPLB_OK) return failed("init");
  options.job = "twins";
  options.run_id = "both";
  options.endpoint = endpoint;
  options.world_size = options.num_gpus = 2;
  options.num_layers = LAYERS;
  options.num_experts = options.num_slots = EXPERTS;
  options.start_deadline_s = 5;
  if (eplb_client_create(&client) != EPLB_OK) return failed("create");
  code = eplb_client_connect_through_daemon(client, &options);
  printf("%s: %s\n", eplb_code_name(code), eplb_client_message(client));
  eplb_client_destroy(client);
  return code == EPLB_OK;
}

static int use_in_child(void) {
  int status = -1;
  pid_t child = fork();
  if (child == 0) {
    const int64_t counts[EXPERTS] = {0};
    int32_t wrong = eplb_client_record(client, 0, counts, EXPERTS);
    wrong |= eplb_client_step_boundary(client, 12345, NULL, NULL);
    wrong |= eplb_client_close(client, "child");
    eplb_client_destroy(client);
    exit(wrong == EPLB_OK ? 0 : 1); /* with the atexit handlers of all libraries */
  }
  if (waitpid(child, &status, 0) != child || status != 0) return failed("the child");
  return 0;
}

int main(int argc, char** argv) {
  const char* how = argc > 1 ? argv[1] : "plain";
  const char* endpoint = argc > 2 && argv[2][0] != '\0' ? argv[2] : NULL;
  if (strcmp(how, "twin") == 0) return come_as_twin(endpoint);
  if (strcmp(how, "atexit") == 0 && atexit(destroy_late) != 0) return failed("atexit");
  if (eplb_abi_version() < EPLB_ABI_VERSION) return failed("the library is too old");
  if (plan_offline() != 0 || start(endpoint) != 0) return 1;
  if (endpoint != NULL && wait_connected() != 0) return 1;
  if (train(0, STEPS) != 0) return 1;
  if (strcmp(how, "fork") == 0 && (use_in_child() != 0 || train(STEPS, 2 * STEPS) != 0)) return 1;
  if (strcmp(how, "leave") == 0 || strcmp(how, "atexit") == 0) return 0;
  return stop();
}
